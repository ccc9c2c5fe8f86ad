"""History for charts: what samples say about GPUs, in the units that pages show."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from portal.fleet.models import Gpu, Node
from portal.instances.models import Instance
from portal.telemetry import samples
from scheduler.models import Lease

WINDOW = timedelta(minutes=15)
_POINTS = 450
_GIB = 2**30
# Our metric -> the sample's column and what divides it.
_METRICS = {
    "util": ("util", 1.0),
    "mem": ("mem_used", float(_GIB)),
    "power": ("power", 1.0),
    "temp": ("temp", 1.0),
}


def gpus_of(instance: Instance) -> QuerySet[Gpu]:
    """Return the whole GPUs that the present run holds or held, by index.

    A share of a GPU has none: the card's figures are other people's too.
    """
    if instance.flavor.units_per_gpu < 1000 or instance.request_id is None:
        return Gpu.objects.none()
    held = Lease.objects.filter(request_id=instance.request_id).values("gpu_id")
    return Gpu.objects.filter(pk__in=held).order_by("index")


def of_instance(instance: Instance, *, now: datetime) -> dict[str, Any]:
    """Return the last minutes of an instance's GPUs, from when it was given them to when it gave
    them back: what others did on them before and after is not its business.
    """  # noqa: D205
    gpus = list(gpus_of(instance))
    request = instance.request
    start, end = now - WINDOW, now
    if request is not None:
        start = max(start, request.placed_at or now)
        end = min(end, request.ended_at or now)
        if request.ended_at is not None:
            start = max(request.placed_at or end, end - WINDOW)
    return _history(gpus, start, max(start, end))


def of_node(node: Node, *, now: datetime) -> dict[str, Any]:
    """Return the last minutes of all GPUs of a node."""
    return _history(list(node.gpus.all()), now - WINDOW, now)


def _history(gpus: Sequence[Gpu], start: datetime, end: datetime) -> dict[str, Any]:
    """Shape: {"seconds", "at": [ms], "gpus": {GPU UUID: {metric: [number or null]}}}."""
    found: dict[str, Any] = {"at": [], "gpus": {}}
    if gpus and start < end:
        found = samples.series(
            gpu_ids=[gpu.id for gpu in gpus], start=start, end=end, points=_POINTS
        )
    return {
        "seconds": int(WINDOW.total_seconds()),
        "at": found["at"],
        "gpus": {gpu.uuid: _columns(found["gpus"].get(gpu.id)) for gpu in gpus},
    }


def _columns(series: dict[str, Any] | None) -> dict[str, list[float | None]]:
    columns: dict[str, list[float | None]] = {}
    for metric, (column, divisor) in _METRICS.items():
        means = (series or {}).get(column, {}).get("mean", [])
        columns[metric] = [None if value is None else value / divisor for value in means]
    return columns
