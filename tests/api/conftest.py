"""Programs with tokens, at the real paths, through Django's test client."""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client

from portal.instances.models import Flavor, Image
from portal.tenants import access, tokens
from portal.tenants.models import Member, Organization, Role, Team
from portal.tenants.scope import scope
from tests import factories as make


class Program:
    """A client with a bearer token; paths are relative to /api/v1/."""

    def __init__(self, secret: str = "") -> None:
        self.secret = secret
        self.client = Client(raise_request_exception=False)

    def ask(
        self, method: str, path: str, body: Any = None, *, key: str = "", **headers: str
    ) -> HttpResponse:
        """Send one request."""
        if self.secret:
            headers["Authorization"] = f"Bearer {self.secret}"
        if key:
            headers["Idempotency-Key"] = key
        url = path if path.startswith("http") else f"/api/v1/{path}"
        data = "" if body is None or method == "GET" else json.dumps(body)
        return self.client.generic(
            method, url, data=data, content_type="application/json", headers=headers
        )

    def get(self, path: str, **headers: str) -> HttpResponse:
        """Read."""
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any = None, *, key: str = "") -> HttpResponse:
        """Act."""
        return self.ask("POST", path, {} if body is None else body, key=key)


def text(response: HttpResponse) -> str:
    """Return the body, streamed or not."""
    if not response.streaming:
        return response.content.decode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this client is synchronous, the servers are not
        return b"".join(response).decode()


def secret_of(member: Member, *scopes: str) -> str:
    """Issue a token for a member."""
    actor = access.actor_for_member(member=member)
    with scope(organization=actor.organization):
        return tokens.issue(
            actor=actor,
            name="test",
            scopes=list(scopes) or ["full"],
            expires_at=None,
            now=make.NOW,
        )[1]


@dataclass
class Acme:
    organization: Organization
    team: Team
    flavor: Flavor
    image: Image
    owner: Member
    admin: Member
    finance: Member
    leader: Member
    member: Member
    viewer: Member
    stranger: Member  # owner of another organization
    operator: Member  # of another organization, too

    def program(self, who: str, *scopes: str) -> Program:
        """Return a program that acts for one of them."""
        return Program(secret_of(getattr(self, who), *scopes))

    def launch(self, who: str = "member", name: str = "train", **fields: Any) -> HttpResponse:
        """Launch through the door."""
        return self.program(who).post("instances", self.wish(name, **fields))

    def wish(self, name: str = "train", **fields: Any) -> dict[str, Any]:
        """Return the body of a launch."""
        return {
            "team": str(self.team.id),
            "name": name,
            "flavor": self.flavor.code,
            "image": self.image.code,
        } | fields


@pytest.fixture
def acme(db: None) -> Acme:
    """Build two organizations, what is on offer, and a machine."""
    organization, elsewhere = make.organization("Acme"), make.organization("Elsewhere")
    team = make.team(organization, "Vision")
    make.node()
    return Acme(
        organization=organization,
        team=team,
        flavor=make.flavor(),
        image=make.image(),
        owner=make.member(organization, Role.OWNER),
        admin=make.member(organization, Role.ADMIN),
        finance=make.member(organization, Role.FINANCE),
        leader=make.member(organization, admin_of=(team,)),
        member=make.member(organization, teams=(team,)),
        viewer=make.member(organization, Role.VIEWER, teams=(team,)),
        stranger=make.member(elsewhere, Role.OWNER),
        operator=make.member(elsewhere, Role.OWNER, is_operator=True),
    )


Launch = Callable[..., HttpResponse]
