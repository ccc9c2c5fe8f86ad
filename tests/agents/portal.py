"""A small real portal for the agent: it welcomes, echoes, acks and keeps what it was told."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from websockets.asyncio.server import Server, ServerConnection, serve

from agents import wire


class Session:
    """One socket of an agent."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self.frames: list[wire.Message | wire.Unknown] = []
        self._changed = asyncio.Condition()

    async def send(self, message: wire.Message) -> None:
        await self.socket.send(wire.encode(message), text=True)

    async def heard(self, message: wire.Message | wire.Unknown) -> None:
        async with self._changed:
            self.frames.append(message)
            self._changed.notify_all()

    async def wait_for(self, kind: type, test: Callable = lambda _: True, timeout: float = 10):
        """Return the first frame of this kind that passes the test, past or to come."""
        position = 0
        async with asyncio.timeout(timeout), self._changed:
            while True:
                for frame in self.frames[position:]:
                    if isinstance(frame, kind) and test(frame):
                        return frame
                position = len(self.frames)
                await self._changed.wait()

    async def status(
        self, test: Callable[[wire.InstanceStatus], bool], timeout: float = 10
    ) -> wire.InstanceStatus:
        """Return the first reported status that passes the test."""
        report = await self.wait_for(
            wire.Report, lambda report: any(map(test, report.instances)), timeout
        )
        return next(filter(test, report.instances))

    def all(self, kind: type) -> list:
        return [frame for frame in self.frames if isinstance(frame, kind)]


class Portal:
    """What a portal does with a session, to be bent by a test."""

    def __init__(self) -> None:
        self.sessions: asyncio.Queue[Session] = asyncio.Queue()
        self.headers: list[dict[str, str]] = []
        self.is_mute = False
        self.acks = True
        self.echoes = True
        self.close_with: int | None = None
        self.welcome = wire.Welcome(
            proto=1, session_epoch=1, server_time_ms=0, heartbeat_s=0.2, report_s=0.5, sample_s=0.2
        )
        self._server: Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def session(self, timeout: float = 15) -> Session:
        return await asyncio.wait_for(self.sessions.get(), timeout)

    async def handle(self, socket: ServerConnection) -> None:
        self.headers.append(dict(socket.request.headers.raw_items()))
        session = Session(socket)
        if self.is_mute:
            await socket.wait_closed()
            return
        if self.close_with is not None:
            code = self.close_with
            self.sessions.put_nowait(session)
            await socket.close(code, "as the test wants")
            return
        async for data in socket:
            message = wire.decode(data)
            await session.heard(message)
            if isinstance(message, wire.Hello):
                await session.send(self.welcome)
                self.sessions.put_nowait(session)
            if isinstance(message, wire.Heartbeat) and self.echoes:
                now = time.time_ns() // 1_000_000
                await session.send(wire.Echo(seq=message.seq, server_time_ms=now))
            if isinstance(message, wire.Samples) and self.acks:
                await session.send(wire.Ack(seq=message.seq))


@asynccontextmanager
async def running_portal(port: int = 0) -> AsyncIterator[Portal]:
    portal = Portal()
    async with serve(portal.handle, "127.0.0.1", port, ping_interval=None) as server:
        portal.port = server.sockets[0].getsockname()[1]
        yield portal


def verifies(headers: dict[str, str], public: Ed25519PublicKey) -> bool:
    """Check the signed headers exactly as a portal must."""
    lower = {name.lower(): value for name, value in headers.items()}
    text = wire.signed_text(
        node_id=lower[wire.HEADER_NODE.lower()],
        generation=int(lower[wire.HEADER_GENERATION.lower()]),
        time_ms=int(lower[wire.HEADER_TIME.lower()]),
    )
    public.verify(base64.b64decode(lower[wire.HEADER_SIGNATURE.lower()]), text)
    return True
