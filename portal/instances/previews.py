"""What a launch would cost and whether it would be accepted, before the button is pressed."""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from django.utils.translation import gettext as _

from portal.billing import prices
from portal.errors import DomainError
from portal.instances import catalogue, placement, wishes
from portal.instances.models import Flavor
from portal.money import Money
from portal.tenants import roles
from portal.tenants.roles import Actor
from portal.tenants.scope import every_tenant, scope
from scheduler import place, quotas
from scheduler import words as say
from scheduler.engine.plan import Code
from scheduler.engine.snapshot import Node
from scheduler.models import Request


@dataclass(frozen=True, slots=True)
class Preview:
    """The price, what would stand in the way, and when it would start.

    `while_stopped` is the price per hour of a stopped instance. `refusals` are what `launch` would
    raise now. `free_now` is how many of this flavor would start at once; `estimate` says when this
    one would start, in words, and `why_waiting` why it would not at once.
    """

    per_hour: Money | None
    per_day: Money | None
    while_stopped: Money
    refusals: list[DomainError] = field(default_factory=list)
    free_now: int = 0
    estimate: str = ""
    why_waiting: str = ""


def preview(
    *, actor: Actor, team_id: UUID, flavor: str, image: str | None = None, now: datetime
) -> Preview:
    """Say what a launch of this flavor would cost, meet and wait for; nothing is kept."""
    with scope(organization=actor.organization):
        refusals: list[DomainError] = []
        chosen: Flavor | None = None
        try:
            team = wishes.team_of(actor, team_id)
            roles.require(actor, "instances.launch", team_id=team.id)
        except DomainError as refusal:
            refusals.append(refusal)
        try:
            chosen = wishes.offered_flavor(flavor)
            if image is not None:
                wishes.offered_image(image)
        except DomainError as refusal:
            refusals.append(refusal)
        currency = actor.organization.currency
        per_hour = _price(chosen, currency, now, refusals)
        if chosen is not None:
            exceeded = quotas.preview(
                organization_id=actor.organization.id,
                team_id=team_id,
                member_id=actor.member.id,
                milli_gpus=chosen.milli_gpus,
            )
            refusals += [exceeded] if exceeded else []
    free_now, estimate, why = (0, "", "")
    if chosen is not None:
        free_now, estimate, why = _foresee(actor, team_id, chosen, now)
    return Preview(
        per_hour=per_hour,
        per_day=Money(per_hour.amount * 24, currency) if per_hour else None,
        while_stopped=Money(Decimal(0), currency),
        refusals=refusals,
        free_now=free_now,
        estimate=estimate,
        why_waiting=why,
    )


def _price(
    chosen: Flavor | None, currency: str, now: datetime, refusals: list[DomainError]
) -> Money | None:
    if chosen is None:
        return None
    try:
        price = prices.current(sku=chosen.code, currency=currency, at=now)
    except DomainError as refusal:
        refusals.append(refusal)
        return None
    return Money(price.per_hour, currency)


def _foresee(actor: Actor, team_id: UUID, flavor: Flavor, now: datetime) -> tuple[int, str, str]:
    wish = Request(
        organization_id=actor.organization.id,
        team_id=team_id,
        member_id=actor.member.id,
        submitted_at=now,
        gpu_models=flavor.gpu_models,
        gpu_count=flavor.gpu_count,
        units_per_gpu=flavor.units_per_gpu,
        gpu_memory_bytes=flavor.gpu_memory_bytes,
        cpu_milli=flavor.cpu_milli,
        memory_bytes=flavor.memory_bytes,
        disk_bytes=flavor.disk_bytes,
    )
    with every_tenant("all tenants' machines and queue decide when one would start"):
        machines: list[Node] = placement.supply(now=now)
        decision = place.foresee(supply=machines, wish=wish, now=now)
    free_now = catalogue.free_now(flavor, machines)
    if decision.code == Code.PLACED:
        return free_now, _("At once"), ""
    guess = place.as_json(decision.estimate)
    return free_now, say.estimate(guess), say.sentence(decision.code, decision.args)
