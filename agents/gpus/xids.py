"""What an XID, the NVIDIA driver's error number, asks for.

Also what is remembered of those that one GPU had. The table only decides where the driver does not
say itself (field 230, the recovery action).
"""

from dataclasses import dataclass, field
from typing import Literal

Remedy = Literal["nothing", "application", "reset", "reboot", "support"]

HARMLESS = frozenset({14, 37, 38, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157})
# The program on the GPU was at fault or was the only one harmed; the GPU goes on.
APPLICATION = frozenset(
    {8, 11, 13, 25, 31, 32, 39, 40, 41, 43, 60, 94, 139}
    | set(range(68, 73))
    | {75, 76, 77}
    | set(range(80, 87))
    | set(range(96, 106))
    | set(range(126, 136))
)
RESET = frozenset({46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158})
REBOOT = frozenset({79, 160})
FELL_OFF_THE_BUS = 79

SENTENCES: dict[Remedy, str] = {
    "nothing": "no action is needed",
    "application": "the program on the GPU crashed; the GPU itself goes on",
    "reset": "the GPU must be drained and reset",
    "reboot": "the machine must be restarted",
    "support": "the operator should look at the machine's kernel log",
}

RECOVERY_ACTIONS = {
    1: "reset the GPU",
    2: "restart the machine",
    3: "drain the GPU's peers",
    4: "drain and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "restart the system",
}


# Two sources that tell of the same XID within this time tell of the same event.
SAME_EVENT_SECONDS = 5.0


@dataclass
class History:
    """The last XID of one GPU: how often in a row, and when, in monotonic seconds."""

    last: int | None = None
    count: int = 0
    at: float = 0.0
    _events: list[tuple[int, float, set[str]]] = field(default_factory=list)

    def note(self, xid: int, *, source: str, at: float) -> bool:
        """Remember an XID; False when another source has told of this very event already."""
        self._events = [event for event in self._events if at - event[1] < SAME_EVENT_SECONDS]
        for known, _, sources in self._events:
            if known == xid and source not in sources:
                sources.add(source)
                return False
        self._events.append((xid, at, {source}))
        self.count = self.count + 1 if self.last == xid else 1
        self.last, self.at = xid, at
        return True


def remedy(xid: int) -> Remedy:
    """Say what an XID asks for; one that is not in the table asks for a look."""
    if xid in REBOOT:
        return "reboot"
    if xid in RESET:
        return "reset"
    if xid in APPLICATION:
        return "application"
    return "nothing" if xid in HARMLESS else "support"


def sentence(xid: int, count: int = 1) -> str:
    """Describe an XID to people."""
    if xid == FELL_OFF_THE_BUS:
        what = "the GPU has fallen off the bus; " + SENTENCES["reboot"]
    else:
        what = SENTENCES[remedy(xid)]
    return f"XID {xid}{f', {count} times' if count > 1 else ''}: {what}."


def recovery_sentence(action: int) -> str:
    """Describe the recovery action that the driver asks for; an unknown one by its number."""
    return f"The driver asks to {RECOVERY_ACTIONS.get(action, f'take recovery action {action}')}."
