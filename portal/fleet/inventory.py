"""Which GPUs a node has and how they answer. A GPU that is gone is absent, never deleted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.db import transaction

from agents import wire
from portal.fleet import history
from portal.fleet.gpu_models import canonical
from portal.fleet.joining import clean
from portal.fleet.models import Gpu, GpuState, Link, Node

_STATES: Final = {
    "ok": GpuState.OK,
    "lost": GpuState.LOST,
    "not_answering": GpuState.NOT_ANSWERING,
    "busy": GpuState.BUSY,
}


@dataclass(frozen=True, slots=True)
class GpuChange:
    """A GPU went from one state to another, both of GpuState."""

    gpu_id: UUID
    uuid: str
    before: str
    after: str


@transaction.atomic
def update_inventory(*, node_id: UUID, inventory: wire.Inventory, now: datetime) -> list[GpuChange]:
    """Take in what a machine has; return the GPUs whose state that changed.

    GPUs that are no longer there become ABSENT; those that are back become OK until their health is
    reported. A GPU that another living node also claims stays with that node.
    """
    Node.objects.filter(pk=node_id).update(
        cpu_milli=_bounded(inventory.cpu_milli, 2**31 - 1),
        memory_bytes=_bounded(inventory.memory_bytes),
        disk_bytes=_bounded(inventory.disk_bytes),
        driver_version=clean(inventory.driver_version or "", 40),
        cuda_version=clean(inventory.cuda_version or "", 20),
    )
    offered = {clean(info.uuid, 80): info for info in inventory.gpus if clean(info.uuid, 80)}
    known = {
        gpu.uuid: gpu
        for gpu in Gpu.objects.select_for_update(of=("self",))
        .select_related("node")
        .filter(uuid__in=offered)
        .order_by("id")
    }
    changes = _mark_absent(node_id, offered, now)
    for uuid, info in offered.items():
        gpu = known.get(uuid)
        if gpu is None:
            _add(node_id, uuid, info, now)
        elif gpu.node_id == node_id or _may_move(gpu, node_id, now):
            changes += _refresh(gpu, node_id, info, now)
    history.tell(node_id=node_id)
    return changes


@transaction.atomic
def set_gpu_health(
    *, node_id: UUID, epoch: int, health: Sequence[wire.GpuHealth], now: datetime
) -> list[GpuChange]:
    """Take in how a node's GPUs answer; return those whose state changed.

    Nothing is written for an outdated session. A GPU that the inventory lacks stays ABSENT.
    """
    if not health or not Node.objects.filter(pk=node_id, session_epoch=epoch).exists():
        return []
    said = {one.uuid: one for one in health}
    changes = []
    gpus = Gpu.objects.select_for_update().filter(node_id=node_id, uuid__in=said).order_by("id")
    for gpu in gpus.exclude(state=GpuState.ABSENT):
        one = said[gpu.uuid]
        detail = clean(one.detail or "", 300)
        if detail != gpu.state_detail:
            gpu.state_detail = detail
            gpu.save(update_fields=["state_detail"])
        changes += _set_state(gpu, _STATES[one.state], now)
    return changes


def _mark_absent(node_id: UUID, offered: Iterable[str], now: datetime) -> list[GpuChange]:
    gone = (
        Gpu.objects.select_for_update()
        .filter(node_id=node_id)
        .exclude(uuid__in=offered)
        .exclude(state=GpuState.ABSENT)
    )
    return [change for gpu in gone for change in _set_state(gpu, GpuState.ABSENT, now)]


def _add(node_id: UUID, uuid: str, info: wire.GpuInfo, now: datetime) -> None:
    Gpu.objects.create(node_id=node_id, uuid=uuid, state_since=now, **_facts(info))
    history.note(
        node_id=node_id, kind="gpu_added", detail=f"{canonical(info.model)} {uuid}", now=now
    )


def _may_move(gpu: Gpu, node_id: UUID, now: datetime) -> bool:
    """Tell whether a GPU known on another node is really gone there, and write down the answer."""
    other = gpu.node
    is_free = (
        gpu.state == GpuState.ABSENT
        or other.retired_at is not None
        or other.link in {Link.OFFLINE, Link.LOST}
    )
    detail = f"{gpu.model} {gpu.uuid}: {other.name} ({other.pk})"
    kind = "gpu_moved" if is_free else "gpu_elsewhere"
    history.note(node_id=node_id, kind=kind, detail=detail, now=now)
    return is_free


def _refresh(gpu: Gpu, node_id: UUID, info: wire.GpuInfo, now: datetime) -> list[GpuChange]:
    facts = {**_facts(info), "node_id": node_id}
    if any(getattr(gpu, field) != value for field, value in facts.items()):
        Gpu.objects.filter(pk=gpu.pk).update(**facts)
        for field, value in facts.items():
            setattr(gpu, field, value)
    return _set_state(gpu, GpuState.OK, now) if gpu.state == GpuState.ABSENT else []


def _facts(info: wire.GpuInfo) -> dict[str, str | int]:
    return {
        "index": _bounded(info.index, 32767),
        "model": clean(canonical(info.model), 80),
        "memory_bytes": _bounded(info.memory_bytes),
        "pci_bus_id": clean(info.pci_bus_id or "", 20),
    }


def _bounded(value: int, most: int = 2**63 - 1) -> int:
    return max(0, min(value, most))


def _set_state(gpu: Gpu, state: GpuState, now: datetime) -> list[GpuChange]:
    before = gpu.state
    if before == state:
        return []
    gpu.state, gpu.state_since = state, now
    gpu.save(update_fields=["state", "state_since"])
    history.note(
        node_id=gpu.node_id,
        kind=f"gpu_{state.value.lower()}",
        detail=" ".join(filter(None, [gpu.model, f"#{gpu.index}", gpu.state_detail])),
        now=now,
    )
    return [GpuChange(gpu_id=gpu.pk, uuid=gpu.uuid, before=before, after=state)]
