"""Organizations and who is in them: make, change a role, remove, leave. The last owner stays."""

from datetime import datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import Q
from django.utils.crypto import get_random_string
from django.utils.text import slugify
from django.utils.translation import gettext as _

from portal import events
from portal.errors import DomainError, Invalid
from portal.tenants import audit, tokens
from portal.tenants.models import Invitation, Member, Organization, Role, Team, TeamMember, User
from portal.tenants.roles import REACH, Actor, Reach, UnableToAct, require
from portal.tenants.scope import scope
from portal.tenants.teams import DEFAULT_TEAM, UnableToFindMember

_LONGEST_NAME = 80  # as the column


class UnableToCreateOrganization(Invalid):
    """Its name, currency or time zone makes no sense."""


class UnableToChangeMember(DomainError):
    """The organization would be left without an owner."""


@transaction.atomic
def create_organization(
    *, user: User, name: str, currency: str, billing_zone: str, now: datetime
) -> Organization:
    """Make an organization with `user` as its owner and a team "Default".

    `currency` is an ISO 4217 code and `billing_zone` an IANA zone; both are for good, since bills
    are made in them. Raises UnableToCreateOrganization.
    """
    name = _checked_name(name)
    if len(currency) != 3 or not (currency.isascii() and currency.isalpha() and currency.isupper()):
        raise _unable("currency", _("Choose a currency by its three letters, as in USD."))
    try:
        ZoneInfo(billing_zone)
    except (KeyError, ValueError, OSError) as error:
        raise _unable("billing_zone", _("Choose a time zone, as in Europe/Berlin.")) from error
    organization = Organization.objects.create(
        name=name, slug=_free_slug(name), currency=currency, billing_zone=billing_zone
    )
    with scope(organization=organization):
        owner = Member.objects.create(organization=organization, user=user, role=Role.OWNER)
        team = Team.objects.create(organization=organization, name=DEFAULT_TEAM, slug="default")
        TeamMember.objects.create(organization=organization, team=team, member=owner, is_admin=True)
    audit.record(
        actor=None,
        user=user,
        organization=organization,
        verb="organization.create",
        target_kind="organization",
        target_id=organization.id,
        target_name=name,
        details={"currency": currency, "billing_zone": billing_zone},
        now=now,
    )
    return organization


@transaction.atomic
def rename_organization(*, actor: Actor, name: str, now: datetime) -> Organization:
    """Give the organization another name; its slug stays, so that addresses do."""
    require(actor, "organization.manage")
    organization = Organization.objects.select_for_update(no_key=True).get(id=actor.organization.id)
    before, organization.name = organization.name, _checked_name(name)
    organization.save(update_fields=["name"])
    audit.record(
        actor=actor,
        organization=organization,
        verb="organization.rename",
        target_kind="organization",
        target_id=organization.id,
        target_name=organization.name,
        details={"was": before},
        now=now,
    )
    return organization


def get_member(*, actor: Actor, member_id: UUID) -> Member:
    """Return a present member of the actor's organization. Raises UnableToFindMember (404)."""
    member = (
        Member.objects.select_related("user", "organization")
        .filter(organization=actor.organization, id=member_id, removed_at=None)
        .first()
    )
    if member is None or not actor.may("members.view"):
        raise UnableToFindMember(
            "member_not_found", _("There is no such member in this organization.")
        )
    return member


@transaction.atomic
def change_role(*, actor: Actor, member_id: UUID, role: Role, now: datetime) -> Member:
    """Give a member another role. Only owners make and unmake owners; the last one stays owner.

    Open invitations that the new role could not send are closed.
    """
    _lock(actor.organization)
    member = get_member(actor=actor, member_id=member_id)
    require(actor, "members.manage")
    require_owner_for(actor, Role(member.role), role)
    if member.role == role:
        return member
    if member.role == Role.OWNER:
        _keep_an_owner(member)
    before, member.role = member.role, role
    member.save(update_fields=["role"])
    if role != Role.OWNER:
        may_invite = Reach.ALL in REACH[role]["members.manage"]
        _close_invitations(member, Q(role=Role.OWNER) if may_invite else Q(), now)
    _note(actor, "member.change_role", member, now, was=before, role=role)
    return member


