"""The states of an instance, the moves between them, and the one function that makes a move.

What a state means for GPUs, quota and money is decided here and nowhere else. `STATES` is what
people are told: what is billed, what is held. `move` makes it true: the meter opens with the first
RUNNING of a run and closes with its end, bounded by proof and wish; the request ends with what
holds it.
docs/lifecycle.md shows the same tables to people; a test keeps the two alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.transaction import TransactionManagementError
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal import events
from portal.billing import meters
from portal.billing.models import Meter
from portal.errors import DomainError
from portal.instances import reasons
from portal.instances.models import Instance, Move, State, Wanted
from portal.tenants.models import Member
from scheduler import queue


class UnableToMove(DomainError):
    """The instance can't go from where it is to there."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What one state means: `words` for people, and what it holds.

    `billed`: its time costs money. `holds`: its request counts against quotas and keeps its GPUs.
    `limit`: how long it may last before the portal steps in; None: as long as it takes.
    """

    billed: bool
    holds: bool
    limit: timedelta | None
    words: Promise


STATES: dict[State, Rule] = {
    State.QUEUED: Rule(False, True, None, gettext_lazy("Waits in the queue for GPUs.")),
    State.PLACING: Rule(
        False,
        True,
        timedelta(minutes=2),
        gettext_lazy("Has its GPUs; its machine is being told to start it."),
    ),
    State.STARTING: Rule(
        False,
        True,
        timedelta(minutes=30),
        gettext_lazy("Its machine fetches the image and starts it."),
    ),
    State.RUNNING: Rule(True, True, None, gettext_lazy("Runs, and is billed by the second.")),
    State.STOPPING: Rule(
        False,
        True,
        timedelta(minutes=5),
        gettext_lazy("Its machine is ending it. Billing ended when the stop was asked for."),
    ),
    State.STOPPED: Rule(
        False, False, None, gettext_lazy("Has ended and holds nothing. It can be started again.")
    ),
    State.FAILED: Rule(
        False, False, None, gettext_lazy("Ended with an error. It can be started again.")
    ),
    State.LOST: Rule(
        False,
        True,
        None,
        gettext_lazy(
            "Its machine is silent. Nothing is billed unless the machine proves later that the "
            "instance went on running."
        ),
    ),
    State.TERMINATED: Rule(False, False, None, gettext_lazy("Has ended for good.")),
}

ENDED = frozenset(state for state, rule in STATES.items() if not rule.holds)
LIVE = frozenset(STATES) - ENDED
MOVES: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.PLACING, State.STOPPED, State.TERMINATED}),
    State.PLACING: frozenset(
        {State.STARTING, State.RUNNING, State.STOPPING, State.FAILED, State.LOST}
    ),
    State.STARTING: frozenset({State.RUNNING, State.STOPPING, State.FAILED, State.LOST}),
    State.RUNNING: frozenset({State.STOPPING, State.STOPPED, State.FAILED, State.LOST}),
    State.STOPPING: frozenset({*ENDED, State.LOST}),
    State.LOST: frozenset({State.STARTING, State.RUNNING, State.STOPPING, *ENDED}),
    State.STOPPED: frozenset({State.QUEUED, State.TERMINATED}),
    State.FAILED: frozenset({State.QUEUED, State.TERMINATED}),
    State.TERMINATED: frozenset(),
}

# Where its node has, or may have, something of it.
ON_NODE = frozenset({State.PLACING, State.STARTING, State.RUNNING, State.STOPPING, State.LOST})


def move(
    *,
    instance: Instance,
    to: State,
    now: datetime,
    reason_code: str = "",
    reason: str = "",
    by: Member | None = None,
    at: datetime | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Move an instance to its next state, with everything that this means; the only writer of it.

    To be called in a transaction; the row is locked, and `instance` refreshed from it. `facts` are
    fields that become known with the move. A `reason_code` of `reasons` needs no `reason`.

    `at` is the evidence of when it happened on the machine: billing begins there for RUNNING and
    ends there for an end. An end without evidence ends the bill at the last proof, and the time
    since is shown as not billed.
    Raises UnableToMove for a move that is not in the table.
    """
    lock(instance)
    before = State(instance.state)
    if to not in MOVES[before]:
        raise UnableToMove(
            "move_not_allowed",
            _("This instance is %(state)s: that is not possible now.")
            % {"state": before.label.lower()},
            details={"from": before, "to": to},
        )
    for field, value in (facts or {}).items():
        setattr(instance, field, value)
    is_first_time = to == State.RUNNING and instance.started_at is None
    if to == State.STOPPING:
        now = _after_last_proof(instance, now)
    instance.state, instance.state_since = to, now
    instance.reason_code = reason_code
    instance.reason = (reason or reasons.in_english(reason_code))[:500]
    _note_what_follows(instance, to, now, at)
    instance.save()
    _write_down(instance, before, now, by)
    if is_first_time:
        _open_meter(instance)
    if to in ENDED:
        _close_meter(instance, now, at, instance.reason)
    if to in ENDED and before not in ENDED and instance.request_id is not None:
        queue.end(request_id=instance.request_id, now=now)
    _announce(instance)


