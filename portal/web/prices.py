"""What everything costs, in the organization's currency, and by which rules it is billed."""

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from django.views.decorators.http import require_GET

from portal.billing import prices
from portal.billing.models import Price
from portal.instances import lifecycle
from portal.instances.models import Flavor, State
from portal.money import Money
from portal.web import answers
from portal.web.access import MemberRequest, member_page

_HOURS_A_DAY, _DAYS = 24, 30


@member_page()
@require_GET
def show(request: MemberRequest) -> HttpResponse:
    """Show what each size costs now and from when on it changes, and when a state is billed."""
    now = datetime.now(UTC)
    currency = request.actor.organization.currency
    flavors = Flavor.objects.filter(is_offered=True)
    versions = prices.announced(currency=currency, at=now)
    return answers.page(
        request,
        "prices.html",
        {
            "rows": [row for flavor in flavors for row in _rows(flavor, versions, now)],
            "states": [{"state": state, "rule": lifecycle.STATES[state]} for state in State],
            "currency": currency,
            "silent_seconds": int(settings.NODE_STALE_SECONDS),
            "lost_seconds": int(settings.NODE_OFFLINE_SECONDS),
            "may_launch": request.actor.may_somewhere("instances.launch"),
        },
    )


def _rows(flavor: Flavor, versions: Iterable[Price], now: datetime) -> list[dict[str, Any]]:
    """Return the price that holds now, and those that will follow it; one row if there is none."""
    own = [version for version in versions if version.sku == flavor.code]
    rows = [
        {
            "flavor": flavor,
            "is_now": version.during.lower <= now,
            "from_at": version.during.lower,
            "to_at": version.during.upper,
            "per_hour": _money(version, 1),
            "per_day": _money(version, _HOURS_A_DAY).rounded(),
            "per_month": _money(version, _HOURS_A_DAY * _DAYS).rounded(),
        }
        for version in own
    ]
    return rows or [{"flavor": flavor, "is_now": True}]


def _money(version: Price, hours: int) -> Money:
    return Money(version.per_hour * Decimal(hours), version.currency)
