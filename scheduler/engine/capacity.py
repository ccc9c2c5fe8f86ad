"""The working copy of the machines: one row per node, one slot per GPU, as NumPy tables.

Every step of a cycle books what it gives away here, so that later steps see it.
"""

from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from scheduler.engine.shape import Shape
from scheduler.engine.snapshot import WHOLE_GPU, GpuUnits, Node

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Range = tuple[int, int]


class Capacity:
    """Free amounts per node row and GPU slot; rows stand in the order that settles ties.

    `free[row, slot]` is the idle units of a GPU, `longest` its longest contiguous idle range;
    both are 0 where there is no GPU or a sick one. `changes` lists every row that was booked, in
    order, so that others can refresh only what changed.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        self.gpus = tuple(tuple(sorted(node.gpus, key=lambda gpu: gpu.id)) for node in nodes)
        self.row_of = {node.id: row for row, node in enumerate(nodes)}
        self.cpu = _column(node.cpu_free for node in nodes)
        self.memory = _column(node.memory_free for node in nodes)
        self.disk = _column(node.disk_free for node in nodes)
        self.total_cpu = _column(node.cpu_milli for node in nodes)
        self.total_memory = _column(node.memory_bytes for node in nodes)
        self.total_disk = _column(node.disk_bytes for node in nodes)
        self.takes_work: Bools = np.fromiter((n.schedulable for n in nodes), bool, len(nodes))
        self.changes: list[int] = []
        self._fill_gpus()
        self._slots: dict[tuple[frozenset[str], int], Bools] = {}
        self._pools: dict[str | None, Bools] = {}

    def _fill_gpus(self) -> None:
        size = (len(self.nodes), max((len(gpus) for gpus in self.gpus), default=0) or 1)
        self.models = tuple(sorted({gpu.model for gpus in self.gpus for gpu in gpus}))
        number = {model: index for index, model in enumerate(self.models)}
        self.model: Ints = np.full(size, -1, dtype=np.int64)
        self.gpu_memory: Ints = np.zeros(size, dtype=np.int64)
        self.healthy: Bools = np.zeros(size, dtype=bool)
        self.free: Ints = np.zeros(size, dtype=np.int64)
        self.longest: Ints = np.zeros(size, dtype=np.int64)
        self.ranges: list[list[tuple[Range, ...]]] = []
        for row, gpus in enumerate(self.gpus):
            self.ranges.append([_merged(gpu.free) if gpu.healthy else () for gpu in gpus])
            for slot, gpu in enumerate(gpus):
                self.model[row, slot] = number[gpu.model]
                self.gpu_memory[row, slot] = gpu.memory_bytes
                self.healthy[row, slot] = gpu.healthy
                self._measure(row, slot)

    def copy(self) -> Self:
        """Return a copy whose bookings leave this one alone; what never changes is shared."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        for name in ("cpu", "memory", "disk", "free", "longest", "changes"):
            setattr(twin, name, getattr(self, name).copy())
        twin.ranges = [list(ranges) for ranges in self.ranges]
        return twin

    def book(self, row: int, shape: Shape, gpus: Sequence[GpuUnits]) -> None:
        """Take what a placement uses; raise ValueError where somebody else already has it."""
        self.cpu[row] -= shape.cpu_milli
        self.memory[row] -= shape.memory_bytes
        self.disk[row] -= shape.disk_bytes
        if self.cpu[row] < 0 or self.memory[row] < 0 or self.disk[row] < 0:
            raise ValueError(f"node {self.nodes[row].name} would be overbooked")
        slot_of = {gpu.id: slot for slot, gpu in enumerate(self.gpus[row])} if gpus else {}
        for gpu_id, low, high in gpus:
            slot = slot_of[gpu_id]
            self.ranges[row][slot] = _without(self.ranges[row][slot], low, high)
            self._measure(row, slot)
        self.changes.append(row)

    def withhold(self, row: int, shape: Shape, units: Sequence[tuple[int, int, int]]) -> None:
        """Put (slot, lo, hi), busy or not, and as much of the rest as is there, out of reach."""
        self.cpu[row] = max(0, int(self.cpu[row]) - shape.cpu_milli)
        self.memory[row] = max(0, int(self.memory[row]) - shape.memory_bytes)
        self.disk[row] = max(0, int(self.disk[row]) - shape.disk_bytes)
        for slot, low, high in units:
            self.ranges[row][slot] = _outside(self.ranges[row][slot], low, high)
            self._measure(row, slot)
        self.changes.append(row)

    def slots(self, shape: Shape) -> Bools:
        """Mark the GPUs (row, slot) whose model and memory the shape accepts, busy or sick too."""
        key = (shape.gpu_models, shape.gpu_memory_bytes)
        if key not in self._slots:
            known = [index for index, name in enumerate(self.models) if name in shape.gpu_models]
            accepted = np.isin(self.model, known) if shape.gpu_models else self.model >= 0
            self._slots[key] = accepted & (self.gpu_memory >= shape.gpu_memory_bytes)
        return self._slots[key]

    def in_pool(self, pool: str | None) -> Bools:
        """Mark the rows of a pool; every row for None."""
        if pool not in self._pools:
            rows = (pool is None or node.pool == pool for node in self.nodes)
            self._pools[pool] = np.fromiter(rows, bool, len(self.nodes))
        return self._pools[pool]

    def _measure(self, row: int, slot: int) -> None:
        lengths = [high - low for low, high in self.ranges[row][slot]]
        self.free[row, slot] = sum(lengths)
        self.longest[row, slot] = max(lengths, default=0)


def _column(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)


def _merged(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Sort ranges and join those that touch, so that contiguous room is seen as such."""
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if not 0 <= low < high <= WHOLE_GPU:
            raise ValueError(f"units [{low}, {high}) are not inside [0, {WHOLE_GPU})")
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _without(ranges: tuple[Range, ...], low: int, high: int) -> tuple[Range, ...]:
    if not any(start <= low and high <= end for start, end in ranges):
        raise ValueError(f"units [{low}, {high}) are not free")
    return _outside(ranges, low, high)


def _outside(ranges: tuple[Range, ...], low: int, high: int) -> tuple[Range, ...]:
    """Cut [low, high) out of the ranges, as far as it is in them."""
    pieces = [
        piece
        for start, end in ranges
        for piece in ((start, min(end, low)), (max(start, high), end))
    ]
    return tuple((start, end) for start, end in pieces if start < end)
