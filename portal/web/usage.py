"""Usage: what was used in a period and what it cost, on a page and as files with the same total."""

from collections.abc import AsyncIterator, Collection, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from portal.billing import bills, export, usage
from portal.billing import table as files
from portal.billing.usage import Report
from portal.instances.models import Flavor
from portal.tenants.roles import Actor
from portal.web import answers, usage_links, usage_table
from portal.web.access import MemberRequest, member_page
from portal.web.usage_form import Span, UsageForm, this_month

_PART = "usage-report"
_LINES = 500  # sent at a time


def month_so_far(actor: Actor, now: datetime, group_by: Collection[usage.Grouping] = ()) -> Report:
    """Return what the actor sees of this month of the billing zone; in one row, if not grouped."""
    month = this_month(organization=actor.organization, now=now)
    return usage.report(actor=actor, start=month.start, end=month.end, now=now, group_by=group_by)


@member_page("usage.view")
@require_GET
def show(request: MemberRequest) -> HttpResponse:
    """Show the total of a period, and what it is made of."""
    now = datetime.now(UTC)
    form = UsageForm(request.GET, actor=request.actor)
    context: dict[str, Any] = {"form": form, "organization": request.actor.organization}
    if not form.is_valid():
        return answers.page(request, "usage/index.html", context, status=400)
    span = form.span(now=now)
    report = usage.report(
        actor=request.actor,
        start=span.start,
        end=span.end,
        now=now,
        group_by=form.group_by,
        filters=form.filters,
    )
    context |= _figures(form, span, report, now)
    return answers.page(
        request, "usage/index.html", context, parts={_PART: f"usage/index.html#{_PART}"}
    )


def _figures(form: UsageForm, span: Span, report: Report, now: datetime) -> dict[str, Any]:
    organization = form.actor.organization
    names = dict(Flavor.objects.values_list("code", "name"))
    address = reverse("usage-csv", args=[organization.slug])
    whole = form.query.copy()
    whole.pop("by", None)
    return {
        "span": span,
        "is_over": span.end <= now,
        "report": report,
        "table": usage_table.table(
            report,
            organization=organization,
            group_by=form.group_by,
            names=names,
            query=form.query,
        ),
        "chart": usage_table.chart(report, organization=organization),
        "instance_name": _instance_name(form, report),
        "without_instance": usage_links.without(form, "instance"),
        "is_open": form.is_narrowed,
        **usage_links.of(form, span),
        "table_url": f"{address}?{form.query.urlencode()}",
        "intervals_url": f"{address}?{whole.urlencode()}",
    }


def _instance_name(form: UsageForm, report: Report) -> str:
    instance_id = form.filters.instance_id
    if instance_id is None:
        return ""
    names = [row.instance.name for row in report.rows if row.instance]
    return names[0] if names else str(instance_id)


@member_page("usage.view")
@require_GET
def bill(request: MemberRequest, instance_id: UUID) -> HttpResponse:
    """Show what one instance cost, interval by interval."""
    found = bills.of_instance(actor=request.actor, instance_id=instance_id, now=datetime.now(UTC))
    name = Flavor.objects.filter(code=found.flavor).values_list("name", flat=True).first()
    context = {"bill": found, "cost": found.cost, "flavor": name or found.flavor}
    return answers.page(
        request, "usage/bill.html", context, parts={"usage-bill": "usage/bill.html#usage-bill"}
    )


@member_page("usage.view")
@require_GET
def download(request: MemberRequest) -> HttpResponseBase:
    """Send what the page shows as CSV: grouped as asked by `by`, else every metered interval."""
    actor, now = request.actor, datetime.now(UTC)
    form = UsageForm(request.GET, actor=actor)
    if not form.is_valid():
        return answers.page(
            request,
            "usage/index.html",
            {"form": form, "organization": actor.organization},
            status=400,
        )
    span = form.span(now=now)
    if "by" in request.GET:
        report = usage.report(
            actor=actor, start=span.start, end=span.end, now=now,
            group_by=form.group_by, filters=form.filters,
        )  # fmt: skip
        lines = files.csv_rows(
            organization=actor.organization, report=report, group_by=form.group_by
        )
    else:
        lines = export.csv_rows(actor=actor, start=span.start, end=span.end, filters=form.filters)
    response = StreamingHttpResponse(_sent(lines), content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = (
        f'attachment; filename="corral-usage-{actor.organization.slug}'
        f'-{span.first.isoformat()}-to-{span.last.isoformat()}.csv"'
    )
    return response


async def _sent(lines: Iterator[str]) -> AsyncIterator[bytes]:
    """Hand lines on a few hundred at a time, and end their transaction however this ends."""
    take = sync_to_async(lambda: "".join(islice(lines, _LINES)))
    try:
        yield b"\xef\xbb\xbf"  # so that spreadsheets read the names of people as they are written
        while text := await take():
            yield text.encode()
    finally:
        if close := getattr(lines, "close", None):
            await sync_to_async(close)()
