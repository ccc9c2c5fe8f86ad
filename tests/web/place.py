"""A small organization with one instance of each interesting kind, and people of every role."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from portal.fleet.models import Node
from portal.instances import actions
from portal.instances.models import Flavor, Image, Instance
from portal.tenants import access, invitations
from portal.tenants.models import Member, Organization, Role, Team
from portal.tenants.scope import scope
from tests import factories as make


@dataclass
class Place:
    """What the tests look at."""

    organization: Organization
    team: Team
    owner: Member
    admin: Member
    finance: Member
    member: Member
    viewer: Member
    stranger: Member
    operator: Any
    node: Node
    flavor: Flavor
    image: Image
    instance: Instance
    invitation_secret: str

    @property
    def slug(self) -> str:
        return self.organization.slug

    def client(self, who: str) -> Client:
        """Return a browser in which this person is signed in."""
        client = Client()
        person = getattr(self, who)
        client.force_login(getattr(person, "user", person))
        return client


def build(monkeypatch: pytest.MonkeyPatch) -> Place:
    """Make it all."""
    organization = make.organization("Meadow")
    team = make.team(organization, "Vision")
    owner = make.member(organization, Role.OWNER, teams=(team,))
    member = make.member(organization, Role.MEMBER, teams=(team,))
    flavor, image = make.flavor(name="1 × H100"), make.image(name="PyTorch")
    node = make.node(now=datetime.now(UTC))
    secrets: list[str] = []
    monkeypatch.setattr(
        invitations.secrets, "token_urlsafe", lambda size: secrets.append("s" * 43) or "s" * 43
    )
    with scope(organization=organization):
        actor = access.actor_for(user=member.user, slug=organization.slug)
        instance = actions.launch(
            actor=actor,
            team_id=team.id,
            name="first-run",
            flavor=flavor.code,
            image=image.code,
            now=datetime.now(UTC),
        )
        invitations.invite(
            actor=access.actor_for(user=owner.user, slug=organization.slug),
            email="new@example.com",
            role=Role.MEMBER,
            now=datetime.now(UTC),
        )
    return Place(
        organization=organization,
        team=team,
        owner=owner,
        admin=make.member(organization, Role.ADMIN),
        finance=make.member(organization, Role.FINANCE),
        member=member,
        viewer=make.member(organization, Role.VIEWER, teams=(team,)),
        stranger=make.member(make.organization("Elsewhere"), Role.OWNER),
        operator=make.user(is_operator=True),
        node=node,
        flavor=flavor,
        image=image,
        instance=instance,
        invitation_secret="s" * 43,
    )
