"""`audit-events`: who did what to which thing."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.endpoint import Endpoint
from portal.api.pages import page
from portal.api.schema import operation
from portal.tenants import audit
from portal.tenants.models import AuditEvent as AuditEventRow


class AuditEventOut(serializers.Serializer[Any]):
    """One act. Rows are only ever added."""

    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    user = serializers.UUIDField(source="user_id", allow_null=True)
    email = serializers.EmailField(source="user.email", default=None, allow_null=True)
    token = serializers.UUIDField(source="token_id", allow_null=True, help_text="If by a program.")
    verb = serializers.CharField()
    target_kind = serializers.CharField()
    target_id = serializers.CharField()
    target_name = serializers.CharField()
    details = serializers.DictField()


class AuditEvents(Endpoint):
    """`/audit-events`."""

    needs = {"GET": "audit.view"}

    @operation(
        "list_audit_events",
        "List who did what, the newest first.",
        gives=AuditEventOut,
        pages=True,
        query=[
            OpenApiParameter("verb", OpenApiTypes.STR, description="As in “instance.launch”."),
            OpenApiParameter("target_id", OpenApiTypes.STR),
        ],
    )
    def get(self, request: Request) -> Response:
        """Answer one page."""
        return page(self, self._asked(request), AuditEventOut, ordering=["-at", "-id"])

    def _asked(self, request: Request) -> QuerySet[AuditEventRow]:
        rows = audit.events(actor=self.actor)
        for field in ("verb", "target_id"):
            if value := request.query_params.get(field):
                rows = rows.filter(**{field: value})
        return rows
