"""May a request run on a node? The first constraint that fails decides, and says what is missing.

`rows` answers for many nodes at once, `on_node` for one with the reason; they always agree.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.engine.capacity import Bools, Capacity, Ints
from scheduler.engine.shape import Shape


@dataclass(frozen=True, slots=True)
class Misfit:
    """The first constraint a node fails, what was needed and what it has."""

    constraint: str
    needed: int = 0
    available: int = 0

    @property
    def missing(self) -> int:
        """The amount by which it fails."""
        return max(0, self.needed - self.available)


def rows(capacity: Capacity, shape: Shape, at: Ints | slice) -> Bools:
    """Mark which of the node rows `at` could run the shape now."""
    fits = capacity.takes_work[at] & capacity.in_pool(shape.pool)[at]
    fits &= capacity.cpu[at] >= shape.cpu_milli
    fits &= capacity.memory[at] >= shape.memory_bytes
    fits &= capacity.disk[at] >= shape.disk_bytes
    if shape.gpu_count:
        able = (capacity.longest[at] >= shape.units) & capacity.slots(shape)[at]
        fits &= np.count_nonzero(able, axis=1) >= shape.gpu_count
    return fits


def on_node(capacity: Capacity, shape: Shape, row: int) -> Misfit | None:
    """Say why the shape can't run on one node now; None where it can."""
    if shape.flaw:
        return Misfit(shape.flaw)
    if not capacity.takes_work[row]:
        return Misfit("node_unavailable")
    if not capacity.in_pool(shape.pool)[row]:
        return Misfit("pool")
    if shape.gpu_count:
        slots = capacity.slots(shape)[row]
        if not slots.any():
            return Misfit("gpu_model", shape.gpu_count)
        if (owned := int(np.count_nonzero(slots))) < shape.gpu_count:
            return Misfit("gpus_of_node", shape.gpu_count, owned)
        longest = capacity.longest[row][slots]
        able = int(np.count_nonzero(longest >= shape.units))
        if able < shape.gpu_count:
            if shape.is_share:
                return Misfit("units", shape.units, int(longest.max()))
            return Misfit("gpus", shape.gpu_count, able)
    for constraint, needed, left in (
        ("cpu", shape.cpu_milli, capacity.cpu),
        ("memory", shape.memory_bytes, capacity.memory),
        ("disk", shape.disk_bytes, capacity.disk),
    ):
        if left[row] < needed:
            return Misfit(constraint, needed, int(left[row]))
    return None


def ever(capacity: Capacity, shape: Shape) -> Bools:
    """Mark the node rows that could run the shape if they were empty, well and taking work."""
    fits: Bools = capacity.in_pool(shape.pool) & (capacity.total_cpu >= shape.cpu_milli)
    fits = fits & (capacity.total_memory >= shape.memory_bytes)
    fits &= capacity.total_disk >= shape.disk_bytes
    if shape.gpu_count:
        fits &= np.count_nonzero(capacity.slots(shape), axis=1) >= shape.gpu_count
    return fits


def when_empty(capacity: Capacity, shape: Shape) -> Bools:
    """Mark the node rows that could run the shape once what runs there has ended."""
    fits = ever(capacity, shape) & capacity.takes_work
    if shape.gpu_count:
        well = capacity.slots(shape) & capacity.healthy
        fits &= np.count_nonzero(well, axis=1) >= shape.gpu_count
    return fits
