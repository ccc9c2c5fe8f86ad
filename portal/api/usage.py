"""`usage`: what ran for how long and what it cost, as far as one may see it."""

from collections.abc import AsyncIterator, Generator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, cast, get_args
from urllib.parse import urlencode
from uuid import UUID
from zoneinfo import ZoneInfo

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.endpoint import Endpoint
from portal.api.fields import MoneyField, moment
from portal.api.schema import operation
from portal.billing import export, usage
from portal.billing.selection import Filters
from portal.tenants import teams

_LINES = 500  # handed on at a time
# Nothing was metered outside, and calendars end: months and days are not counted without bounds.
_EARLIEST, _LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
_GROUPINGS = get_args(usage.Grouping)
QUERY = [
    OpenApiParameter("start", OpenApiTypes.DATETIME, description="The month's, if left out."),
    OpenApiParameter("end", OpenApiTypes.DATETIME, description="Now, if left out."),
    OpenApiParameter("team", OpenApiTypes.STR, description="A team's id or slug."),
    OpenApiParameter("member", OpenApiTypes.UUID),
    OpenApiParameter("flavor", OpenApiTypes.STR, description="A flavor's code."),
    OpenApiParameter("instance", OpenApiTypes.UUID),
]


class NamedOut(serializers.Serializer[Any]):
    """A thing that a row is about."""

    id = serializers.UUIDField()
    name = serializers.CharField()


class UsageRowOut(serializers.Serializer[Any]):
    """One row; only what was grouped by is filled in."""

    team = NamedOut(allow_null=True)
    member = NamedOut(allow_null=True)
    flavor = serializers.CharField(allow_null=True)
    day = serializers.DateField(allow_null=True, help_text="Of the organization's billing zone.")
    instance = NamedOut(allow_null=True)
    milliseconds = serializers.IntegerField()
    unverified_ms = serializers.IntegerField()
    dropped_ms = serializers.IntegerField()
    cost = MoneyField(help_text="Exact.")


class UsageOut(serializers.Serializer[Any]):
    """Usage in [start, end)."""

    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    results = UsageRowOut(source="rows", many=True)
    next = serializers.URLField(allow_null=True, default=None, help_text="Always null.")
    total = MoneyField(help_text="Rounded line by line, as on the invoice.")
    rounding = MoneyField(help_text="The total minus the rows' exact cost.")
    milliseconds = serializers.IntegerField()
    unverified_ms = serializers.IntegerField(
        help_text="Of silent nodes: not billed unless it is proved."
    )
    dropped_ms = serializers.IntegerField(help_text="Never proved, never billed.")
    csv = serializers.URLField(
        read_only=True, required=False, help_text="Every metered stretch of it, as a file."
    )


class Usage(Endpoint):
    """`/usage`."""

    needs = {"GET": "usage.view"}

    @operation(
        "report_usage",
        "Add up usage and its cost.",
        gives=UsageOut,
        query=[
            *QUERY,
            OpenApiParameter("group_by", OpenApiTypes.STR, many=True, enum=_GROUPINGS),
        ],
    )
    def get(self, request: Request) -> Response:
        """Answer the report."""
        start, end = span(self)
        group_by = [
            part
            for text in request.query_params.getlist("group_by")
            for part in text.split(",")
            if part
        ]
        if unknown := set(group_by) - set(_GROUPINGS):
            raise ValidationError(
                {"group_by": [_("Can't group by: %s.") % ", ".join(sorted(unknown))]}
            )
        report = usage.report(
            actor=self.actor,
            start=start,
            end=end,
            now=self.now,
            group_by=cast(list[usage.Grouping], group_by),
            filters=filters(self),
        )
        query = {**request.query_params, "start": start.isoformat(), "end": end.isoformat()}
        query.pop("group_by", None)
        address = f"{request.path.rstrip('/')}.csv?{urlencode(query, doseq=True)}"
        csv = request.build_absolute_uri(address)
        return Response({**UsageOut(report).data, "csv": csv})


class UsageCsv(Endpoint):
    """`/usage.csv`."""

    needs = {"GET": "usage.view"}

    @operation(
        "export_usage",
        "Export every metered stretch of the same usage; its costs add up to the same total.",
        gives={(200, "text/csv"): OpenApiTypes.STR},
        query=QUERY,
    )
    def get(self, request: Request) -> HttpResponseBase:
        """Stream the file."""
        start, end = span(self)
        lines = export.csv_rows(actor=self.actor, start=start, end=end, filters=filters(self))
        return StreamingHttpResponse(
            _sent(lines),
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": 'attachment; filename="corral-usage.csv"'},
        )


async def _sent(lines: Generator[str, None, object]) -> AsyncIterator[bytes]:
    """Hand on some hundred lines at a time, and end their transaction however this ends."""
    take = sync_to_async(lambda: "".join(islice(lines, _LINES)))
    try:
        while text := await take():
            yield text.encode()
    finally:
        await sync_to_async(lines.close)()


def span(endpoint: Endpoint) -> tuple[datetime, datetime]:
    """Return the asked time, from the beginning of the billing month to now if left out."""
    local = endpoint.now.astimezone(ZoneInfo(endpoint.actor.organization.billing_zone))
    month = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    start = moment(endpoint.request, "start") or month
    end = moment(endpoint.request, "end") or endpoint.now
    for name, at in (("start", start), ("end", end)):
        if not _EARLIEST <= at <= _LATEST:
            raise ValidationError({name: [_("Choose a day of this century.")]})
    if end <= start:
        raise ValidationError({"end": [_("Must be later than start.")]})
    return start, end


def filters(endpoint: Endpoint) -> Filters:
    """Return what the query narrows usage to. A foreign team is a 404."""
    query = endpoint.request.query_params
    team = query.get("team")
    return Filters(
        team_id=teams.find_team(actor=endpoint.actor, key=team).id if team else None,
        member_id=_id(endpoint, "member"),
        flavor=query.get("flavor") or None,
        instance_id=_id(endpoint, "instance"),
    )


def _id(endpoint: Endpoint, name: str) -> UUID | None:
    text = endpoint.request.query_params.get(name)
    try:
        return UUID(text) if text else None
    except ValueError as error:
        raise ValidationError({name: [_("Not an id.")]}) from error
