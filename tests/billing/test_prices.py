"""The price that was shown is the price that is billed."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction

from portal.billing import prices
from portal.billing.models import Price
from portal.tenants.models import AuditEvent, User
from portal.tenants.scope import every_tenant
from tests import factories as make
from tests.billing.house import House

# In the future of this machine, so that these prices have not begun.
NOW = datetime(2046, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def operator(db: None) -> User:
    return make.user(is_operator=True)


def put(operator: User, per_hour: str, from_at: datetime, now: datetime = NOW) -> Price:
    return prices.set_price(
        user=operator,
        sku="h100",
        currency="USD",
        per_hour=Decimal(per_hour),
        from_at=from_at,
        now=now,
    )


def shown(*at: datetime) -> list[str]:
    return [
        f"{prices.current(sku='h100', currency='USD', at=instant).per_hour:.2f}" for instant in at
    ]


def test_a_new_price_takes_over_at_its_instant(operator: User) -> None:
    put(operator, "2.49", NOW - 365 * DAY)

    put(operator, "2.99", NOW + DAY)

    turn = NOW + DAY
    assert shown(NOW, turn - timedelta(milliseconds=1), turn) == ["2.49", "2.49", "2.99"]


def test_a_price_between_two_holds_until_the_planned_one(operator: User) -> None:
    put(operator, "1", NOW - DAY)
    put(operator, "3", NOW + 10 * DAY)

    put(operator, "2", NOW + 5 * DAY)

    assert shown(NOW, NOW + 5 * DAY, NOW + 10 * DAY) == ["1.00", "2.00", "3.00"]


def test_a_planned_price_can_be_replaced(operator: User) -> None:
    put(operator, "1", NOW - DAY)
    put(operator, "3", NOW + DAY)

    put(operator, "2", NOW + DAY)

    assert shown(NOW, NOW + DAY) == ["1.00", "2.00"]
    assert Price.objects.count() == 2


def test_a_price_never_changes_in_the_past(operator: User) -> None:
    put(operator, "1", NOW - DAY)

    with pytest.raises(prices.UnableToSetPrice, match="from now on"):
        put(operator, "2", NOW - timedelta(seconds=1))
    assert shown(NOW) == ["1.00"]


def test_prices_may_be_large_and_fine(operator: User) -> None:
    price = put(operator, "123456.000000000001", NOW)

    price.refresh_from_db()
    assert price.per_hour == Decimal("123456.000000000001")


@pytest.mark.parametrize("per_hour", ["-0.01", "0.0000000000001", "NaN", "Infinity", "1e12"])
def test_a_senseless_price_is_refused(operator: User, per_hour: str) -> None:
    with pytest.raises(prices.UnableToSetPrice, match="12 decimals"):
        put(operator, per_hour, NOW)


def test_only_operators_set_prices(db: None) -> None:
    with pytest.raises(prices.UnableToOperate) as refusal:
        put(make.user(), "1", NOW)
    assert refusal.value.status == 403


def test_who_set_a_price_is_written_down(operator: User) -> None:
    put(operator, "1.5", NOW)

    with every_tenant("tests"):
        event = AuditEvent.objects.get(verb="price.set")
    assert (event.user, event.details["per_hour"]) == (operator, "1.5")


def test_the_list_has_the_prices_of_an_instant(operator: User) -> None:
    put(operator, "1", NOW - DAY)
    put(operator, "2", NOW + DAY)

    assert [str(price.per_hour.normalize()) for price in prices.list_prices(at=NOW)] == ["1"]
    assert prices.history(sku="h100").count() == 2


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE billing_price SET per_hour = 0",
        "UPDATE billing_price SET sku = 'other'",
        "UPDATE billing_price SET during = tstzrange(lower(during) + interval '1 day', NULL)",
        "DELETE FROM billing_price",
    ],
)
def test_a_begun_price_can_only_be_ended_even_by_raw_sql(db: None, change: str) -> None:
    make.price("h100", "2.49")

    with pytest.raises(IntegrityError, match="begun"), transaction.atomic():
        connection.cursor().execute(change)


def test_a_price_that_has_ended_stays_ended(db: None) -> None:
    make.price("h100", "2.49", to_at=datetime(2021, 1, 1, tzinfo=UTC))

    with pytest.raises(IntegrityError, match="only be ended"), transaction.atomic():
        connection.cursor().execute(
            "UPDATE billing_price SET during = tstzrange(lower(during), NULL)"
        )


def test_a_price_cannot_end_before_time_that_was_metered_at_it(house: House) -> None:
    start = datetime(2026, 3, 2, tzinfo=UTC)
    house.ran(start, start + DAY)

    with pytest.raises(IntegrityError, match="metered at it"), transaction.atomic():
        connection.cursor().execute(
            "UPDATE billing_price SET during = tstzrange(lower(during), %s) WHERE sku = %s",
            [start + DAY / 2, house.sku],
        )


def test_two_prices_never_hold_at_once(db: None) -> None:
    make.price("h100", "2.49")

    with pytest.raises(IntegrityError, match="price_one_at_a_time"), transaction.atomic():
        make.price("h100", "2.99")
