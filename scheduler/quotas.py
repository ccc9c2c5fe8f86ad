"""Limits of GPUs on three levels, counted from the request on, under one lock per organization.

The lock is the organization's own Quota row: everything that adds to what is used takes it first.
Used is what requests that wait or are placed ask for, wherever they are: an instance on a silent
node still counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from django.db import models, transaction
from django.db.models import Q, Sum
from django.db.models.functions import Cast
from django.utils.translation import gettext as _

from portal import events
from portal.errors import DomainError, Invalid, NotFound
from portal.tenants import audit, roles
from portal.tenants.models import Member, Organization, Team
from portal.tenants.scope import scope
from scheduler.models import Quota, Request, Standing

Level = Literal["organization", "team", "member"]

_MOST_MILLI_GPUS = 2_000_000_000
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
# What one request takes in thousandths of a GPU; SMALLINT times SMALLINT would overflow.
_EACH = Cast("gpu_count", models.IntegerField()) * Cast("units_per_gpu", models.IntegerField())
_MILLI_GPUS = Sum(_EACH)


class UnableToReserve(DomainError):
    """A limit leaves too little."""


class UnableToSetLimit(Invalid):
    """The limit makes no sense."""


@dataclass(frozen=True, slots=True)
class QuotaLine:
    """What one level may use, uses and has left, in thousandths of a GPU; None: no limit."""

    level: Level
    team: Team | None
    member: Member | None
    limit: int | None
    used: int

    @property
    def left(self) -> int | None:
        """What is left, never below zero; None where nothing limits."""
        return None if self.limit is None else max(0, self.limit - self.used)

    @property
    def percent(self) -> int | None:
        """How much of the limit is used, 0 and more; None where nothing limits."""
        if self.limit is None:
            return None
        return 100 if self.limit == 0 else self.used * 100 // self.limit


def lock(*, organization_id: UUID) -> None:
    """Take this organization's lock of all who reserve, until the transaction ends."""
    if not transaction.get_connection().in_atomic_block:
        raise transaction.TransactionManagementError("a quota lock lives in a transaction")
    own = Quota.objects.filter(organization_id=organization_id, team=None, member=None)
    if own.select_for_update().first() is None:
        # ON CONFLICT DO NOTHING: whoever comes second waits for the first and finds his row.
        Quota.objects.bulk_create(
            [Quota(organization_id=organization_id, updated_at=_NEVER)], ignore_conflicts=True
        )
        own.select_for_update().get()


def reserve(*, organization_id: UUID, team_id: UUID, member_id: UUID, milli_gpus: int) -> None:
    """Lock the organization and make sure that thousandths of a GPU are within every limit.

    The reservation itself is the Request that the caller adds in the same transaction. Raises
    UnableToReserve, code `quota_exceeded`, naming the level, its limit, what is used and needed.
    """
    lock(organization_id=organization_id)
    refusal = _refusal(organization_id, team_id, member_id, milli_gpus)
    if refusal is not None:
        raise refusal


def preview(
    *, organization_id: UUID, team_id: UUID, member_id: UUID, milli_gpus: int
) -> UnableToReserve | None:
    """Return the refusal that `reserve` would raise now, without a lock; None if there is none."""
    return _refusal(organization_id, team_id, member_id, milli_gpus)


def _refusal(
    organization_id: UUID, team_id: UUID, member_id: UUID, milli_gpus: int
) -> UnableToReserve | None:
    if milli_gpus == 0:
        return None
    limits = _limits(organization_id, team_id, member_id)
    if not limits:
        return None
    used = _used_by_level(organization_id, team_id, member_id)
    for level in ("organization", "team", "member"):
        limit = limits.get(level)
        if limit is not None and used[level] + milli_gpus > limit:
            return _exceeded(level, limit, used[level], milli_gpus)
    return None


def _limits(organization_id: UUID, team_id: UUID, member_id: UUID) -> dict[str, int]:
    rows = Quota.objects.filter(
        Q(team=None, member=None) | Q(team_id=team_id) | Q(member_id=member_id),
        organization_id=organization_id,
        milli_gpus__isnull=False,
    )
    return {_level(row): row.milli_gpus for row in rows if row.milli_gpus is not None}


def _level(quota: Quota) -> Level:
    if quota.team_id is not None:
        return "team"
    return "organization" if quota.member_id is None else "member"


def _used_by_level(organization_id: UUID, team_id: UUID, member_id: UUID) -> dict[str, int]:
    sums = _counted(organization_id).aggregate(
        organization=_MILLI_GPUS,
        team=Sum(_EACH, filter=Q(team_id=team_id)),
        member=Sum(_EACH, filter=Q(member_id=member_id)),
    )
    return {level: amount or 0 for level, amount in sums.items()}


def _counted(organization_id: UUID) -> models.QuerySet[Request]:
    return Request.objects.filter(organization_id=organization_id).exclude(standing=Standing.ENDED)


