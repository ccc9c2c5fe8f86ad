"""What the planner answers: placements to make, and one decision with its reason per request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.engine.snapshot import GpuUnits


class Code(StrEnum):
    """Why a request got its decision. Stable: translations and dashboards rely on these words."""

    PLACED = "placed"
    GPUS_BUSY = "gpus_busy"
    TOO_LITTLE_CPU = "too_little_cpu"
    TOO_LITTLE_MEMORY = "too_little_memory"
    TOO_LITTLE_DISK = "too_little_disk"
    BEHIND_OTHERS = "behind_others"
    NODES_UNAVAILABLE = "nodes_unavailable"
    NO_SUCH_GPU = "no_such_gpu"
    NEVER_FITS = "never_fits"


IMPOSSIBLE = frozenset({Code.NO_SUCH_GPU, Code.NEVER_FITS})
"""Codes of requests that no machine could hold even when empty; they are passed over."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One request's place. `gpus` is empty for a request without a GPU."""

    request_id: str
    node_id: str
    gpus: tuple[GpuUnits, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """When a waiting request may start, in seconds from the snapshot's `now`.

    `high_s` is None where nothing bounds it. `basis` says what it rests on: `limits` (known ends
    of what runs), `past_runs` (how long such runs took) or `limits_and_past_runs`.
    """

    low_s: float
    high_s: float | None
    basis: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one request, and why.

    `args` holds the plain numbers and names of the sentence, so that others can translate it from
    `code` and `args`; `message` is the same in English. `position` counts from 1 among the
    waiting, None for the placed and the impossible. `sooner` lists changes that would start it
    now; the same facts stand in `args` under names that begin with `sooner_`.
    """

    request_id: str
    code: Code
    message: str
    args: Mapping[str, int | str] = field(default_factory=dict)
    position: int | None = None
    estimate: Estimate | None = None
    sooner: tuple[str, ...] = ()

    @property
    def is_impossible(self) -> bool:
        """True where no machine of this site could hold the request even when empty."""
        return self.code in IMPOSSIBLE


@dataclass(frozen=True, slots=True)
class Plan:
    """Placements in the order they were decided, and one decision per request in queue order."""

    version: int
    placements: tuple[Placement, ...] = ()
    decisions: tuple[Decision, ...] = ()
