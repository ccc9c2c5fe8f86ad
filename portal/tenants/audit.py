"""Who did what to which thing. Rows are added inside the transaction of the act, or not at all."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from portal.tenants.models import AuditEvent, Organization, User
from portal.tenants.roles import Actor, require

_LONGEST_NAME = 200  # as the column


def record(
    *,
    actor: Actor | None,
    organization: Organization | None,
    verb: str,
    target_kind: str,
    target_id: UUID | str,
    target_name: str = "",
    details: Mapping[str, Any] | None = None,
    now: datetime,
    user: User | None = None,
) -> AuditEvent:
    """Write down one act.

    `verb` is "thing.act" ("instance.launch"). `details` holds plain JSON values and never a secret.
    Without an actor it was the portal itself, or, with `user`, an operator or a person who is not
    yet a member. Without an organization it happened to the installation: operators read those.
    """
    event = AuditEvent(
        organization=organization,
        at=now,
        user=actor.user if actor else user,
        token=actor.token if actor else None,
        verb=verb,
        target_kind=target_kind,
        target_id=str(target_id),
        target_name=target_name[:_LONGEST_NAME],
        details=dict(details or {}),
    )
    event.save(force_insert=True)
    return event


def events(*, actor: Actor) -> QuerySet[AuditEvent]:
    """Return the organization's events, newest first. Raises UnableToAct."""
    require(actor, "audit.view")
    return (
        AuditEvent.objects.filter(organization=actor.organization)
        .select_related("user", "token")
        .order_by("-at", "-id")
    )
