"""Invitations: one e-mail address, one link, one week. The secret in the link is kept as a hash."""

import secrets
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from portal.errors import DomainError, Forbidden, NotFound
from portal.tenants import audit
from portal.tenants.members import announce, require_owner_for
from portal.tenants.models import Invitation, Member, Organization, Role, TeamMember, User
from portal.tenants.roles import Actor, require
from portal.tenants.scope import every_tenant, scope
from portal.tenants.teams import get_team
from portal.tenants.tokens import fingerprint

LASTS = timedelta(days=7)


class UnableToInvite(DomainError):
    """The person is already a member."""


class UnableToAccept(DomainError):
    """The invitation is no longer open."""


class UnableToFindInvitation(NotFound):
    """No such invitation."""


class UnableToAcceptForAnother(Forbidden):
    """The invitation is for another e-mail address."""


@transaction.atomic
def invite(
    *, actor: Actor, email: str, role: Role, team_id: UUID | None = None, now: datetime
) -> Invitation:
    """Invite a person and mail the link after commit; inviting again replaces the earlier link.

    The answer's `secret` opens the link, for those who hand it over themselves. Raises
    UnableToAct, UnableToInvite (already a member), UnableToFindTeam.
    """
    require(actor, "members.manage")
    require_owner_for(actor, role)
    email = User.objects.normalize_email(email.strip()).lower()
    team = get_team(actor=actor, team_id=team_id) if team_id else None
    # Serializes two invitations of one address.
    Organization.objects.select_for_update(no_key=True).get(id=actor.organization.id)
    if Member.objects.filter(user__email=email, removed_at=None).exists():
        raise UnableToInvite(
            "already_member",
            _("%(email)s is already a member of this organization.") % {"email": email},
            help=_("Change the member's role instead."),
        )
    _open().filter(email__iexact=email).update(revoked_at=now)
    secret = secrets.token_urlsafe(32)
    invitation = Invitation.objects.create(
        organization=actor.organization,
        email=email,
        role=role,
        team=team,
        secret_hash=fingerprint(secret),
        invited_by=actor.member,
        created_at=now,
        expires_at=now + LASTS,
    )
    invitation.secret = secret
    _note("invitation.send", invitation, now, actor=actor, role=role)
    _mail(invitation, secret)
    return invitation


def visible(*, actor: Actor) -> QuerySet[Invitation]:
    """Return the open invitations, newest first. Raises UnableToAct."""
    require(actor, "members.manage")
    return _open().select_related("team", "invited_by__user").order_by("-created_at", "-id")


@transaction.atomic
def revoke_invitation(*, actor: Actor, invitation_id: UUID, now: datetime) -> None:
    """Close an open invitation. Raises UnableToAct, UnableToFindInvitation."""
    require(actor, "members.manage")
    invitation = _open().select_for_update().filter(id=invitation_id).first()
    if invitation is None:
        raise UnableToFindInvitation("invitation_not_found", _("There is no such invitation."))
    invitation.revoked_at = now
    invitation.save(update_fields=["revoked_at"])
    _note("invitation.revoke", invitation, now, actor=actor)


def find_invitation(*, secret: str, now: datetime) -> Invitation:
    """Return the open invitation behind a link, to show before accepting.

    Raises UnableToFindInvitation, or UnableToAccept if it was used, closed or has expired.
    """
    with every_tenant("the secret of a link itself says whose it is"):
        invitation = (
            Invitation.objects.select_related("organization", "team", "invited_by__user")
            .filter(secret_hash=fingerprint(secret))
            .first()
        )
    if invitation is None:
        raise UnableToFindInvitation(
            "invitation_not_found",
            _("There is no such invitation."),
            help=_("Check that the link is complete."),
        )
    again = _("Ask for a new invitation.")
    if invitation.accepted_at is not None:
        raise UnableToAccept("invitation_used", _("This invitation was used."), help=again)
    if invitation.expires_at <= now:
        raise UnableToAccept("invitation_expired", _("This invitation has expired."), help=again)
    if invitation.revoked_at is not None:
        raise UnableToAccept("invitation_revoked", _("This invitation was closed."), help=again)
    return invitation


@transaction.atomic
def accept_invitation(*, secret: str, user: User, now: datetime) -> Member:
    """Make `user`, whose verified address must be the invited one, a member; return the member.

    Somebody who was removed comes back as the same member. Raises UnableToFindInvitation,
    UnableToAccept, UnableToAcceptForAnother.
    """
    organization = find_invitation(secret=secret, now=now).organization
    Organization.objects.select_for_update(no_key=True).get(id=organization.id)
    invitation = find_invitation(secret=secret, now=now)  # again, now that nobody else can use it
    if invitation.email.lower() != user.email.lower():
        raise UnableToAcceptForAnother(
            "invitation_for_another",
            _("This invitation is for another e-mail address than yours."),
            help=_("Sign in with the address that the invitation was sent to."),
        )
    with scope(organization=organization):
        member, is_new = Member.objects.get_or_create(
            organization=organization, user=user, defaults={"role": invitation.role}
        )
        if not is_new and member.removed_at is not None:
            member.role, member.removed_at = invitation.role, None
            member.save(update_fields=["role", "removed_at"])
        if invitation.team is not None:
            TeamMember.objects.get_or_create(
                team=invitation.team, member=member, defaults={"organization": organization}
            )
        invitation.accepted_at = now
        invitation.save(update_fields=["accepted_at"])
    _note("invitation.accept", invitation, now, user=user, member=str(member.id))
    announce(member)
    return member


def expire(*, now: datetime) -> int:
    """Close the invitations whose time is over; return how many."""
    with every_tenant("time is over for everybody"), transaction.atomic():
        over = list(_open().select_for_update().filter(expires_at__lte=now))
        for invitation in over:
            invitation.revoked_at = invitation.expires_at
            invitation.save(update_fields=["revoked_at"])
            _note("invitation.expire", invitation, now)
    return len(over)


def _open() -> QuerySet[Invitation]:
    return Invitation.objects.filter(accepted_at=None, revoked_at=None)


def _mail(invitation: Invitation, secret: str) -> None:
    # Late: the task needs this module.
    from portal.tenants.tasks import send_invitation

    transaction.on_commit(
        # Logs show `argsrepr`, never the secret. A broker that is away costs the letter, which
        # can be sent again, and not the invitation.
        lambda: send_invitation.apply_async(
            (str(invitation.id), secret),
            argsrepr="(hidden)",  # type: ignore[call-arg]  # unknown to the type stubs only
        ),
        robust=True,
    )


def _note(
    verb: str,
    invitation: Invitation,
    now: datetime,
    *,
    actor: Actor | None = None,
    user: User | None = None,
    **details: object,
) -> None:
    audit.record(
        actor=actor,
        user=user,
        organization=invitation.organization,
        verb=verb,
        target_kind="invitation",
        target_id=invitation.id,
        target_name=invitation.email,
        details=details,
        now=now,
    )
