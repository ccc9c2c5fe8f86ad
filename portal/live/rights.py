"""Which topics a signed-in person may hear, asked anew whenever their rights may have changed."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Final
from uuid import UUID

from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY, get_user
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session

from portal import events
from portal.errors import DomainError
from portal.instances import actions
from portal.instances.models import Instance
from portal.tenants import access
from portal.tenants.models import User
from portal.tenants.scope import every_tenant

MOST_TOPICS: Final = 200


@dataclass(frozen=True, slots=True)
class Grant:
    """What a session may hear of what it asked for; `is_signed_in` False: nothing, for ever.

    `depends_on` names the organizations' topics on which a change of these rights is announced.
    """

    is_signed_in: bool
    topics: frozenset[str] = frozenset()
    depends_on: frozenset[str] = frozenset()


def granted(*, session_key: str, topics: Collection[str]) -> Grant:
    """Return those of `topics` that the person of this session may hear now."""
    user = person(session_key=session_key)
    if user is None:
        return Grant(is_signed_in=False)
    organizations = {
        events.organization_topic(member.organization_id)
        for member in access.memberships(user=user)
    }
    allowed = frozenset(
        topic for topic in topics if topic in organizations or _may_hear(user, topic)
    )
    return Grant(is_signed_in=True, topics=allowed, depends_on=frozenset(organizations))


def person(*, session_key: str) -> User | None:
    """Return who is signed in by this session now; None after sign-out, block or new password."""
    store = SessionStore(session_key)
    data = store.load()
    if SESSION_KEY not in data or HASH_SESSION_KEY not in data:
        return None
    user = get_user(SimpleNamespace(session=store))  # type: ignore[arg-type]
    return user if isinstance(user, User) and user.is_active else None


def standing(
    *, session_keys: Collection[str], user_ids: Collection[UUID], now: datetime
) -> tuple[set[str], dict[UUID, bool]]:
    """Return which of many sessions still exist, and which people are not blocked.

    Two queries for all. The people come with whether they are operators.
    """
    found = Session.objects.filter(session_key__in=list(session_keys), expire_date__gt=now)
    people = User.objects.filter(pk__in=list(user_ids), is_active=True)
    return (
        set(found.values_list("session_key", flat=True)),
        dict(people.values_list("pk", "is_operator")),
    )


def _may_hear(user: User, topic: str) -> bool:
    kind, _, key = topic.rpartition(":")
    if topic == events.FLEET_TOPIC or kind in {"node", "gpus:node"}:
        return user.is_operator
    return kind == "gpus:instance" and _may_see_instance(user, key)


def _may_see_instance(user: User, key: str) -> bool:
    try:
        instance_id = UUID(key)
    except ValueError:
        return False
    with every_tenant("whose instance is it? What the person may see is asked next"):
        slug = (
            Instance.objects.filter(pk=instance_id)
            .values_list("organization__slug", flat=True)
            .first()
        )
    if slug is None:
        return False
    try:
        actor = access.actor_for(user=user, slug=slug)
        actions.get(actor=actor, instance_id=instance_id)
    except DomainError:
        return False
    return True
