"""Teams: made by owners and admins, filled by them and by the team's own admins."""

from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.utils.text import slugify
from django.utils.translation import gettext as _

from portal import events
from portal.errors import Invalid, NotFound
from portal.tenants import audit
from portal.tenants.models import Member, Team, TeamMember
from portal.tenants.roles import Actor, require

DEFAULT_TEAM = "Default"
_LONGEST_NAME = 80  # as the column


class UnableToFindTeam(NotFound):
    """No such team in this organization."""


class UnableToName(Invalid):
    """The name is empty, too long, or taken."""


class UnableToFindMember(NotFound):
    """No such member in this organization, or in this team."""


def get_team(*, actor: Actor, team_id: UUID) -> Team:
    """Return a team of the actor's organization. Raises UnableToFindTeam (404)."""
    team = Team.objects.filter(organization=actor.organization, id=team_id).first()
    if team is None:
        raise UnableToFindTeam(
            "team_not_found",
            _("There is no such team in this organization."),
            help=_("Choose one of the organization's teams."),
        )
    return team


def find_team(*, actor: Actor, key: str) -> Team:
    """Return a team by its id or its slug, as people type it. Raises UnableToFindTeam (404)."""
    try:
        team_id = UUID(key)
    except ValueError:
        found = Team.objects.filter(organization=actor.organization, slug=key).first()
        return found or get_team(actor=actor, team_id=UUID(int=0))
    return get_team(actor=actor, team_id=team_id)


@transaction.atomic
def create_team(*, actor: Actor, name: str, now: datetime) -> Team:
    """Make a team without members. Raises UnableToAct, UnableToName."""
    require(actor, "teams.manage")
    name = _checked(actor, name, except_for=None)
    team = Team.objects.create(
        organization=actor.organization, name=name, slug=_free_slug(actor, name)
    )
    _note(actor, "team.create", team, now)
    return team


@transaction.atomic
def rename_team(*, actor: Actor, team_id: UUID, name: str, now: datetime) -> Team:
    """Give a team another name; its slug stays, so that addresses do. Raises UnableToName."""
    team = get_team(actor=actor, team_id=team_id)
    require(actor, "teams.manage", team_id=team.id)
    before, team.name = team.name, _checked(actor, name, except_for=team)
    team.save(update_fields=["name"])
    _note(actor, "team.rename", team, now, was=before)
    return team


@transaction.atomic
def add_to_team(
    *, actor: Actor, team_id: UUID, member_id: UUID, is_admin: bool = False, now: datetime
) -> TeamMember:
    """Put a member into a team; again changes nothing. Raises UnableToAct, UnableToFindMember.

    Only owners and admins of the organization may make somebody the team's admin.
    """
    team = get_team(actor=actor, team_id=team_id)
    require(actor, "teams.manage", team_id=None if is_admin else team.id)
    member = _member(actor, member_id)
    place, is_new = TeamMember.objects.get_or_create(
        team=team,
        member=member,
        defaults={"organization": actor.organization, "is_admin": is_admin},
    )
    if is_new:
        _note(actor, "team.add", team, now, member=member, is_admin=is_admin)
    return place


@transaction.atomic
def place_in_team(
    *, actor: Actor, team_id: UUID, member_id: UUID, is_admin: bool, now: datetime
) -> TeamMember:
    """Put a member into a team as its admin or not, whichever way it was before."""
    place = add_to_team(
        actor=actor, team_id=team_id, member_id=member_id, is_admin=is_admin, now=now
    )
    if place.is_admin != is_admin:
        place = set_team_admin(
            actor=actor, team_id=team_id, member_id=member_id, is_admin=is_admin, now=now
        )
    return place


@transaction.atomic
def remove_from_team(*, actor: Actor, team_id: UUID, member_id: UUID, now: datetime) -> None:
    """Take a member out of a team. Anybody may leave by themselves. Raises UnableToFindMember."""
    team = get_team(actor=actor, team_id=team_id)
    place = _place(actor, team, member_id)
    if member_id != actor.member.id or actor.token is not None:
        require(actor, "teams.manage", team_id=None if place.is_admin else team.id)
    place.delete()
    _note(actor, "team.remove", team, now, member=place.member)


@transaction.atomic
def set_team_admin(
    *, actor: Actor, team_id: UUID, member_id: UUID, is_admin: bool, now: datetime
) -> TeamMember:
    """Make a member of the team its admin, or no longer. For owners and admins only."""
    team = get_team(actor=actor, team_id=team_id)
    require(actor, "teams.manage")
    place = _place(actor, team, member_id)
    if place.is_admin != is_admin:
        place.is_admin = is_admin
        place.save(update_fields=["is_admin"])
        _note(actor, "team.set_admin", team, now, member=place.member, is_admin=is_admin)
    return place


def _checked(actor: Actor, name: str, *, except_for: Team | None) -> str:
    name = name.strip()
    if not name or len(name) > _LONGEST_NAME:
        sentence = _("Give the team a name of at most %(limit)d characters.") % {
            "limit": _LONGEST_NAME
        }
        raise UnableToName("team_name_invalid", sentence, details={"name": [sentence]})
    others = Team.objects.filter(organization=actor.organization, name__iexact=name)
    if except_for is not None:
        others = others.exclude(id=except_for.id)
    if others.exists():
        sentence = _("There is already a team with this name.")
        raise UnableToName("team_name_taken", sentence, details={"name": [sentence]})
    return name


def _free_slug(actor: Actor, name: str) -> str:
    stem = slugify(name)[:40] or "team"
    taken = set(
        Team.objects.filter(organization=actor.organization, slug__startswith=stem).values_list(
            "slug", flat=True
        )
    )
    candidates = (stem if n == 1 else f"{stem}-{n}" for n in range(1, len(taken) + 2))
    return next(slug for slug in candidates if slug not in taken)


def _member(actor: Actor, member_id: UUID) -> Member:
    # Locked, so that a removal at the same moment can't leave a place behind.
    member = (
        Member.objects.select_for_update(of=("self",))
        .select_related("user")
        .filter(organization=actor.organization, id=member_id, removed_at=None)
        .first()
    )
    if member is None:
        raise UnableToFindMember(
            "member_not_found",
            _("There is no such member in this organization."),
            help=_("Invite the person to the organization first."),
        )
    return member


def _place(actor: Actor, team: Team, member_id: UUID) -> TeamMember:
    place = (
        TeamMember.objects.select_for_update(of=("self",))
        .select_related("member__user")
        .filter(organization=actor.organization, team=team, member_id=member_id)
        .first()
    )
    if place is None:
        raise UnableToFindMember("member_not_in_team", _("There is no such member in this team."))
    return place


def _note(
    actor: Actor,
    verb: str,
    team: Team,
    now: datetime,
    *,
    member: Member | None = None,
    **details: object,
) -> None:
    if member is not None:
        details |= {"member": str(member.id), "email": member.user.email}
        events.announce(
            topic=events.organization_topic(actor.organization.id), kind="member", id=member.id
        )
    audit.record(
        actor=actor,
        organization=actor.organization,
        verb=verb,
        target_kind="team",
        target_id=team.id,
        target_name=team.name,
        details=details,
        now=now,
    )
