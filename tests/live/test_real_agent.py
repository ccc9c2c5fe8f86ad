"""The agent that nodes really run, against the portal that they really talk to."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from portal.fleet import commands, nodes
from portal.fleet.models import Gpu, Link, Node
from portal.operate.embedded import stop
from portal.telemetry.models import Sample
from tests.factories import user
from tests.live.clients import eventually, now, page, signed_in

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def running_agent(live_server_url: str, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    _, secret = nodes.issue_join_token(now=now())
    command = [
        sys.executable, "-m", "agents", "--portal", live_server_url, "--join", secret,
        "--state-dir", str(tmp_path / "node"), "--gpus", "simulated:h100x4", "--runtime", "process",
    ]  # fmt: skip
    with (tmp_path / "agent.log").open("wb") as log:
        child = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ)
        )
    yield child
    stop(child)
    print((tmp_path / "agent.log").read_text())


def test_it_joins_measures_and_is_seen_by_an_operator(
    live_server_url: str, running_agent: "subprocess.Popen[bytes]"
) -> None:
    eventually(lambda: Node.objects.filter(link=Link.ONLINE).exists(), 40)
    node = Node.objects.get()
    with page(live_server_url, signed_in(user(is_operator=True))) as operator:
        operator.subscribe(f"gpus:node:{node.pk}")
        ages = []
        for _ in range(4):
            frame = operator.hear("samples", 20)
            ages.append(time.time() * 1000 - frame["at"])

    assert len(frame["gpus"]) == 4
    assert all(values["mem_total"] for values in frame["gpus"].values())
    assert min(ages) < 1000
    assert set(Gpu.objects.values_list("model", "state")) == {("H100 SXM 80GB", "OK")}
    eventually(lambda: Sample.objects.filter(gpu__node=node).count() >= 8)
    eventually(lambda: (Node.objects.get().ack_seq or 0) >= 2)
    assert running_agent.poll() is None


def test_it_answers_questions_by_saying_no_where_there_is_nothing(
    live_server_url: str, running_agent: "subprocess.Popen[bytes]"
) -> None:
    eventually(lambda: Node.objects.filter(link=Link.ONLINE).exists(), 40)

    args = {"instance": "no-such", "run": 1, "tail": 5}

    def refusal() -> str:
        with pytest.raises(commands.UnableToAsk) as refused:
            commands.ask(node_id=Node.objects.get().pk, kind="logs", args=args)
        return refused.value.code

    # Its socket listens a moment after it is online.
    eventually(lambda: refusal() == "node_refused")
