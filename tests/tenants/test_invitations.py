"""The story of an invitation, and all the ways in which it does not open."""

import hashlib
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail

from portal.errors import DomainError, Forbidden, NotFound
from portal.tenants import access, invitations, members, tasks
from portal.tenants.models import AuditEvent, Invitation, Role
from portal.tenants.scope import scope
from tests import factories as make
from tests.tenants.conftest import Acme

NOW = make.NOW
EMAIL = "new@example.com"


@pytest.fixture
def invite(acme: Acme, django_capture_on_commit_callbacks: Any, settings: Any) -> Any:
    """Invite somebody, as a request that commits; return the secret out of the letter."""
    settings.PUBLIC_URL = "https://corral.example.com/"

    def invited(email: str = EMAIL, role: Role = Role.MEMBER, **rest: Any) -> str:
        with django_capture_on_commit_callbacks(execute=True):
            invitations.invite(
                actor=acme.actor(acme.admin), email=email, role=role, now=NOW, **rest
            )
        link = re.search(r"https://corral\.example\.com/invitations/(\S+)/", mail.outbox[-1].body)
        assert link
        return link[1]

    return invited


def test_an_invitation_is_mailed_opened_and_accepted(acme: Acme, invite: Any):
    secret = invite(team_id=acme.team.id)
    user = make.user(EMAIL)

    shown = invitations.find_invitation(secret=secret, now=NOW)
    member = invitations.accept_invitation(secret=secret, user=user, now=NOW)

    assert (shown.organization, shown.role) == (acme.organization, Role.MEMBER)
    assert access.actor_for(user=user, slug=acme.organization.slug).team_ids == {acme.team.id}
    assert member.role == Role.MEMBER
    assert [event.verb for event in AuditEvent.objects.order_by("id")] == [
        "invitation.send",
        "invitation.accept",
    ]
    assert mail.outbox[0].to == [EMAIL]
    assert "Acme" in mail.outbox[0].subject
    assert "Vision" in mail.outbox[0].body


def test_the_secret_is_only_in_the_letter(acme: Acme, invite: Any):
    secret = invite()

    stored = Invitation.objects.get()
    assert stored.secret_hash == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in str(list(Invitation.objects.values()))
    assert secret not in str(list(AuditEvent.objects.values()))


def test_no_letter_is_sent_if_the_transaction_fails(acme: Acme):
    invitations.invite(actor=acme.actor(acme.admin), email=EMAIL, role=Role.MEMBER, now=NOW)

    assert mail.outbox == []  # this test's own transaction never commits


def test_no_letter_is_sent_for_a_closed_invitation(acme: Acme):
    invitation = invitations.invite(
        actor=acme.actor(acme.admin), email=EMAIL, role=Role.MEMBER, now=NOW
    )
    invitations.revoke_invitation(
        actor=acme.actor(acme.admin), invitation_id=invitation.id, now=NOW
    )

    tasks.send_invitation(str(invitation.id), "secret")

    assert mail.outbox == []


def test_a_letter_is_written_in_the_readers_language(acme: Acme, invite: Any):
    make.user(EMAIL, language="zh-hans")

    invite()

    assert EMAIL in mail.outbox[0].to
    assert "/invitations/" in mail.outbox[0].body


def test_a_name_with_a_line_break_makes_no_second_header(acme: Acme, invite: Any):
    acme.admin.user.name = "Eve\nBcc: all@example.com"
    acme.admin.user.save()

    invite()

    assert "\n" not in mail.outbox[0].subject
    assert mail.outbox[0].recipients() == [EMAIL]


def test_inviting_again_replaces_the_link(acme: Acme, invite: Any):
    first, second = invite(), invite(email="New@Example.com ")

    with pytest.raises(DomainError) as refusal:
        invitations.find_invitation(secret=first, now=NOW)
    assert refusal.value.code == "invitation_revoked"
    assert invitations.find_invitation(secret=second, now=NOW).email == EMAIL
    assert invitations.visible(actor=acme.actor(acme.admin)).count() == 1


def test_somebody_else_cannot_accept(acme: Acme, invite: Any):
    secret, other = invite(), make.user()

    with pytest.raises(Forbidden) as refusal:
        invitations.accept_invitation(secret=secret, user=other, now=NOW)

    assert refusal.value.code == "invitation_for_another"
    assert EMAIL not in str(refusal.value.message)
    with pytest.raises(NotFound):
        access.actor_for(user=other, slug=acme.organization.slug)


