"""Where a node's GPU figures come from: NVIDIA, AMD, or a simulation.

A source never raises for a GPU or a driver in trouble: it leaves out what it can't read and says so
in `health` and `reason`. All of it blocks, for a bounded time: call it from a thread.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from agents.wire import GpuHealth, GpuInfo, Sample

# How busy (0..1) the instances that hold a GPU are, by the GPU's UUID; nobody holds an absent one.
Activity = Callable[[], Mapping[str, float]]

KINDS = "nvml, amdsmi, simulated or simulated:PROFILE"


class UnableToOpenGpusError(ValueError):
    """The kind of GPUs that was asked for can't be had; the sentence says what to do."""


class GpuSource(Protocol):
    """The GPUs of this node."""

    def inventory(self) -> list[GpuInfo]:
        """List the GPUs by index; empty where there are none, for which see `reason`."""

    def sample(self, at_ms: int, mono_ms: int) -> list[Sample]:
        """Read all GPUs once and stamp the readings with the two times, in milliseconds.

        A value that can't be had is None, never 0; a GPU that can't be read has no sample.
        """

    def health(self) -> list[GpuHealth]:
        """Say of each GPU whether it answers, is lost, or is in use though nobody holds it."""

    def reason(self) -> str:
        """Say why the inventory is empty or incomplete; an empty text when all is well."""

    def driver(self) -> tuple[str | None, str | None]:
        """Return the versions of the driver and of CUDA (or ROCm), None where unknown."""

    def close(self) -> None:
        """Let go of the driver."""


def open_source(kind: str, *, state_dir: Path, activity: Activity) -> GpuSource:
    """Open the GPUs of a kind: `nvml`, `amdsmi`, `simulated` or `simulated:PROFILE`.

    A machine without an NVIDIA driver gives an empty source that looks again. Raises
    UnableToOpenGpusError for an unknown kind or profile and where AMD's library is missing.
    """
    # Each is imported only where it is wanted: AMD's binding loads its library when imported.
    name, _, profile = kind.partition(":")
    if name == "simulated":
        from agents.gpus.simulated import SimulatedSource

        return SimulatedSource(profile or "h100x8", state_dir=state_dir, activity=activity)
    if kind == "nvml":
        from agents.gpus.nvml import NvmlSource

        return NvmlSource(activity=activity)
    if kind == "amdsmi":
        from agents.gpus.amdsmi import AmdSource

        return AmdSource()
    raise UnableToOpenGpusError(f"There are no GPUs of kind {kind!r}: choose {KINDS}.")
