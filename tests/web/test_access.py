"""The walk over every address: strangers find nothing, and nobody gets in signed out."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.urls.converters import UUIDConverter

from portal.web import urls as web_urls
from tests.web.place import Place

OPEN_TO_ALL = {"home", "styleguide", "healthz", "readyz", "appearance", "invitation"}


def walk(patterns: Any) -> Iterator[URLPattern]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from walk(pattern.url_patterns)
        elif isinstance(pattern, URLPattern):
            yield pattern


def parameters(name: str) -> dict[str, Any]:
    """Return the names and converters of a page's arguments."""
    possibilities, _pattern, _defaults, converters = get_resolver().reverse_dict.getlist(name)[0]
    return {key: converters[key] for key in possibilities[0][1]}


def arguments(place: Place, name: str) -> dict[str, Any]:
    """Return arguments that point at real things of the organization, as far as there are any."""
    known: dict[str, Any] = {
        "slug": place.slug,
        "instance_id": place.instance.id,
        "team_id": place.team.id,
        "member_id": place.member.id,
        "node_id": place.node.id,
        "secret": place.invitation_secret,
        "act": "cordon",
    }
    return {
        key: known.get(key) or (uuid.uuid4() if isinstance(converter, UUIDConverter) else "x")
        for key, converter in parameters(name).items()
    }


# Every page that is ours.
NAMES = sorted(
    str(pattern.name)
    for pattern in walk(get_resolver("portal.web.urls").url_patterns)
    if not pattern.lookup_str.startswith("allauth.")
)
INSIDE = [name for name in NAMES if "slug" in parameters(name)]
OPERATING = [str(pattern.name) for pattern in walk(web_urls.operator_pages)]


def test_there_are_pages_to_walk() -> None:
    assert len(INSIDE) > 25
    assert len(OPERATING) >= 5


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize("name", INSIDE)
def test_a_stranger_finds_nothing_of_an_organization(place: Place, name: str, method: str) -> None:
    url = reverse(name, kwargs=arguments(place, name))

    response = getattr(place.client("stranger"), method)(url)

    assert response.status_code == 404
    assert place.organization.name not in response.content.decode()
    assert "first-run" not in response.content.decode()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OPEN_TO_ALL])
def test_somebody_signed_out_is_asked_to_sign_in(place: Place, client: Any, name: str) -> None:
    url = reverse(name, kwargs=arguments(place, name))

    for response in (client.get(url), client.post(url)):
        assert response.status_code == 302
        assert response["Location"].startswith(reverse("account_login"))


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize("name", OPERATING)
def test_the_operators_pages_do_not_exist_for_tenants(place: Place, name: str, method: str) -> None:
    url = reverse(name, kwargs=arguments(place, name))

    assert getattr(place.client("owner"), method)(url).status_code == 404


def test_a_foreign_instance_answers_like_a_missing_one(place: Place) -> None:
    client = place.client("stranger")
    mine = client.get("/").headers["Location"]
    foreign = client.get(f"{mine}instances/{place.instance.id}/")
    missing = client.get(f"{mine}instances/{uuid.uuid4()}/")

    assert foreign.status_code == missing.status_code == 404
    assert len(foreign.content) == len(missing.content)


def test_a_removed_member_is_out_at_once(place: Place) -> None:
    from datetime import UTC, datetime

    from portal.tenants import access, members
    from portal.tenants.scope import scope

    client = place.client("viewer")
    url = reverse("dashboard", args=[place.slug])
    assert client.get(url).status_code == 200

    with scope(organization=place.organization):
        members.remove_member(
            actor=access.actor_for(user=place.owner.user, slug=place.slug),
            member_id=place.viewer.id,
            now=datetime.now(UTC),
        )

    assert client.get(url).status_code == 404
