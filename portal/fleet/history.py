"""What happened to a node, written down for its page and told to those who look at it."""

from datetime import datetime
from uuid import UUID

from portal import events
from portal.fleet.models import NodeEvent

_DETAIL_LENGTH = 300


def note(*, node_id: UUID, kind: str, detail: str = "", now: datetime) -> None:
    """Write down one event of a node, and announce it to the node's page and to operators.

    Kinds: joined, session, past_session, online, stale, offline, lost, frozen, thawed, conflict,
    conflict_settled, cordoned, uncordoned, retired, gpu_added, gpu_moved, gpu_elsewhere, and gpu_
    with each state of a GPU in lower case.
    """
    NodeEvent.objects.create(node_id=node_id, at=now, kind=kind, detail=detail[:_DETAIL_LENGTH])
    tell(node_id=node_id)


def tell(*, node_id: UUID) -> None:
    """Announce that a node changed."""
    events.announce(topic=events.node_topic(node_id), kind="node", id=node_id)
    events.announce(topic=events.FLEET_TOPIC, kind="node", id=node_id)
