"""An organization with one person of each kind, and a stranger."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from portal.tenants import access
from portal.tenants.models import Member, Organization, Role, Team
from portal.tenants.roles import Actor
from portal.tenants.scope import scope
from tests import factories as make


@dataclass
class Acme:
    organization: Organization
    team: Team
    owner: Member
    admin: Member
    leader: Member  # admin of the team
    member: Member  # in the team
    outsider: Member  # in no team
    viewer: Member

    def actor(self, member: Member) -> Actor:
        """Make a fresh actor, as a door would."""
        member.refresh_from_db()
        return access.actor_for(user=member.user, slug=self.organization.slug)


@pytest.fixture
def acme(db: None) -> Iterator[Acme]:
    """Build it and stay inside its scope, as a request would."""
    organization = make.organization("Acme")
    team = make.team(organization, "Vision")
    built = Acme(
        organization=organization,
        team=team,
        owner=make.member(organization, Role.OWNER),
        admin=make.member(organization, Role.ADMIN),
        leader=make.member(organization, admin_of=(team,)),
        member=make.member(organization, teams=(team,)),
        outsider=make.member(organization),
        viewer=make.member(organization, Role.VIEWER, teams=(team,)),
    )
    with scope(organization=organization):
        yield built
