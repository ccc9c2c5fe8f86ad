"""Organizations and who is in them."""

import threading
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection

from portal.errors import DomainError, Forbidden, Invalid, NotFound
from portal.tenants import access, invitations, members, tokens
from portal.tenants.models import (
    ApiToken,
    AuditEvent,
    Invitation,
    Member,
    Organization,
    Role,
    Team,
    TeamMember,
)
from portal.tenants.scope import scope
from tests import factories as make
from tests.tenants.conftest import Acme

NOW = make.NOW


def create(user: Any, name: str = "Acme", **changes: Any) -> Organization:
    values = {"currency": "EUR", "billing_zone": "Europe/Berlin", "now": NOW} | changes
    return members.create_organization(user=user, name=name, **values)


def test_who_makes_an_organization_owns_it_and_has_a_team(db: None):
    user = make.user()

    organization = create(user, " Acme Labs ")

    actor = access.actor_for(user=user, slug=organization.slug)
    with scope(organization=organization):
        assert (organization.name, organization.slug) == ("Acme Labs", "acme-labs")
        assert actor.member.role == Role.OWNER
        assert [team.name for team in Team.objects.all()] == ["Default"]
        assert len(actor.admin_team_ids) == 1
        assert AuditEvent.objects.get().verb == "organization.create"
        assert AuditEvent.objects.get().user == user


def test_two_organizations_of_one_name_have_two_addresses(db: None):
    first, second = create(make.user()), create(make.user())

    assert first.slug == "acme"
    assert second.slug.startswith("acme-")


def test_an_organization_without_latin_letters_has_an_address(db: None):
    assert create(make.user(), "深度学习").slug == "organization"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("name", {"name": "  "}),
        ("name", {"name": "x" * 81}),
        ("currency", {"currency": "usd"}),
        ("currency", {"currency": "EURO"}),
        ("billing_zone", {"billing_zone": "Mars/Olympus"}),
        ("billing_zone", {"billing_zone": "../../etc/passwd"}),
    ],
)
def test_an_organization_that_makes_no_sense_is_refused(db: None, field: str, changes: Any):
    with pytest.raises(Invalid) as refusal:
        create(make.user(), **changes)

    assert list(refusal.value.details) == [field]


def test_an_admin_renames_the_organization_and_its_address_stays(acme: Acme):
    slug = acme.organization.slug

    members.rename_organization(actor=acme.actor(acme.admin), name="Acme 2", now=NOW)

    acme.organization.refresh_from_db()
    assert (acme.organization.name, acme.organization.slug) == ("Acme 2", slug)
    with pytest.raises(Forbidden):
        members.rename_organization(actor=acme.actor(acme.member), name="Mine", now=NOW)


def test_an_admin_changes_a_role_and_live_readers_hear_of_it(
    acme: Acme, django_capture_on_commit_callbacks: Any
):
    with (
        patch("portal.events._send") as sent,
        django_capture_on_commit_callbacks(execute=True),
    ):
        members.change_role(
            actor=acme.actor(acme.admin), member_id=acme.member.id, role=Role.VIEWER, now=NOW
        )

    assert acme.actor(acme.member).member.role == Role.VIEWER
    assert AuditEvent.objects.get().details == {
        "email": acme.member.user.email,
        "was": "MEMBER",
        "role": "VIEWER",
    }
    topic, message = sent.call_args.args
    assert topic == f"org:{acme.organization.id}"
    assert str(acme.member.id) in message
    assert '"member"' in message


@pytest.mark.parametrize("who", ["leader", "member", "viewer"])
def test_others_change_no_role(acme: Acme, who: str):
    with pytest.raises(Forbidden):
        members.change_role(
            actor=acme.actor(getattr(acme, who)),
            member_id=acme.outsider.id,
            role=Role.ADMIN,
            now=NOW,
        )

    assert acme.actor(acme.outsider).member.role == Role.MEMBER


def test_only_owners_make_and_unmake_owners(acme: Acme):
    admin = acme.actor(acme.admin)

    with pytest.raises(Forbidden, match="owner"):
        members.change_role(actor=admin, member_id=acme.admin.id, role=Role.OWNER, now=NOW)
    with pytest.raises(Forbidden, match="owner"):
        members.change_role(actor=admin, member_id=acme.owner.id, role=Role.MEMBER, now=NOW)
    with pytest.raises(Forbidden, match="owner"):
        members.remove_member(actor=admin, member_id=acme.owner.id, now=NOW)


def test_the_last_owner_stays(acme: Acme):
    owner = acme.actor(acme.owner)

    for act in (
        lambda: members.leave(actor=owner, now=NOW),
        lambda: members.remove_member(actor=owner, member_id=acme.owner.id, now=NOW),
        lambda: members.change_role(actor=owner, member_id=acme.owner.id, role=Role.ADMIN, now=NOW),
    ):
        with pytest.raises(DomainError) as refusal:
            act()
        assert refusal.value.code == "last_owner"
    members.change_role(actor=owner, member_id=acme.admin.id, role=Role.OWNER, now=NOW)
    members.leave(actor=owner, now=NOW)

    assert acme.actor(acme.admin).member.role == Role.OWNER


