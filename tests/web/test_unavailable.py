"""What people see when the database is away or something of ours broke."""

import pytest
from django.db import OperationalError
from django.test import Client

from portal.web import answers


@pytest.fixture
def client() -> Client:
    return Client(raise_request_exception=False)


def test_a_missing_database_is_a_page_that_tries_again(
    client: Client, monkeypatch: pytest.MonkeyPatch, db: None
) -> None:
    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", _no_database)
    client.cookies["sessionid"] = "anything"

    answer = client.get("/profile/")

    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == answer.headers["Refresh"] == "3"
    assert "Nothing was lost" in answer.content.decode()


def test_a_fault_of_ours_is_a_page_without_its_details(
    client: Client, monkeypatch: pytest.MonkeyPatch, db: None
) -> None:
    monkeypatch.setattr(answers, "page", _broken)

    answer = client.get("/")

    assert answer.status_code == 500
    assert "The fault is ours" in answer.content.decode()
    assert "secret detail" not in answer.content.decode()


def _no_database(*_: object, **__: object) -> dict[str, object]:
    raise OperationalError("connection refused")


def _broken(*_: object, **__: object) -> None:
    raise RuntimeError("secret detail")
