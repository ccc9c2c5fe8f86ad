import json
import threading
import uuid
from typing import Any

import pytest
import redis
from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder

from portal import events
from portal.fleet import commands, nodes
from portal.fleet.models import Link, Node
from portal.tenants.models import AuditEvent
from portal.tenants.scope import every_tenant
from tests.factories import NOW, node, user

pytestmark = pytest.mark.django_db


def test_a_cordon_has_a_reason_and_is_written_down() -> None:
    one, operator = node(gpus=0), user(is_operator=True)

    nodes.cordon(actor=operator, node_id=one.pk, reason="new fans", now=NOW)

    one.refresh_from_db()
    assert (one.cordoned_at, one.cordon_reason) == (NOW, "new fans")
    assert str(operator) in one.events.get(kind="cordoned").detail
    with every_tenant("test"):
        assert AuditEvent.objects.get(verb="node.cordoned").user == operator


def test_a_cordon_without_a_reason_is_refused() -> None:
    with pytest.raises(nodes.UnableToChangeNode) as refused:
        nodes.cordon(actor=user(), node_id=node(gpus=0).pk, reason="  ", now=NOW)

    assert refused.value.code == "reason_missing"


def test_uncordoning_opens_the_node_again() -> None:
    one, operator = node(gpus=0), user(is_operator=True)
    nodes.cordon(actor=operator, node_id=one.pk, reason="new fans", now=NOW)

    nodes.uncordon(actor=operator, node_id=one.pk, now=NOW)

    one.refresh_from_db()
    assert (one.cordoned_at, one.cordon_reason) == (None, "")


def test_a_node_in_use_is_not_retired_before_it_is_cordoned() -> None:
    one, operator = node(gpus=0), user(is_operator=True)
    with pytest.raises(nodes.UnableToChangeNode):
        nodes.retire(actor=operator, node_id=one.pk, now=NOW)

    nodes.cordon(actor=operator, node_id=one.pk, reason="sold", now=NOW)
    nodes.retire(actor=operator, node_id=one.pk, now=NOW)

    one.refresh_from_db()
    assert one.retired_at == NOW
    assert not nodes.seen(node_id=one.pk, epoch=1, now=NOW)
    assert not nodes.seen(node_id=one.pk, epoch=one.session_epoch, now=NOW)


def test_no_such_node_is_said_so() -> None:
    with pytest.raises(nodes.UnableToFindNode):
        nodes.uncordon(actor=user(), node_id=uuid.uuid4(), now=NOW)


def test_settling_needs_a_conflict() -> None:
    with pytest.raises(nodes.UnableToChangeNode):
        nodes.settle_conflict(actor=user(), node_id=node(gpus=0).pk, now=NOW)


def test_raising_desired_tells_each_node_once_after_the_commit(
    django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = node(gpus=0), node(gpus=0)
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr(
        events, "_send", lambda topic, message: sent.append((topic, json.loads(message)["kind"]))
    )

    with django_capture_on_commit_callbacks(execute=True):
        nodes.raise_desired(node_ids=[one.pk, two.pk, one.pk])
        assert sent == []

    assert sorted(sent) == sorted([(f"node:{one.pk}", "desired"), (f"node:{two.pk}", "desired")])
    assert nodes.desired_generations(node_ids=[one.pk, two.pk]) == {one.pk: 1, two.pk: 1}


def test_a_node_without_a_socket_cannot_be_asked() -> None:
    with pytest.raises(commands.UnableToAsk) as refused:
        commands.ask(node_id=uuid.uuid4(), kind="logs", args={})

    assert refused.value.code == "node_silent"


@pytest.fixture
def listener() -> Any:
    """Stand in for the process with the node's socket: answer questions by a function."""
    client = redis.Redis.from_url(settings.REDIS_URL)
    threads: list[threading.Thread] = []

    def listen(node_id: uuid.UUID, answer: Any) -> None:
        pubsub = client.pubsub(ignore_subscribe_messages=False)
        pubsub.subscribe(commands.question_channel(node_id))
        assert pubsub.get_message(timeout=5)

        def serve() -> None:
            message = pubsub.get_message(timeout=5)
            assert message
            question = json.loads(message["data"])
            reply = answer(question)
            if reply is not None:
                client.lpush(commands.answer_key(question["id"]), json.dumps(reply))
            pubsub.close()

        threads.append(threading.Thread(target=serve))
        threads[-1].start()

    yield listen
    for thread in threads:
        thread.join()
    client.close()


def test_a_node_answers_what_it_is_asked(listener: Any) -> None:
    node_id = uuid.uuid4()
    listener(node_id, lambda question: {"ok": True, "data": json.dumps(question["args"])})

    answer = commands.ask(node_id=node_id, kind="logs", args={"tail": 5}, timeout_s=5)

    assert answer == {"ok": True, "data": '{"tail": 5}'}


def test_a_node_that_says_no_is_quoted(listener: Any) -> None:
    node_id = uuid.uuid4()
    listener(node_id, lambda question: {"ok": False, "error": "no such instance"})

    with pytest.raises(commands.UnableToAsk) as refused:
        commands.ask(node_id=node_id, kind="logs", args={}, timeout_s=5)

    assert (refused.value.code, refused.value.message) == ("node_refused", "no such instance")


def test_a_node_that_is_too_slow_is_not_waited_for(listener: Any) -> None:
    node_id = uuid.uuid4()
    listener(node_id, lambda question: None)

    with pytest.raises(commands.UnableToAsk) as refused:
        commands.ask(node_id=node_id, kind="logs", args={}, timeout_s=0.2)

    assert refused.value.code == "node_slow"


def test_a_link_is_a_word_for_people() -> None:
    assert DjangoJSONEncoder().encode(str(Link.CONFLICT.label)) == '"Identity conflict"'
    assert Node(name="x").link == Link.OFFLINE