def test_an_invitation_opens_once_and_for_a_week(acme: Acme, invite: Any):
    secret, user = invite(), make.user(EMAIL)

    with pytest.raises(DomainError) as late:
        invitations.accept_invitation(secret=secret, user=user, now=NOW + timedelta(days=7))
    invitations.accept_invitation(secret=secret, user=user, now=NOW + timedelta(days=6))
    with pytest.raises(DomainError) as again:
        invitations.accept_invitation(secret=secret, user=user, now=NOW + timedelta(days=6))
    with pytest.raises(NotFound) as wrong:
        invitations.accept_invitation(secret="wrong", user=user, now=NOW)

    assert [e.value.code for e in (late, again, wrong)] == [
        "invitation_expired",
        "invitation_used",
        "invitation_not_found",
    ]


def test_a_revoked_invitation_does_not_open(acme: Acme, invite: Any):
    secret = invite()
    admin = acme.actor(acme.admin)

    invitations.revoke_invitation(actor=admin, invitation_id=Invitation.objects.get().id, now=NOW)

    with pytest.raises(DomainError) as refusal:
        invitations.accept_invitation(secret=secret, user=make.user(EMAIL), now=NOW)
    assert refusal.value.code == "invitation_revoked"
    with pytest.raises(NotFound):
        invitations.revoke_invitation(
            actor=admin, invitation_id=Invitation.objects.get().id, now=NOW
        )


def test_invitations_whose_time_is_over_are_closed(acme: Acme, invite: Any):
    invite()

    assert invitations.expire(now=NOW + timedelta(days=6)) == 0
    assert invitations.expire(now=NOW + timedelta(days=8)) == 1
    assert invitations.expire(now=NOW + timedelta(days=8)) == 0
    assert Invitation.objects.get().revoked_at == NOW + timedelta(days=7)
    assert AuditEvent.objects.last().verb == "invitation.expire"


def test_the_timetable_closes_them_too(acme: Acme, invite: Any):
    invite()  # NOW is long past for the real clock

    tasks.expire()

    assert Invitation.objects.get().revoked_at is not None


def test_a_member_is_not_invited_again(acme: Acme):
    with pytest.raises(DomainError) as refusal:
        invitations.invite(
            actor=acme.actor(acme.admin),
            email=acme.member.user.email.upper(),
            role=Role.ADMIN,
            now=NOW,
        )

    assert refusal.value.code == "already_member"


def test_somebody_who_was_removed_comes_back_as_the_same_member(acme: Acme, invite: Any):
    members.remove_member(actor=acme.actor(acme.owner), member_id=acme.member.id, now=NOW)
    secret = invite(email=acme.member.user.email, role=Role.VIEWER)

    back = invitations.accept_invitation(secret=secret, user=acme.member.user, now=NOW)

    assert back.id == acme.member.id
    assert (back.role, back.removed_at) == (Role.VIEWER, None)
    assert acme.actor(acme.member).team_ids == frozenset()


@pytest.mark.parametrize("who", ["leader", "member", "viewer"])
def test_others_invite_nobody(acme: Acme, who: str):
    actor = acme.actor(getattr(acme, who))

    with pytest.raises(Forbidden):
        invitations.invite(actor=actor, email=EMAIL, role=Role.MEMBER, now=NOW)
    with pytest.raises(Forbidden):
        invitations.visible(actor=actor)


def test_only_an_owner_invites_an_owner(acme: Acme):
    with pytest.raises(Forbidden, match="owner"):
        invitations.invite(actor=acme.actor(acme.admin), email=EMAIL, role=Role.OWNER, now=NOW)

    made = invitations.invite(actor=acme.actor(acme.owner), email=EMAIL, role=Role.OWNER, now=NOW)
    assert made.role == Role.OWNER


def test_nobody_is_invited_to_a_foreign_team_and_foreign_invitations_are_missing(acme: Acme):
    elsewhere = make.organization()
    foreign_team, foreign_owner = make.team(elsewhere), make.member(elsewhere, Role.OWNER)
    with scope(organization=elsewhere):
        foreign = invitations.invite(
            actor=access.actor_for_member(member=foreign_owner),
            email=EMAIL,
            role=Role.MEMBER,
            now=NOW,
        )

    with pytest.raises(NotFound):
        invitations.invite(
            actor=acme.actor(acme.admin),
            email=EMAIL,
            role=Role.MEMBER,
            team_id=foreign_team.id,
            now=NOW,
        )
    with pytest.raises(NotFound):
        invitations.revoke_invitation(
            actor=acme.actor(acme.admin), invitation_id=foreign.id, now=NOW
        )
