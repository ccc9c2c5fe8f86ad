import socket
import time
from urllib.parse import urlsplit

import pytest
from django.contrib.sessions.models import Session
from websockets.exceptions import InvalidStatus

from agents import wire
from portal import events
from portal.tenants import access, members
from portal.tenants.models import Role, User
from portal.tenants.scope import scope
from tests.factories import member, organization, user
from tests.fleet.agents import gpu, inventory
from tests.live.clients import agent, joined, now, now_ms, page, sample, signed_in
from tests.live.worlds import over, running


def test_nobody_listens_without_signing_in(live_server_url: str) -> None:
    with page(live_server_url, None) as stranger:
        assert stranger.closed() == (4403, "not signed in")
    with page(live_server_url, "invented") as stranger:
        assert stranger.closed() == (4403, "not signed in")


def test_a_page_of_another_site_is_refused(live_server_url: str) -> None:
    key = signed_in(user())

    with (
        pytest.raises(InvalidStatus) as refused,
        page(live_server_url, key, origin="https://elsewhere.example"),
    ):
        pass

    assert refused.value.response.status_code == 403


def test_a_page_is_greeted_and_pinged(live_server_url: str) -> None:
    with page(live_server_url, signed_in(user())) as one:
        assert one.hear("hello")["epoch"]
        assert one.hear("ping", 7)


def test_a_member_hears_of_changes_in_the_organization(live_server_url: str) -> None:
    person = member(organization())
    topic = events.organization_topic(person.organization_id)

    with page(live_server_url, signed_in(person.user)) as one:
        one.subscribe(topic)
        time.sleep(0.5)
        began = time.monotonic()
        events.announce(topic=topic, kind="instance", id="i-1")
        heard = one.hear("changed")

    assert heard == {"t": "changed", "topic": topic, "kind": "instance", "id": "i-1"}
    assert time.monotonic() - began < 1


def test_a_stranger_hears_nothing_of_others(live_server_url: str) -> None:
    machine = joined(live_server_url)
    stranger = user()
    with agent(live_server_url, machine) as one:
        assert machine.node_id is not None
        world = running(machine.node_id, one.gpu)
        topics = [
            world.topic,
            events.organization_topic(world.organization.pk),
            f"node:{machine.node_id}",
            f"gpus:node:{machine.node_id}",
            "fleet",
            "gpus:instance:not-an-id",
            "",
            "org:",
        ]
        with page(live_server_url, signed_in(stranger)) as listener:
            listener.subscribe(*topics)
            assert {listener.hear("refused")["topic"] for _ in topics} == set(topics)
            one.measure()
            events.announce(topic=topics[1], kind="instance", id="i-1")
            assert listener.hears_nothing("samples")


def test_an_operator_sees_the_samples_of_a_whole_node_within_a_second(
    live_server_url: str,
) -> None:
    machine = joined(live_server_url)
    topic = f"gpus:node:{machine.node_id}"

    with (
        agent(live_server_url, machine) as one,
        page(live_server_url, signed_in(user(is_operator=True))) as operator,
    ):
        one.measure(11)
        operator.subscribe(topic, "fleet", f"node:{machine.node_id}")
        first = operator.hear("samples", topic=topic)
        began = time.monotonic()
        one.measure(93)
        heard = operator.hear("samples", topic=topic)
        waited = time.monotonic() - began

    assert first["gpus"][one.gpu]["util"] == 11
    assert heard["gpus"][one.gpu]["util"] == 93
    assert heard["seq"] == 2
    assert waited < 1
    assert set(heard["gpus"][one.gpu]) >= {
        "util", "mem_used", "mem_total", "power_mw", "temp_c", "sm_mhz",
    }  # fmt: skip
    assert abs(heard["at"] - now_ms()) < 5000


def test_a_member_sees_the_samples_of_the_own_instance_and_no_others(live_server_url: str) -> None:
    machine = joined(live_server_url)
    assert machine.node_id is not None
    uuids = [f"GPU-{machine.node_id}-{n}" for n in range(3)]
    have = inventory(*(gpu(uuid, n) for n, uuid in enumerate(uuids)))

    with agent(live_server_url, machine, inventory=have) as one:
        mine, theirs = running(machine.node_id, uuids[0]), running(machine.node_id, uuids[1])
        while one.hear(wire.Desired).count < 2:
            pass
        with page(live_server_url, signed_in(mine.member.user)) as listener:
            listener.subscribe(mine.topic, theirs.topic)
            assert listener.hear("refused")["topic"] == theirs.topic
            samples = [sample(uuid, 70 + n) for n, uuid in enumerate(uuids)]
            one.say(wire.Samples(agent_run_id="r", seq=1, samples=samples))
            heard = listener.hear("samples")

    assert heard["topic"] == mine.topic
    assert {uuid: values["util"] for uuid, values in heard["gpus"].items()} == {uuids[0]: 70}


def test_of_a_shared_gpu_nobody_sees_what_others_do(live_server_url: str) -> None:
    machine = joined(live_server_url)
    assert machine.node_id is not None

    with agent(live_server_url, machine) as one:
        world = running(machine.node_id, one.gpu, units=(0, 250))
        while one.hear(wire.Desired).count < 1:
            pass
        with page(live_server_url, signed_in(world.member.user)) as listener:
            listener.subscribe(world.topic)
            one.measure(88)
            values = listener.hear("samples")["gpus"][one.gpu]

    assert values["util"] is None
    assert values["mem_used"] is None
    assert values["power_mw"] is None
    assert values["mem_total"] == world.instance.flavor.gpu_memory_bytes


