"""The socket that each node keeps open: a plain ASGI application, since it carries every sample.

Here: the handshake, the frame limit, and the pulse that tells all sessions of this process apart
from silent ones. What frames mean is decided in `session`.
"""

import asyncio
import base64
import binascii
import json
import logging
import time
from datetime import datetime
from typing import Any, Final
from uuid import UUID
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone

from agents import wire
from portal.errors import DomainError
from portal.fleet import nodes
from portal.fleet.models import Node
from portal.instances import node_sync
from portal.live.mailbox import BLOCKED_S, Message, Receive, Send, close
from portal.live.session import NodeSession
from portal.live.storing import SampleStore
from portal.live.threads import PULSE, REPORTS, call

log = logging.getLogger(__name__)

HELLO_S: Final = 10.0
# Heartbeats come every 5 s; after this long without a frame a socket is a half-open one.
SILENCE_S: Final = max(7.0, 2 * settings.NODE_STALE_SECONDS)
_PULSE_S: Final = 1.0
_SEEN_EVERY_S: Final = min(4.0, settings.NODE_STALE_SECONDS / 3)
_CHECK_EVERY_S: Final = 5.0

_CLOSE_CODES: Final = {
    "no_common_version": wire.CLOSE_NO_COMMON_VERSION,
    "identity_conflict": wire.CLOSE_IDENTITY_CONFLICT,
    "node_retired": wire.CLOSE_BAD_CREDENTIAL,
}


class NodeSockets:
    """All node sessions of this process, and what is done for them together."""

    def __init__(self) -> None:
        self.store = SampleStore()
        self.sessions: set[NodeSession] = set()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self.store.run(), name="store-samples"),
            loop.create_task(self._pulse(), name="node-pulse"),
        ]

    async def close(self) -> None:
        """Write what waits, and end the tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.flush()
        await self._tell_seen(list(self.sessions))

    async def _pulse(self) -> None:
        last_seen = last_check = time.monotonic()
        while True:
            await asyncio.sleep(_PULSE_S)
            now = time.monotonic()
            self._end_dead(now)
            try:
                if now - last_seen >= _SEEN_EVERY_S:
                    last_seen = now
                    await self._tell_seen(list(self.sessions))
                if now - last_check >= _CHECK_EVERY_S:
                    last_check = now
                    await self._check_desired()
            except DatabaseError as error:
                log.warning("the database does not hear of the nodes: %s", error)

    def _end_dead(self, now: float) -> None:
        for session in self.sessions:
            if now - session.heard_at > SILENCE_S:
                session.finish(1001, f"nothing was heard for {SILENCE_S:.0f} s")
            elif session.mailbox.blocked_s > BLOCKED_S or session.mailbox.is_overflowing:
                session.finish(1013, "the node does not read")

    async def _tell_seen(self, sessions: list[NodeSession]) -> None:
        heard = [session for session in sessions if session.is_heard]
        if not heard:
            return
        for session in heard:
            session.is_heard = False
        sightings = [
            nodes.Sighting(
                node_id=session.node_id,
                epoch=session.epoch,
                clock_offset_ms=round(session.clock_offset_ms),
                applied_offset_ms=session.applied_offset_ms,
                ack_seq=session.stored_seq,
            )
            for session in heard
        ]
        newest = await call(PULSE, nodes.seen_all, sightings=sightings, now=timezone.now())
        for session in heard:
            if session.node_id not in newest:
                session.finish(wire.CLOSE_TAKEN_OVER, "a newer session of this node was opened")

    async def _check_desired(self) -> None:
        sessions = list(self.sessions)
        if not sessions:
            return
        node_ids = [session.node_id for session in sessions]
        generations = await call(PULSE, nodes.desired_generations, node_ids=node_ids)
        for session in sessions:
            generation = generations.get(session.node_id)
            if generation is None:
                session.finish(wire.CLOSE_BAD_CREDENTIAL, "this node is not known any more")
            else:
                session.check_desired(generation)


class _Refusal(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


async def application(scope: Message, receive: Receive, send: Send) -> None:
    """Serve one node's socket, from its upgrade to its end."""
    await receive()  # websocket.connect
    try:
        node = await call(REPORTS, _authenticate, dict(scope["headers"]), timezone.now())
    except DomainError as refusal:
        await _deny(send, 401, refusal)
        return
    except Exception:
        log.exception("a node can't be let in")
        await _deny(send, 503, None)
        return
    await send({"type": "websocket.accept"})
    try:
        session = await _open(node, receive)
    except _Refusal as refusal:
        await close(send, refusal.code, refusal.reason)
        return
    if session is not None:
        await _serve(session, receive, send)


def current() -> NodeSockets:
    """Return the sessions of this process, made on first use."""
    loop = asyncio.get_running_loop()
    sockets = _sockets.get(loop)
    if sockets is None:
        sockets = _sockets[loop] = NodeSockets()
    return sockets


