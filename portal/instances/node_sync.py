"""What a node should run, and what follows from what it says that it runs.

Level-triggered both ways: `desired` is the whole wanted state, a report the whole observed one, so
that either may be lost, repeated or late. A report of an older session changes nothing (its epoch),
nor does one about an earlier run of an instance (its run).
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from django.db import connection, transaction

from agents import wire
from portal.billing import meters
from portal.errors import DomainError
from portal.fleet import nodes
from portal.fleet.joining import clean
from portal.fleet.models import Node
from portal.instances import ending, lifecycle
from portal.instances.models import Instance, State, Wanted
from portal.instances.node_clock import NodeClock
from portal.tenants.scope import every_tenant
from scheduler.engine.snapshot import WHOLE_GPU
from scheduler.models import Lease

log = logging.getLogger(__name__)

_WHY = "a node runs instances of all tenants"
_LOCK = 0x434E_0001  # the first half of the advisory locks of nodes
# A young or re-listed container may be missing from a report for a moment; it is gone after this.
GONE_AFTER = timedelta(seconds=10)


def desired(*, node_id: UUID) -> wire.Desired:
    """Return everything that should be on a node now, as a complete list."""
    with every_tenant(_WHY):
        # The generation first: what is read after it is at least as new as it says.
        generation = Node.objects.values_list("desired_generation", flat=True).get(id=node_id)
        instances = list(
            Instance.objects.filter(node_id=node_id, state__in=lifecycle.ON_NODE)
            .select_related("flavor", "image")
            .order_by("id")
        )
        shares = _shares(instances)
    specs = [_spec(instance, shares.get(instance.request_id, ())) for instance in instances]
    return wire.Desired(generation=generation, complete=True, count=len(specs), instances=specs)


def _shares(instances: Sequence[Instance]) -> Mapping[UUID | None, list[tuple[str, int]]]:
    found: dict[UUID | None, list[tuple[str, int]]] = {}
    leases = Lease.objects.filter(
        request_id__in=[instance.request_id for instance in instances],
        during__endswith__isnull=True,
    )
    for request_id, uuid, units in leases.order_by("gpu__index").values_list(
        "request_id", "gpu__uuid", "units"
    ):
        held = sum(high - low for low, high in units)
        found.setdefault(request_id, []).append((uuid, held))
    return found


def _spec(instance: Instance, shares: Sequence[tuple[str, int]]) -> wire.InstanceSpec:
    flavor = instance.flavor
    is_share = flavor.units_per_gpu < WHOLE_GPU
    return wire.InstanceSpec(
        id=str(instance.id),
        run=instance.run,
        name=instance.name,
        image=instance.image.reference,
        command=list(instance.command or instance.image.command) or None,
        env={str(name): str(value) for name, value in instance.env.items()},
        gpus=[
            wire.GpuShare(
                uuid=uuid,
                units=units,
                memory_bytes=flavor.gpu_memory_bytes if is_share else None,
            )
            for uuid, units in shares
        ],
        cpu_milli=flavor.cpu_milli,
        memory_bytes=flavor.memory_bytes,
        disk_bytes=flavor.disk_bytes,
        ports=list(instance.image.ports),
        wanted="run" if instance.ending_since is None else "stop",
    )


def receive(*, node_id: UUID, epoch: int, report: wire.Report, boot_id: str, now: datetime) -> bool:
    """Take in what a node reports: moves, evidence and proofs; False if a newer session exists.

    The same report twice changes nothing the second time.
    """
    with every_tenant(_WHY), transaction.atomic():
        node = _turn(node_id)
        if node is None or node.session_epoch != epoch:
            return False
        clock = NodeClock.of(node=node, looked_at_ms=report.looked_at_ms, now=now)
        # What the node was told only now can't be in its report yet.
        may_miss = report.observed_generation >= node.desired_generation
        _take_all(node, report.instances, boot_id, clock, may_miss)
    return True


def hello(*, node_id: UUID, hello: wire.Hello, now: datetime) -> None:
    """Take in what a node says it runs when it connects, after a silence or a restart of its agent.

    The same container on the same boot ran through: its time is settled. What is missing here is
    judged by the reports that follow, since a restarted agent may not have looked yet.
    """
    with every_tenant(_WHY), transaction.atomic():
        node = _turn(node_id)
        if node is None:
            return
        clock = NodeClock.of(node=node, looked_at_ms=hello.looked_at_ms, now=now)
        _take_all(node, hello.instances, hello.boot_id, clock, may_miss=False)


def _turn(node_id: UUID) -> Node | None:
    """Wait until no other report of this node is being taken in; return the node if in service."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_LOCK, str(node_id)])
    return Node.objects.filter(id=node_id, retired_at=None).first()


