"""What of a request matters to a machine: requests of one shape fit, score and fail alike."""

from dataclasses import dataclass
from typing import Self

from scheduler.engine.snapshot import WHOLE_GPU, Request


@dataclass(frozen=True, slots=True)
class Shape:
    """The amounts and constraints of a request, without whose it is or how old."""

    gpu_models: frozenset[str]
    gpu_count: int
    units: int
    gpu_memory_bytes: int
    cpu_milli: int
    memory_bytes: int
    disk_bytes: int
    pool: str | None

    @classmethod
    def of(cls, request: Request) -> Self:
        """Read the shape of a request."""
        return cls(
            gpu_models=request.gpu_models,
            gpu_count=request.gpu_count,
            units=request.units_per_gpu if request.gpu_count else 0,
            gpu_memory_bytes=request.gpu_memory_bytes,
            cpu_milli=request.cpu_milli,
            memory_bytes=request.memory_bytes,
            disk_bytes=request.disk_bytes,
            pool=request.pool,
        )

    @property
    def total_units(self) -> int:
        """Units of GPU it takes in all."""
        return self.gpu_count * self.units

    @property
    def is_share(self) -> bool:
        """True where it asks for a part of one GPU."""
        return self.gpu_count == 1 and self.units < WHOLE_GPU

    @property
    def flaw(self) -> str | None:
        """Name what makes the request itself senseless, None where it is sound."""
        if self.gpu_count < 0 or min(self.cpu_milli, self.memory_bytes, self.disk_bytes) < 0:
            return "negative_amount"
        if self.gpu_count and not 0 < self.units <= WHOLE_GPU:
            return "units_out_of_range"
        if self.gpu_count > 1 and self.units < WHOLE_GPU:
            return "share_of_several"
        return None
