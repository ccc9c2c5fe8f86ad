"""The one socket to the portal: it connects, keeps the session alive, sends in order of urgency.

Heartbeats go first, then answers, reports, live samples and, at a bounded rate, the backlog. What
is said is not decided here; see `Node`.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import websockets
from websockets.asyncio.client import ClientConnection, connect

from agents import wire
from agents.backoff import Backoff
from agents.identity import Identity
from agents.spool import Spool

log = logging.getLogger("corral.agent.link")

# The largest frame that the portal may send: a full desired state.
MAX_INCOMING_BYTES = 8 * 2**20
REFUSALS = {
    wire.CLOSE_BAD_CREDENTIAL: "the portal does not accept this node's credential",
    wire.CLOSE_NO_COMMON_VERSION: "the portal speaks no version of the protocol that we speak",
    wire.CLOSE_TAKEN_OVER: "another agent with this node's identity took the session",
    wire.CLOSE_IDENTITY_CONFLICT: "two agents use this node's identity; join one of them anew",
}


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The waits of a link, in seconds."""

    handshake_s: float = 10.0
    silence_s: float = 15.0
    close_s: float = 2.0
    # At most one report in this time, however often things change.
    report_pause_s: float = 0.1
    replay_s: float = 0.05


class Node(Protocol):
    """The one who has something to say."""

    def hello(self) -> wire.Hello:
        """Return the first frame of a session."""

    def report(self, seq: int) -> wire.Report:
        """Return the whole observed state."""

    def opened(self, welcome: wire.Welcome) -> None:
        """Learn that a session began."""

    def closed(self) -> None:
        """Learn that there is no session."""

    def received(self, message: wire.Desired | wire.Command) -> None:
        """Take in what the portal wants."""


