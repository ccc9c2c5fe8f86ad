"""What is kept for a blocked request, so that those behind it can't delay it.

The oldest blocked request of each kind of GPU keeps one place: the node on which the least must
still come free for it, and there as many GPUs as it asks for, or a window of one GPU for a share.
Nobody behind gets those units, nor the CPU, memory and disk it needs there. Nothing is added to
what it waits for, so each end of a run brings it nearer, and no stream of small requests can
starve it. Everything else stays open to others.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scheduler.engine import fit
from scheduler.engine.capacity import Capacity, Ints, Range
from scheduler.engine.plan import Placement
from scheduler.engine.shape import Shape
from scheduler.engine.snapshot import WHOLE_GPU, Running

_UNUSABLE = WHOLE_GPU**3  # farther than any GPU that runs will ever free


@dataclass(frozen=True, slots=True)
class Hold:
    """Units [lo, hi) of GPU slots of a node row, and the rest its shape needs there."""

    request_id: str
    shape: Shape
    row: int
    units: tuple[tuple[int, int, int], ...]


class Holding:
    """The places kept in one cycle. Takes them from `capacity`, where placements look.

    `unreserved` is the same machines with all placements and no holds.
    """

    def __init__(
        self, capacity: Capacity, unreserved: Capacity, running: Iterable[Running]
    ) -> None:
        self.capacity = capacity
        self.unreserved = unreserved
        self.holds: list[Hold] = []
        self._edges: dict[tuple[str, str], set[int]] = defaultdict(set)
        for run in running:
            self._note(run.node_id, run.gpus)

    def started(self, placement: Placement) -> None:
        """Note what begins in this cycle: it has to end, too, before others get its units."""
        self._note(placement.node_id, placement.gpus)

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
        far, starts = self._distances(shape, rows)
        gpus = np.sort(far, axis=1)[:, : shape.gpu_count].sum(axis=1)
        lacking = [
            np.maximum(0, needed - left[rows])
            for needed, left in (
                (shape.disk_bytes, capacity.disk),
                (shape.memory_bytes, capacity.memory),
                (shape.cpu_milli, capacity.cpu),
            )
        ]
        best = int(np.lexsort([*lacking, gpus])[0])
        slots = np.argsort(far[best], kind="stable")[: shape.gpu_count]
        units = tuple(
            (int(slot), low := int(starts[best, slot]), low + shape.units) for slot in slots
        )
        hold = Hold(request_id, shape, int(rows[best]), units)
        capacity.withhold(hold.row, shape, units)
        self.holds.append(hold)
        return True

    def open_to(self, request_id: str) -> Capacity:
        """Return what a request may take: nothing kept for others, but what is kept for itself."""
        if all(hold.request_id != request_id for hold in self.holds):
            return self.capacity
        capacity = self.unreserved.copy()
        for hold in self.holds:
            if hold.request_id != request_id:
                capacity.withhold(hold.row, hold.shape, hold.units)
        return capacity

    def distance(self, shape: Shape) -> int | None:
        """Return how much must end before the shape fits somewhere; None where it never will.

        For whole GPUs, units; for a share, runs times 1001, plus the idle units it would keep.
        """
        rows = np.flatnonzero(fit.when_empty(self.unreserved, shape))
        if not len(rows):
            return None
        far, _ = self._distances(shape, rows)
        return int(np.sort(far, axis=1)[:, : shape.gpu_count].sum(axis=1).min())

    def _note(self, node_id: str, gpus: Iterable[tuple[str, int, int]]) -> None:
        for gpu_id, low, high in gpus:
            self._edges[node_id, gpu_id] |= {low, high}

    def _distances(self, shape: Shape, rows: Ints) -> tuple[Ints, Ints]:
        """Return, per GPU of the rows, how far it is from having room, and where that would be."""
        capacity = self.unreserved
        usable = (capacity.slots(shape) & capacity.healthy)[rows]
        far: Ints = np.where(usable, np.maximum(0, shape.units - capacity.free[rows]), _UNUSABLE)
        starts: Ints = np.zeros_like(far)
        if shape.is_share:
            for index, slot in np.argwhere(usable):
                far[index, slot], starts[index, slot] = self._nearest_window(
                    int(rows[index]), int(slot), shape.units
                )
        return far, starts

    def _nearest_window(self, row: int, slot: int, units: int) -> tuple[int, int]:
        """Return the distance and start of the window in which the fewest runs must end.

        Among equals the one that keeps the fewest idle units from others.
        """
        node, gpu = self.unreserved.nodes[row], self.unreserved.gpus[row][slot]
        free = self.unreserved.ranges[row][slot]
        edges = self._edges.get((node.id, gpu.id), set())
        if not free and len(edges) <= 2:
            return WHOLE_GPU + 1, 0
        runs = _taken(free, edges)
        starts = {0, *(high for _, high in runs), *(low - units for low, _ in runs)}
        return min(
            (
                sum(low < start + units and start < high for low, high in runs) * (WHOLE_GPU + 1)
                + sum(max(0, min(high, start + units) - max(low, start)) for low, high in free),
                start,
            )
            for start in starts
            if 0 <= start <= WHOLE_GPU - units
        )

    def _compete(self, one: Shape, other: Shape) -> bool:
        """Tell whether two shapes could want the same GPU, or both none on the same node."""
        capacity = self.capacity
        rows = capacity.in_pool(one.pool) & capacity.in_pool(other.pool)
        if not one.gpu_count or not other.gpu_count:
            return not one.gpu_count and not other.gpu_count and bool(rows.any())
        both = capacity.slots(one) & capacity.slots(other)
        return bool((both & rows[:, None]).any())


def _taken(free: Iterable[Range], edges: set[int]) -> list[Range]:
    """Return the units that are not free, cut where one run ends and another begins."""
    idle = sorted(free)
    cuts = sorted({0, WHOLE_GPU, *edges, *(edge for pair in idle for edge in pair)})
    return [
        (low, high)
        for low, high in pairwise(cuts)
        if not any(start <= low and high <= end for start, end in idle)
    ]
