"""One process of the portal for everything that comes over the network.

Pages and the API go to Django. Sockets are routed here: nodes to a plain ASGI application, browsers
behind the checks of origin and session.
"""

# ruff: noqa: E402  (Django must be set up before its models are imported)

import asyncio
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.exceptions import ImproperlyConfigured

_django = get_asgi_application()

if settings.SECRET_KEY.startswith("not-secret"):
    raise ImproperlyConfigured("Set SECRET_KEY: sessions and links are signed with it.")

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter
from channels.security.websocket import AllowedHostsOriginValidator

import portal.celery  # noqa: F401  (makes our Celery app the one that tasks are sent to)
from agents import wire
from portal.live import browser, hub, nodes
from portal.live.mailbox import Message, Receive, Send

_SOCKETS: dict[str, Any] = {
    wire.SOCKET_PATH: nodes.application,
    "/live/ws": AllowedHostsOriginValidator(AuthMiddlewareStack(browser.application)),
}


async def _socket(scope: Message, receive: Receive, send: Send) -> None:
    serve = _SOCKETS.get(scope["path"])
    if serve is not None:
        await serve(scope, receive, send)
        return
    await receive()
    await send({"type": "websocket.close", "code": 1000})


async def _lifespan(scope: Message, receive: Receive, send: Send) -> None:
    """Write what still waits when the server ends."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    async with asyncio.timeout(10):
        await nodes.shut_down()
        await browser.shut_down()
        await hub.close()
    await send({"type": "lifespan.shutdown.complete"})


application = ProtocolTypeRouter({"http": _django, "websocket": _socket, "lifespan": _lifespan})
