"""Whole milliseconds, and the months and days of a billing zone. Pure: no Django, no clock.

Every interval is half-open, [start, end). Instants are integers: milliseconds since 1970 in UTC.
A month or a day begins when its first local midnight does, by the zone's own rules, so a day has
23, 24 or 25 hours.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
SECOND_MS = 1_000
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """A month or a day of a billing zone: its first local date, and [start, end) in ms."""

    first: date
    start: int
    end: int


def to_ms(at: datetime) -> int:
    """Return whole milliseconds since 1970 of an aware instant; what is finer is cut off."""
    if at.tzinfo is None:
        raise ValueError("an instant needs a time zone")
    return (at - _EPOCH) // _MILLISECOND


def from_ms(instant: int) -> datetime:
    """Return the aware UTC datetime of whole milliseconds since 1970."""
    return _EPOCH + instant * _MILLISECOND


def floor(at: datetime) -> datetime:
    """Cut an aware instant to whole milliseconds, in UTC."""
    return from_ms(to_ms(at))


def iso(instant: int) -> str:
    """Write milliseconds since 1970 as ISO 8601 in UTC, always with three decimals."""
    return f"{from_ms(instant):%Y-%m-%dT%H:%M:%S}.{instant % 1000:03d}Z"


def months(*, start: int, end: int, zone: ZoneInfo) -> list[Period]:
    """List the zone's months that [start, end) touches, oldest first. Empty when end <= start."""
    found = []
    first = from_ms(start).astimezone(zone).date().replace(day=1)
    while start < end and (begins := _midnight(first, zone)) < end:
        following = _next_month(first)
        found.append(Period(first, begins, _midnight(following, zone)))
        first = following
    return found


def days(*, start: int, end: int, zone: ZoneInfo) -> list[Period]:
    """List the zone's days that [start, end) touches, oldest first. Empty when end <= start."""
    found = []
    first = from_ms(start).astimezone(zone).date()
    while start < end and (begins := _midnight(first, zone)) < end:
        following = first + timedelta(days=1)
        # A zone that jumped over the date line skipped a whole local day.
        if begins < (ends := _midnight(following, zone)):
            found.append(Period(first, begins, ends))
        first = following
    return found


def month_of(*, at: datetime, zone: ZoneInfo) -> Period:
    """Return the zone's month that contains the instant `at`."""
    instant = to_ms(at)
    return months(start=instant, end=instant + 1, zone=zone)[0]


def midnight(*, day: date, zone: ZoneInfo) -> datetime:
    """Return the instant, in UTC, at which a local day begins."""
    return from_ms(_midnight(day, zone))


@lru_cache(maxsize=4096)
def _midnight(day: date, zone: ZoneInfo) -> int:
    # Where midnight comes twice, the first one counts; where it is skipped, the jump is midnight.
    return to_ms(datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC))


def _next_month(first: date) -> date:
    return (first + timedelta(days=32)).replace(day=1)
