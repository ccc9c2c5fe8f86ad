"""Secrets that a page shows once: kept for a few minutes between the act and the page after it.

They wait in the cache, never in the database, under a key that only this session can name.
"""

from typing import Final

from django.core.cache import cache
from django.http import HttpRequest

_LASTS_SECONDS: Final = 300


def keep(request: HttpRequest, name: str, secret: str) -> None:
    """Keep a secret for the next page of this session that asks for `name`."""
    cache.set(_key(request, name), secret, _LASTS_SECONDS)


def take(request: HttpRequest, name: str) -> str:
    """Return the secret and forget it; empty if there is none."""
    key = _key(request, name)
    secret = cache.get(key, "")
    if secret:
        cache.delete(key)
    return str(secret)


def _key(request: HttpRequest, name: str) -> str:
    return f"once:{request.session.session_key}:{name}"