@transaction.atomic
def remove_member(*, actor: Actor, member_id: UUID, now: datetime) -> None:
    """Take a person out of the organization; rights, teams and tokens end at once.

    What they launched stays, under their name, and admins manage it. Raises UnableToAct,
    UnableToChangeMember for the last owner.
    """
    _lock(actor.organization)
    member = get_member(actor=actor, member_id=member_id)
    require(actor, "members.manage")
    require_owner_for(actor, Role(member.role))
    _take_out(actor, member, "member.remove", now)


@transaction.atomic
def leave(*, actor: Actor, now: datetime) -> None:
    """Leave the organization oneself. Raises UnableToChangeMember for the last owner."""
    if actor.token is not None:
        require(actor, "members.manage")
    _lock(actor.organization)
    member = get_member(actor=actor, member_id=actor.member.id)
    _take_out(actor, member, "member.leave", now)


def require_owner_for(actor: Actor, *roles: Role) -> None:
    """Raise UnableToAct if one of the roles is OWNER and the actor is not an owner himself."""
    if Role.OWNER in roles and actor.member.role != Role.OWNER:
        raise UnableToAct(
            "owner_only",
            _("Only an owner can make, change or remove an owner."),
            help=_("Ask an owner of the organization."),
        )


def announce(member: Member) -> None:
    """Tell live readers that somebody's rights changed, so that they are looked at again."""
    events.announce(
        topic=events.organization_topic(member.organization_id), kind="member", id=member.id
    )


def _take_out(actor: Actor, member: Member, verb: str, now: datetime) -> None:
    if member.role == Role.OWNER:
        _keep_an_owner(member)
    member.removed_at = now
    member.save(update_fields=["removed_at"])
    TeamMember.objects.filter(member=member).delete()
    tokens.revoke_all(Q(member=member), now=now)
    _close_invitations(member, Q(), now)
    _note(actor, verb, member, now)


def _close_invitations(member: Member, which: Q, now: datetime) -> None:
    """Close open invitations that the member may not send any more: they would be a way back in."""
    sent = Invitation.objects.filter(invited_by=member, accepted_at=None, revoked_at=None)
    sent.filter(which).update(revoked_at=now)


def _lock(organization: Organization) -> None:
    # One change of roles at a time, or two owners could each remove the other.
    Organization.objects.select_for_update(no_key=True).get(id=organization.id)


def _keep_an_owner(member: Member) -> None:
    owners = Member.objects.filter(
        organization=member.organization_id, role=Role.OWNER, removed_at=None, user__is_active=True
    )
    if not owners.exclude(id=member.id).exists():
        raise UnableToChangeMember(
            "last_owner",
            _("An organization needs an owner, and this is the last one."),
            help=_("Make another member an owner first."),
        )


def _note(actor: Actor, verb: str, member: Member, now: datetime, **details: object) -> None:
    audit.record(
        actor=actor,
        organization=actor.organization,
        verb=verb,
        target_kind="member",
        target_id=member.id,
        target_name=str(member.user),
        details={"email": member.user.email, **details},
        now=now,
    )
    announce(member)


def _checked_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > _LONGEST_NAME:
        raise _unable(
            "name",
            _("Give the organization a name of at most %(limit)d characters.")
            % {"limit": _LONGEST_NAME},
        )
    return name


def _unable(field: str, sentence: str) -> UnableToCreateOrganization:
    return UnableToCreateOrganization(f"{field}_invalid", sentence, details={field: [sentence]})


def _free_slug(name: str) -> str:
    stem = slugify(name)[:40] or "organization"
    slug = stem
    # Never a counter: it would tell how many others have the same name.
    while Organization.objects.filter(slug=slug).exists():
        slug = f"{stem}-{get_random_string(6, 'abcdefghjkmnpqrstuvwxyz23456789')}"
    return slug
