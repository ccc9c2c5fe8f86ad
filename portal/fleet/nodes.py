"""The face of the fleet: everything that other floors ask of nodes is named here.

Read on: `joining` (identity), `sessions` (who may speak), `inventory` (GPUs), `liveness` (silence).
What operators do to a node is decided in this file.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext as _

from portal import events
from portal.errors import DomainError, NotFound
from portal.fleet import history
from portal.fleet.inventory import GpuChange, set_gpu_health, update_inventory
from portal.fleet.joining import (
    UnableToAuthenticate,
    UnableToJoin,
    authenticate,
    issue_join_token,
    join,
)
from portal.fleet.liveness import LinkChange, frozen_since, watch
from portal.fleet.models import Link, Node
from portal.fleet.sessions import (
    CLOCK_TOLERANCE_MS,
    Sighting,
    UnableToOpenSession,
    open_session,
    seen,
    seen_all,
)
from portal.tenants import audit
from portal.tenants.models import User

__all__ = [
    "CLOCK_TOLERANCE_MS",
    "GpuChange",
    "LinkChange",
    "Sighting",
    "UnableToAuthenticate",
    "UnableToChangeNode",
    "UnableToFindNode",
    "UnableToJoin",
    "UnableToOpenSession",
    "authenticate",
    "cordon",
    "desired_generations",
    "frozen_since",
    "issue_join_token",
    "join",
    "observed",
    "open_session",
    "raise_desired",
    "retire",
    "seen",
    "seen_all",
    "set_gpu_health",
    "settle_conflict",
    "uncordon",
    "update_inventory",
    "watch",
]


class UnableToFindNode(NotFound):
    """There is no such node."""


class UnableToChangeNode(DomainError):
    """The node is not in a condition that allows the change."""


@transaction.atomic
def cordon(*, actor: User, node_id: UUID, reason: str, now: datetime) -> Node:
    """Let nothing new be placed on a node; what runs there goes on.

    Cordoning twice renews the reason. Raises UnableToFindNode, and UnableToChangeNode without a
    reason or for a retired node.
    """
    node = _locked(node_id)
    reason = reason.strip()[:200]
    if not reason:
        raise UnableToChangeNode(
            "reason_missing",
            _("Say why the node is cordoned."),
            help=_("People see the reason on the node's page."),
        )
    node.cordoned_at = node.cordoned_at or now
    node.cordon_reason = reason
    node.save(update_fields=["cordoned_at", "cordon_reason"])
    _done(actor, node, "cordoned", reason, now)
    return node


@transaction.atomic
def uncordon(*, actor: User, node_id: UUID, now: datetime) -> Node:
    """Let things be placed on a node again. Nothing happens if it is not cordoned."""
    node = _locked(node_id)
    if node.cordoned_at is None:
        return node
    node.cordoned_at, node.cordon_reason = None, ""
    node.save(update_fields=["cordoned_at", "cordon_reason"])
    _done(actor, node, "uncordoned", "", now)
    return node


@transaction.atomic
def retire(*, actor: User, node_id: UUID, now: datetime, reason: str = "") -> Node:
    """Send a node away for good: its session ends and its credential is worth nothing any more.

    Its rows stay, since leases and bills name them. Raises UnableToFindNode, and UnableToChangeNode
    for a node that is still online and not cordoned.
    """
    node = _locked(node_id)
    if node.link == Link.ONLINE and node.cordoned_at is None:
        raise UnableToChangeNode(
            "node_in_use",
            _("The node is online and takes instances."),
            help=_("Cordon it first, and let what runs there end."),
        )
    node.retired_at = now
    node.session_epoch += 1
    node.link, node.link_since = Link.LOST, now
    node.save(update_fields=["retired_at", "session_epoch", "link", "link_since"])
    _done(actor, node, "retired", reason.strip(), now)
    events.announce(topic=events.node_topic(node.pk), kind="session", id=str(node.session_epoch))
    return node


@transaction.atomic
def settle_conflict(*, actor: User, node_id: UUID, now: datetime) -> Node:
    """End an identity conflict, after one of the two machines was switched off or joined anew.

    The next machine that opens a session with this key is the node. Raises UnableToChangeNode if
    there is no conflict.
    """
    node = _locked(node_id)
    if node.link != Link.CONFLICT:
        raise UnableToChangeNode("no_conflict", _("This node has no identity conflict."))
    node.link, node.link_since = Link.OFFLINE, now
    node.boot_id = node.agent_run_id = ""
    node.save(update_fields=["link", "link_since", "boot_id", "agent_run_id"])
    node.events.filter(kind="session").update(kind="past_session")
    _done(actor, node, "conflict_settled", "", now)
    return node


@transaction.atomic
def raise_desired(*, node_ids: Iterable[UUID]) -> None:
    """Say that what these nodes should run changed: their sockets send it after the commit."""
    wanted = sorted(set(node_ids))
    # Locked in one order: two callers with the same nodes never wait for each other in a circle.
    locked = list(
        Node.objects.select_for_update(no_key=True)
        .filter(pk__in=wanted)
        .order_by("pk")
        .values_list("pk", flat=True)
    )
    Node.objects.filter(pk__in=locked).update(desired_generation=F("desired_generation") + 1)
    for node_id in locked:
        events.announce(topic=events.node_topic(node_id), kind="desired", id=node_id)


def desired_generations(*, node_ids: Iterable[UUID]) -> Mapping[UUID, int]:
    """Return the generation of the desired state of many nodes, in one query."""
    return dict(Node.objects.filter(pk__in=list(node_ids)).values_list("pk", "desired_generation"))


def observed(*, node_id: UUID, epoch: int, generation: int) -> bool:
    """Note which desired state a node has taken in; False if a newer session exists."""
    return bool(
        Node.objects.filter(pk=node_id, session_epoch=epoch, retired_at=None).update(
            observed_generation=max(0, min(generation, 2**63 - 1))
        )
    )


def _locked(node_id: UUID) -> Node:
    node = Node.objects.select_for_update().filter(pk=node_id).first()
    if node is None:
        raise UnableToFindNode("node_not_found", _("There is no such node."))
    if node.retired_at is not None:
        raise UnableToChangeNode("node_retired", _("This node was retired."))
    return node


def _done(actor: User, node: Node, kind: str, detail: str, now: datetime) -> None:
    by = _("by %(person)s") % {"person": actor}
    history.note(node_id=node.pk, kind=kind, detail=f"{detail} ({by})" if detail else by, now=now)
    audit.record(
        actor=None,
        organization=None,
        verb=f"node.{kind}",
        target_kind="node",
        target_id=node.pk,
        target_name=node.name,
        details={"reason": detail} if detail else {},
        now=now,
        user=actor,
    )
