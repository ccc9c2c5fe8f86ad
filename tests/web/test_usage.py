"""Usage: the total, the table and the files say the same, and only what one may see."""

import csv
import io
import re
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest
from django.urls import reverse

from portal.billing import meters
from portal.tenants.models import Member
from tests import factories as make
from tests.web.place import Place

MARCH = {"period": "custom", "first": "2026-03-01", "last": "2026-03-31"}
START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def ran(
    place: Place, *, seconds: int, at: datetime = START, member: Member | None = None, **more: Any
) -> uuid.UUID:
    """Meter one run of the place's flavor at $2.49 an hour."""
    subject = uuid.uuid4()
    meters.open(
        organization_id=place.organization.id,
        team_id=more.pop("team", place.team).id,
        member_id=(member or place.member).id,
        subject=subject,
        subject_name=more.pop("name", "trainer"),
        run=1,
        sku=place.flavor.code,
        currency="USD",
        at=at,
        cause="It is ready to use.",
    )
    end = at + timedelta(seconds=seconds)
    meters.close(subject=subject, run=1, at=end, cause="Stopped as asked.", **more)
    return subject


def page(place: Place, who: str, **query: Any) -> str:
    response = place.client(who).get(reverse("usage", args=[place.slug]), query)
    assert response.status_code == 200
    return response.content.decode()


def total(html: str) -> Decimal:
    found = re.search(r'<data value="([\d.]+)" id="usage-total"', html)
    assert found
    return Decimal(found[1])


def shown_costs(html: str) -> list[Decimal]:
    """Return the last column of every row but the header's, as a reader adds it up."""
    table = html.split('id="usage-table"')[1].split("<tfoot>")[0]
    texts = re.findall(r'<td class="num">(?:<data[^>]*>)?(-?\$[\d,.]+)', table)
    return [Decimal(text.replace("$", "").replace(",", "")) for text in texts]


@pytest.mark.parametrize("by", ["day", "team", "member", "flavor", "instance"])
def test_the_rows_that_are_shown_add_up_to_the_big_number(place: Place, by: str) -> None:
    other = make.team(place.organization, "Audio")
    for day in range(7):
        ran(place, seconds=1001 + day, at=START + timedelta(days=day))
        ran(place, seconds=777, at=START + timedelta(days=day), member=place.owner, team=other)

    html = page(place, "finance", by=by, **MARCH)

    assert total(html) == Decimal("8.62")  # 12,467 s, rounded once
    assert sum(shown_costs(html)) == total(html)


def test_the_total_names_currency_and_zone(place: Place) -> None:
    ran(place, seconds=3600)

    html = page(place, "owner", **MARCH)

    assert total(html) == Decimal("2.49")
    assert "US Dollar, UTC time; 1 h 00 min 00 s billed" in html


def test_a_member_sees_his_own_and_the_admin_of_a_team_what_is_his_teams(place: Place) -> None:
    other = make.team(place.organization, "Audio")
    leader = make.member(place.organization, admin_of=(other,))
    ran(place, seconds=3600)
    ran(place, seconds=7200, member=place.owner, team=other, name="of-others")
    place.leader = leader  # type: ignore[attr-defined]

    own, led, everything = (page(place, who, **MARCH) for who in ("member", "leader", "finance"))

    assert [total(own), total(led), total(everything)] == [
        Decimal("2.49"),
        Decimal("4.98"),
        Decimal("7.47"),
    ]


def test_a_filter_never_widens_what_one_sees(place: Place) -> None:
    ran(place, seconds=3600, member=place.owner)

    html = page(place, "member", member=str(place.owner.id), **MARCH)

    assert total(html) == 0
    assert "Nothing was used" in html


def test_time_that_nobody_proved_is_shown_and_costs_nothing(place: Place) -> None:
    ran(place, seconds=3600, dropped_until=START + timedelta(seconds=3660))

    html = page(place, "finance", **MARCH)

    assert total(html) == Decimal("2.49")
    assert "Nobody could prove that the instance ran" in html
    assert "1 min 00 s" in html


