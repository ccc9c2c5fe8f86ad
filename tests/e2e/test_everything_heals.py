"""Kill any process at any moment: nothing is lost, nothing is billed twice."""

import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.stack import Corral

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
pytestmark = [pytest.mark.slow]

# What to look for in the command lines of the processes of `manage.py up`.
KILLED_IN_TURN = {
    "web": "uvicorn",
    "worker": "worker",
    "scheduler": "run_scheduler",
    "agent": "agents",
    "valkey": "valkey",
    "postgres": "postgres",
}


@pytest.fixture
def corral() -> Iterator[Corral]:
    with Corral(nodes=1, STATIC_HASHED="0") as running:  # nobody looks: starts sooner
        yield running


def test_all_heal_without_a_hand_and_no_millisecond_is_lost_or_billed_twice(corral: Corral) -> None:
    token = corral.token("user@meadow.test")
    instances = [_launch(corral, token, name) for name in ("first", "second")]
    _wait_until_running(corral, token, instances)
    began = {one: _show(corral, token, one)["started_at"] for one in instances}

    for name, word in KILLED_IN_TURN.items():
        victim = corral.pid(word)
        os.kill(victim, signal.SIGKILL)

        corral.wait(
            lambda w=word, v=victim: [p for p in corral.pids(w) if p != v],  # type: ignore[misc]
            what=f"{name} to come back",
        )
        _wait_until_running(corral, token, instances)
        third = _launch(corral, token, f"after-{name}")
        _wait_until_running(corral, token, [third])
        _end(corral, token, [third])

    assert {one: _show(corral, token, one)["started_at"] for one in instances} == began
    asked = _end(corral, token, instances)
    for one in instances:
        # The bill reaches from the node's word that it ran to the wish that it ends.
        assert _billed_ms(corral, token, one) == _ms(asked[one]) - _ms(began[one])
        assert _started_ms(corral, one) == _ms(began[one])


def test_ctrl_c_leaves_no_process_behind(corral: Corral) -> None:
    token = corral.token("user@meadow.test")
    one = _launch(corral, token, "still-running")
    _wait_until_running(corral, token, [one])

    assert "✗" not in corral.said(), corral.logs()

    assert corral.stop() == 0

    marks = (str(corral.data), f"CORRAL_INSTANCE={one}")
    assert [line for line in _command_lines() if any(mark in line for mark in marks)] == []


def _launch(corral: Corral, token: str, name: str) -> str:
    teams = corral.api("GET", "teams", token)["results"]
    team = next(team["id"] for team in teams if team["name"] == "Research")
    body = {"team": team, "name": name, "flavor": "h100-1", "image": "demo"}
    answer = corral.wait(
        lambda: corral.api("POST", "instances", token, body, **{"Idempotency-Key": name}),
        what=f"{name} to be accepted",
    )
    return str(answer["id"])


def _show(corral: Corral, token: str, instance: str) -> dict[str, Any]:
    answer: dict[str, Any] = corral.wait(
        lambda: corral.api("GET", f"instances/{instance}", token), what="the instance"
    )
    return answer


def _wait_until_running(corral: Corral, token: str, instances: list[str]) -> None:
    for one in instances:
        corral.wait(
            lambda i=one: _show(corral, token, i)["state"] == "RUNNING",  # type: ignore[misc]
            patience_s=90,
            what=f"{one} to run",
        )


def _end(corral: Corral, token: str, instances: list[str]) -> dict[str, str]:
    """Terminate them, wait for the end, and return when each was told."""
    asked = {}
    for one in instances:
        answer: dict[str, Any] = corral.wait(
            lambda i=one: corral.api("POST", f"instances/{i}/terminate", token, {}),  # type: ignore[misc]
            what="terminate to be accepted",
        )
        asked[one] = str(answer["since"])
    for one in instances:
        corral.wait(
            lambda i=one: _show(corral, token, i)["state"] == "TERMINATED",  # type: ignore[misc]
            patience_s=60,
            what=f"{one} to end",
        )
    return asked


def _billed_ms(corral: Corral, token: str, instance: str) -> int:
    (row,) = corral.api("GET", f"usage?group_by=instance&instance={instance}", token)["results"]
    return int(row["milliseconds"])


def _started_ms(corral: Corral, instance: str) -> int:
    """Return when it started, by the node's own records."""
    (folder,) = (corral.data / "nodes").glob(f"*/instances/{instance}-*")
    return int(json.loads((folder / "shim.json").read_text())["started_at_ms"])


def _ms(moment: str) -> int:
    """Return whole milliseconds since the epoch; what is billed is cut to them, too."""
    return (datetime.fromisoformat(moment) - EPOCH) // timedelta(milliseconds=1)


def _command_lines() -> list[str]:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                lines.append((entry / "cmdline").read_bytes().decode(errors="replace"))
                lines.append((entry / "environ").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return lines
