"""Why an instance made a move, as a code for programs and a sentence for people.

Codes that come from the node (`image_missing`, `oom`, ...) bring their own sentence.
"""

from functools import cache

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import override

from portal.billing import meters
from portal.instances.models import Instance, Move

REASONS: dict[str, Promise] = {
    "launched": _("Launched."),
    "started_again": _("Started again."),
    "placed": _("GPUs were assigned."),
    "starting": _("The machine is starting it."),
    "running": _("It is ready to use."),
    "stop_asked": _("Stop was asked for."),
    "terminate_asked": _("Termination was asked for."),
    "stop_at_reached": _("Its stop time was reached."),
    "cancelled_in_queue": _("Cancelled before it got GPUs. Nothing was billed."),
    "stopped": _("Stopped as asked."),
    "terminated": _("Terminated as asked."),
    "finished": _("Its command finished without an error."),
    "exited": _("Its command ended with an error."),
    "start_failed": _("The machine could not start it. Nothing was billed."),
    "placing_timed_out": _("Its machine did not begin to start it in time."),
    "starting_timed_out": _("It was not ready in time; the start was given up."),
    "stop_not_confirmed": _("Its machine has not confirmed the end in time."),
    "node_silent": _("Its machine does not answer. Contact may return by itself."),
    "node_back": _("Its machine answers again, and it went on running all the time."),
    "node_rebooted": _("Its machine was restarted, which ended it."),
    "container_replaced": _("Its container was replaced by something other than Corral."),
    "node_retired": _("Its machine was taken out of service."),
    "vanished": _("It disappeared from its machine. Billing ended at the last proof that it ran."),
}


def words(thing: Instance | Move) -> str:
    """Say why the instance is where it is, or why it made this move, in the reader's language."""
    known = REASONS.get(thing.reason_code)
    # A sentence of the node's says more than our own for the same code.
    if known is None or (thing.reason and thing.reason != in_english(thing.reason_code)):
        return thing.reason
    return str(known)


def in_english(code: str) -> str:
    """Return the English sentence of a code, as it is stored; empty for an unknown one."""
    with override("en"):
        return str(REASONS.get(code, ""))


def translated(cause: str) -> str:
    """Say why a segment of the bill began or ended, in the reader's language.

    Causes are stored as English sentences; what a node said in its own words stays as it is.
    """
    return str(_by_sentence().get(cause, cause))


@cache
def _by_sentence() -> dict[str, Promise]:
    known = {in_english(code): words for code, words in REASONS.items()}
    return known | {meters.PRICE_CHANGE: _("The price changed.")}
