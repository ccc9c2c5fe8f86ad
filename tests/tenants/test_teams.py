"""Teams and who is in them."""

import pytest

from portal.errors import Forbidden, Invalid, NotFound
from portal.tenants import teams
from portal.tenants.models import AuditEvent, Role, Team, TeamMember
from tests import factories as make
from tests.tenants.conftest import Acme

NOW = make.NOW


def test_an_admin_makes_and_renames_a_team(acme: Acme):
    admin = acme.actor(acme.admin)

    team = teams.create_team(actor=admin, name=" Speech ", now=NOW)
    teams.rename_team(actor=admin, team_id=team.id, name="Language", now=NOW)

    team.refresh_from_db()
    assert (team.name, team.slug) == ("Language", "speech")
    assert [event.verb for event in AuditEvent.objects.order_by("id")] == [
        "team.create",
        "team.rename",
    ]


def test_names_of_teams_are_unique_and_sensible(acme: Acme):
    admin = acme.actor(acme.admin)

    for name, code in [
        ("VISION", "team_name_taken"),
        ("", "team_name_invalid"),
        ("x" * 81, "team_name_invalid"),
    ]:
        with pytest.raises(Invalid) as refusal:
            teams.create_team(actor=admin, name=name, now=NOW)
        assert refusal.value.code == code
    assert teams.rename_team(actor=admin, team_id=acme.team.id, name="vision", now=NOW), (
        "its own name in another case is free"
    )


def test_teams_whose_names_look_alike_have_addresses_of_their_own(acme: Acme):
    admin = acme.actor(acme.admin)

    slugs = [
        teams.create_team(actor=admin, name=name, now=NOW).slug for name in ("A B", "A-B", "A_B!")
    ]

    assert len(set(slugs)) == 3


def test_the_teams_admin_fills_the_own_team_only(acme: Acme):
    leader = acme.actor(acme.leader)
    other = make.team(acme.organization)

    teams.add_to_team(actor=leader, team_id=acme.team.id, member_id=acme.outsider.id, now=NOW)
    with pytest.raises(Forbidden):
        teams.add_to_team(actor=leader, team_id=other.id, member_id=acme.outsider.id, now=NOW)
    with pytest.raises(Forbidden):
        teams.create_team(actor=leader, name="Mine", now=NOW)

    assert acme.actor(acme.outsider).team_ids == {acme.team.id}


def test_only_the_organizations_admins_make_team_admins(acme: Acme):
    leader, admin = acme.actor(acme.leader), acme.actor(acme.admin)

    with pytest.raises(Forbidden):
        teams.set_team_admin(
            actor=leader, team_id=acme.team.id, member_id=acme.member.id, is_admin=True, now=NOW
        )
    with pytest.raises(Forbidden):
        teams.add_to_team(
            actor=leader, team_id=acme.team.id, member_id=acme.outsider.id, is_admin=True, now=NOW
        )
    teams.set_team_admin(
        actor=admin, team_id=acme.team.id, member_id=acme.member.id, is_admin=True, now=NOW
    )
    with pytest.raises(Forbidden):
        teams.remove_from_team(
            actor=leader, team_id=acme.team.id, member_id=acme.member.id, now=NOW
        )

    assert acme.actor(acme.member).admin_team_ids == {acme.team.id}


def test_adding_twice_adds_once(acme: Acme):
    admin = acme.actor(acme.admin)

    for _ in range(2):
        teams.add_to_team(actor=admin, team_id=acme.team.id, member_id=acme.outsider.id, now=NOW)

    assert TeamMember.objects.filter(member=acme.outsider).count() == 1
    assert AuditEvent.objects.filter(verb="team.add").count() == 1


def test_a_member_leaves_a_team_alone_but_takes_nobody_along(acme: Acme):
    member = acme.actor(acme.member)

    with pytest.raises(Forbidden):
        teams.remove_from_team(
            actor=member, team_id=acme.team.id, member_id=acme.viewer.id, now=NOW
        )
    teams.remove_from_team(actor=member, team_id=acme.team.id, member_id=acme.member.id, now=NOW)

    assert acme.actor(acme.member).team_ids == frozenset()
    with pytest.raises(NotFound):
        teams.remove_from_team(
            actor=member, team_id=acme.team.id, member_id=acme.member.id, now=NOW
        )


def test_a_foreign_team_or_member_answers_like_a_missing_one(acme: Acme):
    elsewhere = make.organization()
    foreign_team, foreign = make.team(elsewhere), make.member(elsewhere, Role.MEMBER)
    owner = acme.actor(acme.owner)

    for act in (
        lambda: teams.get_team(actor=owner, team_id=foreign_team.id),
        lambda: teams.rename_team(actor=owner, team_id=foreign_team.id, name="Ours", now=NOW),
        lambda: teams.add_to_team(
            actor=owner, team_id=foreign_team.id, member_id=acme.member.id, now=NOW
        ),
        lambda: teams.add_to_team(actor=owner, team_id=acme.team.id, member_id=foreign.id, now=NOW),
        lambda: teams.set_team_admin(
            actor=owner, team_id=acme.team.id, member_id=foreign.id, is_admin=True, now=NOW
        ),
    ):
        with pytest.raises(NotFound):
            act()
    assert Team.objects.count() == 1
