"""What would start a waiting request now: less, another model, or any pool.

Each change is tried like a new request at the end of the line, so it promises nothing that is kept
for others.
"""

import dataclasses
from dataclasses import dataclass

from scheduler.engine import fit
from scheduler.engine.capacity import Capacity
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
    """Changes for each shape that waits; `capacity` is what is open to newcomers."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self._known: dict[Shape, tuple[Change, ...]] = {}

    def changes(self, shape: Shape) -> tuple[Change, ...]:
        """Return the changes that would start it now, the smallest sacrifice of each sort."""
        if shape not in self._known:
            found = () if shape.flaw else (*self._less(shape), *self._elsewhere(shape))
            self._known[shape] = found
        return self._known[shape]

    def _less(self, shape: Shape) -> list[Change]:
        count = shape.gpu_count // 2
        while count:
            if self._fits(shape, gpu_count=count):
                plural = "GPU" if count == 1 else "GPUs"
                text = f"{count} {plural} instead of {shape.gpu_count}: now"
                return [Change("sooner_gpus", count, text)]
            count //= 2
        if shape.gpu_count == 1:
            for units, text in _SHARES.items():
                if units < shape.units and self._fits(shape, units=units):
                    return [Change("sooner_units", units, f"{text}: now")]
        return []

    def _elsewhere(self, shape: Shape) -> list[Change]:
        found = []
        if shape.gpu_models:
            others = [model for model in self.capacity.models if model not in shape.gpu_models]
            fitting = [
                model for model in others if self._fits(shape, gpu_models=frozenset({model}))
            ]
            for number, model in enumerate(fitting[:_MOST_MODELS], start=1):
                found.append(Change(f"sooner_model_{number}", model, f"{model} instead: now"))
        if shape.pool is not None and self._fits(shape, pool=None):
            found.append(Change("sooner_any_pool", 1, "any pool: now"))
        return found

    def _fits(self, shape: Shape, **changes: object) -> bool:
        changed = dataclasses.replace(shape, **changes)  # type: ignore[arg-type]
        return bool(fit.rows(self.capacity, changed, slice(None)).any())
