"""From the queue onto machines: what the fleet can give, one planning cycle, and what follows."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Q, Sum

from portal.fleet import nodes
from portal.fleet.models import Gpu, GpuState, Link, Node
from portal.instances import lifecycle
from portal.instances.models import Instance, State
from portal.tenants.scope import every_tenant
from scheduler import place, words
from scheduler.engine import snapshot as told
from scheduler.models import Lease, Request, Standing


def cycle(*, now: datetime) -> list[Instance]:
    """Plan once: give waiting instances their GPUs and tell the machines; return who was placed.

    Any number of these may run at once; they take turns.
    """
    with every_tenant("one plan for all tenants' requests"), transaction.atomic():
        # First the turn, then the picture: what an earlier cycle committed is in it.
        place.lock()
        if not Request.objects.filter(standing=Standing.PENDING).exists():
            return []
        locked: dict[UUID, Instance] = {}

        def claim(subjects: Sequence[UUID]) -> set[UUID]:
            # One order for all who lock several instances.
            rows = Instance.objects.select_for_update(no_key=True).filter(
                id__in=subjects, state=State.QUEUED
            )
            locked.update({instance.id: instance for instance in rows.order_by("id")})
            return set(locked)

        placed = place.cycle(supply=supply(now=now), now=now, claim=claim)
        started = []
        for one in placed:
            instance = locked[one.request.subject]
            lifecycle.move(
                instance=instance,
                to=State.PLACING,
                now=now,
                reason_code="placed",
                facts={"node_id": one.node_id},
            )
            started.append(instance)
        nodes.raise_desired(node_ids={one.node_id for one in placed})
    return started


def supply(*, now: datetime) -> list[told.Node]:
    """Return every machine in service as the planner sees it: what it has, and what is free.

    Cordoned and silent machines are named, with why they take nothing, so that a reason can say so.
    Needs every tenant's leases in sight.
    """
    gpus = _gpus(_held(now))
    used = _used()
    machines = Node.objects.filter(retired_at=None).order_by("id")
    return [_machine(node, gpus[node.id], used.get(node.id, (0, 0, 0))) for node in machines]


def _gpus(held: dict[UUID, list[tuple[int, int]]]) -> dict[UUID, list[told.Gpu]]:
    found: dict[UUID, list[told.Gpu]] = defaultdict(list)
    # Plain rows: this is read before every placement, and there may be thousands.
    rows = Gpu.objects.filter(node__retired_at=None).exclude(state=GpuState.ABSENT)
    for gpu_id, node_id, model, memory_bytes, state in rows.order_by("id").values_list(
        "id", "node_id", "model", "memory_bytes", "state"
    ):
        found[node_id].append(
            told.Gpu(
                id=str(gpu_id),
                model=model,
                memory_bytes=memory_bytes,
                free=_without(held[gpu_id]) if gpu_id in held else ((0, told.WHOLE_GPU),),
                healthy=state == GpuState.OK,
            )
        )
    return found


def _held(now: datetime) -> dict[UUID, list[tuple[int, int]]]:
    held: dict[UUID, list[tuple[int, int]]] = defaultdict(list)
    live = Lease.objects.filter(Q(during__endswith__isnull=True) | Q(during__endswith__gt=now))
    for gpu_id, units in live.values_list("gpu_id", "units"):
        held[gpu_id].extend(units)
    return held


def _used() -> dict[UUID, tuple[int, int, int]]:
    placed = Request.objects.filter(standing=Standing.PLACED)
    sums = placed.values_list("node_id").annotate(
        cpu=Sum("cpu_milli"), memory=Sum("memory_bytes"), disk=Sum("disk_bytes")
    )
    return {node_id: (cpu, int(memory), int(disk)) for node_id, cpu, memory, disk in sums}


def _machine(node: Node, gpus: list[told.Gpu], used: tuple[int, int, int]) -> told.Node:
    cpu, memory, disk = used
    why_not = _why_not(node)
    return told.Node(
        id=str(node.id),
        name=node.name,
        pool=node.pool,
        cpu_milli=node.cpu_milli,
        memory_bytes=node.memory_bytes,
        disk_bytes=node.disk_bytes,
        cpu_free=max(0, node.cpu_milli - cpu),
        memory_free=max(0, node.memory_bytes - memory),
        disk_free=max(0, node.disk_bytes - disk),
        labels=node.labels,
        schedulable=why_not is None,
        why_not=why_not,
        gpus=tuple(gpus),
    )


def _why_not(node: Node) -> str | None:
    if node.cordoned_at is not None:
        return words.WHY_CORDONED
    return None if node.link == Link.ONLINE else words.WHY_SILENT


def _without(held: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return what is left of [0, 1000) without the held ranges."""
    free, at = [], 0
    for low, high in sorted(held):
        if low > at:
            free.append((at, low))
        at = max(at, high)
    if at < told.WHOLE_GPU:
        free.append((at, told.WHOLE_GPU))
    return tuple(free)
