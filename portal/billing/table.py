"""A usage report as a CSV file: the same rows, and the same total, as on the page."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Final

from portal.billing import periods
from portal.billing.export import text
from portal.billing.usage import Grouping, Report, Row
from portal.tenants.models import Organization

_COLUMNS: Final[dict[Grouping, tuple[str, ...]]] = {
    "day": ("day",),
    "team": ("team_id", "team"),
    "member": ("member_id", "member"),
    "flavor": ("sku",),
    "instance": ("instance_id", "instance"),
}


def csv_rows(
    *, organization: Organization, report: Report, group_by: Sequence[Grouping]
) -> Iterator[str]:
    """Yield the lines of a report that was grouped so; cost is exact, and sums to its total.

    The last line, kind ROUNDING, is what rounding each invoice line once adds or takes away.
    """
    currency = organization.currency
    named = [name for grouping in group_by for name in _COLUMNS[grouping]]
    yield _line(
        [
            "kind",
            "organization_id",
            "organization",
            "billing_zone",
            "from_utc",
            "to_utc",
            *named,
            "duration_ms",
            "unverified_ms",
            "not_billed_ms",
            f"cost_{currency}",
        ]
    )
    about = [
        organization.id,
        text(organization.name),
        organization.billing_zone,
        periods.iso(periods.to_ms(report.start)),
        periods.iso(periods.to_ms(report.end)),
    ]
    for row in report.rows:
        cells = [cell for grouping in group_by for cell in _cells(row, grouping)]
        times = [row.milliseconds, row.unverified_ms, row.dropped_ms]
        yield _line(["USAGE", *about, *cells, *times, format(row.cost.amount, "f")])
    if report.rounding.amount:
        blank = [""] * len(named)
        yield _line(["ROUNDING", *about, *blank, 0, 0, 0, format(report.rounding.amount, "f")])


def _cells(row: Row, grouping: Grouping) -> list[object]:
    if grouping == "day":
        return [row.day.isoformat() if row.day else ""]
    if grouping == "flavor":
        return [text(row.flavor or "")]
    thing = {"team": row.team, "member": row.member, "instance": row.instance}[grouping]
    return [thing.id, text(thing.name)] if thing else ["", ""]


def _line(cells: Sequence[object]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()
