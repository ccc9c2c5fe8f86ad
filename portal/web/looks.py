"""How states look: a word is never left to colour alone, so each has an icon and a tone too.

What a state means (and whether it is billed) is decided in portal.instances.lifecycle.
"""

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.fleet.models import GpuState, Link
from portal.instances.models import State


@dataclass(frozen=True, slots=True)
class Look:
    """An icon, a tone (ok, busy, wait, warn, bad, off), and what the state means to a reader."""

    icon: str
    tone: str
    meaning: str | Promise = ""


UNKNOWN = Look("help", "off")

STATES: dict[str, Look] = {
    State.QUEUED: Look("hourglass", "wait", _("Waiting for GPUs. Not billed.")),
    State.PLACING: Look("server", "busy", _("A machine is chosen. Not billed.")),
    State.STARTING: Look("rocket", "busy", _("Its machine prepares it. Not billed.")),
    State.RUNNING: Look("activity", "ok", _("Usable. Billed by the second.")),
    State.STOPPING: Look("player-stop", "busy", _("Being stopped.")),
    State.STOPPED: Look("power", "off", _("Holds no GPU. Not billed.")),
    State.FAILED: Look("alert-triangle", "bad", _("It ended with an error. Not billed.")),
    State.LOST: Look(
        "plug-connected-x",
        "warn",
        _("Its machine is silent. Time without proof that it ran is not billed."),
    ),
    State.TERMINATED: Look("trash", "off", _("Gone for good. Not billed.")),
}
LINKS: dict[str, Look] = {
    Link.ONLINE: Look("plug-connected", "ok", _("The agent reports every few seconds.")),
    Link.STALE: Look("clock", "warn", _("No word from the agent for some seconds.")),
    Link.OFFLINE: Look(
        "plug-connected-x", "bad", _("The agent is silent; nothing is placed here.")
    ),
    Link.LOST: Look(
        "alert-triangle", "bad", _("Silent for a long time: somebody should look at it.")
    ),
    Link.CONFLICT: Look("alert-triangle", "bad", _("Two agents speak with this node's identity.")),
}
GPUS: dict[str, Look] = {
    GpuState.OK: Look("circle-check", "ok"),
    GpuState.LOST: Look("circle-x", "bad"),
    GpuState.NOT_ANSWERING: Look("clock", "warn"),
    GpuState.BUSY: Look("lock", "warn"),
    GpuState.ABSENT: Look("x", "off"),
}
# What happened to a node, by the kind of its event.
HAPPENED: dict[str, str | Promise] = {
    "joined": _("Joined"),
    "session": _("Session opened"),
    "past_session": _("Earlier session"),
    "online": _("Online"),
    "stale": _("Stale"),
    "offline": _("Offline"),
    "lost": _("Lost"),
    "conflict": _("Identity conflict"),
    "conflict_settled": _("Conflict settled"),
    "cordoned": _("Cordoned"),
    "uncordoned": _("Uncordoned"),
    "retired": _("Retired"),
    "frozen": _("Too many silent at once: not judged"),
    "thawed": _("Judged again"),
    "gpu_added": _("GPU added"),
    "gpu_moved": _("GPU moved here"),
    "gpu_elsewhere": _("GPU is known on another node"),
    "gpu_ok": _("GPU well again"),
    "gpu_lost": _("GPU lost"),
    "gpu_not_answering": _("GPU not answering"),
    "gpu_busy": _("GPU in use by something unknown"),
    "gpu_absent": _("GPU no longer there"),
}
_TABLES = {
    "instance": (STATES, dict(State.choices)),
    "link": (LINKS, dict(Link.choices)),
    "gpu": (GPUS, dict(GpuState.choices)),
}


def of(kind: str, value: str) -> tuple[Look, str | Promise]:
    """Return the look and the word of a state; `kind` is `instance`, `link` or `gpu`."""
    table, words = _TABLES[kind]
    return table.get(value, UNKNOWN), words.get(value, value)
