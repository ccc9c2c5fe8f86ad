"""What the planner is told: one consistent picture of machines, waiting requests and policy.

Everything is frozen and plain. The order of any list in here never changes a plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

WHOLE_GPU = 1000
"""Units of one GPU: a share of 0.25 is any 250 contiguous units in [0, 1000)."""


class GpuUnits(NamedTuple):
    """Units [lo, hi) of one GPU; a whole GPU is [0, 1000)."""

    gpu_id: str
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node, with the unit ranges that nobody holds."""

    id: str
    model: str
    memory_bytes: int
    free: tuple[tuple[int, int], ...] = ((0, WHOLE_GPU),)
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class Node:
    """One machine: what it has in all, what is free of it, and whether it takes new work.

    `cpu_milli`, `memory_bytes` and `disk_bytes` are totals; the `*_free` fields are what is left.
    `why_not` says in words why the node takes no work, where `schedulable` is false.
    """

    id: str
    name: str
    pool: str
    cpu_milli: int
    memory_bytes: int
    disk_bytes: int
    cpu_free: int
    memory_free: int
    disk_free: int
    labels: Mapping[str, str] = field(default_factory=dict)
    schedulable: bool = True
    why_not: str | None = None
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """One waiting wish for a place.

    `priority`: higher goes first, inside its organization only. `submitted_at` is in Unix seconds.
    An empty `gpu_models` means any model. `units_per_gpu` is 1000 for whole GPUs; a share (below
    1000) needs `gpu_count` 1. `gpu_memory_bytes` is the least memory of a whole GPU it accepts.
    `gpu_count` 0 asks for a place without a GPU. `pool` None means any pool.
    """

    id: str
    organization: str
    submitted_at: float
    team: str = ""
    member: str = ""
    priority: int = 0
    gpu_models: frozenset[str] = frozenset()
    gpu_count: int = 1
    units_per_gpu: int = WHOLE_GPU
    gpu_memory_bytes: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    pool: str | None = None
    expected_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """One request that holds a place now; the nodes' free amounts already lack what it has.

    It is read for two things: each organization's share of the machines, and when places come
    free. `expected_end` (Unix seconds) is a limit or promise, None where nobody knows.
    """

    request_id: str
    node_id: str
    gpus: tuple[tuple[str, int, int], ...]
    started_at: float
    expected_end: float | None = None
    organization: str = ""
    cpu_milli: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RunTimes:
    """How long past runs took, in seconds: median and 90th percentile.

    None for `organization` or `gpu_model` means "of any"; the most specific entry counts.
    """

    median_s: float
    p90_s: float
    organization: str | None = None
    gpu_model: str | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """The switches of a plan.

    `order`: who is next (`queue_order.ORDERS`). `score`: which fitting node is best
    (`score.SCORES`). `seed` other than 0 shuffles the order in which equal nodes are taken; it
    also seeds the `random` score. `history` may be empty: then estimates need `expected_end`.
    """

    order: str = "priority"
    score: str = "pack"
    seed: int = 0
    history: tuple[RunTimes, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything one plan is made from. `version` is handed back in the plan, untouched."""

    now: float
    version: int
    nodes: tuple[Node, ...] = ()
    requests: tuple[Request, ...] = ()
    running: tuple[Running, ...] = ()
    policy: Policy = field(default_factory=Policy)