def test_who_gave_a_gpu_back_sees_nothing_of_it_any_more(live_server_url: str) -> None:
    machine = joined(live_server_url)
    assert machine.node_id is not None

    with agent(live_server_url, machine) as one:
        world = running(machine.node_id, one.gpu)
        while one.hear(wire.Desired).count != 1:
            pass
        with page(live_server_url, signed_in(world.member.user)) as listener:
            listener.subscribe(world.topic)
            one.measure(10)
            listener.hear("samples")
            over(world)
            while one.hear(wire.Desired).count != 0:
                pass
            one.measure(99)
            assert listener.hears_nothing("samples")


@pytest.mark.parametrize("topics", ["both", "instance only"])
def test_a_page_whose_right_is_taken_away_hears_nothing_more(
    live_server_url: str, topics: str
) -> None:
    machine = joined(live_server_url)
    assert machine.node_id is not None

    with agent(live_server_url, machine) as one:
        world = running(machine.node_id, one.gpu)
        owner = member(world.organization, Role.OWNER)
        while one.hear(wire.Desired).count != 1:
            pass
        with page(live_server_url, signed_in(world.member.user)) as listener:
            org = events.organization_topic(world.organization.pk)
            listener.subscribe(world.topic, *([org] if topics == "both" else []))
            one.measure(10)
            listener.hear("samples")
            actor = access.actor_for_member(member=owner)
            with scope(organization=world.organization):
                members.remove_member(actor=actor, member_id=world.member.pk, now=now())
            assert listener.hear("refused", 2, topic=world.topic)
            one.measure(99)
            events.announce(topic=org, kind="instance", id="secret")
            assert listener.hears_nothing("samples")


def test_who_signs_out_is_gone_within_seconds(live_server_url: str) -> None:
    key = signed_in(user())
    with page(live_server_url, key) as one:
        one.hear("hello")
        Session.objects.all().delete()
        assert one.closed(6) == (4403, "signed out")


def test_who_is_blocked_is_gone_within_seconds(live_server_url: str) -> None:
    person = user()
    with page(live_server_url, signed_in(person)) as one:
        one.hear("hello")
        User.objects.filter(pk=person.pk).update(is_active=False)
        assert one.closed(6)[0] == 4403


def test_who_is_an_operator_no_more_hears_no_node(live_server_url: str) -> None:
    person = user(is_operator=True)
    with page(live_server_url, signed_in(person)) as one:
        one.subscribe("fleet")
        User.objects.filter(pk=person.pk).update(is_operator=False)
        assert one.hear("refused", 6)["topic"] == "fleet"


def test_what_is_unsubscribed_is_not_heard(live_server_url: str) -> None:
    machine = joined(live_server_url)
    topic = f"gpus:node:{machine.node_id}"
    with (
        agent(live_server_url, machine) as one,
        page(live_server_url, signed_in(user(is_operator=True))) as operator,
    ):
        one.measure(11)
        operator.subscribe(topic)
        operator.hear("samples")
        operator.unsubscribe(topic)
        time.sleep(0.3)
        one.measure(12)
        assert operator.hears_nothing("samples")


def test_garbage_from_a_page_is_ignored_until_it_is_too_much(live_server_url: str) -> None:
    with page(live_server_url, signed_in(user())) as one:
        one.socket.send("{")
        one.socket.send(b"\xff")
        one.subscribe("fleet")
        assert one.hear("refused")
        for _ in range(30):
            one.socket.send("[]")
        assert one.closed()[0] == 1008


def test_more_topics_than_a_page_can_need_are_refused(live_server_url: str) -> None:
    with page(live_server_url, signed_in(user(is_operator=True))) as one:
        one.subscribe(*(f"node:{n}" for n in range(250)))
        refused = {one.hear("refused")["topic"] for _ in range(50)}
    assert refused == {f"node:{n}" for n in range(200, 250)}


def _fill(one: object, uuids: list[str], frames: int) -> None:
    for n in range(frames):
        one.say(  # type: ignore[attr-defined]
            wire.Samples(agent_run_id="r", seq=n + 1, samples=[sample(uuid, 5) for uuid in uuids])
        )


@pytest.mark.slow
def test_a_page_that_does_not_read_slows_nobody(live_server_url: str) -> None:
    machine = joined(live_server_url)
    uuids = [f"GPU-{machine.node_id}-{n}" for n in range(200)]
    topic = f"gpus:node:{machine.node_id}"
    key = signed_in(user(is_operator=True))
    where = urlsplit(live_server_url)
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.connect((where.hostname, where.port))

    with (
        agent(live_server_url, machine) as one,
        page(live_server_url, key, sock=small, max_queue=1) as stalled,
        page(live_server_url, key) as reader,
    ):
        stalled.subscribe(topic)
        reader.subscribe(topic)
        reader.hear("hello")
        time.sleep(0.5)
        _fill(one, uuids, 300)
        reader.hear("samples", seq=300)
        # The last word comes at once, although the other page has not taken the first.
        began = time.monotonic()
        one.seq = 300
        one.measure(77)
        heard = reader.hear("samples", seq=301)
        assert heard["gpus"][one.gpu]["util"] == 77
        assert time.monotonic() - began < 1
        one.beat(9)
        assert one.hear(wire.Echo, 2).seq == 9


def test_a_topic_that_was_heard_before_is_told_again_on_asking_again(live_server_url: str) -> None:
    machine = joined(live_server_url)
    topic = f"gpus:node:{machine.node_id}"
    with (
        agent(live_server_url, machine) as one,
        page(live_server_url, signed_in(user(is_operator=True))) as operator,
    ):
        one.measure(42)
        for _ in range(2):
            operator.subscribe(topic)
            assert operator.hear("samples")["gpus"][one.gpu]["util"] == 42
