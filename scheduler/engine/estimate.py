"""When may a waiting request start? A range, from when what runs now comes to an end.

Two bounds, the later counts: when the nearest node has room for it, and when as much has come
free as it and everybody ahead who wants the same GPUs need together. It is an estimate: runs may
end early, and more urgent requests may come.
"""

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from scheduler.engine import fit
from scheduler.engine.capacity import Bools, Capacity, Ints
from scheduler.engine.fragmentation import Floats
from scheduler.engine.plan import Estimate
from scheduler.engine.run_ends import NEVER, History, Span
from scheduler.engine.shape import Shape
from scheduler.engine.snapshot import WHOLE_GPU, Request, Running, RunTimes

Kind = tuple[frozenset[str], int, str | None]


class Estimator:
    """Estimates for the waiting, asked in queue order: each request counts for those behind."""

    def __init__(
        self,
        *,
        capacity: Capacity,
        running: Iterable[Running],
        history: Iterable[RunTimes],
        now: float,
    ) -> None:
        self.capacity = capacity
        self.history = History(history)
        self.ahead: dict[Kind, int] = defaultdict(int)
        self.on_row: dict[int, list[tuple[Span, Running]]] = defaultdict(list)
        self.on_gpu: dict[tuple[int, int], list[tuple[Span, int]]] = defaultdict(list)
        self.by_limit = self.by_history = False
        slot_of = {
            (row, gpu.id): slot
            for row, gpus in enumerate(capacity.gpus)
            for slot, gpu in enumerate(gpus)
        }
        for run in sorted(running, key=lambda run: run.request_id):
            self._remember(run, slot_of, now)
        self._ready: dict[int, tuple[Floats, Floats]] = {}
        self._nearest: dict[Shape, Span] = {}
        self._masks: dict[Kind, Bools] = {}
        self._releases: dict[Kind, tuple[Floats, Floats, Floats, Floats]] = {}

    def next(self, request: Request, shape: Shape) -> Estimate | None:
        """Estimate the start of the next request in the line; None where nothing is known."""
        if shape not in self._nearest:
            self._nearest[shape] = self._room_on_a_node(shape)
        room, turn = self._nearest[shape], self._turn(request, shape)
        low, high = max(room.low, turn.low), max(room.high, turn.high)
        if low == NEVER:
            return None
        return Estimate(
            low_s=round(low, 3),
            high_s=None if high == NEVER else round(max(low, high), 3),
            basis=self._basis(),
        )

    def _basis(self) -> str:
        if self.by_limit and self.by_history:
            return "limits_and_past_runs"
        return "past_runs" if self.by_history else "limits"

    def _remember(self, run: Running, slot_of: dict[tuple[int, str], int], now: float) -> None:
        row = self.capacity.row_of.get(run.node_id)
        if row is None:
            return
        slots = [(slot_of.get((row, gpu_id)), high - low) for gpu_id, low, high in run.gpus]
        owned = [(slot, units) for slot, units in slots if slot is not None]
        model = self.capacity.gpus[row][owned[0][0]].model if owned else ""
        span = self.history.remaining(run, model, now)
        if span.low != NEVER:
            self.by_limit |= run.expected_end is not None
            self.by_history |= self.history.run_times(run.organization, model) is not None
        self.on_row[row].append((span, run))
        for slot, units in owned:
            self.on_gpu[row, slot].append((span, units))

    def _room_on_a_node(self, shape: Shape) -> Span:
        """Return when the first node has enough GPUs free, and CPU and the rest for them."""
        rows = np.flatnonzero(fit.when_empty(self.capacity, shape))
        if not len(rows):
            return Span(NEVER, NEVER)
        gpus_low, gpus_high = self._gpus_free(shape, rows)
        best = Span(NEVER, NEVER)
        for index, row in enumerate(rows):
            if gpus_low[index] >= best.low and gpus_high[index] >= best.high:
                continue
            rest = self._rest_free(shape, int(row))
            best = Span(
                min(best.low, max(float(gpus_low[index]), rest.low)),
                min(best.high, max(float(gpus_high[index]), rest.high)),
            )
        return best

    def _gpus_free(self, shape: Shape, rows: Ints) -> tuple[Floats, Floats]:
        """Return, per row, when as many of its GPUs as the shape needs have room."""
        if not shape.gpu_count:
            return np.zeros(len(rows)), np.zeros(len(rows))
        if shape.units not in self._ready:
            self._ready[shape.units] = (
                self._gpu_ready(shape.units, low=True),
                self._gpu_ready(shape.units, low=False),
            )
        accepted = self.capacity.slots(shape)[rows]
        low, high = (
            np.sort(np.where(accepted, ready[rows], NEVER), axis=1)[:, shape.gpu_count - 1]
            for ready in self._ready[shape.units]
        )
        return low, high

    def _gpu_ready(self, units: int, *, low: bool) -> Floats:
        """Return, per GPU, when `units` of it are free; never where nobody known holds them."""
        capacity = self.capacity
        ready = np.where(capacity.longest >= units, 0.0, NEVER)
        for (row, slot), runs in self.on_gpu.items():
            if not capacity.healthy[row, slot] or capacity.longest[row, slot] >= units:
                continue
            free = int(capacity.free[row, slot])
            for end, given_back in sorted(
                (span.low if low else span.high, freed) for span, freed in runs
            ):
                free += given_back
                if free >= units:
                    ready[row, slot] = end
                    break
        return ready

    def _rest_free(self, shape: Shape, row: int) -> Span:
        capacity = self.capacity
        lacking = (
            shape.cpu_milli - int(capacity.cpu[row]),
            shape.memory_bytes - int(capacity.memory[row]),
            shape.disk_bytes - int(capacity.disk[row]),
        )
        if max(lacking) <= 0:
            return Span(0.0, 0.0)
        runs = self.on_row[row]
        return Span(
            _covered(lacking, [(span.low, run) for span, run in runs]),
            _covered(lacking, [(span.high, run) for span, run in runs]),
        )

    def _turn(self, request: Request, shape: Shape) -> Span:
        """Return when all ahead and the request itself have their units, one after the other."""
        if not shape.gpu_count:
            return Span(0.0, 0.0)
        kind = (shape.gpu_models, shape.gpu_memory_bytes, shape.pool)
        mask = self._mask(kind, shape)
        ahead = sum(
            units for other, units in self.ahead.items() if (mask & self._masks[other]).any()
        )
        self.ahead[kind] += shape.total_units
        missing = ahead + shape.total_units - int(self.capacity.free[mask].sum())
        if missing <= 0:
            return Span(0.0, 0.0)
        if kind not in self._releases:
            self._releases[kind] = (*self._sums(mask, low=True), *self._sums(mask, low=False))
        low_ends, low_sums, high_ends, high_sums = self._releases[kind]
        all_units = WHOLE_GPU * int(np.count_nonzero(mask & self.capacity.healthy))
        model = min(shape.gpu_models, default="")
        past = self.history.run_times(request.organization, model)
        return Span(
            _reached(missing, low_ends, low_sums, all_units, past.median_s if past else NEVER),
            _reached(missing, high_ends, high_sums, all_units, past.p90_s if past else NEVER),
        )

    def _sums(self, mask: Bools, *, low: bool) -> tuple[Floats, Floats]:
        ends = sorted(
            (span.low if low else span.high, units)
            for at, runs in self.on_gpu.items()
            if mask[at]
            for span, units in runs
        )
        known = [(end, units) for end, units in ends if end != NEVER]
        times = np.array([end for end, _ in known], dtype=np.float64)
        return times, np.cumsum([float(units) for _, units in known])

    def _mask(self, kind: Kind, shape: Shape) -> Bools:
        if kind not in self._masks:
            rows = self.capacity.takes_work & self.capacity.in_pool(shape.pool)
            self._masks[kind] = self.capacity.slots(shape) & rows[:, None]
        return self._masks[kind]


def _covered(lacking: tuple[int, int, int], ends: list[tuple[float, Running]]) -> float:
    """Return when enough runs have ended to give back what lacks."""
    cpu, memory, disk = lacking
    for end, run in sorted(ends, key=lambda item: (item[0], item[1].request_id)):
        cpu -= run.cpu_milli
        memory -= run.memory_bytes
        disk -= run.disk_bytes
        if max(cpu, memory, disk) <= 0:
            return end
    return NEVER


def _reached(missing: int, ends: Floats, sums: Floats, all_units: int, one_run_s: float) -> float:
    """Return when the releases add up to `missing`; past the last, whole rounds of runs follow."""
    index = int(np.searchsorted(sums, missing))
    if index < len(sums):
        return float(ends[index])
    if not all_units or math.isinf(one_run_s):
        return NEVER
    last, released = (float(ends[-1]), float(sums[-1])) if len(sums) else (0.0, 0.0)
    return last + math.ceil((missing - released) / all_units) * one_run_s
