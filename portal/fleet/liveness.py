"""Silence turns a node from online to stale, offline and lost: by the portal's clock alone.

A node is not blamed for the portal's own deafness. After the watch itself has paused, every silence
counts from its return; and when most of the fleet falls silent within a minute, nothing goes
beyond stale while that lasts, at most for as long as a node takes to be lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.conf import settings
from django.db import transaction

from portal.fleet import history
from portal.fleet.models import Link, Node, Watch

# The watch runs every 5 s; a longer pause than this means that the portal was not listening.
PAUSE: Final = timedelta(seconds=30)
TOGETHER: Final = timedelta(minutes=1)
# Fewer silent nodes than this are never a mass: with two nodes, one of them is no evidence.
LEAST_MASS: Final = 3

_ORDER: Final = [Link.ONLINE, Link.STALE, Link.OFFLINE, Link.LOST]


@dataclass(frozen=True, slots=True)
class LinkChange:
    """A node's link went from one value of Link to another at `at`; it was last heard `seen_at`."""

    node_id: UUID
    before: str
    after: str
    at: datetime
    seen_at: datetime | None


@transaction.atomic
def watch(*, now: datetime) -> list[LinkChange]:
    """Let silence take effect; call it every few seconds. Return the links that changed.

    The first call after a pause of more than 30 s changes nothing: it only begins to count.
    """
    state = _begin(now)
    watched = list(
        Node.objects.filter(retired_at=None, last_seen_at__isnull=False)
        .exclude(link__in=[Link.CONFLICT, Link.LOST])
        .order_by("id")
    )
    _freeze_or_thaw(state, [(node, _due(node, state, now)) for node in watched], now)
    due = [(node, _due(node, state, now)) for node in watched]
    if state.frozen_since is not None:
        due = [(node, min(link, Link.STALE, key=_ORDER.index)) for node, link in due]
    changes = [
        change
        for node, link in due
        if _ORDER.index(link) > _ORDER.index(Link(node.link))
        for change in _change(node, link, now)
    ]
    state.ran_at = now
    state.save()
    return changes


def frozen_since() -> datetime | None:
    """Return since when links are frozen because most of the fleet fell silent at once."""
    return Watch.objects.values_list("frozen_since", flat=True).first()


def _begin(now: datetime) -> Watch:
    state = Watch.objects.select_for_update().filter(pk=1).first()
    if state is None:
        state, _ = Watch.objects.get_or_create(pk=1, defaults={"ran_at": now, "steady_since": now})
    if now - state.ran_at > PAUSE:
        state.steady_since = now
    return state


def _due(node: Node, state: Watch, now: datetime) -> Link:
    heard_at = max(node.last_seen_at or node.joined_at, state.steady_since)
    silence = (now - heard_at).total_seconds()
    if silence > settings.NODE_LOST_SECONDS:
        return Link.LOST
    if silence > settings.NODE_OFFLINE_SECONDS:
        return Link.OFFLINE
    if silence > settings.NODE_STALE_SECONDS:
        return Link.STALE
    return Link.ONLINE


def _freeze_or_thaw(state: Watch, due: Iterable[tuple[Node, Link]], now: datetime) -> None:
    living = [(node, link) for node, link in due if node.link in {Link.ONLINE, Link.STALE}]
    silent = [node for node, link in living if link != Link.ONLINE]
    together = [
        node for node in silent if node.link == Link.ONLINE or now - node.link_since <= TOGETHER
    ]
    if state.frozen_since is None:
        if len(together) >= LEAST_MASS and len(together) * 2 > len(living):
            state.frozen_since = now
            _note_all(silent, "frozen", now)
        return
    is_over = len(silent) * 2 <= len(living)
    is_too_long = now - state.frozen_since > timedelta(seconds=settings.NODE_LOST_SECONDS)
    if is_over or is_too_long:
        # Those that are still silent get their whole time again.
        state.frozen_since, state.steady_since = None, now
        _note_all(silent, "thawed", now)


def _note_all(nodes: Iterable[Node], kind: str, now: datetime) -> None:
    for node in nodes:
        history.note(node_id=node.pk, kind=kind, now=now)


def _change(node: Node, link: Link, now: datetime) -> list[LinkChange]:
    # Only if nothing was heard in between: a heartbeat that arrives now wins.
    changed = Node.objects.filter(
        pk=node.pk, link=node.link, last_seen_at=node.last_seen_at, retired_at=None
    ).update(link=link, link_since=now)
    if not changed:
        return []
    history.note(node_id=node.pk, kind=link.value.lower(), now=now)
    return [
        LinkChange(node_id=node.pk, before=node.link, after=link, at=now, seen_at=node.last_seen_at)
    ]
