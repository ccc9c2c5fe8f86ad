"""What people ask of instances: launch, start again, stop, terminate, set a stop time, read logs.

Every call checks the rights on the object itself, and answers at once: the machine follows. A
foreign instance answers like a missing one.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import ClassVar
from uuid import UUID, uuid4

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from portal.billing import prices
from portal.errors import DomainError, NotFound
from portal.fleet import commands, nodes
from portal.instances import ending, lifecycle, wishes
from portal.instances.models import Instance, State, Wanted
from portal.instances.previews import Preview, preview
from portal.instances.wishes import UnableToLaunch, UnableToWish
from portal.tenants import audit, roles
from portal.tenants.roles import Actor, Reach
from portal.tenants.scope import scope
from scheduler import queue, quotas
from scheduler.models import Request

__all__ = [
    "Preview",
    "UnableToFindInstance",
    "UnableToLaunch",
    "UnableToRead",
    "UnableToStart",
    "UnableToWish",
    "get",
    "launch",
    "logs",
    "preview",
    "set_stop_at",
    "start",
    "stop",
    "terminate",
    "visible",
]

_MOST_LOG_LINES = 5000


class UnableToStart(DomainError):
    """The instance can't be started again now."""


class UnableToRead(DomainError):
    """There is nothing to read, or nobody who could tell."""


class UnableToFindInstance(NotFound):
    """No such instance, or not one that this actor may see: the answer is the same."""

    status: ClassVar[int] = 404


def launch(
    *,
    actor: Actor,
    team_id: UUID,
    name: str,
    flavor: str,
    image: str,
    command: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    priority: int = 0,
    stop_at: datetime | None = None,
    now: datetime,
) -> Instance:
    """Check permission, quota and price under one lock, and queue a new instance.

    `flavor` and `image` are codes (or ids as text) of what is on offer. `stop_at` is when the
    portal ends it. Raises UnableToAct, NotFound (team), UnableToWish (fields, by name in
    `details`), UnableToLaunch (flavor_not_offered, image_not_offered, name_taken), UnableToPrice
    and UnableToReserve.
    """
    with scope(organization=actor.organization), transaction.atomic():
        team = wishes.team_of(actor, team_id)
        roles.require(actor, "instances.launch", team_id=team.id)
        wish = wishes.check(
            name=name, command=command, env=env, priority=priority, stop_at=stop_at, now=now
        )
        chosen, ran = wishes.offered_flavor(flavor), wishes.offered_image(image)
        prices.current(sku=chosen.code, currency=actor.organization.currency, at=now)
        quotas.reserve(
            organization_id=actor.organization.id,
            team_id=team.id,
            member_id=actor.member.id,
            milli_gpus=chosen.milli_gpus,
        )
        instance = Instance(
            id=uuid4(),
            organization=actor.organization,
            team=team,
            member=actor.member,
            flavor=chosen,
            image=ran,
            created_at=now,
            run=1,
            **wish.fields(),
        )
        instance.request = _submit(instance, now)
        _write_new(instance, actor, now)
        audit.record(
            actor=actor,
            organization=actor.organization,
            verb="instance.launch",
            target_kind="instance",
            target_id=instance.id,
            target_name=instance.name,
            details={"team": team.name, "flavor": chosen.code, "image": ran.code},
            now=now,
        )
    return instance


def _write_new(instance: Instance, actor: Actor, now: datetime) -> None:
    try:
        with transaction.atomic():
            lifecycle.begin(instance=instance, now=now, by=actor.member)
    except IntegrityError as error:
        if "instance_name_once" not in str(error):
            raise
        sentence = _("This team has an instance named “%(name)s” already.") % {
            "name": instance.name
        }
        raise UnableToLaunch(
            "name_taken",
            sentence,
            help=_("Choose another name, or terminate the other instance first."),
            details={"name": [sentence]},
        ) from error