@pytest.mark.parametrize(
    "query",
    [
        {"period": "custom"},
        {"period": "custom", "first": "2026-03-09", "last": "2026-03-01"},
        {"period": "custom", "first": "0001-01-01", "last": "9999-12-31"},
        {"period": "nonsense"},
        {"team": "nobody"},
        {"by": "colour"},
    ],
)
def test_nonsense_in_the_address_is_answered_beside_the_form(place: Place, query: dict) -> None:
    response = place.client("finance").get(reverse("usage", args=[place.slug]), query)

    assert response.status_code == 400
    assert 'class="wrong"' in response.content.decode()


def test_following_an_instance_shows_its_bill_even_to_those_who_see_no_machine(
    place: Place,
) -> None:
    subject = ran(place, seconds=3600)
    url = reverse("usage-bill", args=[place.slug, subject])

    assert url in page(place, "finance", by="instance", **MARCH)
    html = place.client("finance").get(url).content.decode()

    assert "Stopped as asked." in html
    assert "$2.49" in html
    assert "2026-03-02 09:00:00" in html


def test_a_bill_of_another_is_as_missing_as_none(place: Place) -> None:
    subject = ran(place, seconds=3600, member=place.owner, team=make.team(place.organization))
    elsewhere = reverse("usage-bill", args=[place.stranger.organization.slug, subject])

    assert (
        place.client("member").get(reverse("usage-bill", args=[place.slug, subject])).status_code
        == 404
    )
    assert place.client("stranger").get(elsewhere).status_code == 404
    assert (
        place.client("finance")
        .get(reverse("usage-bill", args=[place.slug, uuid.uuid4()]))
        .status_code
        == 404
    )


@pytest.fixture
def fetch(transactional_db: None, monkeypatch: pytest.MonkeyPatch, web: Any) -> Any:
    """Return a place, and a function that asks a real server as somebody of it."""
    from tests.web.place import build

    place = build(monkeypatch)

    def ask(who: str, path: str, **query: Any) -> httpx.Response:
        cookie = place.client(who).cookies["sessionid"].value
        return httpx.get(web.url + path, params=query, cookies={"sessionid": cookie}, timeout=30)

    return place, ask


def test_both_files_hold_all_that_is_shown_and_the_same_total(fetch: Any) -> None:
    place, ask = fetch
    for day in range(25):
        ran(place, seconds=1001, at=START + timedelta(days=day), name=f"=1+{day}")
    path = reverse("usage-csv", args=[place.slug])

    intervals = ask("finance", path, **MARCH)
    table = ask("finance", path, by=["day", "team"], **MARCH)

    html = ask("finance", reverse("usage", args=[place.slug]), by=["day", "team"], **MARCH).text
    assert "the file of intervals 25 rows" in html
    for answer, rows in ((intervals, 25), (table, 25)):
        found = list(csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig"))))
        assert len([row for row in found if row["kind"] != "ROUNDING"]) == rows
        assert sum(Decimal(row["cost_USD"]) for row in found) == total(html)
    named = f'filename="corral-usage-{place.slug}-2026-03-01-to-2026-03-31.csv"'
    assert named in intervals.headers["content-disposition"]
    assert "'=1+3" in intervals.text  # no spreadsheet runs it as a formula


def test_a_file_holds_no_more_than_its_reader_may_see(fetch: Any) -> None:
    place, ask = fetch
    ran(place, seconds=60, name="mine")
    ran(place, seconds=60, member=place.owner, name="of-the-owner")

    answer = ask("member", reverse("usage-csv", args=[place.slug]), **MARCH)

    assert "mine" in answer.text
    assert "of-the-owner" not in answer.text
    assert ask("stranger", reverse("usage-csv", args=[place.slug])).status_code == 404


def test_the_live_part_of_the_page_is_the_page_s_own(place: Place) -> None:
    ran(place, seconds=3600)
    client, url = place.client("finance"), reverse("usage", args=[place.slug])

    part = client.get(
        url, MARCH, headers={"HX-Request": "true", "HX-Target": "usage-report"}
    ).content.decode()

    assert part.strip().startswith('<div class="stack" id="usage-report"')
    assert total(part) == Decimal("2.49")
    assert "<html" not in part


def test_the_teams_that_can_be_chosen_are_those_that_are_seen(place: Place) -> None:
    choice = f'<option value="{place.team.id}"'

    assert choice not in page(place, "member")
    assert choice in page(place, "finance")
