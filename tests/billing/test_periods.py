"""Months and days begin at the zone's own midnights."""

import itertools
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.billing import periods

HOUR = periods.HOUR_MS
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Havana",
    "Asia/Beirut",
    "Pacific/Apia",
    "America/Sao_Paulo",
]


@pytest.mark.parametrize(
    ("zone", "first", "hours"),
    [
        ("Europe/Berlin", date(2026, 3, 1), 743),
        ("America/New_York", date(2026, 11, 1), 721),
        ("Asia/Kolkata", date(2026, 1, 1), 744),
        ("UTC", date(2026, 2, 1), 672),
        ("UTC", date(2028, 2, 1), 696),
    ],
)
def test_a_month_is_as_long_as_its_zone_says(zone: str, first: date, hours: int) -> None:
    inside = datetime(first.year, first.month, 15, tzinfo=UTC)

    month = periods.month_of(at=inside, zone=ZoneInfo(zone))

    assert month.first == first
    assert month.end - month.start == hours * HOUR


def test_january_in_kolkata_begins_in_december() -> None:
    month = periods.month_of(at=datetime(2026, 1, 10, tzinfo=UTC), zone=ZoneInfo("Asia/Kolkata"))

    assert periods.iso(month.start) == "2025-12-31T18:30:00.000Z"


def test_a_day_has_23_or_25_hours_when_clocks_change() -> None:
    spring = datetime(2026, 3, 29, 12, tzinfo=UTC)
    autumn = datetime(2026, 10, 25, 12, tzinfo=UTC)

    lengths = [
        periods.days(
            start=periods.to_ms(at), end=periods.to_ms(at) + 1, zone=ZoneInfo("Europe/Berlin")
        )
        for at in (spring, autumn)
    ]

    assert [(day[0].end - day[0].start) // HOUR for day in lengths] == [23, 25]


def test_a_day_that_a_zone_skipped_is_not_listed() -> None:
    start = periods.to_ms(datetime(2011, 12, 29, 12, tzinfo=UTC))

    days = periods.days(start=start, end=start + 72 * HOUR, zone=ZoneInfo("Pacific/Apia"))

    assert date(2011, 12, 30) not in [day.first for day in days]


@given(
    zone=st.sampled_from(ZONES),
    start=st.integers(
        periods.to_ms(datetime(2005, 1, 1, tzinfo=UTC)),
        periods.to_ms(datetime(2030, 1, 1, tzinfo=UTC)),
    ),
    length=st.integers(1, 200 * 24 * HOUR),
)
def test_months_and_days_tile_any_stretch_in_any_zone(zone: str, start: int, length: int) -> None:
    for cut in (periods.months, periods.days):
        found = cut(start=start, end=start + length, zone=ZoneInfo(zone))

        assert found[0].start <= start < found[0].end
        assert found[-1].start < start + length <= found[-1].end
        assert all(a.end == b.start for a, b in itertools.pairwise(found))


def test_an_instant_is_cut_to_whole_milliseconds_before_and_after_1970() -> None:
    for at in (
        datetime(2026, 1, 1, 0, 0, 0, 1999, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ):
        assert periods.floor(at) <= at
        assert periods.floor(at).microsecond % 1000 == 0


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        periods.to_ms(datetime(2026, 1, 1))  # noqa: DTZ001
