"""One session per node: who may speak for it, and when it was last heard.

Every accepted session gets a higher epoch; whatever an older one writes afterwards is refused by
that number in the database, not by anybody's memory. Two machines that take the session from each
other are told apart by their boot, and the newcomer is shut out until an operator decides.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, overload
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.utils.translation import gettext as _

from agents import wire
from portal import events
from portal.errors import DomainError
from portal.fleet import history, inventory
from portal.fleet.joining import clean
from portal.fleet.models import Link, Node, NodeEvent

FLAPPING_WITHIN: Final = timedelta(minutes=5)
FLAPPING_TAKEOVERS: Final = 3
# A clock that is off by more than this is not believed: what it wrote is moved to our time.
CLOCK_TOLERANCE_MS: Final = 2_000
_THOUSAND_YEARS_MS: Final = 31_556_952_000_000


class UnableToOpenSession(DomainError):
    """The node is who it says, and still may not have a session now."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A node was heard in this session; `ack_seq` is the last sample batch that is stored.

    The offsets are milliseconds to add to the node's clock: as measured, and as applied to its
    times. None leaves what is known.
    """

    node_id: UUID
    epoch: int
    clock_offset_ms: int | None = None
    applied_offset_ms: int | None = None
    ack_seq: int = 0


def open_session(*, node_id: UUID, hello: wire.Hello, now: datetime) -> wire.Welcome:
    """Accept a node's Hello: raise its epoch, take in what it has, and return the welcome.

    Raises UnableToOpenSession: no_common_version, unknown_node, node_retired or identity_conflict.
    """
    version = wire.common_version(hello.proto_min, hello.proto_max)
    if version is None:
        raise UnableToOpenSession(
            "no_common_version",
            _("The agent speaks protocol %(low)d to %(high)d, the portal %(min)d to %(max)d.")
            % {
                "low": hello.proto_min,
                "high": hello.proto_max,
                "min": wire.MIN_VERSION,
                "max": wire.VERSION,
            },
            help=_("Update the agent, or the portal."),
        )
    # A conflict is written down and committed before it is raised.
    with transaction.atomic():
        node = Node.objects.select_for_update().filter(pk=node_id, retired_at=None).first()
        is_shut_out = node is not None and _is_shut_out(node, hello, now)
        if node is not None and not is_shut_out:
            _accept(node, hello, now)
    if node is None:
        raise UnableToOpenSession(
            "node_retired",
            _("This node does not belong to the installation any more."),
            help=_("To use the machine again, join it with a new join token."),
        )
    if is_shut_out:
        raise UnableToOpenSession(
            "identity_conflict",
            _("Two machines use the identity of this node."),
            help=_("Join one of them anew, then settle the conflict on the node's page."),
        )
    return wire.Welcome(
        proto=version,
        session_epoch=node.session_epoch,
        lease_s=settings.NODE_OFFLINE_SECONDS,
        server_time_ms=_milliseconds(now),
        # Three in the time after which silence counts: one may be late.
        heartbeat_s=min(float(settings.NODE_HEARTBEAT_SECONDS), settings.NODE_STALE_SECONDS / 3),
        desired_generation=node.desired_generation,
        ack_seq=node.ack_seq,
    )


def seen(*, node_id: UUID, epoch: int, now: datetime, clock_offset_ms: int | None = None) -> bool:
    """Note that a node was heard, now by the portal's clock; False if a newer session exists."""
    sighting = Sighting(node_id=node_id, epoch=epoch, clock_offset_ms=clock_offset_ms)
    return node_id in seen_all(sightings=[sighting], now=now)


