"""The socket of a page: says what changed and hands on samples; the page asks for all else anew.

A page may hear what its person may see. That is asked when it subscribes, whenever memberships
change, and every 30 s; who signs out is gone within seconds.
"""

import asyncio
import contextlib
import json
import logging
import time
from typing import Any, Final
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec
from django.db import DatabaseError
from django.utils import timezone

from portal.live import hub, rights
from portal.live.mailbox import BLOCKED_S, Mailbox, Message, Receive, Send, close
from portal.live.threads import READERS, call

log = logging.getLogger(__name__)

CLOSE_NOT_SIGNED_IN: Final = 4403
CLOSE_TRY_AGAIN: Final = 1013
_LARGEST_FRAME: Final = 32 * 1024
_MOST_GARBAGE: Final = 20
_PING_S: Final = 5.0
_SIGNED_IN_S: Final = 3.0
_RIGHTS_S: Final = 30.0
# A page that did not read for long may still take in why it was closed, when it wakes up.
_FAREWELL_S: Final = 30.0


class _Asked(msgspec.Struct):
    subscribe: list[str] = []
    unsubscribe: list[str] = []


_decode = msgspec.json.Decoder(_Asked).decode


class Page:
    """One open socket of one signed-in person."""

    def __init__(self, session_key: str, user_id: UUID, is_operator: bool) -> None:
        self.session_key = session_key
        self.user_id = user_id
        self.is_operator = is_operator
        self.mailbox = Mailbox()
        self.topics: set[str] = set()
        self.end: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self.checked_at = time.monotonic()
        self._wanted: set[str] = set()
        self._depends_on: set[str] = set()
        self._check_is_due = asyncio.Event()
        self._garbage = 0
        self._greet()

    # -- what the page says ----------------------------------------------------------------------

    def take(self, data: str | bytes) -> None:
        """Act on one frame of the page."""
        try:
            asked = _decode(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self._garbage += 1
            if self._garbage > _MOST_GARBAGE:
                self.finish(1008, "these are not our messages")
            return
        for topic in asked.unsubscribe:
            self._wanted.discard(topic)
            self._leave(topic)
        for topic in asked.subscribe:
            # One that is heard already is told its latest again: the page may have begun anew.
            self._leave(topic)
            if len(self._wanted) < rights.MOST_TOPICS and len(topic) < 200:
                self._wanted.add(topic)
            else:
                self._refuse(topic)
        if asked.subscribe:
            self.check()

    # -- what the hub says -----------------------------------------------------------------------

    def changed(self, topic: str, kind: str, id: str) -> None:
        """Tell the page that a thing changed; if it was rights, ask for them anew."""
        if kind == "member":
            self.check()
        if topic not in self.topics:
            return
        self._say((topic, kind, id), {"t": "changed", "topic": topic, "kind": kind, "id": id})

    def measured(self, topic: str, text: str) -> None:
        """Send the newest samples, in place of older ones that still wait."""
        self.mailbox.put(topic, text)

    def missed(self) -> None:
        """Have the page begin anew, since it may have missed something: a hello, a new epoch."""
        self._greet()

    # -- the page itself -------------------------------------------------------------------------

    def ping(self) -> None:
        """Show that the line lives."""
        self._say("ping", {"t": "ping"})

    def check(self) -> None:
        """Have the rights asked anew, soon."""
        self._check_is_due.set()

    def finish(self, code: int, reason: str) -> None:
        """End the socket with this close code."""
        if not self.end.done():
            self.end.set_result((code, reason))

    async def keep_rights(self) -> None:
        """Hear what may be heard and nothing else, for ever."""
        while True:
            await self._check_is_due.wait()
            self._check_is_due.clear()
            wanted = frozenset(self._wanted)
            try:
                grant = await call(
                    READERS, rights.granted, session_key=self.session_key, topics=wanted
                )
            except DatabaseError:
                # What can't be asked is not allowed; the page connects again by itself.
                log.exception("the rights of a page can't be asked")
                self.finish(CLOSE_TRY_AGAIN, "try again later")
                return
            self.checked_at = time.monotonic()
            if not grant.is_signed_in:
                self.finish(CLOSE_NOT_SIGNED_IN, "signed out")
                return
            for topic in wanted - grant.topics:
                self._wanted.discard(topic)
                self._leave(topic)
                self._refuse(topic)
            self._depend_on(grant.depends_on if self._wanted else frozenset())
            for topic in (grant.topics & self._wanted) - self.topics:
                self.topics.add(topic)
                hub.current().read(topic, self)

    def leave_all(self) -> None:
        """Hear nothing more."""
        self._wanted.clear()
        for topic in list(self.topics):
            self._leave(topic)
        self._depend_on(frozenset())

    def _leave(self, topic: str) -> None:
        if topic in self.topics:
            self.topics.discard(topic)
            self.mailbox.drop(topic)
            if topic not in self._depends_on:
                hub.current().leave(topic, self)

    def _depend_on(self, topics: frozenset[str]) -> None:
        """Listen for changes of rights, also on topics that the page itself does not ask for."""
        for topic in topics - self._depends_on:
            hub.current().read(topic, self)
        for topic in self._depends_on - topics - self.topics:
            hub.current().leave(topic, self)
        self._depends_on = set(topics)

    def _refuse(self, topic: str) -> None:
        self._say(("refused", topic), {"t": "refused", "topic": topic})

    def _greet(self) -> None:
        self._say("hello", {"t": "hello", "epoch": hub.current().epoch})

    def _say(self, subject: object, message: dict[str, Any]) -> None:
        self.mailbox.put(subject, json.dumps(message))


class Pages:
    """All pages of this process, and what is done for them together."""

    def __init__(self) -> None:
        self.open: set[Page] = set()
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="watch-pages")

    async def close(self) -> None:
        """End the task."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        pinged_at = signed_in_at = time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            self._look_at_each(now)
            if now - pinged_at >= _PING_S:
                pinged_at = now
                for page in self.open:
                    page.ping()
            if now - signed_in_at >= _SIGNED_IN_S:
                signed_in_at = now
                with contextlib.suppress(DatabaseError):
                    await self._end_signed_out()

    def _look_at_each(self, now: float) -> None:
        for page in self.open:
            if page.mailbox.blocked_s > BLOCKED_S or page.mailbox.is_overflowing:
                page.finish(CLOSE_TRY_AGAIN, "this page does not read")
            elif now - page.checked_at > _RIGHTS_S:
                page.check()

    async def _end_signed_out(self) -> None:
        pages = list(self.open)
        if not pages:
            return
        sessions, people = await call(
            READERS,
            rights.standing,
            session_keys={page.session_key for page in pages},
            user_ids={page.user_id for page in pages},
            now=timezone.now(),
        )
        for page in pages:
            if page.session_key not in sessions or page.user_id not in people:
                page.finish(CLOSE_NOT_SIGNED_IN, "signed out")
            elif page.is_operator != people[page.user_id]:
                page.is_operator = people[page.user_id]
                page.check()


_pages: "WeakKeyDictionary[asyncio.AbstractEventLoop, Pages]" = WeakKeyDictionary()


async def application(scope: Message, receive: Receive, send: Send) -> None:
    """Serve one page's socket; stands behind channels' origin check and session middleware."""
    await receive()  # websocket.connect
    await send({"type": "websocket.accept"})
    session = scope["session"]
    session_key: str | None = session.session_key
    user = scope["user"]
    if session_key is None or not user.is_authenticated:
        await close(send, CLOSE_NOT_SIGNED_IN, "not signed in")
        return
    loop = asyncio.get_running_loop()
    pages = _pages.get(loop) or _pages.setdefault(loop, Pages())
    page = Page(session_key, user.pk, user.is_operator)
    pages.open.add(page)
    tasks = [
        loop.create_task(work)
        for work in (_read(page, receive), page.mailbox.deliver(send), page.keep_rights())
    ]
    try:
        ends: list[asyncio.Future[Any]] = [*tasks, page.end]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        pages.open.discard(page)
        page.leave_all()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for error in results:
        if isinstance(error, Exception) and not isinstance(error, (OSError, RuntimeError)):
            log.error("a page's socket broke", exc_info=error)
            page.finish(1011, "the portal made a mistake; try again")
    if page.end.done():
        code, reason = page.end.result()
        await close(send, code, reason, patience_s=_FAREWELL_S)


async def shut_down() -> None:
    """End what runs for all pages of this process."""
    pages = _pages.pop(asyncio.get_running_loop(), None)
    if pages is not None:
        await pages.close()


async def _read(page: Page, receive: Receive) -> None:
    while True:
        event = await receive()
        if event["type"] != "websocket.receive":
            return
        text: str | None = event.get("text")
        data = text if text is not None else event.get("bytes") or b""
        if len(data) > _LARGEST_FRAME:
            page.finish(1009, f"a frame may have {_LARGEST_FRAME} bytes")
            return
        page.take(data)
