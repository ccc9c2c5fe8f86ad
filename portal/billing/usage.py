"""What was used and what it cost, for pages and the API. docs/billing.md states the rounding rule.

A report's rows are exact. Its total is an invoice's: each line (month, price version) is rounded
once, then added up. `rounding` is the total minus the rows, so that nothing is unexplained.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import connection

from portal.billing import costs, periods, rating, selection
from portal.billing.costs import InstanceCost
from portal.billing.models import Meter, Price, SegmentState
from portal.billing.periods import Period
from portal.billing.selection import Filters, Selection
from portal.billing.snapshot import one_snapshot
from portal.billing.unverified import silent_since
from portal.money import Money, round_amount, to_decimal
from portal.tenants.models import Member, Team
from portal.tenants.roles import Actor
from portal.tenants.scope import scope

Grouping = Literal["team", "member", "flavor", "day", "instance"]


@dataclass(frozen=True, slots=True)
class Named:
    """A thing that a row is about: its stable id, and what it is called."""

    id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a report; only what was grouped by is filled in. `cost` is exact (12 decimals)."""

    team: Named | None
    member: Named | None
    flavor: str | None
    day: date | None
    instance: Named | None
    milliseconds: int
    unverified_ms: int
    dropped_ms: int
    cost: Money


@dataclass(frozen=True, slots=True)
class Report:
    """Usage of one organization in [start, end), as far as the actor may see it."""

    start: datetime
    end: datetime
    rows: tuple[Row, ...]  # by day, then the dearest first
    total: Money  # rounded line by line, as on the invoice
    rounding: Money  # total minus the sum of the rows' cost
    milliseconds: int
    unverified_ms: int  # of open meters whose node is silent: not billed unless it is proved
    dropped_ms: int  # never proved, never billed
    count: int  # usage rows in the CSV export of the same selection


def report(
    *,
    actor: Actor,
    start: datetime,
    end: datetime,
    now: datetime,
    group_by: Collection[Grouping] = (),
    filters: Filters | None = None,
) -> Report:
    """Add up usage in [start, end) by team, member, flavor, day of the billing zone, or instance.

    Without grouping there is one row, if anything was used. Raises UnableToAct.
    """
    chosen = selection.seen_by(actor=actor, filters=filters)
    asked = _Asked(chosen, periods.to_ms(start), periods.to_ms(end), frozenset(group_by))
    with one_snapshot():
        return _report(asked, now)


def cost_of(*, subject: UUID, now: datetime) -> InstanceCost:
    """Return what one instance of the organization in scope cost so far, with its segments."""
    return costs.of(subjects=[subject], now=now)[subject]


def costs_of(*, subjects: Collection[UUID], now: datetime) -> dict[UUID, InstanceCost]:
    """Return what each of these instances cost so far, for lists; see `cost_of`."""
    return costs.of(subjects=subjects, now=now)


@dataclass(frozen=True, slots=True)
class _Asked:
    chosen: Selection
    start: int
    end: int
    group_by: frozenset[Grouping]

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.chosen.organization.billing_zone)

    @property
    def buckets(self) -> list[Period]:
        cut = periods.days if "day" in self.group_by else periods.months
        return cut(start=self.start, end=self.end, zone=self.zone)

    def parameters(self, buckets: list[Period]) -> dict[str, Any]:
        clipped = [(max(b.start, self.start), min(b.end, self.end)) for b in buckets]
        return {
            **self.chosen.parameters,
            **{f"by_{name}": name in self.group_by for name in ("team", "member", "flavor")},
            "by_instance": "instance" in self.group_by,
            "firsts": [bucket.first for bucket in buckets],
            "starts": [periods.from_ms(start) for start, _end in clipped],
            "ends": [periods.from_ms(end) for _start, end in clipped],
        }


def _report(asked: _Asked, now: datetime) -> Report:
    rows: dict[_Key, _Sum] = defaultdict(_Sum)
    lines: dict[tuple[date, UUID], int] = defaultdict(int)
    found = list(_pieces(asked))
    prices = Price.objects.in_bulk({piece.price_id for piece in found})
    for piece in found:
        rows[piece.key].add(piece, prices[piece.price_id])
        if piece.state == SegmentState.BILLED:
            lines[piece.month, piece.price_id] += piece.milliseconds
    for key, milliseconds in _unverified(asked, now):
        rows[key].unverified_ms += milliseconds
    currency = asked.chosen.organization.currency
    total = sum(
        (
            round_amount(rating.cost(prices[price_id].per_hour, ms), prices[price_id].currency)
            for (_month, price_id), ms in lines.items()
        ),
        Decimal(0),
    )
    named = _named(asked, rows, currency)
    return Report(
        start=periods.from_ms(asked.start),
        end=periods.from_ms(asked.end),
        rows=named,
        total=Money(total, currency),
        rounding=Money(total - sum((row.cost.amount for row in named), Decimal(0)), currency),
        milliseconds=sum(row.milliseconds for row in named),
        unverified_ms=sum(row.unverified_ms for row in named),
        dropped_ms=sum(row.dropped_ms for row in named),
        count=_count(asked),
    )