@transaction.atomic
def seen_all(*, sightings: Sequence[Sighting], now: datetime) -> set[UUID]:
    """Note many sightings in one statement; return the nodes whose session still is the newest.

    A silent node that is heard again is online at once.
    """
    if not sightings:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH heard AS (
                SELECT node.id, said.offset_ms, said.applied_ms, said.ack_seq
                FROM fleet_node AS node
                JOIN unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
                     AS said (id, epoch, offset_ms, applied_ms, ack_seq)
                     ON node.id = said.id AND node.session_epoch = said.epoch
                WHERE node.retired_at IS NULL
                ORDER BY node.id FOR NO KEY UPDATE OF node
            )
            UPDATE fleet_node AS node
            SET last_seen_at = GREATEST(node.last_seen_at, %s),
                clock_offset_ms = COALESCE(heard.offset_ms, node.clock_offset_ms),
                applied_offset_ms = COALESCE(heard.applied_ms, node.applied_offset_ms),
                ack_seq = GREATEST(node.ack_seq, heard.ack_seq)
            FROM heard WHERE node.id = heard.id
            RETURNING node.id, node.link
            """,
            [
                [one.node_id for one in sightings],
                [one.epoch for one in sightings],
                [_bounded(one.clock_offset_ms) for one in sightings],
                [_bounded(one.applied_offset_ms) for one in sightings],
                [one.ack_seq for one in sightings],
                now,
            ],
        )
        links: dict[UUID, str] = dict(cursor.fetchall())
    for node_id, link in links.items():
        if link in {Link.STALE, Link.OFFLINE, Link.LOST}:
            Node.objects.filter(pk=node_id).update(link=Link.ONLINE, link_since=now)
            history.note(node_id=node_id, kind="online", now=now)
    return set(links)


def _is_shut_out(node: Node, hello: wire.Hello, now: datetime) -> bool:
    """Tell whether this Hello comes from a second machine; note the conflict when it shows."""
    is_same_machine = clean(hello.boot_id, 64) == node.boot_id
    if node.link == Link.CONFLICT:
        # The machine that holds the session keeps it; the other one stays outside.
        return not is_same_machine
    if not node.session_epoch or (is_same_machine and hello.agent_run_id == node.agent_run_id):
        return False
    recent = list(
        NodeEvent.objects.filter(node=node, kind="session", at__gt=now - FLAPPING_WITHIN)
        .order_by("at", "id")
        .values_list("detail", flat=True)
    )
    sources = [tuple(detail.split(" ", 1)) for detail in [*recent, _source(hello)]]
    boots = [source[0] for source in sources]
    takeovers = sum(one != other for one, other in itertools.pairwise(boots))
    # The same boot, but runs of the agent that come back: two agents on one machine.
    returns = sum(
        source in sources[: max(0, index - 1)] and source != sources[index - 1]
        for index, source in enumerate(sources)
    )
    if max(takeovers, returns) <= FLAPPING_TAKEOVERS:
        return False
    Node.objects.filter(pk=node.pk).update(link=Link.CONFLICT, link_since=now)
    history.note(
        node_id=node.pk,
        kind="conflict",
        detail=_("Two machines took the session from each other %(count)d times in 5 minutes.")
        % {"count": max(takeovers, returns)},
        now=now,
    )
    return True


def _accept(node: Node, hello: wire.Hello, now: datetime) -> None:
    is_new_run = hello.agent_run_id != node.agent_run_id
    was_online = node.link in {Link.ONLINE, Link.CONFLICT}
    node.session_epoch += 1
    node.clock_offset_ms = offset_ms = _bounded(_milliseconds(now) - hello.wall_time)
    # Fixed for one run of the agent, so that a sample that is sent twice has the same time twice.
    if is_new_run:
        node.ack_seq = 0
    if is_new_run or abs(offset_ms - node.applied_offset_ms) > CLOCK_TOLERANCE_MS:
        node.applied_offset_ms = offset_ms if abs(offset_ms) > CLOCK_TOLERANCE_MS else 0
    if is_new_run or hello.boot_id != node.boot_id:
        history.note(node_id=node.pk, kind="session", detail=_source(hello), now=now)
    node.boot_id = clean(hello.boot_id, 64)
    node.agent_run_id = clean(hello.agent_run_id, 64)
    node.agent_version = clean(hello.agent_version, 40)
    node.runtime = hello.runtime
    node.has_isolation = hello.isolation
    node.last_seen_at = now
    if not was_online:
        node.link, node.link_since = Link.ONLINE, now
        history.note(node_id=node.pk, kind="online", now=now)
    node.save()
    inventory.update_inventory(node_id=node.pk, inventory=hello.inventory, now=now)
    events.announce(topic=events.node_topic(node.pk), kind="session", id=str(node.session_epoch))
    history.tell(node_id=node.pk)


def _source(hello: wire.Hello) -> str:
    return f"{clean(hello.boot_id, 64).replace(' ', '_')} {clean(hello.agent_run_id, 64)}"


@overload
def _bounded(milliseconds: int) -> int: ...
@overload
def _bounded(milliseconds: None) -> None: ...
def _bounded(milliseconds: int | None) -> int | None:
    """Keep nonsense within what a column and a calendar can hold: a thousand years."""
    if milliseconds is None:
        return None
    return max(-_THOUSAND_YEARS_MS, min(_THOUSAND_YEARS_MS, milliseconds))


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
