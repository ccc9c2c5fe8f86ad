"""How an instance ends: asked for by a person or a limit, then confirmed by its machine.

Where a machine takes part the end has two steps: STOPPING, with which the bill ends, and the
machine's confirmation, which frees GPUs and quota.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from portal.instances import lifecycle
from portal.instances.models import Instance, Move, State, Wanted
from portal.tenants.models import Member


def end(
    *, instance: Instance, wanted: Wanted, reason_code: str, by: Member | None, now: datetime
) -> UUID | None:
    """Make an instance end: at once where no machine has it, else as soon as its machine confirms.

    To be called in a transaction; what has ended already stays as it is. Return the node whose
    desired state changed by this, for `nodes.raise_desired` once everything else is done.
    """
    lifecycle.lock(instance)
    state = State(instance.state)
    is_final = wanted == Wanted.TERMINATE
    if state == State.TERMINATED or (state in lifecycle.ENDED and not is_final):
        return None
    # A stop never takes back a termination.
    facts: dict[str, Any] = {
        "wanted": wanted if instance.wanted != Wanted.TERMINATE else Wanted.TERMINATE
    }
    if state not in lifecycle.ON_NODE:
        final = State.TERMINATED if is_final else State.STOPPED
        if by is not None:
            reason_code = "cancelled_in_queue" if state == State.QUEUED else "terminated"
        lifecycle.move(
            instance=instance, to=final, now=now, reason_code=reason_code, by=by, facts=facts
        )
        return None
    if state in {State.STOPPING, State.LOST}:
        # The machine is told already, or will be when it answers; only the wish is new.
        was_told = instance.ending_since is not None
        facts["ending_since"] = lifecycle.latest_billed(instance=instance, at=now)
        lifecycle.note(instance=instance, facts=facts)
        return None if was_told else instance.node_id
    lifecycle.move(
        instance=instance, to=State.STOPPING, now=now, reason_code=reason_code, by=by, facts=facts
    )
    return instance.node_id


def confirm(
    *,
    instance: Instance,
    now: datetime,
    at: datetime | None,
    reason_code: str = "",
    reason: str = "",
) -> None:
    """Bring an instance that its machine has no longer to its last state.

    What was asked for decides which: stopped, terminated, or failed where nobody asked. `at` is the
    machine's evidence of the end; None where there is none.
    """
    if instance.ending_since is None:
        lifecycle.move(
            instance=instance,
            to=State.FAILED,
            now=now,
            at=at,
            reason_code=reason_code,
            reason=reason,
        )
        return
    if instance.wanted == Wanted.RUN:
        # The portal itself gave it up; say why, not that it was stopped.
        given_up = cause(instance)
        reason_code, reason = given_up.reason_code, given_up.reason
        to = State.FAILED
    elif instance.wanted == Wanted.TERMINATE:
        to, reason_code, reason = State.TERMINATED, "terminated", ""
    else:
        to, reason_code, reason = State.STOPPED, "stopped", ""
    lifecycle.move(instance=instance, to=to, now=now, at=at, reason_code=reason_code, reason=reason)


def cause(instance: Instance) -> Move:
    """Return the move with which this run's ending began."""
    steps = instance.moves.filter(run=instance.run, to_state=State.STOPPING)
    return steps.earliest("at", "id")
