"""What single instances cost so far."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from uuid import UUID

from django_scopes import get_scope

from portal.billing import periods, rating
from portal.billing.models import Meter, Segment, SegmentState
from portal.billing.unverified import silent_since
from portal.money import Money, to_decimal


@dataclass(frozen=True, slots=True)
class Stretch:
    """One segment of an instance's time: [start, end) at one price, billed or visibly dropped."""

    run: int
    start: datetime
    end: datetime
    milliseconds: int
    per_hour: Money
    is_billed: bool
    cost: Money  # exact, 12 decimals; zero if dropped
    opened_by: str
    closed_by: str  # empty while it grows


@dataclass(frozen=True, slots=True)
class InstanceCost:
    """What an instance cost from its first run to its last proof; `money` is exact."""

    money: Money
    milliseconds: int
    unverified_ms: int  # its node is silent for so long: not billed unless it is proved
    dropped_ms: int  # never proved, never billed
    segments: tuple[Stretch, ...]  # oldest first


def of(*, subjects: Collection[UUID], now: datetime) -> dict[UUID, InstanceCost]:
    """Return the cost of each of these instances of the organization in scope, in three queries.

    The caller has made sure that the reader may see them. What never ran costs nothing.
    """
    stretches: dict[UUID, list[Stretch]] = defaultdict(list)
    exact: dict[UUID, Fraction] = defaultdict(Fraction)
    segments = Segment.objects.filter(meter__subject__in=subjects)
    for segment in segments.select_related("meter", "price").order_by("during"):
        stretch, cost = _stretch(segment)
        stretches[segment.meter.subject].append(stretch)
        exact[segment.meter.subject] += cost
    silent: dict[UUID, int] = defaultdict(int)
    for meter in Meter.objects.filter(subject__in=subjects, closed_at=None):
        since = silent_since(meter.proved_until, now)
        if since is not None:
            silent[meter.subject] += periods.to_ms(now) - periods.to_ms(since)
    currency = get_scope()["organization"].currency
    return {
        subject: InstanceCost(
            money=Money(to_decimal(exact[subject]), currency),
            milliseconds=sum(s.milliseconds for s in stretches[subject] if s.is_billed),
            unverified_ms=silent[subject],
            dropped_ms=sum(s.milliseconds for s in stretches[subject] if not s.is_billed),
            segments=tuple(stretches[subject]),
        )
        for subject in subjects
    }


def _stretch(segment: Segment) -> tuple[Stretch, Fraction]:
    start, end = segment.during.lower, segment.during.upper
    milliseconds = periods.to_ms(end) - periods.to_ms(start)
    is_billed = segment.state == SegmentState.BILLED
    price = segment.price
    cost = rating.cost(price.per_hour, milliseconds) if is_billed else Fraction(0)
    return (
        Stretch(
            run=segment.meter.run,
            start=start,
            end=end,
            milliseconds=milliseconds,
            per_hour=Money(price.per_hour, price.currency),
            is_billed=is_billed,
            cost=Money(to_decimal(cost), price.currency),
            opened_by=segment.opened_by,
            closed_by=segment.closed_by,
        ),
        cost,
    )
