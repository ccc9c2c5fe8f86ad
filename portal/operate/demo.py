"""Demo data: two organizations, people to sign in as, a catalogue. Made once, then left alone."""

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from portal.operate import catalogue
from portal.operate.people import person
from portal.tenants import access, members, teams
from portal.tenants.models import Member, Organization, Role, TeamMember, User
from portal.tenants.scope import scope

PASSWORD = "corral-demo-2026"  # noqa: S105  (printed at every start of the demo)


@dataclass(frozen=True)
class SignIn:
    """Somebody to sign in as."""

    role: str
    email: str
    password: str = PASSWORD


SIGN_INS = (
    SignIn("operator", "operator@corral.test"),
    SignIn("team admin", "admin@meadow.test"),
    SignIn("user", "user@meadow.test"),
    SignIn("finance", "finance@meadow.test"),
)


@transaction.atomic
def seed(*, now: datetime) -> None:
    """Make the demo's people, organizations, teams, quotas and catalogue unless they exist."""
    catalogue.stock(now=now)
    if User.objects.filter(email=SIGN_INS[0].email).exists():
        return
    operator = _person("operator@corral.test", "Olga Operator", is_operator=True)
    owner = _person("owner@meadow.test", "Mara Meadow")
    meadow = _organization(owner, "Meadow Labs", "Europe/Berlin", now)
    _team(meadow, owner, "Research", now, admin="admin@meadow.test", user="user@meadow.test")
    with scope(organization=meadow):
        finance = _person("finance@meadow.test", "Fynn Finance")
        Member.objects.create(organization=meadow, user=finance, role=Role.FINANCE)
    _organization(operator, "Corral Operations", "UTC", now)
    other = _person("owner@harbor.test", "Hanna Harbor")
    _organization(other, "Harbor Robotics", "America/New_York", now)


def _person(email: str, name: str, *, is_operator: bool = False) -> User:
    return person(email=email, password=PASSWORD, name=name, is_operator=is_operator)


def _organization(owner: User, name: str, zone: str, now: datetime) -> Organization:
    return members.create_organization(
        user=owner, name=name, currency="USD", billing_zone=zone, now=now
    )


def _team(
    organization: Organization, owner: User, name: str, now: datetime, *, admin: str, user: str
) -> None:
    actor = access.actor_for(user=owner, slug=organization.slug)
    with scope(organization=organization):
        team = teams.create_team(actor=actor, name=name, now=now)
        for email, is_admin, title in ((admin, True, "Ada Admin"), (user, False, "Uli User")):
            made = Member.objects.create(
                organization=organization, user=_person(email, title), role=Role.MEMBER
            )
            TeamMember.objects.create(
                organization=organization, team=team, member=made, is_admin=is_admin
            )