def _take_all(
    node: Node,
    statuses: Sequence[wire.InstanceStatus],
    boot_id: str,
    clock: NodeClock,
    may_miss: bool,
) -> None:
    """Take in all of a node's statuses; `may_miss`: what is not among them counts as missing."""
    boot_id = clean(boot_id, 64)
    said = {(status.id, status.run): _cleaned(status) for status in statuses}
    # Locked in one order, all at once, before anything else: the order of everybody.
    instances = (
        Instance.objects.select_for_update(no_key=True, of=("self",))
        .filter(node_id=node.id, state__in=lifecycle.ON_NODE)
        .select_related("flavor", "organization")
        .order_by("id")
    )
    proofs: dict[tuple[UUID, int], datetime] = {}
    is_told_anew = False
    for instance in instances:
        status = said.get((str(instance.id), instance.run))
        if status is not None and _goes_on(instance, status, boot_id):
            proofs[instance.id, instance.run] = lifecycle.latest_billed(
                instance=instance, at=clock.said_at
            )
            continue
        before = _wanted(instance)
        try:
            with transaction.atomic():
                if status is not None:
                    proof = _take(instance, status, boot_id, clock)
                    if proof is not None:
                        proofs[instance.id, instance.run] = proof
                elif may_miss:
                    _miss(instance, clock.now)
        except DomainError:
            # One instance that can't move (a price was deleted, say) must not hold up the others.
            log.exception("what node %s said of instance %s was not taken in", node.id, instance.id)
        is_told_anew = is_told_anew or before != _wanted(instance)
    meters.prove(proofs=proofs)
    if is_told_anew:
        nodes.raise_desired(node_ids=[node.id])


def _cleaned(status: wire.InstanceStatus) -> wire.InstanceStatus:
    """Return a status that fits the columns, whatever the node sent."""
    return msgspec.structs.replace(
        status,
        container_id=clean(status.container_id or "", 100) or None,
        reason_code=clean(status.reason_code or "", 40) or None,
        reason=clean(status.reason or "", 500) or None,
        progress=None if status.progress is None else min(100, max(0, status.progress)),
    )


def _goes_on(instance: Instance, status: wire.InstanceStatus, boot_id: str) -> bool:
    """Tell whether nothing is new, which is what nearly all reports say, and costs no query."""
    return (
        instance.state == State.RUNNING
        and status.phase == "running"
        and instance.missing_since is None
        and _replacement(instance, status, boot_id) is None
        and instance.ports == _ports(status)
    )


def _ports(status: wire.InstanceStatus) -> dict[str, int]:
    return {str(inside): outside for inside, outside in status.ports.items()}


def _wanted(instance: Instance) -> tuple[bool, bool]:
    return instance.state in lifecycle.ON_NODE, instance.ending_since is None


def _take(
    instance: Instance, status: wire.InstanceStatus, boot_id: str, clock: NodeClock
) -> datetime | None:
    """Take in what one instance is observed to do; return until when that proves that it ran."""
    if instance.missing_since is not None:
        lifecycle.note(instance=instance, facts={"missing_since": None})
    if status.phase in wire.FINISHED_PHASES:
        _finish(instance, status, boot_id, clock)
        return None
    if status.phase in {"pulling", "starting"}:
        _starts(instance, status, clock.now)
        return None
    if change := _replacement(instance, status, boot_id):
        _give_up(instance, change, clock.now)
        return None
    if status.phase == "running":
        _runs(instance, status, boot_id, clock)
    elif instance.state == State.LOST and instance.ending_since is not None:
        _still_ends(instance, clock.now)
    if instance.started_at is None:
        return None
    return lifecycle.latest_billed(instance=instance, at=clock.said_at)


