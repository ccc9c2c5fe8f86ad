"""Which door serves which path."""

from django.urls import include, path

urlpatterns = [
    path("", include("portal.live.urls")),
    path("api/v1/", include("portal.api.urls")),
    path("", include("portal.web.urls")),
]

handler500 = "portal.web.unavailable.server_error"
