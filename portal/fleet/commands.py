"""Ask a node for something transient, such as the last lines of a log, and wait for the answer.

The question goes through Valkey to whichever process holds the node's socket, and its answer comes
back the same way. Nothing is kept: a question that was not answered in time is over.
"""

import json
import math
import secrets
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from uuid import UUID

import redis
from django.conf import settings
from django.utils.translation import gettext as _

from portal.errors import DomainError

# A question may take this long at most, since a person waits for it.
LONGEST_S: Final = 60.0


class UnableToAsk(DomainError):
    """The node did not answer: it is silent, too slow, or said no."""

    status = 503


def question_channel(node_id: UUID | str) -> str:
    """Name the channel on which questions for a node arrive at the process with its socket."""
    return f"corral:ask:{node_id}"


def answer_key(question_id: str) -> str:
    """Name the list into which the answer to a question is pushed."""
    return f"corral:answer:{question_id}"


def ask(
    *, node_id: UUID, kind: str, args: Mapping[str, str | int], timeout_s: float = 10.0
) -> dict[str, Any]:
    """Have a node do one thing and return {"ok": True, "data": str or None}.

    For kind "logs", `args` holds instance, run and tail. Blocks for at most `timeout_s`. Raises
    UnableToAsk: node_silent, node_slow or node_refused.
    """
    timeout_s = min(max(timeout_s, 0.1), LONGEST_S)
    question_id = secrets.token_hex(12)
    question = {"id": question_id, "kind": kind, "deadline_s": timeout_s, "args": dict(args)}
    client = _client()
    try:
        heard_by = client.publish(question_channel(node_id), json.dumps(question))
        # Valkey waits in whole or broken seconds; 0 would mean for ever.
        answer = client.blpop([answer_key(question_id)], timeout=timeout_s) if heard_by else None
    except redis.RedisError as error:
        raise _silent() from error
    if not heard_by:
        raise _silent()
    if answer is None:
        raise UnableToAsk(
            "node_slow",
            _("The node did not answer within %(seconds)d s.") % {"seconds": math.ceil(timeout_s)},
            help=_("Try again in a moment."),
        )
    result = json.loads(answer[1])
    if not result.get("ok"):
        raise UnableToAsk(
            "node_refused",
            str(result.get("error") or _("The node could not do that.")),
            help=_("Try again; if it goes on, tell an operator."),
        )
    return {"ok": True, "data": result.get("data")}


def _silent() -> UnableToAsk:
    return UnableToAsk(
        "node_silent",
        _("The node has no connection to the portal now."),
        help=_("What runs on it goes on. Try again when the node is back."),
    )


@cache
def _client() -> "redis.Redis":
    # Longer than the longest question: the answer is waited for on this socket.
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=LONGEST_S + 5, socket_connect_timeout=1.0
    )
