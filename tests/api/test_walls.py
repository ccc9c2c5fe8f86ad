"""A walk over every route of the API: no token, bad token, strangers, small roles, narrow tokens.

New routes are walked without new test code.
"""

import re
import uuid
from typing import Any

import pytest
from django.urls import URLPattern, path

from portal.api import urls
from portal.api.endpoint import Endpoint
from portal.instances.models import Instance
from portal.tenants import access, invitations, tokens
from portal.tenants.models import AuditEvent, Invitation, Role
from portal.tenants.roles import SCOPES
from portal.tenants.scope import every_tenant, scope
from tests import factories as make
from tests.api.conftest import Acme, Program, text

ROUTES: list[tuple[str, type[Endpoint]]] = [
    (str(pattern.pattern), pattern.callback.cls)
    for pattern in urls.urlpatterns
    if isinstance(pattern, URLPattern)
    and issubclass(getattr(pattern.callback, "cls", object), Endpoint)
]
CALLS = [
    (method, route, str(endpoint.needs[method]))
    for route, endpoint in ROUTES
    for method in sorted(endpoint.needs)
]
# Ids of things that belong to no tenant.
PUBLIC = {"node_id", "flavor", "image"}


def fill(route: str, ids: dict[str, Any]) -> str:
    """Put ids into the path; a parameter that this test does not know is a failure."""
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda found: str(ids[found[1]]), route)


@pytest.fixture
def ids(acme: Acme) -> dict[str, Any]:
    """Make one of each thing in Acme, and return the ids by the parameter's name."""
    launched = acme.launch()
    assert launched.status_code == 201, launched.content
    actor = access.actor_for_member(member=acme.owner)
    with scope(organization=acme.organization):
        invitation = invitations.invite(
            actor=actor, email="x@example.com", role=Role.MEMBER, now=make.NOW
        )
        token, _ = tokens.issue(
            actor=actor, name="walked", scopes=["read"], expires_at=None, now=make.NOW
        )
    return {
        "organization_id": acme.organization.id,
        "team_id": acme.team.id,
        "member_id": acme.viewer.id,
        "invitation_id": invitation.id,
        "token_id": token.id,
        "instance_id": launched.json()["id"],
        "node_id": make.node().id,
        "flavor": acme.flavor.code,
        "image": acme.image.code,
    }


def test_every_path_of_the_api_is_walked_or_known():
    others = {
        str(pattern.pattern) for pattern in urls.urlpatterns if isinstance(pattern, URLPattern)
    } - {route for route, _ in ROUTES}

    assert others == {"schema/", "schema", "^.*$"}
    assert len(CALLS) > 40


def test_a_method_that_does_not_say_what_it_needs_cannot_be_defined():
    with pytest.raises(TypeError, match="DELETE"):

        class Forgetful(Endpoint):
            needs = {"GET": "a token"}

            def get(self) -> None: ...

            def delete(self) -> None: ...


def test_every_method_that_is_named_exists():
    for route, endpoint in ROUTES:
        for method in endpoint.needs:
            assert callable(getattr(endpoint, method.lower(), None)), (route, method)


def refusal(response: Any) -> dict[str, Any]:
    assert response["Content-Type"] == "application/json", response.content[:200]
    error = response.json()["error"]
    assert set(error) == {"code", "message", "help", "details"}
    assert error["message"]
    return error


def test_without_a_token_or_with_a_bad_one_everything_is_401(acme: Acme, ids: dict[str, Any]):
    for method, route, _need in CALLS:
        url = fill(route, ids)
        for program in (Program(), Program("corral_00000000_guessed")):
            response = program.ask(method, url, {})
            assert response.status_code == 401, (method, url)
            assert response["WWW-Authenticate"].startswith("Bearer")
            assert refusal(response)["code"] in {"token_missing", "token_unknown"}


def test_a_stranger_finds_nothing_of_another_organization(acme: Acme, ids: dict[str, Any]):
    stranger, operator = acme.program("stranger"), acme.program("operator")
    before = snapshot()
    foreign = {str(value) for name, value in ids.items() if name not in PUBLIC}

    for method, route, need in CALLS:
        url = fill(route, ids)
        named = set(re.findall(r"<(?:\w+:)?(\w+)>", route)) - PUBLIC
        for program in (stranger, operator):
            response = program.ask(method, url, {"role": "VIEWER", "name": "mine", "stop_at": None})
            if need == "operator" and program is stranger:
                assert response.status_code == 403, (method, url)
            elif named:
                assert response.status_code == 404, (method, url, response.content)
                refusal(response)
            else:
                content = text(response)
                assert not any(one in content for one in foreign), (method, url)
    assert snapshot() == before