def _submit(instance: Instance, now: datetime) -> Request:
    flavor = instance.flavor
    return queue.submit(
        organization_id=instance.organization_id,
        team_id=instance.team_id,
        member_id=instance.member_id,
        subject=instance.id,
        gpu_count=flavor.gpu_count,
        units_per_gpu=flavor.units_per_gpu,
        gpu_models=flavor.gpu_models,
        gpu_memory_bytes=flavor.gpu_memory_bytes,
        cpu_milli=flavor.cpu_milli,
        memory_bytes=flavor.memory_bytes,
        disk_bytes=flavor.disk_bytes,
        priority=instance.priority,
        ends_by=instance.stop_at,
        now=now,
    )


def start(*, actor: Actor, instance_id: UUID, now: datetime) -> Instance:
    """Queue a stopped or failed instance again, as its next run.

    Raises UnableToFindInstance, UnableToAct, UnableToStart, UnableToPrice and UnableToReserve.
    """
    with scope(organization=actor.organization), transaction.atomic():
        instance = get(actor=actor, instance_id=instance_id)
        _require_manage(actor, instance)
        # It takes of the team's limit anew: who has left the team can't.
        roles.require(actor, "instances.launch", team_id=instance.team_id)
        # The quota's lock comes before the instance's, as in a launch.
        quotas.lock(organization_id=instance.organization_id)
        lifecycle.lock(instance)
        if State.QUEUED not in lifecycle.MOVES[State(instance.state)]:
            raise _unable_to_start(instance)
        if not instance.flavor.is_offered or not instance.image.is_offered:
            raise UnableToStart(
                "no_longer_offered",
                _("Its flavor or image is no longer on offer."),
                help=_("Launch a new instance from what is on offer."),
            )
        currency = instance.organization.currency
        prices.current(sku=instance.flavor.code, currency=currency, at=now)
        quotas.reserve(
            organization_id=instance.organization_id,
            team_id=instance.team_id,
            member_id=instance.member_id,
            milli_gpus=instance.flavor.milli_gpus,
        )
        if instance.stop_at is not None and instance.stop_at <= now:
            instance.stop_at = None  # it was for an earlier run
        lifecycle.move(
            instance=instance,
            to=State.QUEUED,
            now=now,
            reason_code="started_again",
            by=actor.member,
            facts={
                "run": instance.run + 1,
                "stop_at": instance.stop_at,
                "request": _submit(instance, now),
            },
        )
        _record(actor, instance, "instance.start", now)
    return instance


def _unable_to_start(instance: Instance) -> UnableToStart:
    if instance.state == State.TERMINATED:
        return UnableToStart(
            "terminated",
            _("This instance was terminated; that is for good."),
            help=_("Launch a new one."),
        )
    if instance.state in {State.STOPPING, State.LOST}:
        return UnableToStart(
            "not_ended_yet",
            _("This instance has not ended yet."),
            help=_("Start it once its machine has confirmed the end."),
        )
    return UnableToStart("already_started", _("This instance is started already."))


def stop(*, actor: Actor, instance_id: UUID, now: datetime) -> Instance:
    """Ask for an instance to end, at any moment of its life; it can be started again later.

    An instance that has ended, or was told to end, is returned as it is. Raises
    UnableToFindInstance and UnableToAct.
    """
    return _end(actor, instance_id, Wanted.STOP, now)


def terminate(*, actor: Actor, instance_id: UUID, now: datetime) -> Instance:
    """Ask for an instance to end for good, from every state.

    On a silent machine the end is confirmed when it answers again or is retired; till then its
    GPUs stay taken. Raises UnableToFindInstance and UnableToAct.
    """
    return _end(actor, instance_id, Wanted.TERMINATE, now)


