"""Which units a request gets once its node is chosen, and the booking of them."""

import numpy as np

from scheduler.engine.capacity import Capacity
from scheduler.engine.plan import Placement
from scheduler.engine.score import Ranking
from scheduler.engine.shape import Shape
from scheduler.engine.snapshot import WHOLE_GPU, GpuUnits


def place(ranking: Ranking, request_id: str, shape: Shape) -> Placement | None:
    """Give a request the best place that fits now and book it; None where nothing fits."""
    if shape.flaw or (row := ranking.best_row(shape)) is None:
        return None
    capacity = ranking.capacity
    gpus = _choose_gpus(ranking, shape, row)
    capacity.book(row, shape, gpus)
    return Placement(request_id, capacity.nodes[row].id, gpus)


def _choose_gpus(ranking: Ranking, shape: Shape, row: int) -> tuple[GpuUnits, ...]:
    capacity = ranking.capacity
    owned = capacity.gpus[row]
    if shape.is_share:
        slot = ranking.best_slot(shape, row)
        low = _tightest_range(capacity, row, slot, shape.units)
        return (GpuUnits(owned[slot].id, low, low + shape.units),)
    whole = capacity.slots(shape)[row] & (capacity.longest[row] == WHOLE_GPU)
    first = np.flatnonzero(whole)[: shape.gpu_count]
    return tuple(GpuUnits(owned[slot].id, 0, WHOLE_GPU) for slot in first)


def _tightest_range(capacity: Capacity, row: int, slot: int, units: int) -> int:
    """Return the start of the smallest free range that holds `units`; the lowest of equals."""
    rooms = [(high - low, low) for low, high in capacity.ranges[row][slot] if high - low >= units]
    return min(rooms)[1]
