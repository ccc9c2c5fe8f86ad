"""The organization at a glance: what runs, what waits, what it costs, what is free."""

from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.http import HttpResponse
from django.views.decorators.http import require_GET

from portal.billing import prices
from portal.instances import actions, catalogue, lifecycle
from portal.instances.models import Instance, State
from portal.money import Money
from portal.web import answers
from portal.web.access import MemberRequest, member_page
from portal.web.home import LAST_ORGANIZATION
from portal.web.instances import why
from portal.web.usage import month_so_far
from scheduler import quotas, words

_PART = "dashboard-body"
_ENDED = {State.STOPPED, State.TERMINATED}


@member_page()
@require_GET
def show(request: MemberRequest) -> HttpResponse:
    """Show the dashboard: as much of it as the role may see."""
    request.session[LAST_ORGANIZATION] = request.actor.organization.slug
    now = datetime.now(UTC)
    actor = request.actor
    context: dict[str, Any] = {"organization": actor.organization}
    if actor.may_somewhere("instances.view"):
        context |= _instances(request, now)
    if actor.may_somewhere("usage.view"):
        # Who sees no machines sees where the money goes instead.
        by_team = not actor.may_somewhere("instances.view")
        context["month"] = month_so_far(actor, now, ["team"] if by_team else [])
        context["by_team"] = context["month"].rows if by_team else []
    if actor.may_somewhere("quotas.view"):
        context["lines"] = [line for line in quotas.visible(actor=actor) if line.level != "member"]
    context["may_launch"] = actor.may_somewhere("instances.launch")
    return answers.page(
        request,
        "dashboard/index.html",
        context,
        parts={_PART: f"dashboard/index.html#{_PART}"},
    )


def _instances(request: MemberRequest, now: datetime) -> dict[str, Any]:
    rows = list(actions.visible(actor=request.actor).exclude(state__in=_ENDED))
    currency = request.actor.organization.currency
    per_hour = {
        price.sku: price.per_hour
        for price in prices.list_prices(at=now)
        if price.currency == currency
    }
    billed = [row for row in rows if lifecycle.STATES[State(row.state)].billed]
    burn = sum((per_hour.get(row.flavor.code, Decimal(0)) for row in billed), Decimal(0))
    return {
        "sees_instances": True,
        "counts": Counter(row.state for row in rows),
        "running": [row for row in rows if row.state == State.RUNNING],
        "waiting": [_waiting(row) for row in rows if row.state == State.QUEUED],
        "troubled": [
            {"instance": row, "why": why(row)}
            for row in rows
            if row.state in {State.FAILED, State.LOST}
        ],
        "moving": [
            row for row in rows if row.state in {State.PLACING, State.STARTING, State.STOPPING}
        ],
        "burn": Money(burn, currency),
        "milli_gpus": sum(row.flavor.milli_gpus for row in rows if row.state == State.RUNNING),
        "offers": [
            offer
            for offer in catalogue.flavors(currency=currency, now=now)
            if offer.per_hour is not None and offer.total
        ],
    }


def _waiting(instance: Instance) -> dict[str, Any]:
    request = instance.request
    return {
        "instance": instance,
        "why": why(instance),
        "position": request.position if request else None,
        "estimate": words.estimate(request.estimate) if request else "",
    }