def _end(actor: Actor, instance_id: UUID, wanted: Wanted, now: datetime) -> Instance:
    with scope(organization=actor.organization), transaction.atomic():
        instance = get(actor=actor, instance_id=instance_id)
        _require_manage(actor, instance)
        node_id = ending.end(
            instance=instance,
            wanted=wanted,
            reason_code="stop_asked" if wanted == Wanted.STOP else "terminate_asked",
            by=actor.member,
            now=now,
        )
        is_final = wanted == Wanted.TERMINATE
        _record(actor, instance, "instance.terminate" if is_final else "instance.stop", now)
        if node_id is not None:
            nodes.raise_desired(node_ids=[node_id])
    return instance


def set_stop_at(
    *, actor: Actor, instance_id: UUID, stop_at: datetime | None, now: datetime
) -> Instance:
    """Have the portal stop an instance at a time, or never by itself with None.

    It counts at once. Raises UnableToFindInstance, UnableToAct and UnableToWish for a time that
    has passed or is more than a year away.
    """
    with scope(organization=actor.organization), transaction.atomic():
        instance = get(actor=actor, instance_id=instance_id)
        _require_manage(actor, instance)
        checked = wishes.stop_time(stop_at, now)
        lifecycle.lock(instance)
        lifecycle.note(instance=instance, facts={"stop_at": checked})
        if instance.request_id is not None:
            queue.set_end(request_id=instance.request_id, ends_by=checked)
        _record(
            actor,
            instance,
            "instance.set_stop_at",
            now,
            {"stop_at": checked.isoformat() if checked else None},
        )
    return instance


def visible(*, actor: Actor) -> QuerySet[Instance]:
    """Return the instances that the actor may see, the newest first. Needs an open scope."""
    rows = Instance.objects.filter(organization=actor.organization)
    reach = actor.reach("instances.view")
    if Reach.ALL not in reach:
        mine = Q(pk__in=[])
        if Reach.OWN in reach:
            mine |= Q(member=actor.member)
        if Reach.TEAMS in reach:
            mine |= Q(team_id__in=actor.team_ids)
        if Reach.LED in reach:
            mine |= Q(team_id__in=actor.admin_team_ids)
        rows = rows.filter(mine)
    return rows.select_related(
        "organization", "team", "member__user", "flavor", "image", "request", "node"
    ).order_by("-created_at", "id")


def get(*, actor: Actor, instance_id: UUID) -> Instance:
    """Fetch an instance that the actor may see. Raises UnableToFindInstance for all others."""
    with scope(organization=actor.organization):
        found = visible(actor=actor).filter(id=instance_id).first()
    if found is None:
        raise UnableToFindInstance(
            "instance_not_found",
            _("There is no such instance, or you can't see it."),
            help=_("Check the address, or ask a member of its team."),
        )
    return found


def logs(*, actor: Actor, instance_id: UUID, tail: int = 200) -> str:
    """Return the last `tail` lines that the present run wrote, asked from its node.

    Raises UnableToFindInstance, UnableToRead before it was ever placed, and UnableToAsk while the
    node is silent.
    """
    instance = get(actor=actor, instance_id=instance_id)
    if instance.node_id is None:
        raise UnableToRead(
            "no_logs_yet",
            _("There are no logs: this run has not been on a machine."),
            help=_("Logs appear once it starts."),
        )
    answer = commands.ask(
        node_id=instance.node_id,
        kind="logs",
        args={
            "instance": str(instance.id),
            "run": instance.run,
            "tail": max(1, min(tail, _MOST_LOG_LINES)),
        },
    )
    return str(answer.get("data") or "")


def _require_manage(actor: Actor, instance: Instance) -> None:
    roles.require(actor, "instances.manage", team_id=instance.team_id, owner_id=instance.member_id)


def _record(
    actor: Actor,
    instance: Instance,
    verb: str,
    now: datetime,
    details: Mapping[str, object] | None = None,
) -> None:
    audit.record(
        actor=actor,
        organization=actor.organization,
        verb=verb,
        target_kind="instance",
        target_id=instance.id,
        target_name=instance.name,
        details=details or {},
        now=now,
    )