async def shut_down() -> None:
    """Write what waits before the process ends."""
    sockets = _sockets.pop(asyncio.get_running_loop(), None)
    if sockets is not None:
        await sockets.close()


_sockets: "WeakKeyDictionary[asyncio.AbstractEventLoop, NodeSockets]" = WeakKeyDictionary()


def _authenticate(headers: dict[bytes, bytes], now: datetime) -> Node:
    def header(name: str) -> str:
        return headers.get(name.lower().encode(), b"").decode("latin-1")

    try:
        generation = int(header(wire.HEADER_GENERATION))
        time_ms = int(header(wire.HEADER_TIME))
        signature = base64.b64decode(header(wire.HEADER_SIGNATURE), validate=True)
    except (ValueError, binascii.Error):
        generation, time_ms, signature = 0, 0, b""
    return nodes.authenticate(
        node_id=header(wire.HEADER_NODE),
        generation=generation,
        time_ms=time_ms,
        signature=signature,
        now=now,
    )


async def _deny(send: Send, status: int, refusal: DomainError | None) -> None:
    """Refuse the upgrade with an HTTP answer that says why."""
    body = b""
    headers = [(b"content-type", b"application/json")]
    if refusal is None:
        headers.append((b"retry-after", b"5"))
    else:
        error = {"code": refusal.code, "message": refusal.message, "help": refusal.help}
        body = json.dumps({"error": error}).encode()
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


async def _open(node: Node, receive: Receive) -> NodeSession | None:
    """Read the hello and open the session; None if the node went away. Raises _Refusal."""
    try:
        async with asyncio.timeout(HELLO_S):
            event = await receive()
    except TimeoutError:
        raise _Refusal(1002, "no hello within 10 s") from None
    if event["type"] != "websocket.receive":
        return None
    try:
        hello = wire.decode(_data(event))
    except wire.WireError:
        hello = None
    if not isinstance(hello, wire.Hello):
        raise _Refusal(1002, "the first frame must be a hello")
    if hello.node_id != str(node.pk):
        raise _Refusal(wire.CLOSE_BAD_CREDENTIAL, "the hello names another node")
    try:
        welcome, offset_ms = await call(REPORTS, _welcome, node.pk, hello, timezone.now())
    except DomainError as refusal:
        raise _Refusal(_CLOSE_CODES.get(refusal.code, 1008), refusal.message) from refusal
    except Exception:
        log.exception("a session of node %s can't be opened", node.pk)
        raise _Refusal(1013, "try again later") from None
    session = NodeSession(node.pk, hello, welcome, offset_ms)
    session.mailbox.put("welcome", wire.encode(welcome).decode())
    return session


def _welcome(node_id: UUID, hello: wire.Hello, now: datetime) -> tuple[wire.Welcome, int]:
    welcome = nodes.open_session(node_id=node_id, hello=hello, now=now)
    try:
        node_sync.hello(node_id=node_id, hello=hello, now=now)
    except DomainError:
        # The reports that follow say the same again.
        log.exception("what node %s runs was not taken in from its hello", node_id)
    offset_ms = Node.objects.values_list("applied_offset_ms", flat=True).get(pk=node_id)
    return welcome, offset_ms


async def _serve(session: NodeSession, receive: Receive, send: Send) -> None:
    sockets = current()
    for older in [one for one in sockets.sessions if one.node_id == session.node_id]:
        older.finish(wire.CLOSE_TAKEN_OVER, "a newer session of this node was opened")
    sockets.sessions.add(session)
    session.join_hub()
    loop = asyncio.get_running_loop()
    tasks = [
        loop.create_task(work)
        for work in (
            _read(session, receive, sockets.store),
            session.mailbox.deliver(send),
            session.keep_desired(),
            session.keep_reports(),
        )
    ]
    try:
        ends: list[asyncio.Future[Any]] = [*tasks, session.end]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        session.leave_hub()
        sockets.sessions.discard(session)
    for error in results:
        if isinstance(error, Exception) and not isinstance(error, (OSError, RuntimeError)):
            log.error("the session of node %s broke", session.node_id, exc_info=error)
            session.finish(1011, "the portal made a mistake; try again")
    if session.end.done():
        code, reason = session.end.result()
        await close(send, code, reason)


async def _read(session: NodeSession, receive: Receive, store: SampleStore) -> None:
    while True:
        event = await receive()
        if event["type"] != "websocket.receive":
            return
        data = _data(event)
        if len(data) > wire.MAX_FRAME_BYTES:
            session.finish(1009, f"a frame may have {wire.MAX_FRAME_BYTES} bytes")
            return
        session.take(data, store)


def _data(event: Message) -> str | bytes:
    text: str | None = event.get("text")
    return text if text is not None else event.get("bytes") or b""
