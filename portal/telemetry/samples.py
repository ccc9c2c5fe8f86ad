"""Write what GPUs measured, and answer series for charts. Absent stays null, and is never 0.

Samples may come late, twice and in any order; a GPU has one row per moment, and the first one to
arrive stays.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction

from agents import wire
from portal.telemetry.partitions import KEPT

METRICS: Final = ("util", "mem_used", "power", "temp", "sm_clock")
# A time further ahead than this is the node's mistake: such a sample gets the portal's time.
MOST_AHEAD: Final = timedelta(seconds=60)
_LARGEST: Final = 2**63 - 1
_HOTTEST: Final = 1000
_NULL: Final = "\\N"
# No GPU is called anything else, and anything else would need escaping.
_is_plain: Final = re.compile(r"[A-Za-z0-9:./_-]{1,80}").fullmatch

_ARRIVING = """
CREATE TEMPORARY TABLE IF NOT EXISTS arriving_sample (
    node_id uuid, uuid text, at_ms bigint, util float8, mem_used bigint, power float8,
    temp float8, sm_clock float8, energy float8
) ON COMMIT DELETE ROWS
"""
# Joined with the node, so that no node can write for the GPUs of another.
_TAKE_OVER = """
INSERT INTO telemetry_sample (gpu_id, at, util, mem_used, power, temp, sm_clock, energy)
SELECT gpu.id, TIMESTAMPTZ 'epoch' + arriving.at_ms * INTERVAL '1 millisecond',
       arriving.util, arriving.mem_used, arriving.power, arriving.temp, arriving.sm_clock,
       arriving.energy
FROM arriving_sample AS arriving
JOIN fleet_gpu AS gpu ON gpu.uuid = arriving.uuid AND gpu.node_id = arriving.node_id
ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one node; `offset_ms` is added to their times (0 if the node's clock is right)."""

    node_id: UUID
    samples: Sequence[wire.Sample]
    offset_ms: int = field(default=0)


def record(
    *, node_id: UUID, samples: Sequence[wire.Sample], now: datetime, offset_ms: int = 0
) -> int:
    """Store samples of one node; return how many were new."""
    return record_all(batches=[Batch(node_id, samples, offset_ms)], now=now)


@transaction.atomic
def record_all(*, batches: Sequence[Batch], now: datetime) -> int:
    """Store the samples of many nodes in one go; return how many were new.

    Samples of GPUs that the node does not have, and those older than what is kept, are passed over;
    a value that no GPU can have becomes null.
    """
    with connection.cursor() as cursor:
        cursor.execute(_ARRIVING)
        cursor.execute("DELETE FROM arriving_sample")  # of an earlier call in this transaction
        with cursor.copy("COPY arriving_sample FROM STDIN") as copy:
            for batch in batches:
                copy.write("".join(_lines(batch, now)).encode())
        cursor.execute(_TAKE_OVER)
        return int(cursor.rowcount)


def series(
    *, gpu_ids: Sequence[UUID], start: datetime, end: datetime, points: int
) -> dict[str, Any]:
    """Return at most `points` bins of whole seconds over [start, end), with gaps as null.

    Shape: {"at": [ms of each bin's start], "gpus": {gpu id: {metric: {"mean": [], "min": [],
    "max": [], "count": []}}}} for each of METRICS: percent, bytes, watts, degrees Celsius, MHz.
    `count` says how many samples a bin stands for. Every GPU that was asked for is there.
    """
    first_ms, last_ms = _milliseconds(start), _milliseconds(end)
    width_ms = 1000 * max(1, ceil((last_ms - first_ms) / max(1, points) / 1000))
    bins = max(0, ceil((last_ms - first_ms) / width_ms))
    gpus = {gpu_id: _empty(bins) for gpu_id in gpu_ids}
    with connection.cursor() as cursor:
        cursor.execute(_SERIES, [start, width_ms, list(gpus), start, end])
        for gpu_id, number, *values in cursor.fetchall():
            for position, metric in enumerate(METRICS):
                count, mean, low, high = values[4 * position : 4 * position + 4]
                columns = gpus[gpu_id][metric]
                columns["count"][number] = count
                columns["mean"][number] = None if mean is None else float(mean)
                columns["min"][number], columns["max"][number] = low, high
    return {"at": [first_ms + number * width_ms for number in range(bins)], "gpus": gpus}


_SERIES = f"""
SELECT gpu_id, floor(EXTRACT(EPOCH FROM at - %s) * 1000)::bigint / %s AS bin,
       {", ".join(f"count({m}), avg({m}), min({m}), max({m})" for m in METRICS)}
FROM telemetry_sample
WHERE gpu_id = ANY(%s) AND at >= %s AND at < %s
GROUP BY gpu_id, bin
"""  # noqa: S608  (the names of our own columns)


def _empty(bins: int) -> dict[str, dict[str, list[Any]]]:
    return {
        metric: {"mean": [None] * bins, "min": [None] * bins, "max": [None] * bins,
                 "count": [0] * bins}
        for metric in METRICS
    }  # fmt: skip


def _lines(batch: Batch, now: datetime) -> Iterator[str]:
    """Write the rows of a batch in COPY's text format: by hand, since it is most of the cost."""
    now_ms = _milliseconds(now)
    latest_ms = now_ms + MOST_AHEAD // timedelta(milliseconds=1)
    oldest_ms = now_ms - KEPT // timedelta(milliseconds=1)
    node_id, offset_ms = str(batch.node_id), batch.offset_ms
    for one in batch.samples:
        at_ms = one.at_ms + offset_ms
        if at_ms > latest_ms:
            at_ms = now_ms
        if at_ms < oldest_ms or not _is_plain(one.gpu):
            continue
        temp = one.temp_c if one.temp_c is not None and abs(one.temp_c) < _HOTTEST else _NULL
        yield (
            f"{node_id}\t{one.gpu}\t{at_ms}\t{_within(one.util, 100)}\t{_within(one.mem_used)}\t"
            f"{_thousandth(one.power_mw)}\t{temp}\t{_within(one.sm_mhz)}\t"
            f"{_thousandth(one.energy_mj)}\n"
        )


def _within(value: int | None, most: int = _LARGEST) -> int | str:
    # Garbage from a driver is dropped, not clamped: a clamped figure looks like a measured one.
    return value if value is not None and 0 <= value <= most else _NULL


def _thousandth(value: int | None) -> float | str:
    return value / 1000 if value is not None and 0 <= value <= _LARGEST else _NULL


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