@dataclass(frozen=True, slots=True)
class _Key:
    day: date | None
    team: UUID | None
    member: UUID | None
    flavor: str | None
    instance: UUID | None


@dataclass(frozen=True, slots=True)
class _Piece:
    key: _Key
    month: date
    price_id: UUID
    state: str
    milliseconds: int


@dataclass(slots=True)
class _Sum:
    milliseconds: int = 0
    unverified_ms: int = 0
    dropped_ms: int = 0
    cost: Fraction = field(default_factory=Fraction)

    def add(self, piece: _Piece, price: Price) -> None:
        if piece.state == SegmentState.BILLED:
            self.milliseconds += piece.milliseconds
            self.cost += rating.cost(price.per_hour, piece.milliseconds)
        else:
            self.dropped_ms += piece.milliseconds


# Built from constants only; every value is a parameter.
_FROM = """
FROM unnest(%(firsts)s::date[], %(starts)s::timestamptz[], %(ends)s::timestamptz[])
     AS bucket(first, begins, ends)
JOIN billing_segment s
  ON s.organization_id = %(organization)s AND s.during && tstzrange(bucket.begins, bucket.ends)
JOIN billing_meter m ON m.id = s.meter_id
WHERE """
_PIECES = (
    """
SELECT bucket.first,
       CASE WHEN %(by_team)s THEN m.team_id END,
       CASE WHEN %(by_member)s THEN m.member_id END,
       CASE WHEN %(by_flavor)s THEN m.sku END,
       CASE WHEN %(by_instance)s THEN m.subject END,
       s.price_id, s.state,
       sum(extract(epoch FROM least(upper(s.during), bucket.ends)
                            - greatest(lower(s.during), bucket.begins)) * 1000)::bigint
"""
    + _FROM
    + selection.CLAUSE
    + "GROUP BY 1, 2, 3, 4, 5, 6, 7"
)
_COUNT = "SELECT count(*)" + _FROM + selection.CLAUSE


def _pieces(asked: _Asked) -> Iterator[_Piece]:
    with connection.cursor() as cursor:
        cursor.execute(_PIECES, asked.parameters(asked.buckets))
        for first, team, member, flavor, instance, price_id, state, ms in cursor.fetchall():
            day = first if "day" in asked.group_by else None
            key = _Key(day, team, member, flavor, instance)
            yield _Piece(key, first.replace(day=1), price_id, state, int(ms))


def _count(asked: _Asked) -> int:
    months = periods.months(start=asked.start, end=asked.end, zone=asked.zone)
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, asked.parameters(months))
        return int(cursor.fetchone()[0])


_OPEN = (
    """
SELECT m.team_id, m.member_id, m.sku, m.subject, m.proved_until
FROM billing_meter m WHERE m.closed_at IS NULL AND """
    + selection.CLAUSE
)


def _unverified(asked: _Asked, now: datetime) -> Iterator[tuple[_Key, int]]:
    """Yield the unproved milliseconds of open meters, per row of the report."""
    with connection.cursor() as cursor:
        cursor.execute(_OPEN, dict(asked.chosen.parameters))
        found = cursor.fetchall()
    by = asked.group_by
    for team, member, flavor, instance, proved_until in found:
        since = silent_since(proved_until, now)
        if since is None:
            continue
        start, end = max(periods.to_ms(since), asked.start), min(periods.to_ms(now), asked.end)
        for bucket in asked.buckets:
            overlap = min(end, bucket.end) - max(start, bucket.start)
            if overlap > 0:
                yield (
                    _Key(
                        bucket.first if "day" in by else None,
                        team if "team" in by else None,
                        member if "member" in by else None,
                        flavor if "flavor" in by else None,
                        instance if "instance" in by else None,
                    ),
                    overlap,
                )


def _named(asked: _Asked, rows: Mapping[_Key, _Sum], currency: str) -> tuple[Row, ...]:
    """Give every row the names of what it is about, and put the rows in order."""
    with scope(organization=asked.chosen.organization):
        teams = Team.objects.in_bulk({key.team for key in rows if key.team})
        members = Member.objects.select_related("user").in_bulk(
            {key.member for key in rows if key.member}
        )
        instances = dict(
            Meter.objects.filter(subject__in={key.instance for key in rows if key.instance})
            .order_by("opened_at")  # so that the latest name stands
            .values_list("subject", "subject_name")
        )
    made = [
        Row(
            team=Named(key.team, str(teams[key.team])) if key.team else None,
            member=Named(key.member, str(members[key.member])) if key.member else None,
            flavor=key.flavor,
            day=key.day,
            instance=Named(key.instance, instances[key.instance]) if key.instance else None,
            milliseconds=row.milliseconds,
            unverified_ms=row.unverified_ms,
            dropped_ms=row.dropped_ms,
            cost=Money(to_decimal(row.cost), currency),
        )
        for key, row in rows.items()
    ]
    return tuple(sorted(made, key=_order))


def _order(row: Row) -> tuple[object, ...]:
    names = [
        f"{thing.name} {thing.id}" if thing else ""
        for thing in (row.team, row.member, row.instance)
    ]
    return (row.day or date.min, -row.cost.amount, names, row.flavor or "")
