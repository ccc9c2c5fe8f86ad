"""Organizations, teams, members, invitations, tokens and quotas through the API."""

from datetime import UTC, datetime

import pytest

from portal.errors import DomainError
from portal.tenants import invitations
from portal.tenants.models import Role, User
from portal.tenants.scope import every_tenant
from tests import factories as make
from tests.api.conftest import Acme, Program


def test_a_token_sees_its_own_organization_only(acme: Acme):
    listed = acme.program("member").get("organizations").json()

    assert listed["next"] is None
    assert [row["slug"] for row in listed["results"]] == [acme.organization.slug]
    path = f"organizations/{acme.organization.id}"
    assert acme.program("member").get(path).json()["currency"] == "USD"
    renamed = acme.program("admin").ask("PATCH", path, {"name": "Acme 2"})
    assert (renamed.status_code, renamed.json()["name"]) == (200, "Acme 2")


def test_teams_are_made_filled_and_listed(acme: Acme):
    admin = acme.program("admin")

    made = admin.post("teams", {"name": "Speech"})
    taken = admin.post("teams", {"name": "speech"})
    path = f"teams/{made.json()['id']}"
    put = admin.ask("PUT", f"{path}/members/{acme.member.id}", {"is_admin": True})
    lower = admin.ask("PUT", f"{path}/members/{acme.member.id}", {})
    inside = admin.get(f"{path}/members").json()["results"]
    out = admin.ask("DELETE", f"{path}/members/{acme.member.id}")

    assert (made.status_code, taken.status_code, put.status_code) == (201, 400, 200)
    assert (put.json()["is_admin"], lower.json()["is_admin"]) == (True, False)
    assert [row["email"] for row in inside] == [acme.member.user.email]
    assert (out.status_code, out.content) == (204, b"")
    assert admin.get(f"{path}/members").json()["results"] == []
    assert admin.ask("PATCH", path, {"name": "Language"}).json()["name"] == "Language"
    names = {
        row["name"]: row["is_mine"] for row in acme.program("member").get("teams").json()["results"]
    }
    assert names == {"Language": False, "Vision": True}


def test_members_are_listed_changed_and_removed(acme: Acme):
    owner = acme.program("owner")
    emails = [row["email"] for row in owner.get("members").json()["results"]]
    secret = acme.program("member").secret

    changed = owner.ask("PATCH", f"members/{acme.member.id}", {"role": "VIEWER"})
    wrong = owner.ask("PATCH", f"members/{acme.member.id}", {"role": "KING"})
    gone = owner.ask("DELETE", f"members/{acme.member.id}")
    last = owner.ask("DELETE", f"members/{acme.owner.id}")

    assert emails == sorted(emails)
    assert len(emails) == 6
    assert changed.json()["role"] == "VIEWER"
    assert wrong.status_code == 400
    assert gone.status_code == 204
    assert (last.status_code, last.json()["error"]["code"]) == (409, "last_owner")
    assert Program(secret).get("teams").status_code == 401
    assert owner.get(f"members/{acme.member.id}").status_code == 404


def test_invitations_are_sent_listed_and_closed(acme: Acme):
    admin = acme.program("admin")

    made = admin.post("invitations", {"email": "N@Example.com", "team": acme.team.slug})
    listed = admin.get("invitations").json()["results"]
    closed = admin.ask("DELETE", f"invitations/{made.json()['id']}")

    assert made.status_code == 201
    assert made.json()["role"] == "MEMBER"
    secret = made.json()["link"].rstrip("/").rpartition("/")[2]
    assert secret not in str(listed)
    with pytest.raises(DomainError, match="closed"):
        invitations.find_invitation(secret=secret, now=datetime.now(UTC))
    assert [row["email"] for row in listed] == ["n@example.com"]
    assert closed.status_code == 204
    assert admin.get("invitations").json()["results"] == []
    assert admin.post("invitations", {"email": "nobody"}).status_code == 400
    owners = admin.post("invitations", {"email": "o@example.com", "role": "OWNER"})
    assert (owners.status_code, owners.json()["error"]["code"]) == (403, "owner_only")


def test_tokens_are_issued_listed_and_revoked(acme: Acme):
    member = acme.program("member")

    made = member.post("tokens", {"name": "ci", "scopes": ["read"]}).json()
    narrow = Program(made["secret"])
    listed = member.get("tokens").json()["results"]

    assert narrow.get("instances").status_code == 200
    assert narrow.post("instances", acme.wish()).status_code == 403
    assert "secret" not in listed[0]
    assert member.ask("DELETE", f"tokens/{made['id']}").status_code == 204
    refused = narrow.get("instances")
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "token_revoked")
    assert member.post("tokens", {"name": "x", "scopes": ["root"]}).status_code == 400
    past = {"name": "x", "scopes": ["read"], "expires_at": "2001-01-01T00:00:00Z"}
    assert member.post("tokens", past).status_code == 400


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Basic abc", "Bearer a b", "Bearer \xff", "corral_x"]
)
def test_a_malformed_header_is_401(acme: Acme, header: str):
    response = Program().get("teams", Authorization=header)

    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert response.json()["error"]["code"]


def test_a_blocked_person_is_out_at_once(acme: Acme):
    program = acme.program("owner")
    User.objects.filter(id=acme.owner.user_id).update(is_active=False)

    assert program.get("organizations").status_code == 401


def test_quotas_are_seen_and_set_by_level(acme: Acme):
    leader, admin = acme.program("leader"), acme.program("admin")
    acme.launch()

    team = leader.ask("PUT", "quotas", {"team": str(acme.team.id), "limit_milli_gpus": 4000})
    whole = leader.ask("PUT", "quotas", {"limit_milli_gpus": 4000})
    one = admin.ask("PUT", "quotas", {"member": str(acme.member.id), "limit_milli_gpus": 0})
    lifted = admin.ask("PUT", "quotas", {"member": str(acme.member.id), "limit_milli_gpus": None})
    foreign = admin.ask("PUT", "quotas", {"member": str(acme.stranger.id), "limit_milli_gpus": 0})

    assert team.json() == {
        "level": "team",
        "team": str(acme.team.id),
        "team_name": "Vision",
        "member": None,
        "member_name": None,
        "limit_milli_gpus": 4000,
        "used_milli_gpus": 1000,
        "left_milli_gpus": 3000,
    }
    assert (whole.status_code, foreign.status_code) == (403, 404)
    assert one.json()["left_milli_gpus"] == 0
    assert lifted.json()["limit_milli_gpus"] is None
    levels = [row["level"] for row in acme.program("member").get("quotas").json()["results"]]
    assert levels == ["organization", "team", "member"]
    assert admin.ask("PUT", "quotas", {"limit_milli_gpus": -1}).status_code == 400


def test_an_admin_of_one_organization_is_nobody_in_another(acme: Acme):
    with every_tenant("arrange"):
        both = make.Member.objects.create(
            organization=acme.stranger.organization, user=acme.admin.user, role=Role.VIEWER
        )
    assert both.role == Role.VIEWER

    program = acme.program("admin")

    assert program.post("teams", {"name": "Ours"}).status_code == 201
    other = {"name": "Theirs", "organization": str(acme.stranger.organization_id)}
    assert program.post("teams", other).status_code == 404
