"""What waits to be sent on one socket: a slot per subject, in which the latest wins.

Whoever puts something in never waits, so a browser that does not read holds up nobody. A sender
that is stuck for too long shows in `blocked_s`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# So many different subjects wait only where nobody reads any more.
MOST_SLOTS = 4096
# How long one frame may take to leave before the socket is given up.
BLOCKED_S = 15.0


class Mailbox:
    """The outgoing side of one socket."""

    def __init__(self) -> None:
        self._slots: dict[Hashable, str] = {}
        self._filled = asyncio.Event()
        self._sending_since: float | None = None
        self._loop = asyncio.get_running_loop()

    def put(self, subject: Hashable, text: str) -> None:
        """Have `text` sent, in place of what still waits on the same subject."""
        self._slots[subject] = text
        self._filled.set()

    def drop(self, subject: Hashable) -> None:
        """Forget what waits on a subject."""
        self._slots.pop(subject, None)

    @property
    def is_overflowing(self) -> bool:
        """Whether more subjects wait than any reader can catch up with."""
        return len(self._slots) > MOST_SLOTS

    @property
    def blocked_s(self) -> float:
        """For how many seconds the frame that is being sent has not left."""
        since = self._sending_since
        return 0.0 if since is None else self._loop.time() - since

    async def deliver(self, send: Send) -> None:
        """Send what comes in, for ever; cancel to end."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            # Taken one by one, so that what is renewed meanwhile goes out new.
            while self._slots:
                subject = next(iter(self._slots))
                text = self._slots.pop(subject)
                self._sending_since = self._loop.time()
                await send({"type": "websocket.send", "text": text})
                self._sending_since = None


async def close(send: Send, code: int, reason: str, *, patience_s: float = 5.0) -> None:
    """Close a socket with a readable reason, as far as the other side still listens."""
    words = reason.encode()[:120].decode(errors="ignore")
    try:
        async with asyncio.timeout(patience_s):
            await send({"type": "websocket.close", "code": code, "reason": words})
    except (OSError, RuntimeError, TimeoutError):
        return  # it is gone, or closed already
