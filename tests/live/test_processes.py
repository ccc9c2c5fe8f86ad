"""Several processes of the portal, and a Valkey that dies."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from agents import wire
from portal import events
from portal.operate.embedded import Valkey, stop
from tests.conftest import Web, database_url
from tests.factories import member, organization, user
from tests.live.clients import agent, joined, page, signed_in

pytestmark = pytest.mark.slow


@pytest.fixture
def second_url(live_server_url: str) -> Iterator[str]:
    """Serve the portal with a second process beside the first."""
    server = Web({"DATABASE_URL": database_url()})
    yield server.url
    server.close()


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Any]:
    """Give one test a Valkey of its own, with its process, to kill."""
    server = Valkey(tmp_path / "valkey", durable=False)
    running = [server.start()]
    yield server, running
    for child in running:
        stop(child)


@pytest.fixture
def apart_url(valkey: Any, transactional_db: None) -> Iterator[str]:
    """Serve the portal on that Valkey, with short times."""
    server = Web(
        {
            "DATABASE_URL": database_url(),
            "REDIS_URL": valkey[0].url,
            "CORRAL_NODE_STALE_SECONDS": "1",
        }
    )
    yield server.url
    print(server.log.read_text())
    server.close()


def test_a_page_on_one_process_sees_a_node_on_another(
    live_server_url: str, second_url: str
) -> None:
    machine = joined(live_server_url)
    topic = f"gpus:node:{machine.node_id}"
    with (
        agent(live_server_url, machine) as one,
        page(second_url, signed_in(user(is_operator=True))) as operator,
    ):
        one.measure(11)
        time.sleep(0.3)
        operator.subscribe(topic)
        assert operator.hear("samples", 2)["gpus"][one.gpu]["util"] == 11
        began = time.monotonic()
        one.measure(93)
        assert operator.hear("samples", 2)["gpus"][one.gpu]["util"] == 93
        assert time.monotonic() - began < 1


def test_a_session_on_another_process_takes_the_node_over(
    live_server_url: str, second_url: str
) -> None:
    machine = joined(live_server_url)
    with agent(live_server_url, machine) as old:
        old.hear(wire.Desired)
        with agent(second_url, machine) as new:
            assert old.closed(5)[0] == wire.CLOSE_TAKEN_OVER
            new.beat(4)
            assert new.hear(wire.Echo).seq == 4


def test_valkey_may_die_and_come_back(valkey: Any, apart_url: str) -> None:
    server, running = valkey
    machine = joined(apart_url)
    person = member(organization(), is_operator=True)
    org = events.organization_topic(person.organization_id)
    with (
        agent(apart_url, machine) as one,
        page(apart_url, signed_in(person.user)) as listener,
    ):
        first = listener.hear("hello")["epoch"]
        listener.subscribe(org, f"gpus:node:{machine.node_id}")
        one.measure(1)
        listener.hear("samples")

        stop(running[0], sign=9)
        one.measure(2)
        assert listener.hear("samples", 2, seq=2)
        one.beat(5)
        assert one.hear(wire.Echo, 2).seq == 5

        running.append(server.start())
        assert listener.hear("hello", 10)["epoch"] != first
        message = {"topic": org, "kind": "instance", "id": "i-1"}
        client = redis.Redis.from_url(server.url)
        client.publish(events.CHANNEL + org, json.dumps(message))
        client.close()
        assert listener.hear("changed", 3)["id"] == "i-1"


def test_a_half_open_agent_is_given_up_and_a_living_one_is_not(apart_url: str) -> None:
    machine, living = joined(apart_url), joined(apart_url)
    with agent(apart_url, machine) as silent, agent(apart_url, living) as one:
        deadline = time.monotonic() + 12
        began, code = time.monotonic(), 0
        while time.monotonic() < deadline and not code:
            one.beat()
            try:
                code = silent.closed(1)[0]
            except TimeoutError:
                continue
        assert code == 1001
        assert time.monotonic() - began > 5
        one.beat(77)
        while one.hear(wire.Echo, 2).seq != 77:
            pass