def test_a_foreign_id_answers_like_a_missing_one(acme: Acme, ids: dict[str, Any]):
    stranger = acme.program("stranger")
    missing = {name: uuid.uuid4() if name not in PUBLIC else value for name, value in ids.items()}

    for method, route, need in CALLS:
        if need == "operator" or not set(re.findall(r"<(?:\w+:)?(\w+)>", route)) - PUBLIC:
            continue
        body = {"role": "VIEWER", "name": "mine", "stop_at": None}
        foreign = stranger.ask(method, fill(route, ids), body)
        absent = stranger.ask(method, fill(route, missing), body)
        assert (foreign.status_code, refusal(foreign)) == (absent.status_code, refusal(absent)), (
            method,
            route,
        )


def test_another_organization_by_name_is_404_everywhere(acme: Acme, ids: dict[str, Any]):
    stranger = acme.program("operator")

    for method, route, _need in CALLS:
        for name in (acme.organization.id, acme.organization.slug, uuid.uuid4()):
            for url, body in (
                (f"{fill(route, ids)}?organization={name}", {}),
                (fill(route, ids), {"organization": str(name)}),
            ):
                if method == "GET" and body:
                    continue
                response = stranger.ask(method, url, body)
                assert response.status_code == 404, (method, url)
                assert refusal(response)["code"] == "organization_not_found"


def test_ones_own_organization_may_be_named(acme: Acme):
    program = acme.program("member")

    for name in (acme.organization.id, acme.organization.slug):
        assert program.get(f"instances?organization={name}").status_code == 200
    body = acme.wish(organization=str(acme.organization.id))
    assert program.post("instances", body).status_code == 201


@pytest.mark.parametrize("scope_name", [name for name in SCOPES if name != "full"])
def test_a_token_that_is_too_narrow_is_403(acme: Acme, ids: dict[str, Any], scope_name: str):
    with every_tenant("arrange"):
        acme.owner.user.is_operator = True
        acme.owner.user.save()
    program, walked = acme.program("owner", scope_name), 0

    for method, route, need in CALLS:
        fits = (
            need == "a token"
            or need in SCOPES[scope_name]
            or (need, scope_name) == ("operator",) * 2
        )
        if fits:
            continue
        response = program.ask(method, fill(route, ids), {})
        assert response.status_code == 403, (method, route)
        assert refusal(response)["code"] in {"scope_missing", "operator_only"}
        walked += 1
    assert walked > 10


@pytest.mark.parametrize("who", ["finance", "leader", "member", "viewer"])
def test_a_role_that_is_too_small_is_403(acme: Acme, ids: dict[str, Any], who: str):
    actor = access.actor_for_member(member=getattr(acme, who))
    program, before = acme.program(who), snapshot()

    for method, route, need in CALLS:
        if need == "a token" or (need != "operator" and actor.may_somewhere(need)):
            continue
        response = program.ask(method, fill(route, ids), {})
        assert response.status_code == 403, (method, route)
        refusal(response)
    assert snapshot() == before


def test_what_needs_any_token_only_reads(acme: Acme):
    assert {method for method, _route, need in CALLS if need == "a token"} == {"GET"}


def test_a_viewer_changes_nothing_by_any_route(acme: Acme, ids: dict[str, Any]):
    program, before = acme.program("viewer"), snapshot()
    body = {"role": "OWNER", "name": "mine", "stop_at": None, "is_admin": True, "reason": "x"}

    for method, route, _need in CALLS:
        if method != "GET" and route not in {"tokens", "tokens/<uuid:token_id>"}:
            response = program.ask(method, fill(route, ids), body | acme.wish("mine"))
            assert response.status_code in {403, 404}, (method, route, response.content)
    assert snapshot() == before


def snapshot() -> list[Any]:
    """Return what a forbidden request must not change."""
    with every_tenant("look at everything"):
        return [
            list(Instance.objects.order_by("id").values_list("id", "state", "wanted", "stop_at")),
            list(Invitation.objects.values_list("id", "revoked_at")),
            AuditEvent.objects.filter(organization__name="Acme")
            .exclude(verb__startswith="token.")
            .count(),
        ]


def test_an_address_that_is_none_is_404_in_json(acme: Acme):
    for url in ("nothing", "instances/not-an-id", "instances/1/2/3", "", "nodes//", "teams/x/"):
        for method in ("GET", "POST", "DELETE"):
            response = acme.program("owner").ask(method, url, {})
            assert response.status_code == 404, url
            assert refusal(response)["code"] == "not_found"


def test_a_slash_at_the_end_does_not_matter(acme: Acme):
    program = acme.program("member")

    assert program.get("teams/").json() == program.get("teams").json()
    assert program.post("instances/", acme.wish()).status_code == 201


def test_other_methods_are_405_in_json(acme: Acme):
    response = acme.program("owner").ask("DELETE", "instances", {})

    assert response.status_code == 405
    assert refusal(response)["code"] == "method_not_allowed"
    assert "POST" in response["Allow"]


def test_a_route_of_this_test_would_fail_if_it_leaked():
    assert fill("a/<uuid:instance_id>/b", {"instance_id": 7}) == "a/7/b"
    with pytest.raises(KeyError):
        fill(str(path("<uuid:new_thing_id>", lambda request: None).pattern), {})
