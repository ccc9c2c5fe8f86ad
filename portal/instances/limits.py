"""What time does to instances: silent and retired machines, stop times, limits of passing states.

Each instance is handled in a transaction of its own, so that one never holds up the others; all of
it is repeated every few seconds and looks at what is, never at what happened.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from portal.errors import DomainError
from portal.fleet import nodes
from portal.fleet.models import Link
from portal.instances import ending, lifecycle
from portal.instances.models import Instance, State, Wanted
from portal.tenants.scope import every_tenant

log = logging.getLogger(__name__)

_GIVEN_UP = {State.PLACING: "placing_timed_out", State.STARTING: "starting_timed_out"}


def lose_silent(*, now: datetime) -> int:
    """Move what is on silent machines to LOST, and end what is on retired ones; return how many.

    LOST keeps GPUs and quota: the machine may come back with everything running.
    """
    with every_tenant("a silent machine has instances of all tenants"):
        on_nodes = Instance.objects.filter(state__in=lifecycle.ON_NODE)
        retired = on_nodes.filter(node__retired_at__isnull=False)
        heard_before = now - timedelta(seconds=settings.NODE_OFFLINE_SECONDS)
        silent = on_nodes.filter(node__retired_at=None).filter(
            Q(node__link__in=[Link.OFFLINE, Link.LOST])
            # The link says conflict whether or not the machine is heard.
            | Q(node__link=Link.CONFLICT, node__last_seen_at__lt=heard_before)
        )
        return _each(retired, _end_retired, now) + _each(
            silent.exclude(state=State.LOST), _lose, now
        )


def stop_due(*, now: datetime) -> int:
    """Stop what has reached its stop time; return how many."""
    with every_tenant("stop times hold for all tenants"):
        due = Instance.objects.filter(stop_at__lte=now, state__in=lifecycle.LIVE, ending_since=None)
        return _each(due, _stop, now)


def end_stuck(*, now: datetime) -> int:
    """Do something about what stays too long in a passing state; return how many.

    A start that takes too long is given up; an end that is not confirmed makes the instance LOST,
    which keeps its GPUs until the machine says that it is gone or is retired.
    """
    total = 0
    with every_tenant("limits of passing states hold for all tenants"):
        for state, rule in lifecycle.STATES.items():
            if rule.limit is None:
                continue
            late = Instance.objects.filter(state=state, state_since__lte=now - rule.limit)
            total += _each(late, _lose_unconfirmed if state == State.STOPPING else _give_up, now)
    return total


Act = Callable[[Instance, datetime], UUID | None]


def _each(rows: Iterable[Instance], act: Act, now: datetime) -> int:
    done = 0
    for instance in rows:
        try:
            with transaction.atomic():
                state = instance.state
                lifecycle.lock(instance)
                if instance.state != state:
                    continue  # it moved on by itself
                node_id = act(instance, now)
                if node_id is not None:
                    nodes.raise_desired(node_ids=[node_id])
                done += 1
        except DomainError:
            log.exception("instance %s could not be brought on", instance.id)
    return done


def _lose(instance: Instance, now: datetime) -> None:
    lifecycle.move(instance=instance, to=State.LOST, now=now, reason_code="node_silent")


def _end_retired(instance: Instance, now: datetime) -> None:
    ending.confirm(instance=instance, now=now, at=None, reason_code="node_retired")


def _stop(instance: Instance, now: datetime) -> UUID | None:
    return ending.end(
        instance=instance, wanted=Wanted.STOP, reason_code="stop_at_reached", by=None, now=now
    )


def _give_up(instance: Instance, now: datetime) -> UUID | None:
    lifecycle.move(
        instance=instance,
        to=State.STOPPING,
        now=now,
        reason_code=_GIVEN_UP[State(instance.state)],
    )
    return instance.node_id


def _lose_unconfirmed(instance: Instance, now: datetime) -> None:
    lifecycle.move(instance=instance, to=State.LOST, now=now, reason_code="stop_not_confirmed")
