"""What can happen to the agent, and what it can order: the two sides of `Agent.handle`."""

import msgspec

from agents import wire
from agents.runs import Run
from agents.runtimes import Key, Observed


class Moment(msgspec.Struct, frozen=True):
    """A point in time: seconds of a monotonic clock, and Unix milliseconds."""

    mono: float
    wall_ms: int


class SessionOpened(msgspec.Struct, frozen=True):
    """The portal accepted a session."""


class SessionClosed(msgspec.Struct, frozen=True):
    """The portal is out of reach."""


class DesiredArrived(msgspec.Struct, frozen=True):
    """The portal said what should be here."""

    desired: wire.Desired


class Listed(msgspec.Struct, frozen=True):
    """The runtime listed all its runs; it was asked at `asked_at` (monotonic seconds)."""

    observed: list[Observed]
    asked_at: float


class Pulled(msgspec.Struct, frozen=True):
    """An image is this many percent here."""

    key: Key
    percent: int


class StartEnded(msgspec.Struct, frozen=True):
    """A Start came back; without `code` it worked."""

    key: Key
    code: str | None = None
    sentence: str | None = None


class StopEnded(msgspec.Struct, frozen=True):
    """A Stop came back; `sentence` tells what went wrong, if anything."""

    key: Key
    sentence: str | None = None


class GpusSeen(msgspec.Struct, frozen=True):
    """The GPUs of this node, and how they are."""

    uuids: frozenset[str]
    health: list[wire.GpuHealth]


class Ticked(msgspec.Struct, frozen=True):
    """Time went by."""


Event = (
    SessionOpened
    | SessionClosed
    | DesiredArrived
    | Listed
    | Pulled
    | StartEnded
    | StopEnded
    | GpusSeen
    | Ticked
)


class Persist(msgspec.Struct, frozen=True):
    """Store these runs before doing what follows."""

    runs: list[Run]


class Start(msgspec.Struct, frozen=True):
    """Start a run."""

    spec: wire.InstanceSpec


class CancelStart(msgspec.Struct, frozen=True):
    """Give up a start that is on its way."""

    key: Key


class Stop(msgspec.Struct, frozen=True):
    """Ask a run to end; kill it after `grace_s`."""

    key: Key
    grace_s: float


class Remove(msgspec.Struct, frozen=True):
    """Delete what is left of an ended run."""

    key: Key


class SendReport(msgspec.Struct, frozen=True):
    """Tell the portal now."""


Instruction = Persist | Start | CancelStart | Stop | Remove | SendReport
