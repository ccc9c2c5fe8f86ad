"""Liveness and readiness, for proxies and orchestrators."""

import logging
from collections.abc import Callable

import redis
from django.conf import settings
from django.db import connection
from django.http import HttpRequest, JsonResponse

log = logging.getLogger(__name__)


def live(request: HttpRequest) -> JsonResponse:
    """Answer 200 as long as the process can answer at all."""
    return JsonResponse({"status": "ok"})


def ready(request: HttpRequest) -> JsonResponse:
    """Answer 200 if the stores answer, and 503 with what is missing if not."""
    checks: dict[str, Callable[[], object]] = {"database": _database, "valkey": _valkey}
    found = {name: _answers(name, check) for name, check in checks.items()}
    return JsonResponse(
        {"status": "ok" if all(found.values()) else "not ready", "checks": found},
        status=200 if all(found.values()) else 503,
    )


def _answers(name: str, check: Callable[[], object]) -> bool:
    try:
        check()
    except Exception:
        log.warning("not ready: %s does not answer", name, exc_info=True)
        return False
    return True


def _database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _valkey() -> None:
    client = redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=1.0, socket_connect_timeout=1.0
    )
    try:
        client.ping()
    finally:
        client.close()
