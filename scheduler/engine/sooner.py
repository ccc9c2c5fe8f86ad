"""What would start a waiting request now: less, another model, or any pool.

Each change is tried with the request's place in the line kept: it may use what is kept for itself,
never what is kept for others.
"""

import dataclasses
from dataclasses import dataclass

from scheduler.engine import fit
from scheduler.engine.capacity import Capacity
from scheduler.engine.holding import Holding
from scheduler.engine.shape import Shape
from scheduler.engine.snapshot import WHOLE_GPU

_MOST_MODELS = 2
_SHARES = {WHOLE_GPU // 2: "half a GPU", WHOLE_GPU // 4: "a quarter of a GPU"}


@dataclass(frozen=True, slots=True)
class Change:
    """One change: its name and value among a decision's `args`, and the English text."""

    name: str
    value: int | str
    text: str


class Sooner:
    """Changes for every request that waits."""

    def __init__(self, holding: Holding) -> None:
        self.holding = holding
        self._known: dict[Shape, tuple[Change, ...]] = {}

    def changes(self, request_id: str, shape: Shape) -> tuple[Change, ...]:
        """Return the changes that would start it now, the smallest sacrifice of each sort."""
        if shape.flaw:
            return ()
        capacity = self.holding.open_to(request_id)
        if capacity is not self.holding.capacity:  # what is kept for it, it alone may take
            return (*_less(capacity, shape), *_elsewhere(capacity, shape))
        if shape not in self._known:
            self._known[shape] = (*_less(capacity, shape), *_elsewhere(capacity, shape))
        return self._known[shape]


def _less(capacity: Capacity, shape: Shape) -> list[Change]:
    count = shape.gpu_count // 2
    while count:
        if _fits(capacity, shape, gpu_count=count):
            plural = "GPU" if count == 1 else "GPUs"
            text = f"{count} {plural} instead of {shape.gpu_count}: now"
            return [Change("sooner_gpus", count, text)]
        count //= 2
    if shape.gpu_count == 1:
        for units, text in _SHARES.items():
            if units < shape.units and _fits(capacity, shape, units=units):
                return [Change("sooner_units", units, f"{text}: now")]
    return []


def _elsewhere(capacity: Capacity, shape: Shape) -> list[Change]:
    found = []
    if shape.gpu_models:
        others = [model for model in capacity.models if model not in shape.gpu_models]
        fitting = [
            model for model in others if _fits(capacity, shape, gpu_models=frozenset({model}))
        ]
        for number, model in enumerate(fitting[:_MOST_MODELS], start=1):
            found.append(Change(f"sooner_model_{number}", model, f"{model} instead: now"))
    if shape.pool is not None and _fits(capacity, shape, pool=None):
        found.append(Change("sooner_any_pool", 1, "any pool: now"))
    return found


def _fits(capacity: Capacity, shape: Shape, **changes: object) -> bool:
    changed = dataclasses.replace(shape, **changes)  # type: ignore[arg-type]
    return bool(fit.rows(capacity, changed, slice(None)).any())
