"""The portal's time of what a node said: its own clock may be anything."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from portal.fleet.models import Node

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class NodeClock:
    """How to read the times in one frame of a node; `said_at` is when its statuses were true."""

    now: datetime
    offset: timedelta
    said_at: datetime

    @classmethod
    def of(cls, *, node: Node, looked_at_ms: int | None, now: datetime) -> Self:
        """Return the clock of a frame whose statuses were seen at `looked_at_ms` (Unix).

        None: the node has not looked yet, so they are of long ago and prove nothing.
        """
        # The applied offset, not the measured one: that wavers with every message's delay.
        offset = _span(node.applied_offset_ms)
        said_at = _LONG_AGO if looked_at_ms is None else _moment(looked_at_ms, offset)
        return cls(now, offset, min(now, said_at))

    def at(self, milliseconds: int | None) -> datetime | None:
        """Turn a node's instant into the portal's; never in the future."""
        return None if milliseconds is None else min(self.now, _moment(milliseconds, self.offset))


def _span(milliseconds: int) -> timedelta:
    try:
        return timedelta(milliseconds=milliseconds)
    except OverflowError:
        return timedelta()


def _moment(milliseconds: int, offset: timedelta) -> datetime:
    # Nonsense counts as long ago, which proves nothing.
    try:
        return _LONG_AGO + timedelta(milliseconds=milliseconds) + offset
    except OverflowError:
        return _LONG_AGO
