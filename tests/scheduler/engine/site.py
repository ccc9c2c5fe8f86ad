"""Small sites for the tests of the planner: the least that a scenario needs."""

from collections.abc import Iterable

from scheduler.engine import Gpu, Node, Policy, Request, Running, Snapshot

GIB = 2**30


def node(
    name: str,
    gpus: int = 8,
    *,
    model: str = "A100",
    busy: int = 0,
    free: dict[int, tuple[tuple[int, int], ...]] | None = None,
    sick: Iterable[int] = (),
    pool: str = "main",
    cores: int = 64,
    cores_free: int | None = None,
    schedulable: bool = True,
    why_not: str | None = None,
) -> Node:
    """Make a node whose first `busy` GPUs are taken; `free` sets single GPUs."""
    free = free or {}
    return Node(
        id=name,
        name=name,
        pool=pool,
        cpu_milli=cores * 1000,
        memory_bytes=512 * GIB,
        disk_bytes=4096 * GIB,
        cpu_free=(cores if cores_free is None else cores_free) * 1000,
        memory_free=512 * GIB,
        disk_free=4096 * GIB,
        schedulable=schedulable,
        why_not=why_not,
        gpus=tuple(
            Gpu(
                id=f"{name}/{index}",
                model=model,
                memory_bytes=80 * GIB,
                free=free.get(index, () if index < busy else ((0, 1000),)),
                healthy=index not in set(sick),
            )
            for index in range(gpus)
        ),
    )


def request(
    name: str,
    gpus: int = 1,
    *,
    organization: str = "acme",
    at: float = 0.0,
    priority: int = 0,
    units: int = 1000,
    model: str | None = None,
    cores: int = 1,
    pool: str | None = None,
    expected_seconds: float | None = None,
) -> Request:
    """Make a request; one core unless told."""
    return Request(
        id=name,
        organization=organization,
        submitted_at=at,
        priority=priority,
        gpu_models=frozenset({model}) if model else frozenset(),
        gpu_count=gpus,
        units_per_gpu=units,
        cpu_milli=cores * 1000,
        memory_bytes=GIB,
        disk_bytes=GIB,
        pool=pool,
        expected_seconds=expected_seconds,
    )


def run(
    name: str,
    gpus: Iterable[str] = (),
    *,
    node_id: str | None = None,
    organization: str = "acme",
    units: tuple[int, int] = (0, 1000),
    since: float = 0.0,
    until: float | None = None,
    cores: int = 1,
) -> Running:
    """Make something that runs on whole GPUs, or on the same `units` of each."""
    gpus = tuple(gpus)
    return Running(
        request_id=name,
        node_id=node_id or gpus[0].rpartition("/")[0],
        gpus=tuple((gpu, *units) for gpu in gpus),
        started_at=since,
        expected_end=until,
        organization=organization,
        cpu_milli=cores * 1000,
        memory_bytes=GIB,
        disk_bytes=GIB,
    )


def site(
    nodes: Iterable[Node],
    requests: Iterable[Request],
    running: Iterable[Running] = (),
    policy: Policy | None = None,
    now: float = 1000.0,
) -> Snapshot:
    """Make a snapshot."""
    return Snapshot(
        now=now,
        version=7,
        nodes=tuple(nodes),
        requests=tuple(requests),
        running=tuple(running),
        policy=policy or Policy(),
    )
