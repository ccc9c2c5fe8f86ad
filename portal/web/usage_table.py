"""A usage report as the page shows it: rows that add up to the big number, and their bars.

Each row is rounded for the eye; what that adds or takes away stands in a row of its own, so that
the column sums to the total that the invoice will have. Files hold the exact amounts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

from babel.dates import format_date
from django.http import QueryDict
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.billing import periods
from portal.billing.usage import Grouping, Report, Row
from portal.money import Money
from portal.tenants.models import Organization
from portal.web.templatetags.ui import locale, money

MOST_ROWS = 500
HEADERS: Mapping[Grouping, Promise] = {
    "day": gettext_lazy("Day"),
    "team": gettext_lazy("Team"),
    "member": gettext_lazy("Member"),
    "flavor": gettext_lazy("Size"),
    "instance": gettext_lazy("Instance"),
}
# Following a row shows what is inside it.
_INSIDE: Mapping[Grouping, Grouping] = {
    "team": "member",
    "member": "instance",
    "flavor": "instance",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """What a row is about, and where following it leads ("": nowhere)."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table; `cost` is rounded, `exact` is not, `percent` is of the dearest row."""

    cells: tuple[Cell, ...]
    milliseconds: int
    unverified_ms: int
    dropped_ms: int
    cost: Money
    exact: Money
    percent: float


@dataclass(frozen=True, slots=True)
class Table:
    """The rows shown, those beyond MOST_ROWS summed up, and the difference to the total."""

    headers: tuple[Promise, ...]
    lines: tuple[Line, ...]
    beyond: int
    beyond_cost: Money | None
    beyond_ms: int
    rounding: Money


@dataclass(frozen=True, slots=True)
class Bar:
    """One day of the chart: `x` counts days, `top` and `height` are percent of the dearest day."""

    x: int
    top: float
    height: float
    says: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Costs by day, every day of the period; `most` is the dearest day's."""

    bars: tuple[Bar, ...]
    first: date
    last: date
    most: Money


def table(
    report: Report,
    *,
    organization: Organization,
    group_by: Sequence[Grouping],
    names: Mapping[str, str],
    query: QueryDict,
) -> Table:
    """Lay a report out; `names` are those of the flavors by code, `query` is the page's own."""
    most = max((row.cost.amount for row in report.rows), default=Decimal(0))
    links = _Links(organization, query)
    lines = tuple(
        Line(
            cells=tuple(links.cell(row, grouping, names) for grouping in group_by),
            milliseconds=row.milliseconds,
            unverified_ms=row.unverified_ms,
            dropped_ms=row.dropped_ms,
            cost=row.cost.rounded(),
            exact=row.cost,
            percent=_percent(row.cost.amount, most),
        )
        for row in report.rows[:MOST_ROWS]
    )
    currency = organization.currency
    rest = report.rows[MOST_ROWS:]
    beyond = Money(sum((row.cost.amount for row in rest), Decimal(0)), currency).rounded()
    shown = sum((line.cost.amount for line in lines), beyond.amount)
    return Table(
        headers=tuple(HEADERS[grouping] for grouping in group_by),
        lines=lines,
        beyond=len(rest),
        beyond_cost=beyond if rest else None,
        beyond_ms=sum(row.milliseconds for row in rest),
        rounding=Money(report.total.amount - shown, currency),
    )


def chart(report: Report, *, organization: Organization) -> Chart | None:
    """Draw the rows of a report that was grouped by day, among others; None without any."""
    by_day: dict[date, Decimal] = {}
    for row in report.rows:
        if row.day is not None:
            by_day[row.day] = by_day.get(row.day, Decimal(0)) + row.cost.amount
    start, end = periods.to_ms(report.start), periods.to_ms(report.end)
    days = periods.days(start=start, end=end, zone=ZoneInfo(organization.billing_zone))
    if not by_day or not days:
        return None
    most = max(by_day.values())
    bars = []
    for x, day in enumerate(days):
        amount = by_day.get(day.first, Decimal(0))
        height = _percent(amount, most)
        says = f"{day_words(day.first)}: {money(Money(amount, organization.currency).rounded())}"
        bars.append(Bar(x, 100 - height, height, says))
    return Chart(
        tuple(bars), days[0].first, days[-1].first, Money(most, organization.currency).rounded()
    )


def day_words(day: date) -> str:
    """Write a day as the page's language does."""
    return str(format_date(day, "medium", locale=locale()))


def _percent(amount: Decimal, most: Decimal) -> float:
    return round(float(amount / most * 100), 2) if most else 0.0


class _Links:
    """Where the rows of one page lead."""

    def __init__(self, organization: Organization, query: QueryDict) -> None:
        self._slug = organization.slug
        self._query = query

    def cell(self, row: Row, grouping: Grouping, names: Mapping[str, str]) -> Cell:
        if grouping == "day":
            return self._day(row.day)
        if grouping == "flavor":
            code = row.flavor or ""
            return Cell(names.get(code, code), self._narrowed(grouping, code))
        thing = {"team": row.team, "member": row.member, "instance": row.instance}[grouping]
        if thing is None:
            return Cell(_("Nobody"), "")
        if grouping == "instance":
            return Cell(thing.name, self._bill(thing.id))
        return Cell(thing.name, self._narrowed(grouping, str(thing.id)))

    def _day(self, day: date | None) -> Cell:
        if day is None:
            return Cell("", "")
        iso = day.isoformat()
        query = self._query.copy()
        for name, value in (("period", "custom"), ("first", iso), ("last", iso)):
            query[name] = value
        query["by"] = "instance"
        return Cell(day_words(day), f"?{query.urlencode()}")

    def _narrowed(self, grouping: Grouping, value: str) -> str:
        query = self._query.copy()
        query[grouping] = value
        query["by"] = _INSIDE[grouping]
        return f"?{query.urlencode()}"

    def _bill(self, instance_id: UUID) -> str:
        return reverse("usage-bill", args=[self._slug, instance_id])
