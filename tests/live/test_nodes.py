import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from agents import wire
from portal.fleet import commands, nodes
from portal.fleet.models import Gpu, Link, Node
from portal.telemetry.models import Sample
from tests.factories import user
from tests.fleet.agents import Machine, gpu, inventory
from tests.live.clients import agent, eventually, joined, now, now_ms, sample


def test_a_machine_joins_once_and_its_token_is_spent(live_server_url: str) -> None:
    _, secret = nodes.issue_join_token(now=now())
    url = live_server_url + wire.JOIN_PATH

    first = httpx.post(url, content=msgspec.json.encode(Machine().request(secret)))
    second = httpx.post(url, content=msgspec.json.encode(Machine().request(secret)))

    assert first.status_code == 201
    assert Node.objects.get().pk == uuid.UUID(first.json()["node_id"])
    assert second.status_code == 403
    assert second.json()["error"]["code"] == "used_token"


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"\xff", b'{"token": 5}'])
def test_a_join_that_makes_no_sense_is_said_so(live_server_url: str, body: bytes) -> None:
    answer = httpx.post(live_server_url + wire.JOIN_PATH, content=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "bad_request"


def test_a_node_says_hello_and_is_welcome(live_server_url: str) -> None:
    machine = joined(live_server_url)

    with agent(live_server_url, machine) as one:
        assert one.welcome is not None
        assert one.welcome.session_epoch == 1
        assert one.welcome.max_frame_bytes == wire.MAX_FRAME_BYTES
        assert abs(one.welcome.server_time_ms - now_ms()) < 5000
        desired = one.hear(wire.Desired)
        assert (desired.complete, desired.count, desired.instances) == (True, 0, [])
        one.beat(7)
        assert one.hear(wire.Echo).seq == 7

    assert Node.objects.get().link == Link.ONLINE


@pytest.mark.parametrize("forged", ["none", "key", "node"])
def test_nobody_without_the_key_gets_in(live_server_url: str, forged: str) -> None:
    machine = joined(live_server_url)
    signer = Machine() if forged == "key" else machine
    node_id = uuid.uuid4() if forged == "node" else machine.node_id
    headers = wire.sign_request(signer.key, node_id=str(node_id), generation=1, time_ms=now_ms())

    with pytest.raises(InvalidStatus) as refused:
        connect(
            live_server_url.replace("http", "ws") + wire.SOCKET_PATH,
            additional_headers={} if forged == "none" else headers,
            proxy=None,
        )

    assert refused.value.response.status_code == 401
    assert b"bad_credential" in refused.value.response.body


def test_a_hello_for_another_node_is_refused(live_server_url: str) -> None:
    machine, other = joined(live_server_url), joined(live_server_url)

    with agent(live_server_url, machine, greet=False) as one:
        one.say(machine.hello(now(), node_id=str(other.node_id)))
        assert one.closed()[0] == wire.CLOSE_BAD_CREDENTIAL


def test_the_first_frame_must_be_a_hello(live_server_url: str) -> None:
    machine = joined(live_server_url)

    with agent(live_server_url, machine, greet=False) as one:
        one.beat()
        assert one.closed() == (1002, "the first frame must be a hello")


def test_an_agent_of_another_age_is_told_readably(live_server_url: str) -> None:
    machine = joined(live_server_url)

    with agent(live_server_url, machine, greet=False) as one:
        one.say(machine.hello(now(), proto_min=40, proto_max=41))
        code, reason = one.closed()

    assert code == wire.CLOSE_NO_COMMON_VERSION
    assert "40" in reason


def test_a_newer_session_closes_the_older_one(live_server_url: str) -> None:
    machine = joined(live_server_url)

    with agent(live_server_url, machine) as old, agent(live_server_url, machine) as new:
        assert old.closed(3)[0] == wire.CLOSE_TAKEN_OVER
        new.beat(1)
        assert new.hear(wire.Echo).seq == 1


def test_two_copies_of_a_machine_do_not_take_turns_for_ever(live_server_url: str) -> None:
    machine = joined(live_server_url)
    copy = Machine()
    copy.key, copy.node_id = machine.key, machine.node_id
    codes = []

    for n in range(6):
        with agent(live_server_url, (machine, copy)[n % 2], greet=False) as one:
            one.say(one.machine.hello(now()))
            try:
                one.hear(wire.Welcome, 3)
            except Exception:  # noqa: BLE001
                codes.append(one.closed()[0])

    assert set(codes) == {wire.CLOSE_IDENTITY_CONFLICT}
    assert Node.objects.get().link == Link.CONFLICT


def test_samples_are_stored_and_then_acked(live_server_url: str) -> None:
    machine = joined(live_server_url)

    with agent(live_server_url, machine) as one:
        last = [one.measure(util, at_ms=now_ms() + util) for util in (10, 20, 30)][-1]
        while one.hear(wire.Ack).seq < last:
            pass

    rows = Sample.objects.filter(gpu__uuid=one.gpu).order_by("at")
    assert [row.util for row in rows] == [10, 20, 30]
    assert (rows[0].power, rows[0].temp, rows[0].mem_used) == (350, 55, 2**30)


def test_a_replay_changes_nothing_whatever_its_order(live_server_url: str) -> None:
    machine = joined(live_server_url)
    start = now_ms() - 60_000
    frames = [
        wire.Samples(
            agent_run_id=machine.run_id,
            seq=n,
            samples=[sample(f"GPU-{machine.node_id}", n, start + 1000 * n)],
            replay=True,
        )
        for n in range(1, 21)
    ]
    with agent(live_server_url, machine) as one:
        for frame in [*frames, *reversed(frames), *frames[::3]]:
            one.say(frame)
        one.seq = 20
        last = one.measure()
        while one.hear(wire.Ack).seq != last:
            pass

    rows = Sample.objects.filter(gpu__uuid=one.gpu).order_by("at")
    assert [row.util for row in rows] == [*range(1, 21), 50]


def test_what_is_stored_is_not_asked_for_again(live_server_url: str) -> None:
    machine = joined(live_server_url)
    with agent(live_server_url, machine) as one:
        for _ in range(3):
            last = one.measure()
        while one.hear(wire.Ack).seq != last:
            pass
        one.beat()
        eventually(lambda: Node.objects.get().ack_seq == 3)

    with agent(live_server_url, machine) as again:
        assert again.welcome is not None
        assert again.welcome.ack_seq == 3


def test_a_node_cannot_write_for_the_gpus_of_another(live_server_url: str) -> None:
    machine, other = joined(live_server_url), joined(live_server_url)
    with agent(live_server_url, other), agent(live_server_url, machine) as one:
        one.say(
            wire.Samples(
                agent_run_id=machine.run_id, seq=1, samples=[sample(f"GPU-{other.node_id}")]
            )
        )
        assert one.hear(wire.Ack).seq == 1

    assert not Sample.objects.filter(gpu__node_id__in=[other.node_id, machine.node_id]).exists()


def test_garbage_does_not_end_the_session(live_server_url: str) -> None:
    machine = joined(live_server_url)

    with agent(live_server_url, machine) as one:
        for frame in ("", "{", "[]", "null", '{"type": "report"}', '{"type": "from-the-future"}',
                      '{"type": "samples", "samples": 5}', "[" * 5000):  # fmt: skip
            one.socket.send(frame)
        one.socket.send(b"\x00\xff\xfe")
        one.say(machine.hello(now()))
        one.say(wire.Ack(seq=5))
        one.say(wire.CommandResult(id="never-asked", ok=True))
        one.beat(3)
        assert one.hear(wire.Echo).seq == 3


def test_a_sample_that_no_gpu_can_have_measured_becomes_null(live_server_url: str) -> None:
    machine = joined(live_server_url)

    with agent(live_server_url, machine) as one:
        wild = {"gpu": one.gpu, "at_ms": now_ms(), "mono_ms": 1, "util": 900, "mem_used": 2**63 - 1,
                "power_mw": -5, "temp_c": 20000, "sm_mhz": None}  # fmt: skip
        frame = {"type": "samples", "agent_run_id": machine.run_id, "seq": 1, "samples": [wild]}
        one.socket.send(msgspec.json.encode(frame).decode())
        one.hear(wire.Ack)

    row = Sample.objects.get(gpu__uuid=one.gpu)
    assert (row.util, row.power, row.temp, row.sm_clock) == (None, None, None, None)


def test_a_frame_that_is_too_large_is_refused_with_the_limit(live_server_url: str) -> None:
    machine = joined(live_server_url)

    with agent(live_server_url, machine) as one:
        one.socket.send("x" * (wire.MAX_FRAME_BYTES + 1))
        code, reason = one.closed()

    assert code == 1009
    assert str(wire.MAX_FRAME_BYTES) in reason


def test_a_new_desired_state_is_sent_at_once(live_server_url: str) -> None:
    machine = joined(live_server_url)
    assert machine.node_id is not None

    with agent(live_server_url, machine) as one:
        first = one.hear(wire.Desired)
        began = time.monotonic()
        nodes.raise_desired(node_ids=[machine.node_id])
        second = one.hear(wire.Desired)

    assert second.generation == first.generation + 1
    assert time.monotonic() - began < 2


def test_a_report_tells_the_health_of_gpus_and_what_was_taken_in(live_server_url: str) -> None:
    machine = joined(live_server_url)

    with agent(live_server_url, machine) as one:
        one.say(
            wire.Report(
                seq=1,
                wall_time=now_ms(),
                mono_ms=1,
                observed_generation=5,
                gpu_health=[wire.GpuHealth(uuid=one.gpu, state="lost", detail="fell off the bus")],
            )
        )
        eventually(lambda: Gpu.objects.get().state == "LOST")
        eventually(lambda: Node.objects.get().observed_generation == 5)

    assert Gpu.objects.get().state_detail == "fell off the bus"


def test_a_question_reaches_the_node_and_its_answer_comes_back(live_server_url: str) -> None:
    machine = joined(live_server_url)
    assert machine.node_id is not None

    with agent(live_server_url, machine) as one, ThreadPoolExecutor() as threads:
        one.hear(wire.Desired)
        asked = threads.submit(
            commands.ask, node_id=machine.node_id, kind="logs", args={"tail": 3}, timeout_s=5
        )
        question = one.hear(wire.Command)
        one.say(wire.CommandResult(id=question.id, ok=True, data="one\ntwo"))
        assert asked.result(5) == {"ok": True, "data": "one\ntwo"}

    assert (question.kind, question.args) == ("logs", {"tail": 3})


def test_a_retired_node_is_sent_away_and_stays_away(live_server_url: str) -> None:
    machine, operator = joined(live_server_url), user(is_operator=True)
    assert machine.node_id is not None

    with agent(live_server_url, machine) as one:
        one.hear(wire.Desired)
        nodes.cordon(actor=operator, node_id=machine.node_id, reason="sold", now=now())
        nodes.retire(actor=operator, node_id=machine.node_id, now=now())
        one.closed(3)

    with pytest.raises(InvalidStatus) as refused, agent(live_server_url, machine):
        pass
    assert refused.value.response.status_code == 401


def test_gpus_that_are_gone_after_a_reconnect_are_absent(live_server_url: str) -> None:
    machine = joined(live_server_url)
    with agent(live_server_url, machine, inventory=inventory(gpu("GPU-a"), gpu("GPU-b"))):
        pass

    with agent(live_server_url, machine, inventory=inventory(gpu("GPU-a"))):
        states = dict(Gpu.objects.values_list("uuid", "state"))

    assert states == {"GPU-a": "OK", "GPU-b": "ABSENT"}


def test_connections_that_never_speak_do_not_hold_up_others(live_server_url: str) -> None:
    machine = joined(live_server_url)
    where = urlsplit(live_server_url)
    assert where.hostname
    assert where.port
    silent = [socket.create_connection((where.hostname, where.port)) for _ in range(50)]
    try:
        with agent(live_server_url, machine, greet=False), agent(live_server_url, machine) as one:
            one.beat(2)
            assert one.hear(wire.Echo, 2).seq == 2
    finally:
        for line in silent:
            line.close()


def test_a_clock_far_behind_is_shown_and_its_samples_get_the_portals_time(
    live_server_url: str,
) -> None:
    machine = joined(live_server_url)
    behind = now_ms() - 3_600_000

    with agent(live_server_url, machine, wall_time=behind) as one:
        one.measure(at_ms=behind)
        one.hear(wire.Ack)

    node = Node.objects.get()
    assert node.link == Link.ONLINE
    assert abs((node.clock_offset_ms or 0) - 3_600_000) < 5000
    row = Sample.objects.get(gpu__uuid=one.gpu)
    assert abs(row.at.timestamp() * 1000 - now_ms()) < 10_000


def test_a_clock_that_is_set_while_the_session_lasts_is_followed(live_server_url: str) -> None:
    machine = joined(live_server_url)
    ahead = now_ms() + 1_800_000

    with agent(live_server_url, machine) as one:
        for seq in range(3):
            one.say(wire.Heartbeat(seq=seq, wall_time=ahead, mono_ms=seq))
        one.measure(at_ms=ahead)
        one.hear(wire.Ack)

    row = Sample.objects.get(gpu__uuid=one.gpu)
    assert abs(row.at.timestamp() * 1000 - now_ms()) < 10_000


def test_many_agents_at_once_all_get_in(live_server_url: str) -> None:
    machines = [joined(live_server_url) for _ in range(8)]

    def stay(machine: Machine) -> int:
        with agent(live_server_url, machine) as one:
            one.measure()
            return one.hear(wire.Ack).seq

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(stay, machines)) == [1] * 8
