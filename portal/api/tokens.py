"""`tokens`: secrets for programs. A secret is in the answer to its making, and nowhere else."""

from typing import Any
from uuid import UUID

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.endpoint import Endpoint
from portal.api.pages import page
from portal.api.schema import operation
from portal.tenants import tokens
from portal.tenants.roles import SCOPES


class TokenOut(serializers.Serializer[Any]):
    """An API token, without its secret."""

    id = serializers.UUIDField()
    organization = serializers.UUIDField(source="organization_id")
    member = serializers.UUIDField(source="member_id")
    name = serializers.CharField()
    prefix = serializers.CharField(help_text="How its secret begins, after “corral_”.")
    scopes = serializers.ListField(child=serializers.CharField())
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)


class NewTokenOut(TokenOut):
    """A token just made."""

    secret = serializers.CharField(
        allow_null=True, help_text="Shown once: null when the request is repeated."
    )


class TokenIn(serializers.Serializer[Any]):
    """A token to be."""

    name = serializers.CharField(max_length=80)
    scopes = serializers.ListField(
        child=serializers.CharField(max_length=20), help_text=f"Of: {', '.join(SCOPES)}."
    )
    expires_at = serializers.DateTimeField(allow_null=True, default=None)


class Tokens(Endpoint):
    """`/tokens`."""

    needs = {"GET": "tokens.manage", "POST": "tokens.manage"}
    shown_once = ("secret",)

    @operation("list_tokens", "List one's own tokens; admins see all.", gives=TokenOut, pages=True)
    def get(self, request: Request) -> Response:
        """Answer them, revoked ones too."""
        return page(self, tokens.visible(actor=self.actor), TokenOut)

    @operation(
        "issue_token",
        "Make a token for oneself, with no more rights than this one has.",
        takes=TokenIn,
        gives=NewTokenOut,
        status=201,
    )
    def post(self, request: Request) -> Response:
        """Make one."""
        asked = TokenIn(data=request.data)
        asked.is_valid(raise_exception=True)
        token, secret = tokens.issue(actor=self.actor, now=self.now, **asked.validated_data)
        return Response({**TokenOut(token).data, "secret": secret}, status=201)


class Token(Endpoint):
    """`/tokens/{id}`."""

    needs = {"DELETE": "tokens.manage"}

    @operation("revoke_token", "End a token, and those made by means of it.", status=204)
    def delete(self, request: Request, token_id: UUID) -> Response:
        """End it at once."""
        tokens.revoke(actor=self.actor, token_id=token_id, now=self.now)
        return Response(status=204)
