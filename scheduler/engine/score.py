"""Which fitting node, and which GPU on it, is best. Higher is better; the first of equals wins.

Whole-number scores tie often, so the order of the rows is part of the result: callers fix it.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from scheduler.engine import fit
from scheduler.engine.capacity import Bools, Capacity, Ints
from scheduler.engine.fragmentation import Floats, Typical
from scheduler.engine.shape import Shape
from scheduler.engine.snapshot import WHOLE_GPU

UNFIT = np.iinfo(np.int64).min
"""The score of a node or GPU that can't hold the request."""

# BestFit measures leftovers against the largest machine of the published experiments.
_CPU_SCALE = 128_000
_GPU_SCALE = 8 * WHOLE_GPU


class Score(Protocol):
    """How good each fitting node is for a shape, and each fitting GPU for a share."""

    def of_nodes(self, shape: Shape, at: Ints) -> Ints:
        """Score the node rows `at`, all of which fit."""

    def of_gpus(self, shape: Shape, row: int, slots: Ints) -> Ints:
        """Score the GPU `slots` of one node, all of which have room for the share."""

    def pick(self, scores: Ints) -> int:
        """Choose the index to take; at least one of `scores` is not UNFIT."""


class Pack:
    """Fill what is in use first: the tightest GPU, then the node with the least idle GPU."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity

    def of_nodes(self, shape: Shape, at: Ints) -> Ints:
        """Prefer tight GPUs, then full nodes."""
        idle: Ints = self.capacity.free[at].sum(axis=1)
        emptiness = idle
        if shape.is_share:
            room = _has_room(self.capacity, shape, at)
            tightest = np.where(room, self.capacity.free[at], WHOLE_GPU).min(axis=1)
            emptiness = idle + tightest * (self.capacity.free.shape[1] * WHOLE_GPU + 1)
        fullness: Ints = -emptiness
        return fullness

    def of_gpus(self, shape: Shape, row: int, slots: Ints) -> Ints:
        """Prefer the GPU with the least left."""
        left: Ints = -self.capacity.free[row, slots]
        return left

    def pick(self, scores: Ints) -> int:
        """Take the first of the best."""
        return int(scores.argmax())


class Spread(Pack):
    """Keep distance: the node, and on it the GPU, with the most idle."""

    def of_nodes(self, shape: Shape, at: Ints) -> Ints:
        """Prefer empty nodes; among nodes without idle GPU those with the most CPU."""
        idle: Ints = self.capacity.free[at].sum(axis=1)
        cpu: Ints = np.minimum(self.capacity.cpu[at], _CPU_SCALE - 1)
        emptiness: Ints = idle * _CPU_SCALE + cpu
        return emptiness

    def of_gpus(self, shape: Shape, row: int, slots: Ints) -> Ints:
        """Prefer the GPU with the most left."""
        left: Ints = self.capacity.free[row, slots]
        return left


class BestFit(Pack):
    """Leave the least over: 100 x (1 - mean leftover of CPU and GPU), whole numbers."""

    def of_nodes(self, shape: Shape, at: Ints) -> Ints:
        """Prefer nodes whose CPU and GPU are used up together."""
        cpu_left = (self.capacity.cpu[at] - shape.cpu_milli) / _CPU_SCALE
        gpu_left = (self.capacity.free[at].sum(axis=1) - shape.total_units) / _GPU_SCALE
        fullness: Ints = np.floor(100 * (1 - (cpu_left + gpu_left) / 2)).astype(np.int64)
        return fullness


class Random(Pack):
    """Any fitting node and any fitting GPU, drawn from a seeded generator."""

    def __init__(self, capacity: Capacity, seed: int) -> None:
        super().__init__(capacity)
        self.draw = np.random.default_rng(seed)

    def of_nodes(self, shape: Shape, at: Ints) -> Ints:
        """Hold all for equal."""
        return np.zeros(len(at), dtype=np.int64)

    def of_gpus(self, shape: Shape, row: int, slots: Ints) -> Ints:
        """Hold all for equal."""
        return np.zeros(len(slots), dtype=np.int64)

    def pick(self, scores: Ints) -> int:
        """Draw one of those that fit."""
        fitting = np.flatnonzero(scores != UNFIT)
        return int(fitting[self.draw.integers(len(fitting))])


class Fgd(Pack):
    """Fragment the least: 100 x sigmoid(drop of the fragmentation amount / 1000)."""

    def __init__(self, capacity: Capacity, workload: Iterable[Shape]) -> None:
        super().__init__(capacity)
        self.typical = Typical(capacity, workload)

    def of_nodes(self, shape: Shape, at: Ints) -> Ints:
        """Prefer nodes where what stays idle is of most use to the usual requests."""
        free, cpu = self.capacity.free[at], self.capacity.cpu[at]
        before = self.typical.amount(at, free, cpu)
        if shape.is_share:
            after = self._after_best_share(shape, at, free)
        else:
            taken = self.capacity.slots(shape)[at] & (self.capacity.longest[at] >= shape.units)
            taken &= np.cumsum(taken, axis=1) <= shape.gpu_count
            after = self.typical.amount(at, np.where(taken, 0, free), cpu - shape.cpu_milli)
        return np.floor(100 / (1 + np.exp((after - before) / WHOLE_GPU))).astype(np.int64)

    def of_gpus(self, shape: Shape, row: int, slots: Ints) -> Ints:
        """Prefer the GPU after which the node is least fragmented, in thousandths of a unit."""
        at = np.full(len(slots), row)
        return np.round(-1000 * self._after_share(shape, at, slots)).astype(np.int64)

    def _after_best_share(self, shape: Shape, at: Ints, free: Ints) -> Floats:
        room = _has_room(self.capacity, shape, at)
        for slot in range(1, room.shape[1]):  # GPUs with the same left give the same amount
            same = (free[:, :slot] == free[:, slot : slot + 1]) & room[:, :slot]
            room[:, slot] &= ~same.any(axis=1)
        index, slots = np.nonzero(room)
        best = np.full(len(at), np.inf)
        np.minimum.at(best, index, self._after_share(shape, at[index], slots))
        return best

    def _after_share(self, shape: Shape, at: Ints, slots: Ints) -> Floats:
        free = self.capacity.free[at]
        free[np.arange(len(at)), slots] -= shape.units
        return self.typical.amount(at, free, self.capacity.cpu[at] - shape.cpu_milli)


def _has_room(capacity: Capacity, shape: Shape, at: Ints) -> Bools:
    return (capacity.longest[at] >= shape.units) & capacity.slots(shape)[at]


SCORES: dict[str, Callable[[Capacity, Iterable[Shape], int], Score]] = {
    "pack": lambda capacity, workload, seed: Pack(capacity),
    "spread": lambda capacity, workload, seed: Spread(capacity),
    "bestfit": lambda capacity, workload, seed: BestFit(capacity),
    "random": lambda capacity, workload, seed: Random(capacity, seed),
    "fgd": lambda capacity, workload, seed: Fgd(capacity, workload),
}
"""Every score by its name: from a working copy, the shapes of the workload, and a seed."""


class Ranking:
    """Scores of every node for every shape met, refreshed only where nodes changed since."""

    def __init__(self, capacity: Capacity, score: Score) -> None:
        self.capacity = capacity
        self.score = score
        self._known: dict[Shape, tuple[Ints, int]] = {}

    def best_row(self, shape: Shape) -> int | None:
        """Return the best node row for a shape, None where no node fits now."""
        if not self.capacity.nodes:
            return None
        scores = self._scores(shape)
        return self.score.pick(scores) if scores.max() != UNFIT else None

    def best_slot(self, shape: Shape, row: int) -> int:
        """Return the best GPU slot of a fitting node for a share."""
        at = np.array([row])
        slots = np.flatnonzero(_has_room(self.capacity, shape, at)[0])
        return int(slots[self.score.pick(self.score.of_gpus(shape, row, slots))])

    def _scores(self, shape: Shape) -> Ints:
        changes = self.capacity.changes
        if shape in self._known:
            scores, seen = self._known[shape]
            stale = np.fromiter(set(changes[seen:]), np.int64)
        else:
            scores = np.full(len(self.capacity.nodes), UNFIT, dtype=np.int64)
            stale = np.arange(len(scores))
        if len(stale):
            scores[stale] = UNFIT
            fitting = stale[fit.rows(self.capacity, shape, stale)]
            if len(fitting):
                scores[fitting] = self.score.of_nodes(shape, fitting)
        self._known[shape] = (scores, len(changes))
        return scores