def begin(*, instance: Instance, now: datetime, by: Member | None) -> None:
    """Write down a new instance, which stands in the queue, as the first step of its story."""
    instance.state, instance.state_since = State.QUEUED, now
    instance.reason_code, instance.reason = "launched", reasons.in_english("launched")
    instance.save(force_insert=True)
    _write_down(instance, None, now, by)
    _announce(instance)


def note(*, instance: Instance, facts: Mapping[str, Any]) -> None:
    """Write what else became known of a locked instance, without a move, and tell its readers."""
    for field, value in facts.items():
        setattr(instance, field, value)
    instance.save(update_fields=list(facts))
    _announce(instance)


def latest_billed(*, instance: Instance, at: datetime) -> datetime:
    """Return `at`, or when this run was told or due to end, if earlier: nothing later costs."""
    return min(at, instance.ending_since or instance.stop_at or at)


def settle(*, instance: Instance, now: datetime, reason_code: str) -> None:
    """End a run's bill at the last proof, before the run itself has ended."""
    _close_meter(instance, now, None, reasons.in_english(reason_code))


def lock(instance: Instance) -> None:
    """Lock the row until the transaction ends, and refresh `instance` from it."""
    if not connection.in_atomic_block:
        raise TransactionManagementError("a move is part of a transaction")
    rows = Instance.objects.select_for_update(no_key=True, of=("self",))
    instance.refresh_from_db(from_queryset=rows.select_related("flavor", "organization"))


def _note_what_follows(instance: Instance, to: State, now: datetime, at: datetime | None) -> None:
    """Set the fields that a state implies."""
    if to == State.QUEUED:
        instance.wanted = Wanted.RUN
        instance.node = None
        instance.container_id = instance.boot_id = ""
        instance.started_at = instance.ending_since = None
    if to == State.RUNNING and instance.started_at is None:
        # Never before it was placed, never in the future, whatever the node's clock says.
        placed_at = instance.request.placed_at if instance.request else None
        instance.started_at = min(now, max(at or now, placed_at or now))
    if to == State.STOPPING and instance.ending_since is None:
        instance.ending_since = latest_billed(instance=instance, at=now)
    if to not in {State.STARTING, State.PLACING}:
        instance.progress = None
    if to in ENDED or to == State.QUEUED:
        instance.ports = {}
        instance.missing_since = None


def _write_down(instance: Instance, before: State | None, now: datetime, by: Member | None) -> None:
    Move.objects.create(
        organization_id=instance.organization_id,
        instance=instance,
        run=instance.run,
        at=now,
        from_state=before or "",
        to_state=instance.state,
        reason_code=instance.reason_code,
        reason=instance.reason,
        by=by,
    )


def _after_last_proof(instance: Instance, now: datetime) -> datetime:
    """Return `now`, or the last proof if a report overtook the wish while it waited for the lock.

    What was proved is billed; so the wish counts from there, and page and bill name one instant.
    """
    meter = _open_meter_of(instance)
    return now if meter is None else max(now, meter.proved_until)


def _open_meter_of(instance: Instance) -> Meter | None:
    return Meter.objects.filter(subject=instance.id, run=instance.run, closed_at=None).first()


def _open_meter(instance: Instance) -> None:
    meters.open(
        organization_id=instance.organization_id,
        team_id=instance.team_id,
        member_id=instance.member_id,
        subject=instance.id,
        subject_name=instance.name,
        run=instance.run,
        sku=instance.flavor.code,
        currency=instance.organization.currency,
        at=instance.started_at or instance.state_since,
        cause=instance.reason[:200],
    )


def _close_meter(instance: Instance, now: datetime, at: datetime | None, cause: str) -> None:
    """End the bill at the evidence, or at the last proof; never later than the wish to end."""
    meter = _open_meter_of(instance)
    if meter is None:
        return
    latest = latest_billed(instance=instance, at=now)
    end = max(meter.proved_until, min(at or meter.proved_until, latest))
    meters.close(
        subject=instance.id,
        run=instance.run,
        at=end,
        cause=cause[:200],
        dropped_until=latest if at is None and latest > end else None,
    )


def _announce(instance: Instance) -> None:
    topic = events.organization_topic(instance.organization_id)
    events.announce(topic=topic, kind="instance", id=instance.id)
