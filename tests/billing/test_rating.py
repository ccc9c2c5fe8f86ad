"""What runs cost, exactly, and what is said when it can't be told."""

import itertools
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.billing.rate_input import RatingError
from portal.billing.rating import Rated, rate

LIST_PRICE = [
    {"sku": "h100", "amount": "2.49", "per": "hour", "from": "2020-01-01T00:00:00Z", "to": None}
]


def run(start: str, end: str, ident: str = "a", **more: Any) -> dict[str, Any]:
    return {"id": ident, "sku": "h100", "start": start, "end": end} | more


def price(amount: str, start: str, end: str | None = None, **more: Any) -> dict[str, Any]:
    return {"sku": "h100", "amount": amount, "per": "hour", "from": start, "to": end} | more


def priced(
    *usage: dict[str, Any],
    zone: str = "UTC",
    currency: str = "USD",
    prices: list[dict[str, Any]] = LIST_PRICE,
) -> Rated:
    return rate(usage=usage, prices=prices, zone=zone, currency=currency)


def test_a_run_over_midnight_is_split_at_the_month_to_the_millisecond() -> None:
    rated = priced(run("2026-01-31T23:59:30.250Z", "2026-02-01T00:00:30.750Z"))

    january, february = (month.lines[0] for month in rated.months)
    assert (january.milliseconds, february.milliseconds) == (29_750, 30_750)
    assert january.exact == Fraction("2.49") * 29_750 / 3_600_000
    assert february.exact == Fraction("0.02126875")
    assert january.exact + february.exact == Fraction("2.49") * 60_500 / 3_600_000
    assert rated.as_json()["periods"][0] == {
        "period": "2026-01",
        "lines": [
            {
                "sku": "h100",
                "unit_price": "2.49",
                "per": "hour",
                "milliseconds": 29_750,
                "exact": "0.020577083333333333",
                "amount": "0.02",
            }
        ],
        "total": "0.02",
    }


def test_an_hour_of_heartbeats_costs_what_one_record_costs() -> None:
    t0 = datetime(2026, 3, 2, 10, tzinfo=UTC)
    beats = [
        run(
            (t0 + timedelta(seconds=n)).isoformat(),
            (t0 + timedelta(seconds=n + 1)).isoformat(),
            f"beat-{n}",
        )
        for n in range(3600)
    ]

    many = priced(*beats)
    one = priced(run(t0.isoformat(), (t0 + timedelta(hours=1)).isoformat()))

    assert many == one
    assert one.months[0].total == Decimal("2.49")
    assert one.months[0].lines[0].exact == Fraction("2.49")