def test_an_owner_who_was_blocked_does_not_count_as_one(acme: Acme):
    blocked = make.member(acme.organization, Role.OWNER, is_active=False)

    with pytest.raises(DomainError) as refusal:
        members.leave(actor=acme.actor(acme.owner), now=NOW)

    assert refusal.value.code == "last_owner"
    assert blocked.removed_at is None


@pytest.mark.django_db(transaction=True)
def test_two_owners_who_remove_each_other_at_once_leave_one():
    organization = make.organization()
    first, second = (make.member(organization, Role.OWNER) for _ in range(2))
    actors = {m.id: access.actor_for_member(member=m) for m in (first, second)}
    together = threading.Barrier(2)
    refused: list[str] = []

    def remove(by: Member, whom: Member) -> None:
        try:
            with scope(organization=organization):
                together.wait()
                members.remove_member(actor=actors[by.id], member_id=whom.id, now=NOW)
        except DomainError as error:
            refused.append(error.code)
        finally:
            connection.close()

    threads = [
        threading.Thread(target=remove, args=pair) for pair in [(first, second), (second, first)]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with scope(organization=organization):
        assert Member.objects.filter(role=Role.OWNER, removed_at=None).count() == 1
    assert len(refused) == 1


def test_a_removed_member_loses_everything_at_once(acme: Acme):
    admin = acme.actor(acme.admin)
    _, secret = tokens.issue(actor=admin, name="ci", scopes=["full"], expires_at=None, now=NOW)
    invitations.invite(actor=admin, email="friend@example.com", role=Role.ADMIN, now=NOW)

    members.remove_member(actor=acme.actor(acme.owner), member_id=acme.admin.id, now=NOW)

    with pytest.raises(NotFound):
        access.actor_for(user=acme.admin.user, slug=acme.organization.slug)
    with pytest.raises(tokens.UnableToAuthenticate):
        tokens.authenticate(secret=secret, now=NOW)
    assert access.memberships(user=acme.admin.user) == []
    assert not TeamMember.objects.filter(member=acme.admin).exists()
    assert not Invitation.objects.filter(revoked_at=None).exists()
    assert ApiToken.objects.get().revoked_at == NOW
    assert Member.objects.filter(id=acme.admin.id).exists(), "bills still name the member"


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        (Role.OWNER, Role.ADMIN, {"a@example.com", "m@example.com"}),
        (Role.OWNER, Role.MEMBER, set()),
        (Role.ADMIN, Role.FINANCE, set()),
        (Role.ADMIN, Role.OWNER, {"a@example.com", "m@example.com"}),
    ],
)
def test_invitations_do_not_outlast_the_right_to_send_them(
    acme: Acme, before: Role, after: Role, left: set[str]
):
    sender = make.member(acme.organization, before)
    actor = acme.actor(sender)
    invitations.invite(actor=actor, email="a@example.com", role=Role.ADMIN, now=NOW)
    invitations.invite(actor=actor, email="m@example.com", role=Role.MEMBER, now=NOW)
    if before == Role.OWNER:
        invitations.invite(actor=actor, email="o@example.com", role=Role.OWNER, now=NOW)

    members.change_role(actor=acme.actor(acme.owner), member_id=sender.id, role=after, now=NOW)

    still_open = Invitation.objects.filter(revoked_at=None)
    assert set(still_open.values_list("email", flat=True)) == left


def test_a_held_picture_of_a_removed_member_may_not_act(acme: Acme):
    stale = acme.actor(acme.member)
    members.remove_member(actor=acme.actor(acme.owner), member_id=acme.member.id, now=NOW)

    with pytest.raises(NotFound):
        members.leave(actor=stale, now=NOW)


def test_a_foreign_member_answers_like_a_missing_one(acme: Acme):
    foreign = make.member(make.organization())
    owner = acme.actor(acme.owner)

    for act in (
        lambda: members.get_member(actor=owner, member_id=foreign.id),
        lambda: members.remove_member(actor=owner, member_id=foreign.id, now=NOW),
        lambda: members.change_role(actor=owner, member_id=foreign.id, role=Role.VIEWER, now=NOW),
    ):
        with pytest.raises(NotFound) as refusal:
            act()
        assert refusal.value.code == "member_not_found"


def test_a_narrow_token_does_not_take_its_member_out(acme: Acme):
    _, secret = tokens.issue(
        actor=acme.actor(acme.member), name="ci", scopes=["read"], expires_at=None, now=NOW
    )

    with pytest.raises(Forbidden):
        members.leave(actor=tokens.authenticate(secret=secret, now=NOW), now=NOW)
