"""Write metered time out for finance: every row of a selection, with a total that ties out.

Rows are streamed from one consistent snapshot, so memory stays flat however large the file is.
docs/billing.md describes the columns.
"""

import csv
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import connection

from portal.billing import periods, rating, selection
from portal.billing.models import SegmentState
from portal.billing.selection import Filters, Selection
from portal.billing.snapshot import one_snapshot
from portal.money import Money, round_amount, to_decimal
from portal.tenants.models import Organization
from portal.tenants.roles import Actor

_FETCH = 2_000  # rows held at a time


class Sink(Protocol):
    """Something that text can be written to: a file, or a command's output."""

    def write(self, text: str, /) -> object:
        """Take some text."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a finished export holds; the same figures as the usage page's."""

    rows: int  # of usage; rounding rows are not counted
    rounding_rows: int
    milliseconds: int  # billed
    total: Money  # the sum of the file's cost column


def csv_rows(
    *, actor: Actor, start: datetime, end: datetime, filters: Filters | None = None
) -> Generator[str, None, Summary]:
    """Yield the CSV text, line by line, of what the actor may see in [start, end) and asked for.

    The generator returns a Summary. It keeps a database transaction open until it is used up or
    closed. Raises UnableToAct, before anything is read.
    """
    chosen = selection.seen_by(actor=actor, filters=filters)
    return _csv(chosen, periods.to_ms(start), periods.to_ms(end))


def write_csv(*, organization: Organization, start: datetime, end: datetime, out: Sink) -> Summary:
    """Write everything an organization used in [start, end) to `out` as CSV."""
    rows = _csv(
        selection.whole(organization=organization), periods.to_ms(start), periods.to_ms(end)
    )
    while True:
        try:
            out.write(next(rows))
        except StopIteration as finished:
            summary: Summary = finished.value
            return summary


class _Line:
    """Writes one line at a time and hands it on."""

    def __init__(self) -> None:
        self.text = ""
        self._writer = csv.writer(self)

    def write(self, text: str) -> None:
        self.text = text

    def of(self, cells: Sequence[object]) -> str:
        self._writer.writerow(cells)
        return self.text


def _header(currency: str) -> list[str]:
    return [
        "kind", "organization_id", "organization", "month", "billing_zone", "start_utc", "end_utc",
        "team_id", "team", "member_id", "member", "instance_id", "instance", "run", "meter_id",
        "segment_id", "sku", "price_id", f"price_{currency}_per_hour", "duration_ms",
        f"cost_{currency}",
    ]  # fmt: skip


def _csv(chosen: Selection, start: int, end: int) -> Generator[str, None, Summary]:
    organization = chosen.organization
    line = _Line()
    lines: dict[_LineKey, _LineSum] = defaultdict(_LineSum)
    rows = 0
    with one_snapshot():
        yield line.of(_header(organization.currency))
        for found in _found(chosen, start, end):
            rows += 1
            yield line.of(_usage_cells(organization, found, lines))
    rounding = list(_rounding(lines))
    for key, amount in rounding:
        yield line.of(_rounding_cells(organization, key, amount))
    total = sum((held.rounded(key) for key, held in lines.items()), Decimal(0))
    return Summary(
        rows=rows,
        rounding_rows=len(rounding),
        milliseconds=sum(held.milliseconds for held in lines.values()),
        total=Money(total, organization.currency),
    )


@dataclass(frozen=True, slots=True)
class _LineKey:
    """One usage line: rounded once, as in the ledger."""

    month: date
    sku: str
    price_id: UUID
    per_hour: Decimal
    currency: str


@dataclass(slots=True)
class _LineSum:
    milliseconds: int = 0
    written: Decimal = Decimal(0)  # the sum of its rows' cost, as the file has them

    def rounded(self, key: _LineKey) -> Decimal:
        return round_amount(rating.cost(key.per_hour, self.milliseconds), key.currency)


