"""`Idempotency-Key` on a POST: a retry gets the first answer, and nothing happens twice.

The key is claimed, the act is done and its answer is kept in one transaction. So a copy that comes
meanwhile waits for the first and then reads its answer, and a crash leaves neither act nor claim.
A refusal changed nothing, so it frees the key.
"""

import functools
import hashlib
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder

from portal.api.models import IdempotentReply
from portal.errors import DomainError, Invalid
from portal.tenants.models import ApiToken

if TYPE_CHECKING:
    from portal.api.access import TokenRequest
    from portal.api.endpoint import Endpoint

KEPT_FOR = timedelta(hours=24)
_LONGEST_KEY = 255
_Post = TypeVar("_Post", bound=Callable[..., Response])


class UnableToReplay(DomainError):
    """The key was used for another request."""


class UnableToUseKey(Invalid):
    """The key is no key."""


def once(post: _Post) -> _Post:
    """Wrap an endpoint's `post`, so that the same key does the same thing once."""

    @functools.wraps(post)
    def wrapped(self: "Endpoint", request: "TokenRequest", *args: Any, **kwargs: Any) -> Response:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return post(self, request, *args, **kwargs)
        if not key.strip() or len(key) > _LONGEST_KEY or not key.isprintable():
            raise UnableToUseKey(
                "idempotency_key_invalid",
                _("An idempotency key has 1 to 255 printable characters."),
            )
        with transaction.atomic():
            claim = _claim(request, key, self.now)
            if claim.status is not None:
                return _replayed(claim, _fingerprint(request))
            response = post(self, request, *args, **kwargs)
            _keep(claim, response, self.shown_once)
            return response

    return cast(_Post, wrapped)


def forget(*, now: datetime) -> int:
    """Delete the answers that are over 24 hours old; return how many."""
    return IdempotentReply.objects.filter(created_at__lte=now - KEPT_FOR).delete()[0]


def _claim(request: "TokenRequest", key: str, now: datetime) -> IdempotentReply:
    """Take the key, or return what holds it; waits while the first is at work."""
    token = cast(ApiToken, request.actor.token)  # the API knows no other way in
    held = IdempotentReply.objects.filter(token=token, key=key)
    held.filter(created_at__lte=now - KEPT_FOR).delete()
    try:
        with transaction.atomic():
            return IdempotentReply.objects.create(
                token=token, key=key, request_hash=_fingerprint(request), created_at=now
            )
    except IntegrityError:
        return held.get()


def _keep(claim: IdempotentReply, response: Response, shown_once: tuple[str, ...]) -> None:
    body = json.loads(json.dumps(response.data, cls=JSONEncoder))
    if isinstance(body, dict):
        body |= {field: None for field in shown_once if field in body}
    claim.status, claim.body = response.status_code, body
    claim.save(update_fields=["status", "body"])


def _replayed(claim: IdempotentReply, fingerprint: str) -> Response:
    if claim.request_hash != fingerprint:
        raise UnableToReplay(
            "idempotency_key_reused",
            _("This idempotency key was used for another request."),
            help=_("Use a new key for every new request."),
        )
    return Response(claim.body, status=claim.status, headers={"Idempotency-Replayed": "true"})


def _fingerprint(request: "TokenRequest") -> str:
    text = json.dumps(
        [request.method, request.get_full_path(), request.data], sort_keys=True, default=str
    )
    return hashlib.sha256(text.encode()).hexdigest()