class Link:
    """Sessions with the portal, one after the other."""

    def __init__(
        self,
        *,
        portal: str,
        identity: Identity,
        node: Node,
        spool: Spool,
        backoff: Backoff | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._url = _socket_url(portal)
        self._identity = identity
        self._node = node
        self._spool = spool
        self._backoff = backoff or Backoff()
        self._timing = timing or Timing()
        self._wake = asyncio.Event()
        self._results: deque[wire.CommandResult] = deque(maxlen=64)
        self._report_is_wanted = False
        self._heartbeat_seq = 0
        self._report_seq = 0
        self._socket: ClientConnection | None = None
        self.unknown_frames = 0
        self.bad_frames = 0

    async def run(self) -> None:
        """Keep a session open, for ever; cancel to close it cleanly."""
        wait = self._backoff.first()
        while True:
            await asyncio.sleep(wait)
            began = time.monotonic()
            refused, retry_after, reason = await self._attempt()
            lasted = time.monotonic() - began
            wait = self._backoff.after(
                lasted_s=lasted, was_refused=refused, retry_after_s=retry_after
            )
            log.warning("no session: %s; trying again in %.1f s", reason, wait)

    def report_now(self) -> None:
        """Send a report as soon as possible."""
        self._report_is_wanted = True
        self._wake.set()

    def samples_added(self) -> None:
        """Send what the spool has got."""
        self._wake.set()

    def answer(self, result: wire.CommandResult) -> None:
        """Send the answer to a command, if the session still lives."""
        self._results.append(result)
        self._wake.set()

    async def renew(self) -> None:
        """End the session so that the next one says hello again."""
        if self._socket is not None:
            await self._socket.close(code=1000, reason="saying hello again")

    async def _attempt(self) -> tuple[bool, float | None, str]:
        """Open one session and stay in it; return refused, Retry-After and the reason."""
        try:
            async with self._connect() as socket:
                self._socket = socket
                try:
                    await self._session(socket)
                except asyncio.CancelledError:
                    await socket.close(code=1001, reason="the agent stops; instances go on")
                    raise
                finally:
                    self._socket = None
                    self._results.clear()
                    self._node.closed()
        except websockets.InvalidStatus as error:
            status = error.response.status_code
            retry_after = _seconds(error.response.headers.get("Retry-After"))
            return status in (401, 403), retry_after, f"the portal answered with status {status}"
        except websockets.ConnectionClosed as error:
            return self._closed(error)
        except TimeoutError:
            return False, None, "the portal was silent for too long"
        except (OSError, websockets.WebSocketException, _NotWelcome) as error:
            return False, None, str(error) or type(error).__name__
        return False, None, "the session was closed"

    def _connect(self) -> connect:
        host = urlsplit(self._url).hostname or ""
        is_local = host == "localhost" or host.startswith("127.") or host == "::1"
        return connect(
            self._url,
            additional_headers=self._identity.headers(time_ms=time.time_ns() // 1_000_000),
            proxy=None if is_local else True,
            compression=None,
            # Liveness is ours: a pong of the library proves nothing about the portal's loop.
            ping_interval=None,
            open_timeout=self._timing.handshake_s,
            close_timeout=self._timing.close_s,
            max_size=MAX_INCOMING_BYTES,
        )

    async def _session(self, socket: ClientConnection) -> None:
        await socket.send(wire.encode(self._node.hello()), text=True)
        welcome = await self._welcome(socket)
        log.info("session %d is open", welcome.session_epoch)
        self._spool.session_opened(welcome.ack_seq)
        self._node.opened(welcome)
        tasks = (
            asyncio.create_task(self._receive(socket)),
            asyncio.create_task(self._send(socket, welcome)),
        )
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _welcome(self, socket: ClientConnection) -> wire.Welcome:
        async with asyncio.timeout(self._timing.handshake_s):
            while True:
                message = self._decode(await socket.recv())
                if isinstance(message, wire.Welcome):
                    return message
                if message is not None and not isinstance(message, wire.Unknown):
                    raise _NotWelcome("the portal did not begin with a welcome")

    async def _receive(self, socket: ClientConnection) -> None:
        while True:
            async with asyncio.timeout(self._timing.silence_s):
                data = await socket.recv()
            match self._decode(data):
                case wire.Ack(seq=seq):
                    self._spool.ack(seq)
                    self._wake.set()
                case wire.Desired() | wire.Command() as message:
                    self._node.received(message)
                case _:
                    pass

    def _decode(self, data: str | bytes) -> wire.Message | wire.Unknown | None:
        try:
            message = wire.decode(data)
        except wire.WireError as error:
            self.bad_frames += 1
            log.warning("a frame that is none: %s", error)
            return None
        if isinstance(message, wire.Unknown):
            self.unknown_frames += 1
        return message

    async def _send(self, socket: ClientConnection, welcome: wire.Welcome) -> None:
        outbox = _Outbox(self._timing, welcome)
        while True:
            self._wake.clear()
            message = self._next(outbox)
            if message is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(outbox.pause(self._spool.has_backlog)):
                        await self._wake.wait()
                continue
            data = wire.encode(message)
            if len(data) <= welcome.max_frame_bytes:
                await socket.send(data, text=True)
                continue
            log.error("a %s of %d bytes is too large", type(message).__name__, len(data))
            if isinstance(message, wire.Samples):
                self._spool.reject_last_sent()

    def _next(self, outbox: "_Outbox") -> wire.Message | None:
        """Choose what is most urgent, None if there is nothing to send now."""
        if outbox.heartbeat_is_due():
            self._heartbeat_seq += 1
            return wire.Heartbeat(seq=self._heartbeat_seq, wall_time=_wall_ms(), mono_ms=_mono_ms())
        if self._results:
            return self._results.popleft()
        if outbox.report_is_due(self._report_is_wanted):
            self._report_is_wanted = False
            self._report_seq += 1
            return self._node.report(self._report_seq)
        live = self._spool.take_live()
        if live is not None:
            return live
        return self._spool.take_replay() if outbox.replay_is_due(self._spool.has_backlog) else None

    def _closed(self, error: websockets.ConnectionClosed) -> tuple[bool, float | None, str]:
        code = error.rcvd.code if error.rcvd is not None else None
        words = error.rcvd.reason if error.rcvd is not None else ""
        if code == websockets.CloseCode.MESSAGE_TOO_BIG:
            self._spool.reject_last_sent()
        if code in REFUSALS:
            return True, None, f"{REFUSALS[code]} ({code} {words})".strip()
        return False, None, f"the portal closed it ({code} {words})".strip()


class _NotWelcome(Exception):
    """What answered does not speak our protocol."""


class _Outbox:
    """When the next frame of each kind is due."""

    def __init__(self, timing: Timing, welcome: wire.Welcome) -> None:
        self._timing = timing
        self._welcome = welcome
        self._heartbeat_at = self._report_at = self._replay_at = time.monotonic()
        self._reported_at = float("-inf")
        self._wants_report = False

    def heartbeat_is_due(self) -> bool:
        now = time.monotonic()
        if now < self._heartbeat_at:
            return False
        self._heartbeat_at = now + self._welcome.heartbeat_s
        return True

    def report_is_due(self, is_wanted: bool) -> bool:
        now = time.monotonic()
        self._wants_report = is_wanted
        earliest = self._reported_at + self._timing.report_pause_s
        if now < (earliest if is_wanted else self._report_at):
            return False
        self._reported_at, self._wants_report = now, False
        self._report_at = now + self._welcome.report_s
        return True

    def replay_is_due(self, has_backlog: bool) -> bool:
        now = time.monotonic()
        if not has_backlog or now < self._replay_at:
            return False
        self._replay_at = now + self._timing.replay_s
        return True

    def pause(self, has_backlog: bool) -> float:
        due = [self._heartbeat_at, self._report_at]
        if has_backlog:
            due.append(self._replay_at)
        if self._wants_report:
            due.append(self._reported_at + self._timing.report_pause_s)
        return max(0.0, min(due) - time.monotonic())


def _socket_url(portal: str) -> str:
    parts = urlsplit(portal)
    scheme = "wss" if parts.scheme == "https" else "ws"
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}{wire.SOCKET_PATH}"


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _mono_ms() -> int:
    return time.monotonic_ns() // 1_000_000
