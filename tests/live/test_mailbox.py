import asyncio
import json
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from portal.live import browser, hub, mailbox, rights
from portal.live.mailbox import Mailbox


class Line:
    """A socket whose other side may stop reading."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.send":
            await self.open.wait()
        self.sent.append(message)

    @property
    def texts(self) -> list[str]:
        return [message["text"] for message in self.sent if message["type"] == "websocket.send"]


async def test_on_each_subject_the_latest_wins_and_the_others_are_kept() -> None:
    box, line = Mailbox(), Line()
    task = asyncio.create_task(box.deliver(line.send))
    line.open.clear()
    box.put("first", "stuck")
    await asyncio.sleep(0)
    for n in range(100):
        box.put("a", f"a{n}")
        box.put("b", f"b{n}")

    line.open.set()
    await asyncio.sleep(0.01)
    task.cancel()

    assert line.texts == ["stuck", "a99", "b99"]


async def test_a_dropped_subject_is_not_sent() -> None:
    box, line = Mailbox(), Line()
    box.put("a", "old")
    box.put("b", "new")
    box.drop("a")
    box.drop("never there")
    task = asyncio.create_task(box.deliver(line.send))
    await asyncio.sleep(0.01)
    task.cancel()

    assert line.texts == ["new"]


async def test_a_line_that_is_stuck_shows_for_how_long() -> None:
    box, line = Mailbox(), Line()
    task = asyncio.create_task(box.deliver(line.send))
    line.open.clear()
    assert box.blocked_s == 0
    box.put("a", "x")
    await asyncio.sleep(0.05)
    assert box.blocked_s >= 0.04
    line.open.set()
    await asyncio.sleep(0.01)
    task.cancel()
    assert box.blocked_s == 0


async def test_too_many_subjects_are_an_overflow() -> None:
    box = Mailbox()
    for n in range(mailbox.MOST_SLOTS):
        box.put(n, "x")
    assert not box.is_overflowing
    box.put("one more", "x")
    assert box.is_overflowing


async def test_closing_a_line_that_is_gone_is_no_error() -> None:
    async def gone(message: Any) -> None:
        raise OSError

    async def stuck(message: Any) -> None:
        await asyncio.Event().wait()

    await mailbox.close(gone, 1000, "bye")
    await mailbox.close(stuck, 1000, "bye", patience_s=0.01)


async def test_a_close_reason_is_cut_to_what_a_frame_can_hold() -> None:
    line = Line()

    await mailbox.close(line.send, 1000, "好" * 100)

    assert line.sent[0]["reason"] == "好" * 40


async def test_a_page_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "BLOCKED_S", 0.1)
    line = Line()
    line.open.clear()
    asked = asyncio.Queue[dict[str, str]]()
    asked.put_nowait({"type": "websocket.connect"})
    scope = {
        "session": SimpleNamespace(session_key="k"),
        "user": SimpleNamespace(is_authenticated=True, pk=uuid.uuid4(), is_operator=True),
    }
    try:
        async with asyncio.timeout(5):
            await browser.application(scope, asked.get, line.send)
    finally:
        await browser.shut_down()
        await hub.close()

    assert [message["type"] for message in line.sent] == ["websocket.accept", "websocket.close"]
    assert line.sent[-1]["code"] == 1013


async def test_nothing_is_left_of_a_page_that_went_away(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {"org:1", "gpus:node:2"}
    grant = rights.Grant(True, frozenset(topics), depends_on=frozenset({"org:1", "org:3"}))
    monkeypatch.setattr(rights, "granted", lambda **asked: grant)
    line = Line()
    asked = asyncio.Queue[dict[str, str]]()
    asked.put_nowait({"type": "websocket.connect"})
    asked.put_nowait({"type": "websocket.receive", "text": json.dumps({"subscribe": [*topics]})})
    scope = {
        "session": SimpleNamespace(session_key="k"),
        "user": SimpleNamespace(is_authenticated=True, pk=uuid.uuid4(), is_operator=True),
    }
    try:
        task = asyncio.create_task(browser.application(scope, asked.get, line.send))
        async with asyncio.timeout(5):
            while len(hub.current()._readers) < 3:
                await asyncio.sleep(0.01)
            asked.put_nowait({"type": "websocket.disconnect"})
            await task
        assert hub.current()._readers == {}
    finally:
        await browser.shut_down()
        await hub.close()
