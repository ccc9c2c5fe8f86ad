"""The portal's time of what a node said: its own clock may be anything."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from portal.fleet.models import Node

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class NodeClock:
    """How to read the times in one frame of a node; `said_at` is when it was true."""

    now: datetime
    offset: timedelta
    said_at: datetime

    @classmethod
    def of(cls, *, node: Node, wall_time: int, now: datetime) -> Self:
        """Return the clock of a frame that the node dated `wall_time` (Unix milliseconds)."""
        # The applied offset, not the measured one: that wavers with every message's delay.
        offset = _span(node.applied_offset_ms)
        return cls(now, offset, min(now, _moment(wall_time, offset)))

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
