"""Tenant rows can't be reached outside a scope, nor across it, nor tied across it."""

import pytest
from django.apps import apps
from django.db import Error, IntegrityError, transaction
from django_scopes.exceptions import ScopeError

from portal.errors import NotFound
from portal.tenants import access, audit
from portal.tenants.models import ApiToken, AuditEvent, Invitation, Member, Role, Team, TeamMember
from portal.tenants.roles import UnableToAct
from portal.tenants.scope import every_tenant, scope
from tests import factories as make

pytestmark = pytest.mark.django_db
TENANT_MODELS = [
    model
    for model in apps.get_models()
    if model._meta.app_label in {"tenants", "scheduler", "billing", "instances"}
    and any(field.name == "organization" for field in model._meta.fields)
]


@pytest.mark.parametrize("model", TENANT_MODELS, ids=lambda model: model.__name__)
def test_a_tenant_model_refuses_queries_outside_a_scope(model: type):
    with pytest.raises(ScopeError):
        model.objects.count()


def test_inside_a_scope_only_its_own_rows_are_there():
    ours, theirs = make.organization(), make.organization()
    make.team(ours, "Ours")
    foreign = make.team(theirs, "Theirs")

    with scope(organization=ours):
        assert [team.name for team in Team.objects.all()] == ["Ours"]
        assert not Team.objects.filter(id=foreign.id).exists()


def test_crossing_needs_a_reason():
    with pytest.raises(ValueError, match="why"), every_tenant(""):
        pass


def test_a_foreign_organization_answers_like_a_missing_one():
    theirs = make.organization()
    stranger = make.member(make.organization())

    with pytest.raises(NotFound) as foreign:
        access.actor_for(user=stranger.user, slug=theirs.slug)
    with pytest.raises(NotFound) as missing:
        access.actor_for(user=stranger.user, slug="no-such-organization")

    assert (foreign.value.code, foreign.value.message, foreign.value.help) == (
        missing.value.code,
        missing.value.message,
        missing.value.help,
    )


def test_an_actor_knows_the_teams_of_this_organization_only():
    ours, theirs = make.organization(), make.organization()
    led, joined, other = make.team(ours), make.team(ours), make.team(theirs)
    member = make.member(ours, teams=(joined,), admin_of=(led,))
    with every_tenant("arrange"):
        elsewhere = Member.objects.create(organization=theirs, user=member.user, role=Role.OWNER)
        TeamMember.objects.create(organization=theirs, team=other, member=elsewhere, is_admin=True)

    actor = access.actor_for(user=member.user, slug=ours.slug)

    assert actor.team_ids == {led.id, joined.id}
    assert actor.admin_team_ids == {led.id}
    assert actor.member.role == Role.MEMBER


def test_a_blocked_person_is_nobody_anywhere():
    organization = make.organization()
    member = make.member(organization, Role.OWNER)
    member.user.is_active = False
    member.user.save()

    with pytest.raises(NotFound):
        access.actor_for(user=member.user, slug=organization.slug)
    with pytest.raises(NotFound):
        access.actor_for_member(member=member)


def test_memberships_are_the_present_ones():
    first, second = make.organization("Zeta"), make.organization("Alpha")
    member = make.member(first)
    with every_tenant("arrange"):
        Member.objects.create(organization=second, user=member.user)
        left = Member.objects.create(organization=make.organization(), user=member.user)
        left.removed_at = make.NOW
        left.save()

    assert [m.organization.name for m in access.memberships(user=member.user)] == ["Alpha", "Zeta"]


def test_the_database_refuses_a_row_that_ties_two_organizations():
    ours, theirs = make.organization(), make.organization()
    team, member = make.team(ours), make.member(ours)
    foreign_team, foreign_member = make.team(theirs), make.member(theirs)
    common = {"organization": ours}
    times = {"created_at": make.NOW, "expires_at": make.NOW}
    rows = [
        TeamMember(**common, team=foreign_team, member=member),
        TeamMember(**common, team=team, member=foreign_member),
        Invitation(
            **common, **times, email="a@example.com", secret_hash="1", team=foreign_team,
            invited_by=member,
        ),
        Invitation(
            **common, **times, email="a@example.com", secret_hash="2", invited_by=foreign_member
        ),
        ApiToken(**common, **times, member=foreign_member, name="t", secret_hash="3", scopes=[]),
    ]  # fmt: skip

    for row in rows:
        with pytest.raises(IntegrityError, match="foreign key"), transaction.atomic():
            row.save(force_insert=True)


def test_an_audit_event_cannot_be_changed_or_deleted():
    organization = make.organization()
    event = audit.record(
        actor=None, organization=organization, verb="team.create", target_kind="team",
        target_id="1", now=make.NOW,
    )  # fmt: skip

    with scope(organization=organization):
        with pytest.raises(Error, match="only ever added"), transaction.atomic():
            AuditEvent.objects.update(verb="nothing")
        with pytest.raises(Error, match="only ever added"), transaction.atomic():
            event.delete()
        assert AuditEvent.objects.get().verb == "team.create"


def test_only_owners_and_admins_read_what_happened():
    organization = make.organization()
    by_role = {role: make.member(organization, role) for role in Role.values}
    audit.record(
        actor=None, organization=organization, verb="team.create", target_kind="team",
        target_id="1", target_name="x" * 500, now=make.NOW,
    )  # fmt: skip

    with scope(organization=organization):
        for role, member in by_role.items():
            actor = access.actor_for_member(member=member)
            if role in {Role.OWNER, Role.ADMIN}:
                assert [event.verb for event in audit.events(actor=actor)] == ["team.create"]
            else:
                with pytest.raises(UnableToAct):
                    audit.events(actor=actor)
