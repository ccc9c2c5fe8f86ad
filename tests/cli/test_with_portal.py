"""`corral` as people run it: its own process, against a real server."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from portal.tenants import access, tokens
from portal.tenants.models import Member, Role
from portal.tenants.scope import scope
from tests import factories as make

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
Corral = Callable[..., tuple[int, Any]]


def secret_of(member: Member) -> str:
    with scope(organization=member.organization):
        return tokens.issue(
            actor=access.actor_for_member(member=member),
            name="cli",
            scopes=["full"],
            expires_at=None,
            now=make.NOW,
        )[1]


@pytest.fixture
def corral(web: Any, tmp_path: Path) -> Corral:
    """Run the command line as a process, with a home of its own; return code and JSON."""
    environ = {"PATH": os.environ["PATH"], "XDG_CONFIG_HOME": str(tmp_path), "LANG": "C"}

    def run(*arguments: str, typed: str = "") -> tuple[int, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "portal.cli", *arguments, "--json"],
            input=typed, capture_output=True, text=True, cwd=ROOT, env=environ, check=False,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    return run


def test_a_day_with_the_command_line(web: Any, corral: Corral):
    organization = make.organization("Acme")
    team = make.team(organization)
    member = make.member(organization, Role.MEMBER, teams=(team,))
    flavor, image = make.flavor(), make.image()
    wish = ("launch", "train", "--flavor", flavor.code, "--image", image.code)

    signed_in = corral("login", "--url", web.url, typed=f"{secret_of(member)}\n")
    launched = corral(*wish, "--key", "one")
    repeated = corral(*wish, "--key", "one")
    listed = corral("ls")
    shown = corral("show", "train")
    taken = corral(*wish)
    stopped = corral("stop", "train")
    started = corral("start", "train")
    removed = corral("rm", "train")
    gone = corral("ls")
    cost, quota = corral("cost", "--by", "flavor"), corral("quota")
    logs = corral("logs", launched[1]["id"])

    assert signed_in[0] == 0
    assert signed_in[1]["organization"]["name"] == "Acme"
    assert launched[0] == 0
    assert launched[1]["queue_position"] == 1
    assert repeated[1]["id"] == launched[1]["id"]
    assert [row["id"] for row in listed[1]] == [launched[1]["id"]]
    assert shown[1]["price_per_hour"]["amount"] == "2.49"
    assert taken[0] == 1
    assert taken[1]["error"]["code"] == "name_taken"
    assert [stopped[1][0]["state"], started[1][0]["state"], removed[1][0]["state"]] == [
        "STOPPED",
        "QUEUED",
        "TERMINATED",
    ]
    assert gone == (0, [])
    assert (cost[0], cost[1]["total"]["amount"]) == (0, "0.00")
    assert quota[1][0]["level"] == "organization"
    assert logs[0] == 1
    assert web.process.poll() is None


def test_a_portal_that_is_away_is_exit_code_3(web: Any, corral: Corral):
    web.close()

    assert corral("login", "--url", web.url, "--token", "x")[0] == 3


def test_many_at_once_each_see_their_own_only(web: Any):
    organizations = [make.organization(f"Org {n}") for n in range(4)]
    expected = {}
    for organization in organizations:
        owner = make.member(organization, Role.OWNER)
        expected[secret_of(owner)] = str(make.team(organization).id)

    def look(secret: str) -> tuple[str, list[str]]:
        with httpx.Client(headers={"Authorization": f"Bearer {secret}"}, timeout=30) as client:
            response = client.get(f"{web.url}/api/v1/teams")
        assert response.status_code == 200, web.log.read_text()[-3000:]
        return secret, [row["id"] for row in response.json()["results"]]

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(look, list(expected) * 10))

    assert len(seen) == 40
    assert all(ids == [expected[secret]] for secret, ids in seen)


def test_a_file_of_usage_is_streamed(web: Any):
    owner = make.member(make.organization(), Role.OWNER)

    response = httpx.get(
        f"{web.url}/api/v1/usage.csv", headers={"Authorization": f"Bearer {secret_of(owner)}"}
    )

    assert response.status_code == 200, web.log.read_text()[-3000:]
    assert response.headers["Content-Type"].startswith("text/csv")
    assert response.text.startswith("kind,organization_id")
