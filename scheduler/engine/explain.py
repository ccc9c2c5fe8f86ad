"""Why a request waits: the first thing that can't be met, with the amount that is missing.

One function serves the real cycle and every what-if. Sentences are English; `code` and `args`
carry the same facts for translation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.engine import fit
from scheduler.engine.capacity import Capacity, Ints
from scheduler.engine.estimate import Estimator
from scheduler.engine.holding import Holding
from scheduler.engine.plan import IMPOSSIBLE, Code, Decision, Placement
from scheduler.engine.sentences import sentence
from scheduler.engine.shape import Shape
from scheduler.engine.snapshot import Request, Running, Snapshot
from scheduler.engine.sooner import Sooner

Args = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Reason:
    """A code with the numbers and names of its sentence."""

    code: Code
    args: Args


class Explainer:
    """Turns the end of a cycle into decisions; to be asked in queue order."""

    def __init__(
        self,
        *,
        snapshot: Snapshot,
        holding: Holding,
        started: Sequence[Running],
    ) -> None:
        self.unreserved = unreserved = holding.unreserved
        self.waiting_so_far = 0
        self.reasons: dict[Shape, Reason] = {}
        self.sooner = Sooner(holding)
        self.estimator = Estimator(
            capacity=unreserved,
            running=(*snapshot.running, *started),
            history=snapshot.policy.history,
            now=snapshot.now,
        )

    def placed(self, request: Request, placement: Placement) -> Decision:
        """Describe a placement."""
        row = self.unreserved.row_of[placement.node_id]
        models = {gpu.id: gpu.model for gpu in self.unreserved.gpus[row]}
        args: Args = {
            "node": self.unreserved.nodes[row].name,
            "gpus": len(placement.gpus),
            "units": sum(high - low for _, low, high in placement.gpus),
            "model": _either({models[gpu_id] for gpu_id, _, _ in placement.gpus}),
        }
        return Decision(request.id, Code.PLACED, sentence(Code.PLACED, args), args)

    def waiting(self, request: Request) -> Decision:
        """Say why a request did not start, where it stands, and what would start it now."""
        shape = Shape.of(request)
        if shape not in self.reasons:
            self.reasons[shape] = reason(self.unreserved, shape)
        found = self.reasons[shape]
        code, args, changes = found.code, dict(found.args), self.sooner.changes(request.id, shape)
        position, estimate = None, None
        if code not in IMPOSSIBLE:
            self.waiting_so_far += 1
            position = self.waiting_so_far
            estimate = self.estimator.next(request, shape)
        if code == Code.BEHIND_OTHERS:
            args["ahead"] = self.waiting_so_far - 1
        message = sentence(code, args)
        args |= {change.name: change.value for change in changes}
        texts = tuple(change.text for change in changes)
        return Decision(request.id, code, message, args, position, estimate, texts)


def reason(capacity: Capacity, shape: Shape) -> Reason:
    """Find the first constraint that stops a shape on these machines.

    `capacity` holds all placements but nothing that is only kept for others, so where the shape
    fits, it waits behind others.
    """
    if shape.flaw:
        return Reason(Code.NEVER_FITS, {"constraint": shape.flaw})
    if found := _impossible(capacity, shape) or _unavailable(capacity, shape):
        return found
    return _busy(capacity, shape) or Reason(Code.BEHIND_OTHERS, {})


def _impossible(capacity: Capacity, shape: Shape) -> Reason | None:
    """Check the machines as if they were empty, narrowing them constraint by constraint."""
    model = _either(shape.gpu_models)
    rows = np.flatnonzero(capacity.in_pool(shape.pool))
    owned = np.count_nonzero(capacity.slots(shape)[rows], axis=1)
    if shape.gpu_count and not owned.any():
        args: Args = {"model": model, "memory_bytes": shape.gpu_memory_bytes}
        return Reason(Code.NO_SUCH_GPU, args | {"pool": shape.pool or ""})
    constraints = (
        ("gpus", shape.gpu_count, np.count_nonzero(capacity.slots(shape), axis=1)),
        ("cpu", shape.cpu_milli, capacity.total_cpu),
        ("memory", shape.memory_bytes, capacity.total_memory),
        ("disk", shape.disk_bytes, capacity.total_disk),
    )
    if found := _first_failing(rows, constraints):
        name, needed, available = found
        args = {"constraint": name, "needed": needed, "available": available}
        return Reason(Code.NEVER_FITS, args | {"missing": needed - available, "model": model})
    return None


def _unavailable(capacity: Capacity, shape: Shape) -> Reason | None:
    if fit.when_empty(capacity, shape).any():
        return None
    rows = np.flatnonzero(fit.ever(capacity, shape))
    whys = [
        capacity.nodes[row].why_not or "takes no new work"
        for row in rows
        if not capacity.takes_work[row]
    ] or ["a GPU there is not healthy"]
    often = max(sorted(set(whys)), key=whys.count)
    return Reason(Code.NODES_UNAVAILABLE, {"nodes": len(rows), "why": often})


def _busy(capacity: Capacity, shape: Shape) -> Reason | None:
    """Check what is free now on the machines that could ever run it."""
    rows = np.flatnonzero(fit.when_empty(capacity, shape))
    accepted = capacity.slots(shape)
    if shape.is_share:
        best = np.where(accepted, capacity.longest, 0).max(axis=1)
        gpus = ("units", shape.units, best)
    else:
        able = accepted & (capacity.longest >= shape.units)
        gpus = ("gpus", shape.gpu_count, np.count_nonzero(able, axis=1))
    found = _first_failing(
        rows,
        (
            gpus,
            ("cpu", shape.cpu_milli, capacity.cpu),
            ("memory", shape.memory_bytes, capacity.memory),
            ("disk", shape.disk_bytes, capacity.disk),
        ),
    )
    if not found:
        return None
    name, needed, available = found
    args: Args = {
        "constraint": name,
        "needed": needed,
        "available": available,
        "missing": needed - available,
        "model": _either(shape.gpu_models),
        "nodes": len(rows),
    }
    return Reason(_BUSY_CODES[name], args)


_BUSY_CODES = {
    "gpus": Code.GPUS_BUSY,
    "units": Code.GPUS_BUSY,
    "cpu": Code.TOO_LITTLE_CPU,
    "memory": Code.TOO_LITTLE_MEMORY,
    "disk": Code.TOO_LITTLE_DISK,
}


def _first_failing(
    rows: Ints, constraints: Sequence[tuple[str, int, Ints]]
) -> tuple[str, int, int] | None:
    """Narrow the rows by each constraint; return the one that leaves none, and the best value."""
    for name, needed, values in constraints:
        left = rows[values[rows] >= needed]
        if not len(left):
            return name, needed, int(values[rows].max(initial=0))
        rows = left
    return None


def _either(models: frozenset[str] | set[str]) -> str:
    return " or ".join(sorted(models))
