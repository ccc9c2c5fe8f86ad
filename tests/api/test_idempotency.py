"""A retry makes nothing twice."""

import threading
from datetime import timedelta

import pytest
from django.db import connection

from portal.api import idempotency, tasks
from portal.api.models import IdempotentReply
from portal.instances.models import Instance
from portal.tenants.models import ApiToken
from portal.tenants.scope import every_tenant
from tests.api.conftest import Acme, Program


def instances() -> int:
    with every_tenant("count"):
        return Instance.objects.count()


def test_the_same_key_and_body_get_the_first_answer(acme: Acme):
    member = acme.program("member")

    first = member.post("instances", acme.wish(), key="k1")
    again = member.post("instances", acme.wish(), key="k1")

    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert "Idempotency-Replayed" not in first
    assert again["Idempotency-Replayed"] == "true"
    assert instances() == 1


def test_another_body_or_path_with_the_same_key_is_refused(acme: Acme):
    member = acme.program("member")
    made = member.post("instances", acme.wish(), key="k1").json()

    other_body = member.post("instances", acme.wish("other"), key="k1")
    other_path = member.post(f"instances/{made['id']}/stop", key="k1")

    for response in (other_body, other_path):
        assert response.status_code == 409
        assert response.json()["error"]["code"] == "idempotency_key_reused"
    assert instances() == 1


def test_a_key_belongs_to_its_token(acme: Acme):
    first = acme.program("member").post("instances", acme.wish("one"), key="k1")
    second = acme.program("leader").post("instances", acme.wish("two"), key="k1")

    assert (first.status_code, second.status_code) == (201, 201)
    assert instances() == 2


def test_a_refusal_frees_the_key(acme: Acme):
    member = acme.program("member")

    refused = member.post("instances", acme.wish("Not A Name"), key="k1")
    made = member.post("instances", acme.wish(), key="k1")

    assert (refused.status_code, made.status_code) == (400, 201)


def test_a_key_is_forgotten_after_a_day(acme: Acme):
    member = acme.program("member")
    member.post("instances", acme.wish("one"), key="k1")
    row = IdempotentReply.objects.get()

    assert idempotency.forget(now=row.created_at + timedelta(hours=23)) == 0
    IdempotentReply.objects.update(created_at=row.created_at - timedelta(hours=25))
    assert member.post("instances", acme.wish("two"), key="k1").status_code == 201
    IdempotentReply.objects.update(created_at=row.created_at - timedelta(hours=25))
    tasks.forget_replies()

    assert IdempotentReply.objects.count() == 0
    assert instances() == 2


@pytest.mark.parametrize("key", [" ", "x" * 256, "tab\there"])
def test_a_key_that_is_none_is_refused(acme: Acme, key: str):
    response = acme.program("member").post("instances", acme.wish(), key=key)

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "idempotency_key_invalid"
    assert instances() == 0


def test_a_secret_is_not_kept_for_retries(acme: Acme):
    member = acme.program("member")
    body = {"name": "ci", "scopes": ["read"]}

    first = member.post("tokens", body, key="k1").json()
    again = member.post("tokens", body, key="k1").json()

    assert first["secret"].startswith("corral_")
    assert again == first | {"secret": None}
    assert first["secret"] not in str(list(IdempotentReply.objects.values()))
    with every_tenant("count"):
        assert ApiToken.objects.filter(name="ci").count() == 1


@pytest.mark.django_db(transaction=True)
def test_copies_at_the_same_moment_make_one_instance(acme: Acme):
    secret, answers = acme.program("member").secret, []
    together = threading.Barrier(6)

    def launch() -> None:
        program = Program(secret)
        together.wait()
        response = program.post("instances", acme.wish(), key="k1")
        answers.append((response.status_code, response.json().get("id")))
        connection.close()

    threads = [threading.Thread(target=launch) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(answers) == 6
    assert len(set(answers)) == 1, answers
    assert answers[0][0] == 201
    assert instances() == 1


def test_an_error_of_ours_is_500_in_json_and_keeps_nothing(acme: Acme, monkeypatch: object):
    def broken(**_rest: object) -> None:
        raise RuntimeError("the secret is hunter2")

    monkeypatch.setattr("portal.instances.actions.launch", broken)

    response = acme.program("member").post("instances", acme.wish(), key="k1")

    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "hunter2" not in response.content.decode()
    assert IdempotentReply.objects.count() == 0