def _exceeded(level: Level, limit: int, used: int, needed: int) -> UnableToReserve:
    left = max(0, limit - used)
    amounts = {"needed": gpus(needed), "left": gpus(left), "limit": gpus(limit)}
    sentences = {
        "organization": _(
            "Your organization's GPU limit is %(limit)s: this needs %(needed)s, %(left)s left."
        ),
        "team": _("This team's GPU limit is %(limit)s: this needs %(needed)s, %(left)s left."),
        "member": _("Your own GPU limit is %(limit)s: this needs %(needed)s, %(left)s left."),
    }
    helps = {
        "organization": _(
            "Stop an instance of the organization, take a smaller flavor, or ask an owner or admin "
            "for a higher limit."
        ),
        "team": _(
            "Stop an instance of this team, take a smaller flavor, use another team, or ask the "
            "team's admin for a higher limit."
        ),
        "member": _(
            "Stop one of your instances, take a smaller flavor, or ask an owner or admin for a "
            "higher limit."
        ),
    }
    return UnableToReserve(
        "quota_exceeded",
        sentences[level] % amounts,
        help=helps[level],
        details={"level": level, "limit": limit, "used": used, "needed": needed, "left": left},
    )


def gpus(milli_gpus: int) -> str:
    """Write thousandths as GPUs: "4", "0.25"."""
    whole, rest = divmod(milli_gpus, 1000)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def standing(*, organization: Organization) -> list[QuotaLine]:
    """Return the organization's line, then every team's and every present member's, by name."""
    with scope(organization=organization):
        limits = {
            (row.team_id, row.member_id): row.milli_gpus
            for row in Quota.objects.filter(organization=organization)
        }
        counted = _counted(organization.id)
        total = counted.aggregate(used=_MILLI_GPUS)["used"] or 0
        by_team = dict(counted.values_list("team_id").annotate(used=_MILLI_GPUS))
        by_member = dict(counted.values_list("member_id").annotate(used=_MILLI_GPUS))
        teams = Team.objects.order_by("name", "id")
        members = Member.objects.select_related("user").order_by("user__email")
        return [
            QuotaLine("organization", None, None, limits.get((None, None)), total),
            *(
                QuotaLine("team", team, None, limits.get((team.id, None)), by_team.get(team.id, 0))
                for team in teams
            ),
            *(
                QuotaLine("member", None, one, limits.get((None, one.id)), by_member.get(one.id, 0))
                for one in members
                if one.removed_at is None or one.id in by_member
            ),
        ]


def visible(*, actor: roles.Actor) -> Iterator[QuotaLine]:
    """Yield the lines of `standing` that the actor may see."""
    for line in standing(organization=actor.organization):
        if line.level == "organization":
            if actor.may_somewhere("quotas.view"):
                yield line
        elif actor.may(
            "quotas.view",
            team_id=line.team.id if line.team else None,
            owner_id=line.member.id if line.member else None,
        ):
            yield line


def set_limit(
    *,
    actor: roles.Actor,
    team: Team | None = None,
    member: Member | None = None,
    milli_gpus: int | None,
    now: datetime,
) -> Quota:
    """Set the limit of the organization (neither named), of a team or of a member; None lifts it.

    What already runs goes on when a limit falls below it; nothing new starts. Raises UnableToAct,
    NotFound for what belongs to another organization, and UnableToSetLimit.
    """
    _check_limit(team, member, milli_gpus)
    organization = actor.organization
    for thing in (team, member):
        if thing is not None and thing.organization_id != organization.id:
            raise NotFound("not_found", _("There is no such team or member here."))
    roles.require(actor, "quotas.manage", team_id=team.id if team else None)
    with scope(organization=organization), transaction.atomic():
        lock(organization_id=organization.id)
        quota, _is_new = Quota.objects.select_for_update().get_or_create(
            organization=organization, team=team, member=member, defaults={"updated_at": now}
        )
        before = quota.milli_gpus
        quota.milli_gpus, quota.updated_at = milli_gpus, now
        quota.save(update_fields=["milli_gpus", "updated_at"])
        audit.record(
            actor=actor,
            organization=organization,
            verb="quota.set",
            target_kind="quota",
            target_id=str(quota.id),
            target_name=str(team or member or organization),
            details={"level": _level(quota), "from": before, "to": milli_gpus},
            now=now,
        )
        events.announce(topic=events.organization_topic(organization.id), kind="quota", id=quota.id)
    return quota


def _check_limit(team: Team | None, member: Member | None, milli_gpus: int | None) -> None:
    if team is not None and member is not None:
        raise UnableToSetLimit(
            "limit_of_two", _("A limit is a team's or a member's, not both at once.")
        )
    if milli_gpus is not None and not 0 <= milli_gpus <= _MOST_MILLI_GPUS:
        sentence = _("Enter a number of GPUs from 0 to %(most)s, or nothing for no limit.") % {
            "most": _MOST_MILLI_GPUS // 1000
        }
        raise UnableToSetLimit("limit_out_of_range", sentence, details={"milli_gpus": [sentence]})
