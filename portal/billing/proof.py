"""Prove that the books are right: every sentence that this yields is a fault.

Three proofs: the ledger balances, it holds what the meters measured, and the meters' segments tile
the time that was proved.
"""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import connection
from django.db.models import Max, Min, Sum

from portal.billing import periods, postings
from portal.billing.models import AccountKind, Entry, Segment, UsagePosting
from portal.billing.periods import Period
from portal.billing.snapshot import one_snapshot
from portal.tenants.models import Organization
from portal.tenants.scope import every_tenant, scope


def differences(*, now: datetime) -> Iterator[str]:
    """Yield a sentence for everything that does not add up, in all organizations.

    Each organization is first posted up to date and then compared, within one snapshot, so running
    instances make no false alarm. Raises DatabaseError if a meter moved into a new month at the
    same instant; ask again.
    """
    yield from _unbalanced()
    with every_tenant("the proof goes through all organizations"):
        organizations = list(Organization.objects.order_by("id"))
    for organization in organizations:
        with postings.turn(organization.id), one_snapshot(read_only=False):
            postings.post(organization=organization, now=now)
            found = [f"{organization.slug}: {words}" for words in _in(organization)]
        yield from found


def _in(organization: Organization) -> Iterator[str]:
    with scope(organization=organization):
        yield from _lines(organization)
    yield from _run(_UNTILED, organization.id)
    yield from _run(_MISPRICED, organization.id)


def _lines(organization: Organization) -> Iterator[str]:
    """Compare each usage line: metered, noted as posted, and in the ledger."""
    metered = {
        (total.month.first, total.price.id): total
        for total in postings.totals(organization, _all_months(organization))
    }
    noted = {
        (line.period, line.price_id): line
        for line in UsagePosting.objects.select_related("price").order_by("period", "price_id")
    }
    booked: dict[int, Decimal] = dict(
        Entry.objects.filter(
            account__kind=AccountKind.RECEIVABLE, transaction__usage_line__isnull=False
        )
        .values_list("transaction__usage_line")
        .annotate(total=Sum("amount"))
    )
    for key in sorted(metered.keys() - noted.keys()):
        total = metered[key]
        yield (
            f"{total.price.sku} {key[0]:%Y-%m}: {total.milliseconds} ms are metered and not posted"
        )
    for key, line in noted.items():
        measured = metered.get(key)
        milliseconds = measured.milliseconds if measured else 0
        amount = measured.amount(line.price.currency) if measured else Decimal(0)
        name = f"{line.price.sku} {line.period:%Y-%m}"
        if milliseconds != line.milliseconds:
            yield f"{name}: {milliseconds} ms are metered, {line.milliseconds} ms are posted"
        if amount != line.amount:
            yield f"{name}: it costs {amount:f}, posted are {line.amount:f}"
        if booked.get(line.id, Decimal(0)) != line.amount:
            yield (
                f"{name}: posted are {line.amount:f}, "
                f"the ledger holds {booked.get(line.id, Decimal(0)):f}"
            )


def _all_months(organization: Organization) -> list[Period]:
    reach = Segment.objects.aggregate(start=Min("during__startswith"), end=Max("during__endswith"))
    if reach["start"] is None:
        return []
    return periods.months(
        start=periods.to_ms(reach["start"]),
        end=periods.to_ms(reach["end"]),
        zone=ZoneInfo(organization.billing_zone),
    )


def _unbalanced() -> Iterator[str]:
    yield from _run(_TRIAL_BALANCE)
    yield from _run(_TRANSACTIONS)


def _run(query: str, *parameters: UUID) -> Iterator[str]:
    with connection.cursor() as cursor:
        cursor.execute(query, list(parameters))
        for (words,) in cursor.fetchall():
            yield words


_TRIAL_BALANCE = """
SELECT format('trial balance: the entries in %%s sum to %%s, not to zero', currency, sum(amount))
FROM billing_entry GROUP BY currency HAVING sum(amount) <> 0
"""
_TRANSACTIONS = """
SELECT format('transaction %%s (%%s): %%s entries sum to %%s', t.id, t.idempotency_key,
              count(e.id), coalesce(sum(e.amount), 0))
FROM billing_transaction t LEFT JOIN billing_entry e ON e.transaction_id = t.id
GROUP BY t.id, e.currency HAVING count(e.id) < 2 OR sum(e.amount) <> 0
"""
# Billed segments begin at the opening, follow each other without a gap, and end at the last proof;
# dropped ones begin at the close.
_UNTILED = """
SELECT format('meter %%s (%%s, run %%s): %%s', meter_id, subject_name, run, fault) FROM (
    SELECT m.id AS meter_id, m.subject_name, m.run, m.opened_at,
           CASE
               WHEN s.state = 'BILLED' AND lower(s.during) <> coalesce(
                   lag(upper(s.during)) OVER own, m.opened_at)
                   THEN format('time is missing or doubled before %%s', lower(s.during))
               WHEN s.state = 'DROPPED' AND lower(s.during) <> coalesce(
                   lag(upper(s.during)) OVER own, m.closed_at)
                   THEN format('dropped time does not follow on at %%s', lower(s.during))
               WHEN s.state = 'DROPPED' AND (m.closed_at IS NULL OR lower(s.during) < m.closed_at)
                   THEN format('dropped before its end at %%s', lower(s.during))
               WHEN s.state = 'BILLED' AND upper(s.during) > m.proved_until
                   THEN format('billed after its last proof, to %%s', upper(s.during))
               WHEN coalesce(max(upper(s.during)) FILTER (WHERE s.state = 'BILLED')
                             OVER (PARTITION BY m.id), m.opened_at) <> m.proved_until
                   THEN format('proved until %%s, but not billed to there', m.proved_until)
           END AS fault
    FROM billing_meter m LEFT JOIN billing_segment s ON s.meter_id = m.id
    WHERE m.organization_id = %s
    WINDOW own AS (PARTITION BY m.id ORDER BY s.during)
) AS checked WHERE fault IS NOT NULL ORDER BY opened_at, fault
"""
_MISPRICED = """
SELECT format('segment %%s of meter %%s: its price is for %%s in %%s during %%s', s.id, m.id,
              price.sku, price.currency, price.during)
FROM billing_segment s JOIN billing_meter m ON m.id = s.meter_id
JOIN billing_price price ON price.id = s.price_id
WHERE s.organization_id = %s
  AND (price.sku <> m.sku OR price.currency <> m.currency OR NOT s.during <@ price.during)
ORDER BY s.id
"""
