"""The paths of nodes that are plain HTTP; the sockets are routed in portal.asgi."""

from django.urls import path

from agents import wire
from portal.live import join

urlpatterns = [path(wire.JOIN_PATH.lstrip("/"), join.join, name="agent-join")]