@pytest.mark.parametrize(
    ("zone", "start", "end", "hours", "total"),
    [
        ("Europe/Berlin", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z", 743, "1850.07"),
        ("America/New_York", "2026-11-01T04:00:00Z", "2026-12-01T05:00:00Z", 721, "1795.29"),
        ("Asia/Kolkata", "2025-12-31T18:30:00Z", "2026-01-31T18:30:00Z", 744, "1852.56"),
    ],
)
def test_a_month_is_the_month_of_the_billing_zone(
    zone: str, start: str, end: str, hours: int, total: str
) -> None:
    rated = priced(run(start, end), zone=zone)

    (month,) = rated.months
    assert month.lines[0].milliseconds == hours * 3_600_000
    assert month.total == Decimal(total)


def test_yen_are_rounded_to_whole_yen() -> None:
    rated = priced(
        run("2026-03-02T10:00:00+09:00", "2026-03-02T10:01:30+09:00"),
        currency="JPY",
        prices=[price("373", "2026-01-01T00:00:00Z")],
    )

    assert rated.as_json()["periods"][0]["lines"][0]["exact"] == "9.325000000000000000"
    assert rated.as_json()["periods"][0]["total"] == "9"


def test_a_price_change_splits_a_run_at_its_instant() -> None:
    rated = priced(
        run("2026-03-02T10:00:00Z", "2026-03-02T12:00:00Z"),
        prices=[
            price("2.49", "2026-01-01T00:00:00Z", "2026-03-02T10:30:00.001Z"),
            price("2.99", "2026-03-02T10:30:00.001Z"),
        ],
    )

    lines = rated.months[0].lines
    assert [(str(line.unit_price), line.milliseconds) for line in lines] == [
        ("2.49", 1_800_001),
        ("2.99", 5_399_999),
    ]


def test_a_price_may_be_per_second_and_above_one_hundred() -> None:
    rated = priced(
        run("2026-03-02T10:00:00Z", "2026-03-02T10:10:00Z"),
        prices=[price("0.00069", "2026-01-01T00:00:00Z", per="second")],
    )
    dear = priced(
        run("2026-03-02T10:00:00Z", "2026-03-02T11:00:00Z"),
        prices=[price("123456.123456789012", "2026-01-01T00:00:00Z")],
    )

    assert rated.months[0].lines[0].exact == Fraction("0.414")
    assert dear.months[0].total == Decimal("123456.12")


def test_a_share_of_a_gpu_costs_its_share() -> None:
    rated = priced(run("2026-03-02T10:00:00Z", "2026-03-02T11:00:00.001Z", quantity="0.25"))

    line = rated.as_json()["periods"][0]["lines"][0]
    assert line["milliseconds"] == "900000.25"
    assert line["amount"] == "0.62"


def test_a_replayed_row_counts_once() -> None:
    row = run("2026-03-02T10:00:00Z", "2026-03-02T11:00:00Z")

    assert priced(*[row] * 5) == priced(row)


def test_usage_of_no_length_is_no_line() -> None:
    assert priced(run("2026-03-02T10:00:00Z", "2026-03-02T10:00:00Z")).months == ()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            run("2026-03-02T11:00:00Z", "2026-03-02T10:00:00Z"),
            "usage row 2 .id 'a'.: it ends before",
        ),
        (run("2026-03-02T11:00:00", "2026-03-02T12:00:00Z"), "row 2 .*start has no time zone"),
        (run("soon", "2026-03-02T12:00:00Z"), "row 2 .*start is not an ISO 8601 time: 'soon'"),
        (run("2026-03-02T11:00:00Z", "9999-12-31T23:00:00Z"), "row 2 .*end lies outside of"),
        (run("0001-01-01T00:00:00+14:00", "2026-03-02T12:00:00Z"), "row 2 .*start lies outside"),
        ({"id": "a", "sku": "h100", "start": "2026-03-02T11:00:00Z"}, "row 2 .*end is missing"),
        ({"sku": "h100"}, "usage row 2: id is missing"),
        (
            run("2026-03-02T10:00:00Z", "2026-03-02T11:00:00Z", sku="b200"),
            "no price for 'b200' from 2026-03-02T10:00:00.000Z",
        ),
        (
            run("2019-12-31T23:00:00Z", "2020-01-01T01:00:00Z"),
            "from 2019-12-31T23:00:00.000Z to 2020-01-01T00:00:00.000Z",
        ),
        (
            run("2026-03-02T10:00:00Z", "2026-03-02T11:00:00Z", quantity="-1"),
            "quantity must be a decimal",
        ),
        (run("2026-03-02T10:00:00Z", "2026-03-02T11:00:00Z", quantity=0), "quantity must be more"),
        (
            run("2026-03-02T10:00:00Z", "2026-03-02T11:00:00Z", quantity=0.5),
            "quantity must be a decimal",
        ),
        (
            run("2026-03-02T10:00:00Z", "2026-03-02T12:00:00Z", "first"),
            "same id stands in usage row 1",
        ),
        ("h100", "usage row 2: it must be an object"),
    ],
)
def test_a_bad_row_is_named(row: Any, words: str) -> None:
    good = run("2026-03-02T10:00:00Z", "2026-03-02T11:00:00Z", "first")

    with pytest.raises(RatingError, match=words):
        priced(good, row)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            price("2,49", "2026-01-01T00:00:00Z"),
            "price row 2 .sku 'h100'.: amount must be a decimal",
        ),
        (price("NaN", "2026-01-01T00:00:00Z"), "amount must be a decimal"),
        (price("1", "2026-01-01T00:00:00Z", per="day"), "per must be 'hour' or 'second'"),
        (price("1", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"), "ends before it begins"),
        (price("1", "2026-01-01T00:00:00Z"), "price row 2 .*overlaps price row 1"),
        (price("1", "2026-01-01"), "from has no time zone"),
    ],
)
def test_a_bad_price_is_named(row: Any, words: str) -> None:
    with pytest.raises(RatingError, match=words):
        rate(usage=[], prices=[*LIST_PRICE, row], zone="UTC", currency="USD")


@pytest.mark.parametrize(
    ("zone", "currency"), [("Mars/Base", "USD"), ("../etc", "USD"), ("UTC", "usd")]
)
def test_an_unknown_zone_or_currency_is_refused(zone: str, currency: str) -> None:
    with pytest.raises(RatingError):
        rate(usage=[], prices=[], zone=zone, currency=currency)


instants = st.integers(0, 500 * 24 * 3600 * 1000).map(
    lambda ms: datetime(2025, 6, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
)


@given(
    cuts=st.lists(instants, min_size=2, max_size=12, unique=True),
    changes=st.lists(instants, max_size=5, unique=True),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"]),
)
def test_cutting_a_run_into_pieces_changes_nothing(
    cuts: list[datetime], changes: list[datetime], zone: str
) -> None:
    cuts.sort()
    begins = ["2020-01-01T00:00:00+00:00", *(at.isoformat() for at in sorted(changes))]
    prices = [
        price(f"{n + 1}.07", start, end)
        for n, (start, end) in enumerate(zip(begins, [*begins[1:], None], strict=True))
    ]
    pieces = [
        run(a.isoformat(), b.isoformat(), f"{n}")
        for n, (a, b) in enumerate(itertools.pairwise(cuts))
    ]

    whole = priced(run(cuts[0].isoformat(), cuts[-1].isoformat()), zone=zone, prices=prices)
    parts = priced(*reversed(pieces), zone=zone, prices=prices)

    assert parts == whole
    length = sum(line.milliseconds for month in whole.months for line in month.lines)
    assert length == (cuts[-1] - cuts[0]) // timedelta(milliseconds=1)
