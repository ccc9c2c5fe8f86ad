"""How a machine becomes a node, and how it proves later that it still is that node.

A one-time token lets it register its public key; every socket is opened with a signature of that
key. Names, addresses and machine ids prove nothing.
"""

import base64
import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from agents import wire
from portal.errors import Forbidden
from portal.fleet import history
from portal.fleet.models import JoinToken, Link, Node

TOKEN_LIFETIME: Final = timedelta(hours=1)
# A node's clock may be wrong (its offset is shown and allowed for), but not by more than this.
MOST_CLOCK_OFFSET: Final = timedelta(hours=24)
# A sign-in that is not newer than the last one is taken only this near to the portal's time.
CLOCK_STEP_ALLOWANCE: Final = timedelta(minutes=5)
_KEY_BYTES = 32


class UnableToJoin(Forbidden):
    """The token or the key does not let this machine join."""


class UnableToAuthenticate(Forbidden):
    """Whoever opened the socket did not prove to be the node that it names."""


def issue_join_token(*, pool: str = "default", now: datetime) -> tuple[JoinToken, str]:
    """Make a token that lets one machine join `pool` once, within the hour.

    Returned with its secret. Only a hash of that is kept, so it is shown now or never.
    """
    secret = f"join_{secrets.token_urlsafe(32)}"
    token = JoinToken.objects.create(
        secret_hash=_hash(secret), pool=pool, created_at=now, expires_at=now + TOKEN_LIFETIME
    )
    return token, secret


@transaction.atomic
def join(*, request: wire.JoinRequest, now: datetime) -> wire.JoinReply:
    """Spend a join token and register the machine's public key as a new node.

    A machine whose answer was lost gets the same one again, by the same key, until it has opened
    its first session. Raises UnableToJoin: unknown_token, used_token, expired_token or bad_key.
    """
    public_key = _public_key(request.public_key)
    # One UPDATE decides the race: of two machines with the same token only one changes a row.
    spent = JoinToken.objects.filter(
        secret_hash=_hash(request.token), used_at=None, expires_at__gt=now
    ).update(used_at=now)
    if not spent:
        joined = _joined_before(request.token, public_key, now)
        if joined is None:
            raise _refusal_of_token(request.token)
        return wire.JoinReply(node_id=str(joined.id), generation=joined.generation)
    token = JoinToken.objects.get(secret_hash=_hash(request.token))
    name = clean(request.hostname, 100) or _("unnamed")
    node = Node.objects.create(
        name=name,
        pool=token.pool,
        public_key=public_key,
        agent_version=clean(request.agent_version, 40),
        link=Link.OFFLINE,
        link_since=now,
        joined_at=now,
    )
    token.node = node
    token.save(update_fields=["node"])
    history.note(node_id=node.id, kind="joined", detail=name, now=now)
    return wire.JoinReply(node_id=str(node.id), generation=node.generation)


def authenticate(
    *, node_id: str | UUID, generation: int, time_ms: int, signature: bytes, now: datetime
) -> Node:
    """Return the node whose key made `signature` over agents.wire.signed_text at `time_ms`.

    A sign-in is accepted once: the next one must be newer by the node's own clock, except close to
    the portal's time, since clocks are also set back. Raises UnableToAuthenticate.
    """
    node = _node(node_id)
    if node is None or not _is_signed_by(node, generation, time_ms, signature):
        raise UnableToAuthenticate(
            "bad_credential",
            _("This is not the key of a node of this installation."),
            help=_("Join the machine again with a new join token."),
        )
    if node.retired_at is not None:
        raise UnableToAuthenticate(
            "node_retired",
            _("This node was retired."),
            help=_("To use the machine again, join it with a new join token."),
        )
    if generation != node.generation:
        history.note(
            node_id=node.id,
            kind="conflict",
            detail=_("A credential of generation %(old)d was used, the present one is %(new)d.")
            % {"old": generation, "new": node.generation},
            now=now,
        )
        raise UnableToAuthenticate(
            "credential_outdated",
            _("A newer credential of this node is in use: this machine may be a copy of it."),
            help=_("Join the machine again with a new join token."),
        )
    _spend_sign_in(node, time_ms, now)
    return node


def clean(text: str, length: int) -> str:
    """Make text from a machine fit for a column: no NUL, no more than `length` characters."""
    return text.replace("\0", "").strip()[:length]


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _public_key(encoded: str) -> bytes:
    try:
        raw = base64.b64decode(encoded, validate=True)
        Ed25519PublicKey.from_public_bytes(raw)
    except ValueError as error:
        raise UnableToJoin(
            "bad_key",
            _("That is not a raw Ed25519 public key in base64 (%(bytes)d bytes).")
            % {"bytes": _KEY_BYTES},
            help=_("Use the agent that belongs to this portal."),
        ) from error
    return raw


def _joined_before(secret: str, public_key: bytes, now: datetime) -> Node | None:
    return Node.objects.filter(
        pk__in=JoinToken.objects.filter(
            secret_hash=_hash(secret), expires_at__gt=now, node__isnull=False
        ).values("node_id"),
        public_key=public_key,
        session_epoch=0,
        retired_at=None,
    ).first()


def _refusal_of_token(secret: str) -> UnableToJoin:
    token = JoinToken.objects.filter(secret_hash=_hash(secret)).first()
    help_ = _("Ask an operator for a new one, or run `manage.py join_token` on the portal.")
    if token is None:
        return UnableToJoin("unknown_token", _("There is no such join token."), help=help_)
    if token.used_at is not None:
        return UnableToJoin(
            "used_token", _("This join token has been used; each lets one machine in."), help=help_
        )
    return UnableToJoin("expired_token", _("This join token has expired."), help=help_)


def _node(node_id: str | UUID) -> Node | None:
    try:
        key = node_id if isinstance(node_id, UUID) else UUID(node_id)
    except ValueError:
        return None
    return Node.objects.filter(pk=key).first()


def _is_signed_by(node: Node, generation: int, time_ms: int, signature: bytes) -> bool:
    text = wire.signed_text(node_id=str(node.id), generation=generation, time_ms=time_ms)
    try:
        Ed25519PublicKey.from_public_bytes(bytes(node.public_key)).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def _spend_sign_in(node: Node, time_ms: int, now: datetime) -> None:
    offset_ms = round(now.timestamp() * 1000) - time_ms
    limit_ms = MOST_CLOCK_OFFSET / timedelta(milliseconds=1)
    if abs(offset_ms) > limit_ms:
        raise UnableToAuthenticate(
            "clock_wrong",
            _("The machine's clock is off by more than a day."),
            help=_("Set its clock, for example with NTP."),
            details={"clock_offset_ms": offset_ms},
        )
    is_fresh = Q(signed_at_ms__lt=time_ms)
    if abs(offset_ms) <= CLOCK_STEP_ALLOWANCE / timedelta(milliseconds=1):
        is_fresh |= ~Q(signed_at_ms=time_ms)
    if not Node.objects.filter(is_fresh, pk=node.pk).update(signed_at_ms=time_ms):
        raise UnableToAuthenticate(
            "sign_in_repeated",
            _("This sign-in was used before."),
            help=_("Sign the present time and try again."),
        )
