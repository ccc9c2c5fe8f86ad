"""How much idle GPU the usual requests could not use: the fragmentation measure of FGD.

After Weng et al., "Beware of Fragmentation" (USENIX ATC 2023). For each typical request, all idle
units of a node count as fragments where the request could not run there for CPU, GPU count or
model, or needs no GPU; otherwise only those on GPUs with less left than it asks. The amount is
the mean over the typical requests, weighted by how often they occur.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from scheduler.engine.capacity import Bools, Capacity, Ints
from scheduler.engine.shape import Shape

Floats = NDArray[np.float64]
_COVERED = 0.95  # of all requests: the rarer kinds are noise and cost time


class Typical:
    """The usual requests of a workload against one set of machines."""

    def __init__(self, capacity: Capacity, shapes: Iterable[Shape]) -> None:
        kinds = _most_frequent(shapes)
        self.weight: Floats = np.array([weight for _, weight in kinds], dtype=np.float64)
        self.cpu: Ints = np.array([shape.cpu_milli for shape, _ in kinds], dtype=np.int64)
        self.units: Ints = np.array([shape.units for shape, _ in kinds], dtype=np.int64)
        self.count: Ints = np.array([shape.gpu_count for shape, _ in kinds], dtype=np.int64)
        # (row, kind, slot): nodes of one model mostly, yet a node may hold several
        self.accepts: Bools = np.zeros(
            (len(capacity.nodes), len(kinds), capacity.free.shape[1]), dtype=bool
        )
        for index, (shape, _) in enumerate(kinds):
            if shape.gpu_count:
                self.accepts[:, index, :] = capacity.slots(shape)

    def amount(self, at: Ints, free: Ints, cpu: Ints) -> Floats:
        """Return the fragmented units of node rows `at` if they had these idle units and CPU.

        `at` may repeat a row. `free` is (len(at), slots), `cpu` is (len(at),) in milli-cores.
        """
        usable = (free[:, None, :] >= self.units[None, :, None]) & self.accepts[at]
        runs = np.count_nonzero(usable, axis=2) >= self.count[None, :]
        runs &= (cpu[:, None] >= self.cpu[None, :]) & (self.count > 0)[None, :]
        reached = np.einsum("rks,rs->rk", usable, free) * runs
        useless: Floats = free.sum(axis=1) * self.weight.sum() - reached @ self.weight
        return useless


def _most_frequent(shapes: Iterable[Shape]) -> list[tuple[Shape, float]]:
    """Pick the most frequent kinds until they cover 95 % of all, with weights that sum to 1."""
    kinds = Counter(
        Shape(
            shape.gpu_models if shape.gpu_count else frozenset(),
            shape.gpu_count,
            shape.units,
            0,
            shape.cpu_milli,
            0,
            0,
            None,
        )
        for shape in shapes
    )
    ranked = sorted(kinds.items(), key=lambda item: (-item[1], _sort_key(item[0])))
    picked: list[tuple[Shape, int]] = []
    covered = 0
    for shape, number in ranked:
        if covered >= _COVERED * kinds.total():
            break
        picked.append((shape, number))
        covered += number
    return [(shape, number / covered) for shape, number in picked]


def _sort_key(shape: Shape) -> tuple[object, ...]:
    return (shape.cpu_milli, shape.units, shape.gpu_count, sorted(shape.gpu_models))
