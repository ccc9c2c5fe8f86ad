"""Daily partitions of the samples: made ahead, and dropped whole when their day is over."""

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from django.db import connection, transaction

TABLE: Final = "telemetry_sample"
DEFAULT: Final = f"{TABLE}_default"
KEPT: Final = timedelta(days=2)
AHEAD_DAYS: Final = 2
# Any number that no other advisory lock of ours has: two workers never make a partition at once.
_LOCK: Final = 7_166_102_030


@transaction.atomic
def keep(*, now: datetime) -> None:
    """Make the partitions of the days to come, and drop those that ended two days ago."""
    today = now.astimezone(UTC).date()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        make(cursor, (today + timedelta(days=ahead) for ahead in range(-1, AHEAD_DAYS + 1)))
        oldest = (now - KEPT).astimezone(UTC).date()
        for name, day in _existing(cursor).items():
            if day < oldest:
                cursor.execute(f"DROP TABLE {name}")
        # What fell outside every day (a node whose clock was far off) goes the same way.
        cursor.execute("DELETE FROM telemetry_sample_default WHERE at < %s", [now - KEPT])


def make(cursor: Any, days: Iterable[date]) -> None:
    """Make the partition of each day that has none, taking over what waited in the default one.

    `cursor` is any database cursor, so that the first migration can call this too.
    """
    existing = set(_existing(cursor).values())
    for day in sorted(set(days) - existing):
        name = f"{TABLE}_{day:%Y%m%d}"
        start = datetime.combine(day, time(), UTC)
        bounds = [start.isoformat(), (start + timedelta(days=1)).isoformat()]
        # Nothing may arrive in the default partition between the copy and the attachment.
        cursor.execute("LOCK TABLE telemetry_sample_default IN EXCLUSIVE MODE")
        cursor.execute(f"CREATE TABLE {name} (LIKE {TABLE} INCLUDING ALL)")
        cursor.execute(
            f"INSERT INTO {name} SELECT * FROM telemetry_sample_default"  # noqa: S608  (a date)
            " WHERE at >= %s AND at < %s",
            bounds,
        )
        cursor.execute(
            "DELETE FROM telemetry_sample_default WHERE at >= %s AND at < %s",
            bounds,
        )
        cursor.execute(
            f"ALTER TABLE {TABLE} ATTACH PARTITION {name}"
            f" FOR VALUES FROM ('{bounds[0]}') TO ('{bounds[1]}')"
        )


def _existing(cursor: Any) -> dict[str, date]:
    cursor.execute(
        "SELECT child.relname FROM pg_inherits"
        " JOIN pg_class AS child ON child.oid = inhrelid WHERE inhparent = %s::regclass",
        [TABLE],
    )
    names = [name for (name,) in cursor.fetchall() if name != DEFAULT]
    return {
        name: datetime.strptime(name.rpartition("_")[2], "%Y%m%d").replace(tzinfo=UTC).date()
        for name in names
    }
