"""`organizations`: the one that the token belongs to."""

from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.endpoint import Endpoint, listed
from portal.api.schema import operation, paged
from portal.errors import NotFound
from portal.tenants import members


class OrganizationOut(serializers.Serializer[Any]):
    """A tenant."""

    id = serializers.UUIDField()
    slug = serializers.CharField()
    name = serializers.CharField()
    currency = serializers.CharField(help_text="ISO 4217; all its bills are in it.")
    billing_zone = serializers.CharField(help_text="IANA time zone in which its months begin.")
    created_at = serializers.DateTimeField()


class OrganizationIn(serializers.Serializer[Any]):
    """What can be changed."""

    name = serializers.CharField(max_length=80)


class Organizations(Endpoint):
    """`/organizations`."""

    needs = {"GET": "a token"}

    @operation("list_organizations", "List the token's organization.", gives=paged(OrganizationOut))
    def get(self, request: Request) -> Response:
        """Answer the one organization."""
        return listed([OrganizationOut(self.actor.organization).data])


class Organization(Endpoint):
    """`/organizations/{id}`."""

    needs = {"GET": "a token", "PATCH": "organization.manage"}

    @operation("get_organization", "Show the token's organization.", gives=OrganizationOut)
    def get(self, request: Request, organization_id: UUID) -> Response:
        """Answer it."""
        self._check(organization_id)
        return Response(OrganizationOut(self.actor.organization).data)

    @operation(
        "rename_organization",
        "Rename the organization; its slug stays.",
        takes=OrganizationIn,
        gives=OrganizationOut,
    )
    def patch(self, request: Request, organization_id: UUID) -> Response:
        """Rename it."""
        self._check(organization_id)
        asked = OrganizationIn(data=request.data)
        asked.is_valid(raise_exception=True)
        changed = members.rename_organization(
            actor=self.actor, name=asked.validated_data["name"], now=self.now
        )
        return Response(OrganizationOut(changed).data)

    def _check(self, organization_id: UUID) -> None:
        if organization_id != self.actor.organization.id:
            raise NotFound(
                "organization_not_found",
                _("There is no such organization, or this token is not for it."),
            )
