"""The price list with its rules, and the log of who did what."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.urls import reverse

from portal.billing import prices
from portal.instances import lifecycle
from portal.instances.models import State
from portal.tenants import audit
from tests.web.place import Place


def test_a_price_is_shown_per_hour_day_and_month_with_the_one_that_follows(place: Place) -> None:
    now = datetime.now(UTC)
    prices.set_price(
        user=place.operator,
        sku=place.flavor.code,
        currency="USD",
        per_hour=Decimal("1.234567"),
        from_at=now + timedelta(days=3),
        now=now,
    )

    html = place.client("viewer").get(reverse("prices", args=[place.slug])).content.decode()

    for amount in ("$2.49", "$59.76", "$1,792.80", "$1.234567"):
        assert amount in html
    assert "since" in html
    assert "until" in html


def test_a_size_without_a_price_in_this_currency_says_so(place: Place) -> None:
    place.organization.currency = "EUR"
    place.organization.save()

    html = place.client("member").get(reverse("prices", args=[place.slug])).content.decode()

    assert "no price in EUR" in html


def test_the_page_says_of_every_state_whether_it_is_billed(place: Place) -> None:
    html = place.client("member").get(reverse("prices", args=[place.slug])).content.decode()

    for state in State:
        row = html.split(str(state.label) + "</span>")[1].split("</tr>")[0]
        billed = lifecycle.STATES[state].billed
        assert (">yes<" in row) == billed
        assert str(lifecycle.STATES[state].words) in row


@pytest.fixture
def log(place: Place) -> Place:
    """Fill the log with a hundred and twenty acts of two people on different days."""
    for number in range(120):
        audit.record(
            actor=None,
            user=(place.owner if number % 2 else place.admin).user,
            organization=place.organization,
            verb="quota.set" if number % 3 else "team.create",
            target_kind="team",
            target_id=str(number),
            target_name=f"target-{number}",
            details={"to": 2500},
            now=datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(days=number % 4, seconds=number),
        )
    return place


def targets(place: Place, **query: str) -> list[int]:
    html = place.client("admin").get(reverse("audit", args=[place.slug]), query).content.decode()
    return [int(number) for number in re.findall(r">target-(\d+)<", html)]


def test_the_log_is_paged_newest_first_and_loses_nothing(log: Place) -> None:
    pages = [targets(log, page=str(page), verb="quota.set") for page in (1, 2)]

    assert [len(page) for page in pages] == [50, 30]
    assert len(set(pages[0] + pages[1])) == 80


def test_the_log_is_narrowed_to_days_a_person_and_an_act(log: Place) -> None:
    found = targets(
        log,
        first="2026-03-02",
        last="2026-03-02",
        person=str(log.owner.user_id),
        verb="team.create",
    )

    assert found
    assert all(n % 4 == 1 and n % 2 == 1 and n % 3 == 0 for n in found)


def test_a_limit_in_the_log_is_in_gpus(log: Place) -> None:
    html = log.client("owner").get(reverse("audit", args=[log.slug])).content.decode()

    assert "2.5 GPUs" in html


def test_nonsense_in_the_filter_is_answered_beside_it(log: Place) -> None:
    url = reverse("audit", args=[log.slug])

    for query in ({"first": "yesterday"}, {"person": "nobody"}, {"last": "9999-12-31"}):
        assert log.client("owner").get(url, query).status_code == 400


def test_the_log_of_others_is_closed(log: Place) -> None:
    url = reverse("audit", args=[log.slug])

    assert log.client("stranger").get(url).status_code == 404
    assert log.client("member").get(url).status_code == 403
