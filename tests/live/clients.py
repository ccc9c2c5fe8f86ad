"""Both ends of the portal's sockets, as tests play them: an agent, and the page of a person."""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import httpx
import msgspec
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from agents import wire
from portal.fleet import nodes
from portal.tenants.models import User
from tests.fleet.agents import Machine

_M = TypeVar("_M")
WAIT_S = 10.0


def now() -> datetime:
    return datetime.now(UTC)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def joined(url: str, hostname: str = "gpu-1") -> Machine:
    """Let a machine join through the door, as an agent does."""
    _, secret = nodes.issue_join_token(now=now())
    machine = Machine(hostname)
    answer = httpx.post(
        url + wire.JOIN_PATH, content=msgspec.json.encode(machine.request(secret)), timeout=60
    )
    answer.raise_for_status()
    machine.node_id = uuid.UUID(msgspec.json.decode(answer.content, type=wire.JoinReply).node_id)
    return machine


class Agent:
    """An agent's side of an open socket."""

    def __init__(self, socket: ClientConnection, machine: Machine) -> None:
        self.socket = socket
        self.machine = machine
        self.seq = 0
        self.welcome: wire.Welcome | None = None

    @property
    def gpu(self) -> str:
        return f"GPU-{self.machine.node_id}"

    def greet(self, **fields: Any) -> wire.Welcome:
        self.say(self.machine.hello(now(), **fields))
        self.welcome = self.hear(wire.Welcome)
        return self.welcome

    def say(self, message: wire.Message) -> None:
        self.socket.send(wire.encode(message), text=True)

    def hear(self, kind: type[_M], wait_s: float = WAIT_S) -> _M:
        """Return the next message of one kind, passing over the others."""
        deadline = time.monotonic() + wait_s
        while True:
            message = wire.decode(self.socket.recv(timeout=max(0.0, deadline - time.monotonic())))
            if isinstance(message, kind):
                return message

    def beat(self, seq: int = 1) -> None:
        self.say(wire.Heartbeat(seq=seq, wall_time=now_ms(), mono_ms=seq))

    def measure(self, util: int = 50, *, at_ms: int | None = None, replay: bool = False) -> int:
        """Send one sample of the one GPU; return the number of its batch."""
        self.seq += 1
        self.say(
            wire.Samples(
                agent_run_id=self.machine.run_id,
                seq=self.seq,
                samples=[sample(self.gpu, util, at_ms)],
                replay=replay,
            )
        )
        return self.seq

    def closed(self, wait_s: float = WAIT_S) -> tuple[int, str]:
        return closed(self.socket, wait_s)


def sample(gpu: str, util: int | None = 50, at_ms: int | None = None) -> wire.Sample:
    at = now_ms() if at_ms is None else at_ms
    return wire.Sample(
        gpu=gpu, at_ms=at, mono_ms=at, util=util, mem_used=2**30, mem_total=80 * 2**30,
        power_mw=350_000, temp_c=55, sm_mhz=1980, energy_mj=at,
    )  # fmt: skip


@contextmanager
def agent(url: str, machine: Machine, *, greet: bool = True, **fields: Any) -> Iterator[Agent]:
    """Open the socket of a machine that has joined."""
    with connect(
        url.replace("http", "ws") + wire.SOCKET_PATH,
        additional_headers=wire.sign_request(
            machine.key, node_id=str(machine.node_id), generation=1, time_ms=now_ms()
        ),
        compression=None,
        proxy=None,
        close_timeout=1,
    ) as socket:
        one = Agent(socket, machine)
        if greet:
            one.greet(**fields)
        yield one


class Page:
    """A page's side of an open socket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def subscribe(self, *topics: str) -> None:
        self.socket.send(json.dumps({"subscribe": topics}))

    def unsubscribe(self, *topics: str) -> None:
        self.socket.send(json.dumps({"unsubscribe": topics}))

    def hear(self, kind: str, wait_s: float = WAIT_S, **fields: Any) -> dict[str, Any]:
        """Return the next message of one kind with these fields, passing over the others."""
        deadline = time.monotonic() + wait_s
        while True:
            message = json.loads(self.socket.recv(timeout=max(0.0, deadline - time.monotonic())))
            if message["t"] == kind and all(
                message[name] == value for name, value in fields.items()
            ):
                return dict(message)

    def hears_nothing(self, kind: str, wait_s: float = 1.0) -> bool:
        try:
            self.hear(kind, wait_s)
        except TimeoutError:
            return True
        return False

    def closed(self, wait_s: float = WAIT_S) -> tuple[int, str]:
        return closed(self.socket, wait_s)


def signed_in(person: User) -> str:
    """Sign a person in; return the key of the session."""
    store = SessionStore()
    store[SESSION_KEY] = str(person.pk)
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    store[HASH_SESSION_KEY] = person.get_session_auth_hash()
    store.create()
    assert store.session_key
    return store.session_key


@contextmanager
def page(url: str, session_key: str | None, *, origin: str = "", **options: Any) -> Iterator[Page]:
    """Open the socket of a page."""
    headers = {"Origin": origin or url}
    if session_key:
        headers["Cookie"] = f"sessionid={session_key}"
    with connect(
        url.replace("http", "ws") + "/live/ws",
        additional_headers=headers,
        compression=None,
        proxy=None,
        close_timeout=1,
        **options,
    ) as socket:
        yield Page(socket)


def closed(socket: ClientConnection, wait_s: float = WAIT_S) -> tuple[int, str]:
    """Return the code and reason with which the portal closes the socket."""
    deadline = time.monotonic() + wait_s
    try:
        while True:
            socket.recv(timeout=max(0.0, deadline - time.monotonic()))
    except ConnectionClosed as end:
        return (end.rcvd.code, end.rcvd.reason) if end.rcvd else (1006, "cut without a word")


def eventually(claim: Any, wait_s: float = WAIT_S) -> None:
    """Wait until a claim is true."""
    deadline = time.monotonic() + wait_s
    while not claim():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.05)
