"""Who this node is: a key pair that never leaves it, and the id that the portal gave it."""

import base64
import contextlib
import hashlib
import http.client
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from agents import __version__, durable, wire

JOIN_SECONDS = 15.0
MAX_REPLY_BYTES = 65536


class UnableToJoin(Exception):
    """The portal refused; trying again with the same token is useless."""


class PortalSilent(Exception):
    """The portal could not be asked; trying again may help."""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The identity as it lies on the disk."""

    node_id: str
    generation: int
    private_key: str
    token_hash: str


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A node's id, the generation of its credential, and the key that proves both."""

    node_id: str
    generation: int
    key: Ed25519PrivateKey

    def headers(self, *, time_ms: int) -> dict[str, str]:
        """Return the signed headers that open a socket."""
        return wire.sign_request(
            self.key, node_id=self.node_id, generation=self.generation, time_ms=time_ms
        )


def load(state_dir: Path, *, token: str | None) -> Identity | None:
    """Read the identity; None if there is none, or if `token` asks to join anew."""
    try:
        stored = msgspec.json.decode((state_dir / "identity.json").read_bytes(), type=Stored)
        key = _key_from(stored.private_key)
    except (OSError, msgspec.DecodeError, ValueError):
        return None
    if token is not None and _hash(token) != stored.token_hash:
        return None
    return Identity(node_id=stored.node_id, generation=stored.generation, key=key)


def join(state_dir: Path, *, portal: str, token: str, hostname: str) -> Identity:
    """Exchange a one-time token for an identity and store it.

    The key is stored before it is sent, so that a lost answer can be asked for again. Blocks for up
    to `JOIN_SECONDS`. Raises `UnableToJoin` or `PortalSilent`.
    """
    key = _pending_key(state_dir, token)
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    request = wire.JoinRequest(
        token=token,
        public_key=base64.b64encode(public).decode(),
        hostname=hostname,
        agent_version=__version__,
    )
    status, body = _post(portal, msgspec.json.encode(request))
    if status >= 500 or status in (408, 425, 429):
        raise PortalSilent(f"The portal answered with status {status}.")
    if status not in (200, 201):
        raise UnableToJoin(_refusal(status, body))
    try:
        reply = msgspec.json.decode(body, type=wire.JoinReply)
    except msgspec.DecodeError as error:
        raise UnableToJoin("What answered is not a Corral portal.") from error
    stored = Stored(
        node_id=reply.node_id,
        generation=reply.generation,
        private_key=_text_of(key),
        token_hash=_hash(token),
    )
    durable.write(state_dir / "identity.json", msgspec.json.encode(stored))
    (state_dir / "joining.json").unlink(missing_ok=True)
    return Identity(node_id=reply.node_id, generation=reply.generation, key=key)


def _pending_key(state_dir: Path, token: str) -> Ed25519PrivateKey:
    path = state_dir / "joining.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        pending = json.loads(path.read_bytes())
        if pending["token_hash"] == _hash(token):
            return _key_from(pending["private_key"])
    key = Ed25519PrivateKey.generate()
    pending = {"private_key": _text_of(key), "token_hash": _hash(token)}
    durable.write(path, json.dumps(pending).encode())
    return key


def _post(portal: str, body: bytes) -> tuple[int, bytes]:
    parts = urlsplit(portal)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=JOIN_SECONDS)
    try:
        path = parts.path.rstrip("/") + wire.JOIN_PATH
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read(MAX_REPLY_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise PortalSilent(f"The portal at {portal} does not answer: {error}") from error
    finally:
        connection.close()


def _refusal(status: int, body: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        error = cast("dict[str, Any]", json.loads(body))["error"]
        return " ".join(str(error[name]) for name in ("message", "help") if error.get(name))
    return f"The portal refused to let this node join (status {status})."


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _text_of(key: Ed25519PrivateKey) -> str:
    raw = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    return base64.b64encode(raw).decode()


def _key_from(text: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(base64.b64decode(text, validate=True))
