"""What is kept for a blocked request, so that those behind it can't delay it.

The oldest blocked request of each kind of GPU keeps one node's GPUs: the node, and on it the
GPUs, for which the fewest units must still come free. Nobody behind gets those, nor the CPU,
memory and disk it needs there. Nothing is added to what it waits for, so each end of a run brings
it nearer, and no stream of small requests can starve it. Everything else stays open to others.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.engine import fit
from scheduler.engine.capacity import Bools, Capacity, Ints
from scheduler.engine.shape import Shape
from scheduler.engine.snapshot import WHOLE_GPU


@dataclass(frozen=True, slots=True)
class Hold:
    """GPU `slots` of a node row, and what else the shape needs there, kept for one request."""

    request_id: str
    shape: Shape
    row: int
    slots: tuple[int, ...]


class Holding:
    """The places kept in one cycle. Takes them from `capacity`, where placements look."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.holds: list[Hold] = []

    def keep_for(self, request_id: str, shape: Shape) -> bool:
        """Keep the nearest place for a blocked shape; False where an older one competes with it.

        False too where no machine that takes work could ever hold it: then nothing is kept.
        """
        if any(self._compete(shape, hold.shape) for hold in self.holds):
            return False
        capacity = self.capacity
        rows = np.flatnonzero(fit.when_empty(capacity, shape))
        if not len(rows):
            return False
        missing = self._missing_units(shape)
        gpus = np.sort(missing[rows], axis=1)[:, : shape.gpu_count].sum(axis=1)
        lacking = [
            np.maximum(0, needed - left[rows])
            for needed, left in (
                (shape.disk_bytes, capacity.disk),
                (shape.memory_bytes, capacity.memory),
                (shape.cpu_milli, capacity.cpu),
            )
        ]
        row = int(rows[np.lexsort([*lacking, gpus])[0]])
        nearest = np.argsort(missing[row], kind="stable")[: shape.gpu_count]
        hold = Hold(request_id, shape, row, tuple(int(slot) for slot in nearest))
        capacity.withhold(row, shape, hold.slots)
        self.holds.append(hold)
        return True

    def open_to(self, request_id: str, unreserved: Capacity) -> Capacity:
        """Return what a request may take: nothing kept for others, but what is kept for itself.

        `unreserved` is the machines with all placements and no holds.
        """
        if all(hold.request_id != request_id for hold in self.holds):
            return self.capacity
        capacity = unreserved.copy()
        for hold in self.holds:
            if hold.request_id != request_id:
                capacity.withhold(hold.row, hold.shape, hold.slots)
        return capacity

    def _missing_units(self, shape: Shape) -> Ints:
        """Return the units that must come free on each GPU; more than any GPU has if unusable."""
        capacity = self.capacity
        idle = capacity.longest if shape.is_share else capacity.free
        usable: Bools = capacity.slots(shape) & capacity.healthy
        return np.where(usable, np.maximum(0, shape.units - idle), WHOLE_GPU * WHOLE_GPU)

    def _compete(self, one: Shape, other: Shape) -> bool:
        """Tell whether two shapes could want the same machine's same kind of thing."""
        capacity = self.capacity
        rows = capacity.in_pool(one.pool) & capacity.in_pool(other.pool)
        if not one.gpu_count or not other.gpu_count:
            return not one.gpu_count and not other.gpu_count and bool(rows.any())
        both = capacity.slots(one) & capacity.slots(other)
        return bool((both & rows[:, None]).any())
