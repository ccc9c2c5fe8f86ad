"""The table of roles, as a table; and what team admins and tokens change about it."""

import uuid
from dataclasses import replace

import pytest

from portal.tenants.models import ApiToken, Member, Organization, Role, User
from portal.tenants.roles import PERMISSIONS, REACH, SCOPES, Actor, Permission, UnableToAct, require

MINE, OTHERS = uuid.uuid4(), uuid.uuid4()  # teams

# What each role may do: (on own things, on things of own teams, in the whole organization).
# "o" own, "t" own teams, "A" everything, "-" nothing.
TABLE = """
                       OWNER  ADMIN  FINANCE  MEMBER  VIEWER
instances.view         A      A      -        ot      t
instances.launch       A      A      -        t       -
instances.manage       A      A      -        o       -
members.view           A      A      A        A       A
members.manage         A      A      -        -       -
teams.manage           A      A      -        -       -
quotas.view            A      A      A        ot      t
quotas.manage          A      A      -        -       -
usage.view             A      A      A        o       t
money.view             A      A      A        -       -
tokens.manage          A      A      o        o       o
audit.view             A      A      -        -       -
organization.manage    A      A      -        -       -
"""
_header, *_rows = [line.split() for line in TABLE.strip().splitlines()]
CELLS = [
    (role, permission, cell)
    for permission, *cells in _rows
    for role, cell in zip(_header, cells, strict=True)
]


def actor(
    role: str = Role.MEMBER,
    *,
    scopes: list[str] | None = None,
    leads: frozenset[uuid.UUID] = frozenset(),
    operator: bool = False,
) -> Actor:
    organization = Organization(name="Acme")
    user = User(email="a@example.com", is_operator=operator)
    member = Member(organization=organization, user=user, role=role)
    token = None if scopes is None else ApiToken(scopes=scopes)
    return Actor(
        user=user,
        organization=organization,
        member=member,
        token=token,
        team_ids=frozenset({MINE}) | leads,
        admin_team_ids=leads,
    )


def test_the_table_has_every_role_and_every_permission():
    assert {(role, permission) for role, permission, _ in CELLS} == {
        (role, permission) for role in Role.values for permission in PERMISSIONS
    }


@pytest.mark.parametrize(("role", "permission", "cell"), CELLS)
def test_a_role_may_what_the_table_says(role: str, permission: Permission, cell: str):
    who = actor(role)

    assert who.may(permission, owner_id=who.member.id) == bool({"o", "A"} & set(cell))
    assert who.may(permission, team_id=MINE) == bool({"t", "A"} & set(cell))
    assert who.may(permission, team_id=OTHERS, owner_id=uuid.uuid4()) == ("A" in cell)
    assert who.may(permission) == ("A" in cell)
    assert who.may_somewhere(permission) == (cell != "-")


@pytest.mark.parametrize("role", Role.values)
def test_every_role_has_a_row_in_the_code_for_every_permission(role: str):
    assert set(REACH[Role(role)]) == set(PERMISSIONS)


LED: list[Permission] = [
    "instances.view",
    "instances.launch",
    "instances.manage",
    "teams.manage",
    "quotas.view",
    "quotas.manage",
    "usage.view",
]


@pytest.mark.parametrize("permission", PERMISSIONS)
def test_a_team_admin_may_more_in_the_own_team_only(permission: Permission):
    plain, leader = actor(), actor(leads=frozenset({MINE}))

    assert leader.may(permission, team_id=MINE) == (
        permission in LED or plain.may(permission, team_id=MINE)
    )
    assert leader.may(permission, team_id=OTHERS) == plain.may(permission, team_id=OTHERS)
    assert leader.may(permission) == plain.may(permission)


@pytest.mark.parametrize("role", [Role.FINANCE, Role.VIEWER])
@pytest.mark.parametrize("permission", PERMISSIONS)
def test_those_who_look_only_stay_so_as_admin_of_a_team(role: str, permission: Permission):
    leader = actor(role, leads=frozenset({MINE}))

    assert leader.may(permission, team_id=MINE) == actor(role).may(permission, team_id=MINE)


@pytest.mark.parametrize("role", Role.values)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("permission", PERMISSIONS)
def test_a_token_only_narrows(role: str, scope: str, permission: Permission):
    person = actor(role, leads=frozenset({MINE}))
    program = replace(person, token=ApiToken(scopes=[scope]))

    for team in (None, MINE, OTHERS):
        for owner in (None, person.member.id, uuid.uuid4()):
            allowed = program.may(permission, team_id=team, owner_id=owner)
            assert not allowed or person.may(permission, team_id=team, owner_id=owner)
            assert not allowed or permission in SCOPES[scope]


def test_a_full_token_may_what_its_member_may():
    for role in Role.values:
        for permission in PERMISSIONS:
            assert actor(role, scopes=["full"]).may(permission) == actor(role).may(permission)


@pytest.mark.parametrize(
    ("operator", "scopes", "expected"),
    [
        (True, None, True),
        (True, ["operator"], True),
        (True, ["full"], True),
        (True, ["admin", "read", "instances", "money"], False),
        (False, None, False),
        (False, ["operator"], False),
        (False, ["full"], False),
    ],
)
def test_an_operator_is_one_by_person_and_by_token(
    operator: bool, scopes: list[str] | None, expected: bool
):
    assert actor(Role.OWNER, scopes=scopes, operator=operator).is_operator is expected


def test_a_blocked_operator_is_none():
    who = actor(operator=True)
    who.user.is_active = False

    assert not who.is_operator


def test_a_refusal_names_the_missing_scope_or_the_role():
    with pytest.raises(UnableToAct) as by_token:
        require(actor(Role.OWNER, scopes=["read"]), "money.view")
    with pytest.raises(UnableToAct) as by_role:
        require(actor(Role.VIEWER), "money.view")

    assert (by_token.value.code, by_token.value.details["scopes"]) == (
        "scope_missing",
        ["full", "money"],
    )
    assert by_role.value.code == "role_missing"
    assert by_role.value.status == 403
    assert by_role.value.help
