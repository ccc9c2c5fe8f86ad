"""Bring the ledger up to the meters, one usage line at a time.

A line is one organization, month of its billing zone, and price version (so one SKU). Its amount is
rate × all its milliseconds, rounded once; what is posted is the difference between that and what
the ledger already holds. So it never drifts, however often this runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import connection, transaction
from django.db.models import F, QuerySet

from portal.billing import ledger, periods, rating
from portal.billing.models import AccountKind, Meter, Price, SegmentState, UsagePosting
from portal.billing.periods import Period
from portal.money import round_amount
from portal.tenants.models import Organization
from portal.tenants.scope import every_tenant, scope

# First key of the advisory locks by organization: one worker at a time posts its usage.
_LOCK = 0x434F5251


@dataclass(frozen=True, slots=True)
class LineTotal:
    """What the meters say about one usage line, now."""

    month: Period
    price: Price
    milliseconds: int

    def amount(self, currency: str) -> Decimal:
        """Return its amount, rounded once."""
        return round_amount(rating.cost(self.price.per_hour, self.milliseconds), currency)


def pending() -> list[Organization]:
    """List the organizations whose ledger may lag behind their meters."""
    with every_tenant("accrual goes through all organizations"):
        lagging = Meter.objects.filter(is_settled=False).values("organization_id").distinct()
        return list(Organization.objects.filter(id__in=lagging).order_by("id"))


@transaction.atomic
def post(*, organization: Organization, now: datetime) -> int:
    """Post what the organization's usage lines lack; return how many lines moved.

    Looks at the months that unsettled meters touch. Whoever comes second waits, and then finds
    nothing to do.
    """
    _take_turn(organization.id)
    zone = ZoneInfo(organization.billing_zone)
    with scope(organization=organization):
        # Read before the totals: what is proved in between is counted, and looked at again.
        unsettled = list(Meter.objects.filter(is_settled=False))
        moved = sum(
            _post_line(organization, total, now)
            for total in totals(organization, _touched(unsettled, zone))
        )
        _note_place(unsettled, zone)
    return moved


@contextmanager
def turn(organization_id: UUID) -> Iterator[None]:
    """Be the only one who posts an organization's usage, from before a transaction to after it.

    `post` takes its turn by itself, inside its transaction. That is too late for a snapshot, which
    would be older than what it waited for.
    """
    key = (_LOCK, str(organization_id))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", key)
        try:
            yield
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", key)


def totals(organization: Organization, months: list[Period]) -> Iterator[LineTotal]:
    """Add up the billed milliseconds of each line of these months, oldest first."""
    with connection.cursor() as cursor:
        cursor.execute(
            _TOTALS,
            [
                [month.first for month in months],
                [periods.from_ms(month.start) for month in months],
                [periods.from_ms(month.end) for month in months],
                organization.id,
                SegmentState.BILLED,
            ],
        )
        found: list[tuple[date, UUID, int]] = cursor.fetchall()
    by_first = {month.first: month for month in months}
    prices = Price.objects.in_bulk({price_id for _first, price_id, _ms in found})
    for first, price_id, milliseconds in found:
        yield LineTotal(by_first[first], prices[price_id], int(milliseconds))


# Milliseconds are whole (a CHECK keeps them so), hence the cast loses nothing; interval
# arithmetic on timestamptz counts elapsed time, whatever clocks on walls do.
_TOTALS = """
SELECT month.first, s.price_id,
       sum(extract(epoch FROM least(upper(s.during), month.ends)
                            - greatest(lower(s.during), month.begins)) * 1000)::bigint
FROM unnest(%s::date[], %s::timestamptz[], %s::timestamptz[]) AS month(first, begins, ends)
JOIN billing_segment s ON s.during && tstzrange(month.begins, month.ends)
WHERE s.organization_id = %s AND s.state = %s
GROUP BY month.first, s.price_id
ORDER BY month.first, s.price_id
"""


def _take_turn(organization_id: UUID) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_LOCK, str(organization_id)]
        )


def _touched(unsettled: list[Meter], zone: ZoneInfo) -> list[Period]:
    """List the months that these meters may have added to since they were last posted."""
    touched: set[Period] = set()
    for meter in unsettled:
        start, end = periods.to_ms(meter.posted_until), periods.to_ms(meter.proved_until)
        touched.update(periods.months(start=start, end=end, zone=zone))
    return sorted(touched)


def _post_line(organization: Organization, total: LineTotal, now: datetime) -> int:
    line, _created = UsagePosting.objects.get_or_create(
        organization=organization, period=total.month.first, price=total.price
    )
    currency = total.price.currency
    amount = total.amount(currency)
    if total.milliseconds == line.milliseconds and amount == line.amount:
        return 0
    difference = amount - line.amount
    line.milliseconds, line.amount = total.milliseconds, amount
    line.postings += 1 if difference else 0
    # First of all, so that a snapshot too old to post from is noticed here.
    line.save(update_fields=["milliseconds", "amount", "postings"])
    if difference:
        ledger.post(
            organization=organization,
            idempotency_key=f"usage:{line.id}:{line.postings}",
            kind="usage",
            lines=[(AccountKind.RECEIVABLE, difference), (AccountKind.REVENUE, -difference)],
            currency=currency,
            memo=f"{total.price.sku} {line.period:%Y-%m}",
            effective_at=_within(total.month, now),
            now=now,
            usage_line=line,
        )
    return 1 if difference else 0


def _within(month: Period, now: datetime) -> datetime:
    """Return `now`, or the nearest instant that still lies in the month of the usage."""
    return periods.from_ms(min(max(periods.to_ms(now), month.start), month.end - 1))


def _note_place(read: list[Meter], zone: ZoneInfo) -> None:
    """Move meters on: to a new month once it has begun, to settled once closed and posted.

    What was closed when read is final, so its time is in the totals that were read after it.
    A meter that somebody holds is left for the next time, so nobody ever waits in a circle.
    """
    settled = [meter.id for meter in read if meter.closed_at is not None]
    _held(settled).update(is_settled=True, posted_until=F("proved_until"))
    for meter in read:
        if meter.closed_at is None:
            month = periods.month_of(at=meter.proved_until, zone=zone)
            if periods.to_ms(meter.posted_until) < month.start:
                _held([meter.id]).update(posted_until=meter.proved_until)


def _held(ids: list[UUID]) -> QuerySet[Meter]:
    free = Meter.objects.select_for_update(skip_locked=True).filter(id__in=ids)
    return Meter.objects.filter(id__in=list(free.values_list("id", flat=True)))
