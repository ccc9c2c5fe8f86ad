"""From a bearer token to an actor, once, before an endpoint runs."""

from datetime import UTC, datetime
from typing import cast

from django.utils.translation import gettext as _
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from portal.tenants import tokens
from portal.tenants.models import ApiToken, User
from portal.tenants.roles import Actor


class TokenRequest(Request):
    """A request by token."""

    actor: Actor


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer TOKEN`."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken | None] | None:
        """Return who acts, and note it on the request; None without the header."""
        header = get_authorization_header(request).split()
        if not header:
            return None
        if len(header) != 2 or header[0].lower() != b"bearer":
            raise AuthenticationFailed(_("Write the header as “Authorization: Bearer TOKEN”."))
        actor = tokens.authenticate(secret=header[1].decode("latin-1"), now=datetime.now(UTC))
        cast(TokenRequest, request).actor = actor
        return actor.user, actor.token

    def authenticate_header(self, request: Request) -> str:
        """Name the scheme, so that a missing token is a 401."""
        return 'Bearer realm="corral"'