@dataclass(frozen=True, slots=True)
class _Found:
    """A segment's part in one month, as read."""

    month: date
    start: datetime
    end: datetime
    state: str
    team_id: UUID
    team: str
    member_id: UUID
    member: str
    subject: UUID
    subject_name: str
    run: int
    meter_id: UUID
    segment_id: UUID
    sku: str
    price_id: UUID
    per_hour: Decimal
    currency: str


# Constants only; every value is a parameter. The same pieces that `usage.report` counts.
_ROWS = (
    """
SELECT month.first, greatest(lower(s.during), month.begins), least(upper(s.during), month.ends),
       s.state, team.id, team.name, member.id, person.email, m.subject, m.subject_name, m.run,
       m.id, s.id, m.sku, price.id, price.per_hour, price.currency
FROM unnest(%(firsts)s::date[], %(starts)s::timestamptz[], %(ends)s::timestamptz[])
     AS month(first, begins, ends)
JOIN billing_segment s
  ON s.organization_id = %(organization)s AND s.during && tstzrange(month.begins, month.ends)
JOIN billing_meter m ON m.id = s.meter_id
JOIN billing_price price ON price.id = s.price_id
JOIN tenants_team team ON team.id = m.team_id
JOIN tenants_member member ON member.id = m.member_id
JOIN tenants_user person ON person.id = member.user_id
WHERE """
    + selection.CLAUSE
    + "ORDER BY 1, 2, s.id"
)


def _found(chosen: Selection, start: int, end: int) -> Iterator[_Found]:
    zone = ZoneInfo(chosen.organization.billing_zone)
    months = periods.months(start=start, end=end, zone=zone)
    parameters: dict[str, Any] = {
        **chosen.parameters,
        "firsts": [month.first for month in months],
        "starts": [periods.from_ms(max(month.start, start)) for month in months],
        "ends": [periods.from_ms(min(month.end, end)) for month in months],
    }
    with connection.chunked_cursor() as cursor:  # on the server's side: rows come as they are used
        cursor.execute(_ROWS, parameters)
        while batch := cursor.fetchmany(_FETCH):
            for row in batch:
                yield _Found(*row)


def _usage_cells(
    organization: Organization, found: _Found, lines: dict[_LineKey, _LineSum]
) -> list[object]:
    start, end = periods.to_ms(found.start), periods.to_ms(found.end)
    exact = Fraction(0)
    key = _LineKey(found.month, found.sku, found.price_id, found.per_hour, found.currency)
    if found.state == SegmentState.BILLED:
        exact = rating.cost(found.per_hour, end - start)
        lines[key].milliseconds += end - start
    cost = to_decimal(exact)
    if found.state == SegmentState.BILLED:
        lines[key].written += cost
    return [
        found.state, *_tenant(organization, found.month), periods.iso(start), periods.iso(end),
        found.team_id, text(found.team), found.member_id, text(found.member), found.subject,
        text(found.subject_name), found.run, found.meter_id, found.segment_id, text(found.sku),
        found.price_id, format(found.per_hour, "f"), end - start, format(cost, "f"),
    ]  # fmt: skip


def _rounding(lines: dict[_LineKey, _LineSum]) -> Iterator[tuple[_LineKey, Decimal]]:
    for key, held in lines.items():
        difference = held.rounded(key) - held.written
        if difference:
            yield key, difference


def _rounding_cells(organization: Organization, key: _LineKey, amount: Decimal) -> list[object]:
    return [
        "ROUNDING", *_tenant(organization, key.month), *[""] * 11, text(key.sku), key.price_id,
        format(key.per_hour, "f"), 0, format(amount, "f"),
    ]  # fmt: skip


def _tenant(organization: Organization, month: date) -> list[object]:
    return [
        organization.id,
        text(organization.name),
        f"{month:%Y-%m}",
        organization.billing_zone,
    ]


# A spreadsheet takes a cell that begins like this for a formula, full-width forms included.
_FORMULA = "=+-@\t\r\n＝＋－＠"


def text(value: str) -> str:
    """Make a text cell that no spreadsheet runs as a formula: an apostrophe goes in front of it."""
    return f"'{value}" if value.lstrip(" ")[:1] in _FORMULA and value.strip(" ") else value
