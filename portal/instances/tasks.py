"""Periodic work around instances: books, silent machines, limits. Safe to run twice or late."""

from celery import shared_task
from django.utils.timezone import now as clock

from portal.billing import meters
from portal.fleet import nodes
from portal.instances import limits


@shared_task
def accrue() -> int:
    """Bring the ledgers up to the meters."""
    return meters.accrue(now=clock())


@shared_task
def watch_nodes() -> int:
    """Let silence take effect on nodes, then on what runs there."""
    now = clock()
    nodes.watch(now=now)
    return limits.lose_silent(now=now)


@shared_task
def end_stuck() -> int:
    """End what has reached its stop time or stays too long in a passing state."""
    now = clock()
    return limits.stop_due(now=now) + limits.end_stuck(now=now)
