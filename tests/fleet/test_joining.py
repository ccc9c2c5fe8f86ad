import base64
import json
import threading
from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection

from agents import wire
from portal.fleet import nodes
from portal.fleet.models import JoinToken, Link, Node
from tests.factories import NOW
from tests.fleet.agents import Machine

pytestmark = pytest.mark.django_db


def sign_in(machine: Machine, now: Any, *, generation: int = 1, **changes: Any) -> Node:
    time_ms = round(now.timestamp() * 1000)
    headers = wire.sign_request(
        machine.key, node_id=str(machine.node_id), generation=generation, time_ms=time_ms
    )
    values = {
        "node_id": str(machine.node_id),
        "generation": generation,
        "time_ms": time_ms,
        "signature": base64.b64decode(headers[wire.HEADER_SIGNATURE]),
        "now": now,
    }
    return nodes.authenticate(**(values | changes))


def test_a_machine_joins_with_a_token_and_becomes_a_node_of_its_pool() -> None:
    token, secret = nodes.issue_join_token(pool="lab", now=NOW)

    reply = nodes.join(request=Machine("gpu-7").request(secret), now=NOW)

    node = Node.objects.get(pk=reply.node_id)
    assert (node.name, node.pool, node.generation, node.link) == ("gpu-7", "lab", 1, Link.OFFLINE)
    token.refresh_from_db()
    assert token.node == node
    assert secret not in JoinToken.objects.values_list("secret_hash", flat=True)


@pytest.mark.parametrize(
    ("when", "code"), [(timedelta(0), "used_token"), (timedelta(hours=1), "expired_token")]
)
def test_a_token_is_good_once_and_for_an_hour(when: timedelta, code: str) -> None:
    _, secret = nodes.issue_join_token(now=NOW)
    if code == "used_token":
        nodes.join(request=Machine().request(secret), now=NOW)

    with pytest.raises(nodes.UnableToJoin) as refused:
        nodes.join(request=Machine().request(secret), now=NOW + when)

    assert refused.value.code == code
    assert refused.value.help


def test_a_machine_whose_answer_was_lost_gets_it_again_until_its_first_session() -> None:
    _, secret = nodes.issue_join_token(now=NOW)
    machine = Machine()
    first = nodes.join(request=machine.request(secret), now=NOW)

    assert nodes.join(request=machine.request(secret), now=NOW) == first

    machine.node_id = UUID(first.node_id)
    machine.open(NOW)
    with pytest.raises(nodes.UnableToJoin) as refused:
        nodes.join(request=machine.request(secret), now=NOW)
    assert refused.value.code == "used_token"
    assert Node.objects.count() == 1


def test_an_invented_token_lets_nobody_in() -> None:
    with pytest.raises(nodes.UnableToJoin) as refused:
        nodes.join(request=Machine().request("join_invented"), now=NOW)

    assert refused.value.code == "unknown_token"
    assert not Node.objects.exists()


@pytest.mark.parametrize("key", ["", "not base64!", "AAAA"])
def test_a_key_that_is_no_key_does_not_spend_the_token(key: str) -> None:
    _, secret = nodes.issue_join_token(now=NOW)
    request = wire.JoinRequest(token=secret, public_key=key, hostname="h", agent_version="1")

    with pytest.raises(nodes.UnableToJoin) as refused:
        nodes.join(request=request, now=NOW)

    assert refused.value.code == "bad_key"
    assert nodes.join(request=Machine().request(secret), now=NOW).node_id


@pytest.mark.django_db(transaction=True)
def test_of_many_machines_with_one_token_one_gets_in() -> None:
    _, secret = nodes.issue_join_token(now=NOW)
    results: list[str] = []
    start = threading.Barrier(6)

    def try_to_join() -> None:
        machine = Machine()
        start.wait()
        try:
            results.append(nodes.join(request=machine.request(secret), now=NOW).node_id)
        except nodes.UnableToJoin as refused:
            results.append(refused.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=try_to_join) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(results)[1:] == ["used_token"] * 5
    assert Node.objects.count() == 1


def test_a_node_proves_itself_with_its_key() -> None:
    machine = Machine()
    node_id = machine.join(NOW)

    assert sign_in(machine, NOW).pk == node_id


@pytest.mark.parametrize(
    "forged",
    [
        {"signature": b"0" * 64},
        {"signature": b""},
        {"node_id": "not-a-uuid"},
        {"node_id": "00000000-0000-0000-0000-000000000000"},
        {"time_ms": 5},
    ],
)
def test_nobody_else_passes_for_the_node(forged: dict[str, Any]) -> None:
    machine = Machine()
    machine.join(NOW)

    with pytest.raises(nodes.UnableToAuthenticate) as refused:
        sign_in(machine, NOW, **forged)

    assert refused.value.code == "bad_credential"


def test_an_older_credential_is_refused_and_written_down() -> None:
    machine = Machine()
    node_id = machine.join(NOW)
    Node.objects.filter(pk=node_id).update(generation=2)

    with pytest.raises(nodes.UnableToAuthenticate) as refused:
        sign_in(machine, NOW, generation=1)

    assert refused.value.code == "credential_outdated"
    assert Node.objects.get().events.filter(kind="conflict").count() == 1


def test_a_sign_in_works_once() -> None:
    machine = Machine()
    machine.join(NOW)
    sign_in(machine, NOW)

    with pytest.raises(nodes.UnableToAuthenticate) as refused:
        sign_in(machine, NOW)

    assert refused.value.code == "sign_in_repeated"


def test_an_old_sign_in_is_not_taken_again_later() -> None:
    machine = Machine()
    machine.join(NOW)
    time_ms = round(NOW.timestamp() * 1000)
    headers = wire.sign_request(
        machine.key, node_id=str(machine.node_id), generation=1, time_ms=time_ms
    )
    sign_in(machine, NOW + timedelta(minutes=1))

    with pytest.raises(nodes.UnableToAuthenticate):
        nodes.authenticate(
            node_id=str(machine.node_id),
            generation=1,
            time_ms=time_ms,
            signature=base64.b64decode(headers[wire.HEADER_SIGNATURE]),
            now=NOW + timedelta(minutes=10),
        )


@pytest.mark.parametrize("hours", [-20, 20])
def test_a_machine_whose_clock_is_hours_off_gets_in(hours: int) -> None:
    machine = Machine()
    node_id = machine.join(NOW)

    node = sign_in(machine, NOW + timedelta(hours=hours))
    assert node.pk == node_id


def test_a_clock_that_was_set_back_gets_in_again() -> None:
    machine = Machine()
    machine.join(NOW)
    ahead = NOW + timedelta(hours=3)
    time_ms = round(ahead.timestamp() * 1000)
    headers = wire.sign_request(
        machine.key, node_id=str(machine.node_id), generation=1, time_ms=time_ms
    )
    nodes.authenticate(
        node_id=str(machine.node_id),
        generation=1,
        time_ms=time_ms,
        signature=base64.b64decode(headers[wire.HEADER_SIGNATURE]),
        now=NOW,
    )

    assert sign_in(machine, NOW + timedelta(minutes=1))


def test_the_command_prints_a_token_that_works() -> None:
    out = StringIO()
    call_command("join_token", "--json", "--pool", "lab", stdout=out)

    answer = json.loads(out.getvalue())
    token = JoinToken.objects.get()
    reply = nodes.join(request=Machine().request(answer["token"]), now=token.created_at)
    assert Node.objects.get(pk=reply.node_id).pool == "lab"
