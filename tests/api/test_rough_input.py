"""Whatever is sent, the answer is JSON and no error of ours."""

from base64 import b64encode
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.conftest import Acme
from tests.api.test_walls import CALLS, fill

ROUGH = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(["MEMBER", "default", "2026-03-02T09:00:00Z", "-1", "1e400", "\x00"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=4,
)
FIELDS = [
    "team", "name", "flavor", "image", "command", "env", "priority", "stop_at", "role", "email",
    "scopes", "expires_at", "limit_milli_gpus", "member", "sku", "currency", "per_hour",
    "starts_at", "is_admin", "reason", "pool",
]  # fmt: skip
WRITES = [(method, route) for method, route, _need in CALLS if method in {"POST", "PUT", "PATCH"}]
READS = [route for method, route, _need in CALLS if method == "GET"]
PARAMETERS = ["state", "team", "name", "tail", "start", "end", "at", "member", "group_by", "limit",
              "cursor", "verb", "instance", "flavor"]  # fmt: skip
often = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def ids(acme: Acme) -> dict[str, Any]:
    """Name things that exist, so that bodies are looked at."""
    made = acme.launch().json()
    return {
        "organization_id": acme.organization.id, "team_id": acme.team.id,
        "member_id": acme.viewer.id, "invitation_id": acme.team.id, "token_id": acme.team.id,
        "instance_id": made["id"], "node_id": acme.team.id, "flavor": acme.flavor.code,
        "image": acme.image.code,
    }  # fmt: skip


@given(call=st.sampled_from(WRITES), body=ROUGH | st.dictionaries(st.sampled_from(FIELDS), ROUGH))
@often
def test_a_rough_body_is_never_an_error_of_ours(
    acme: Acme, ids: dict[str, Any], call: tuple[str, str], body: Any
):
    wish = acme.wish() | body if isinstance(body, dict) and call[1] == "instances" else body
    response = acme.program("operator" if "node" in call[1] else "owner").ask(
        call[0], fill(call[1], ids), wish
    )

    assert response.status_code < 500, (call, wish)
    if response.content:
        assert response["Content-Type"] == "application/json"


@given(
    route=st.sampled_from(READS),
    query=st.dictionaries(
        st.sampled_from(PARAMETERS), st.text(max_size=12), min_size=1, max_size=3
    ),
)
@often
def test_a_rough_query_is_never_an_error_of_ours(
    acme: Acme, ids: dict[str, Any], route: str, query: dict[str, str]
):
    from urllib.parse import quote

    text = "&".join(
        f"{name}={quote(value, errors='surrogatepass')}" for name, value in query.items()
    )
    response = acme.program("owner").get(f"{fill(route, ids)}?{text}")

    assert response.status_code < 500, (route, query)


@pytest.mark.parametrize("position", ["abc", "&", "\x00", "9999-99-99"])
@pytest.mark.parametrize("route", ["instances", "members", "ledger", "tokens", "audit-events"])
def test_a_cursor_that_was_never_ours_is_404(acme: Acme, route: str, position: str):
    cursor = b64encode(urlencode({"p": position}).encode()).decode()

    response = acme.program("owner").get(f"{route}?{urlencode({'cursor': cursor})}")

    # As text, any position will do: it is a place in the list like another.
    assert response.status_code == 404 or (route, response.status_code) == ("members", 200)


@pytest.mark.parametrize("route", ["usage", "usage.csv"])
@pytest.mark.parametrize(
    "query",
    [
        "start=0001-01-01T00:00:00Z",
        "end=9999-12-31T23:59:59Z",
        "start=0001-01-01T00:00:00Z&end=9999-12-31T00:00:00Z",
    ],
)
def test_usage_of_other_centuries_is_400(acme: Acme, route: str, query: str):
    response = acme.program("owner").get(f"{route}?{query}")

    assert response.status_code == 400
    assert set(response.json()["error"]["details"]) <= {"start", "end"}


def test_a_body_that_is_nested_too_deep_is_400(acme: Acme):
    program = acme.program("owner")

    response = program.client.post(
        "/api/v1/teams", "[" * 100_000, "application/json",
        headers={"Authorization": f"Bearer {program.secret}"},
    )  # fmt: skip

    assert response.status_code == 400


def test_heads_are_answered_as_gets_without_a_body(acme: Acme):
    program = acme.program("member")

    head, get = program.ask("HEAD", "teams"), program.get("teams")

    assert (head.status_code, head.content) == (200, b"")
    assert head["Content-Length"] == get["Content-Length"]
    assert acme.program("member", "money").ask("HEAD", "instances").status_code == 403
