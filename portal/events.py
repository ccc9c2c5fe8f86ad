"""Tell live readers that something changed: the only sender to them, always after commit.

A message says what changed, never what it changed to: the reader fetches it anew inside his own
scope, so a message can be lost, repeated or seen late without showing anything false. Delivery is
by Valkey's publish/subscribe; a lost message costs a delay, since readers also re-sync on a timer.
"""

import json
import logging
from functools import cache
from uuid import UUID

import redis
from django.conf import settings
from django.db import transaction

log = logging.getLogger(__name__)

CHANNEL = "corral:live:"


def organization_topic(organization_id: UUID | str) -> str:
    """Name the topic of everything in one organization."""
    return f"org:{organization_id}"


def node_topic(node_id: UUID | str) -> str:
    """Name the topic of one node: its page, and the socket that sends it its desired state."""
    return f"node:{node_id}"


FLEET_TOPIC = "fleet"  # operators: any node changed


@cache
def _client() -> redis.Redis:
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=1.0, socket_connect_timeout=0.5, retry_on_timeout=False
    )


def announce(*, topic: str, kind: str, id: UUID | str) -> None:
    """Tell the readers of `topic` that the thing `id` of this `kind` changed, once committed.

    Kinds: instance, usage, quota, member, node, desired, queue, and session, whose id is the epoch
    of the node's new session.
    """
    message = json.dumps({"topic": topic, "kind": kind, "id": str(id)})
    transaction.on_commit(lambda: _send(topic, message), robust=True)


def _send(topic: str, message: str) -> None:
    try:
        _client().publish(CHANNEL + topic, message)
    except redis.RedisError as error:
        # Nothing is lost but time: readers re-sync by themselves.
        log.warning("live readers of %s not told: %s", topic, error)