def _starts(instance: Instance, status: wire.InstanceStatus, now: datetime) -> None:
    if instance.ending_since is not None or instance.started_at is not None:
        return  # on its way out; or just found again by an agent that has not looked at it yet
    if instance.state == State.STARTING:
        if instance.progress != status.progress:
            lifecycle.note(instance=instance, facts={"progress": status.progress})
        return
    lifecycle.move(
        instance=instance,
        to=State.STARTING,
        now=now,
        reason_code="starting",
        facts={"progress": status.progress},
    )


def _runs(instance: Instance, status: wire.InstanceStatus, boot_id: str, clock: NodeClock) -> None:
    ports = _ports(status)
    if instance.ending_since is not None:
        if instance.state == State.LOST:
            _still_ends(instance, clock.now)
    elif instance.state != State.RUNNING:
        is_back = instance.started_at is not None
        lifecycle.move(
            instance=instance,
            to=State.RUNNING,
            now=clock.now,
            at=clock.at(status.started_at_ms),
            reason_code="node_back" if is_back else "running",
            facts={
                "container_id": status.container_id or "",
                "boot_id": boot_id,
                "ports": ports,
            },
        )
    elif instance.ports != ports:
        lifecycle.note(instance=instance, facts={"ports": ports})


def _still_ends(instance: Instance, now: datetime) -> None:
    """Bring an instance that was lost while it was told to end back to its ending."""
    code = "terminate_asked" if instance.wanted == Wanted.TERMINATE else "stop_asked"
    if instance.wanted == Wanted.RUN:
        code = ending.cause(instance).reason_code
    lifecycle.move(instance=instance, to=State.STOPPING, now=now, reason_code=code)


def _replacement(instance: Instance, status: wire.InstanceStatus, boot_id: str) -> str | None:
    """Say by a reason's code why what runs there is not what was billed so far; None if it is."""
    if instance.started_at is None:
        return None
    if instance.boot_id and boot_id != instance.boot_id:
        return "node_rebooted"
    if instance.container_id and status.container_id not in {instance.container_id, None}:
        return "container_replaced"
    return None


def _give_up(instance: Instance, reason_code: str, now: datetime) -> None:
    """End the bill at the last proof, and have whatever took the instance's name stopped."""
    if instance.state != State.STOPPING:
        lifecycle.move(instance=instance, to=State.STOPPING, now=now, reason_code=reason_code)
    lifecycle.settle(instance=instance, now=now, reason_code=reason_code)


def _finish(
    instance: Instance, status: wire.InstanceStatus, boot_id: str, clock: NodeClock
) -> None:
    """Take in that a run is over, with the node's word for when, if it can know."""
    at = clock.at(status.since)
    reason_code, reason = status.reason_code or "", status.reason or ""
    if change := _replacement(instance, status, boot_id):
        at, reason_code, reason = None, change, ""
    elif reason_code == "vanished":
        at, reason = None, ""
    if instance.ending_since is None and status.phase == "exited" and change is None:
        if instance.started_at is None and status.started_at_ms is not None:
            # Over before a report could say that it ran: it ran all the same.
            _runs(instance, status, boot_id, clock)
        if instance.started_at is not None and status.exit_code == 0:
            lifecycle.move(
                instance=instance, to=State.STOPPED, now=clock.now, at=at, reason_code="finished"
            )
            return
    if not reason_code:
        reason_code = "start_failed" if instance.started_at is None else "exited"
    ending.confirm(instance=instance, now=clock.now, at=at, reason_code=reason_code, reason=reason)


def _miss(instance: Instance, now: datetime) -> None:
    """Note that a report lacks an instance; after a while it is gone."""
    if instance.state == State.PLACING:
        return  # not begun yet: the limit of that state decides
    if instance.missing_since is None:
        lifecycle.note(instance=instance, facts={"missing_since": now})
    elif now - instance.missing_since >= GONE_AFTER:
        ending.confirm(instance=instance, now=now, at=None, reason_code="vanished")
