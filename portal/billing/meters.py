"""Measure how long things run: open a meter, prove that it still runs, close it.

A meter's time is tiled by segments, each at one price version. Proof makes the last billed segment
grow, and starts another where the price changed. What was never proved is never billed.
Meters are addressed by what runs (`subject`, `run`), whoever it belongs to: a node reports for all.
"""

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import ClassVar
from uuid import UUID

from django.db import connection, transaction
from django.utils.translation import gettext as _

from portal import events
from portal.billing import periods, postings, prices
from portal.billing.models import Meter, SegmentState
from portal.errors import DomainError
from portal.tenants.models import Organization
from portal.tenants.scope import every_tenant

log = logging.getLogger(__name__)

_BY_SUBJECT = "meters are addressed by what runs"
PRICE_CHANGE = "price change"  # what ends a segment, beside the causes that callers name


class UnableToOpen(DomainError):
    """This run is already metered as something else."""


class UnableToClose(DomainError):
    """There is no such meter."""

    status: ClassVar[int] = 404


@transaction.atomic
def open(
    *,
    organization_id: UUID,
    team_id: UUID,
    member_id: UUID,
    subject: UUID,
    subject_name: str,
    run: int,
    sku: str,
    currency: str,
    at: datetime,
    cause: str,
) -> Meter:
    """Begin to meter a run at the instant it became usable; a replay returns the same meter.

    Raises UnableToPrice if the SKU has no price then, UnableToOpen if the run is metered as
    something else.
    """
    begins = periods.floor(at)
    prices.hold()
    prices.current(sku=sku, currency=currency, at=begins)
    with every_tenant(_BY_SUBJECT):
        meter, created = Meter.objects.get_or_create(
            subject=subject,
            run=run,
            defaults={
                "organization_id": organization_id,
                "team_id": team_id,
                "member_id": member_id,
                "subject_name": subject_name,
                "sku": sku,
                "currency": currency,
                "opened_at": begins,
                "opened_by": cause,
                "proved_until": begins,
                "posted_until": begins,
            },
        )
    if not created and (meter.organization_id, meter.sku) != (organization_id, sku):
        raise UnableToOpen(
            "metered_otherwise",
            _("This run is already metered as %(sku)s.") % {"sku": meter.sku},
            details={"sku": meter.sku, "run": run},
        )
    return meter


@transaction.atomic
def prove(*, proofs: Mapping[tuple[UUID, int], datetime]) -> int:
    """Note until when each run, `(subject, run)`, is proved to have run; return how many grew.

    One batch for a whole report. Proofs may be late, repeated or out of order: an earlier one
    changes nothing, a closed meter stays closed, an unknown run is passed over. The caller never
    passes an instant later than its own clock.
    """
    if not proofs:
        return 0
    prices.hold()
    return _grow({key: periods.floor(at) for key, at in proofs.items()})


@transaction.atomic
def close(
    *,
    subject: UUID,
    run: int,
    at: datetime,
    cause: str,
    dropped_until: datetime | None = None,
) -> Meter:
    """End a run's meter at `at`, the last instant it is known to have run; again changes nothing.

    Time that was proved already stays billed. `dropped_until` writes the time after it, which
    nobody could prove, as a segment that is shown and not billed. Raises UnableToClose for an
    unknown run, UnableToPrice if a part has no price.
    """
    prices.hold()
    with every_tenant(_BY_SUBJECT):
        meter = Meter.objects.select_for_update().filter(subject=subject, run=run).first()
        if meter is None:
            raise UnableToClose("not_metered", _("This run was never metered."))
        if meter.closed_at is not None:
            return meter
        ends = max(periods.floor(at), meter.proved_until)
        if ends > meter.proved_until and _grow({(subject, run): ends}) == 0:
            raise prices.missing(sku=meter.sku, currency=meter.currency)
        meter.proved_until = meter.closed_at = ends
        meter.closed_by = cause
        meter.save(update_fields=["proved_until", "closed_at", "closed_by"])
        meter.segments.filter(during__endswith=ends).update(closed_by=cause)
    if dropped_until is not None:
        _drop(meter, periods.floor(dropped_until), cause)
    return meter


def accrue(*, now: datetime) -> int:
    """Bring every organization's ledger up to its meters; return how many lines moved.

    Safe to run at any time, as often as one likes, in several workers at once. One transaction per
    organization: trouble with one is raised only after the others' books are done.
    """
    moved = 0
    failed: Exception | None = None
    for organization in postings.pending():
        try:
            moved += _post(organization, now)
        except Exception as error:
            log.exception("the ledger of %s was not brought up to date", organization.slug)
            failed = error
    if failed is not None:
        raise failed
    return moved


@transaction.atomic
def _post(organization: Organization, now: datetime) -> int:
    moved = postings.post(organization=organization, now=now)
    if moved:
        topic = events.organization_topic(organization.id)
        events.announce(topic=topic, kind="usage", id=organization.id)
    return moved


# Rows are locked in one order, so that two reports never wait for each other in a circle; the next
# statement then sees what the lock waited for.
_LOCK = """
SELECT m.id FROM billing_meter m
JOIN unnest(%s::uuid[], %s::int[]) AS p(subject, run) USING (subject, run)
WHERE m.closed_at IS NULL ORDER BY m.id FOR UPDATE OF m
"""
_GROW = """
WITH grown AS (
    UPDATE billing_meter m SET proved_until = p.at
    FROM unnest(%s::uuid[], %s::int[], %s::timestamptz[]) AS p(subject, run, at),
         billing_meter before
    WHERE m.subject = p.subject AND m.run = p.run AND m.closed_at IS NULL
      AND p.at > m.proved_until AND before.id = m.id
      -- Time without a price is not lost: it stays unproved, and visible, until there is one.
      AND tstzrange(m.proved_until, p.at) <@ (
          SELECT range_agg(price.during) FROM billing_price price
          WHERE price.sku = m.sku AND price.currency = m.currency)
    RETURNING m.id, m.organization_id, m.sku, m.currency, m.opened_at, m.opened_by,
              tstzrange(before.proved_until, p.at) AS during
), piece AS (
    SELECT g.id AS meter_id, g.organization_id, g.opened_at, g.opened_by,
           price.id AS price_id, g.during * price.during AS during,
           CASE WHEN upper(g.during * price.during) < upper(g.during)
                THEN %s ELSE '' END AS closed_by
    FROM grown g JOIN billing_price price
      ON price.sku = g.sku AND price.currency = g.currency AND price.during && g.during
), stretched AS (
    UPDATE billing_segment s
    SET during = tstzrange(lower(s.during), upper(p.during)), closed_by = p.closed_by
    FROM piece p
    WHERE s.meter_id = p.meter_id AND s.price_id = p.price_id AND s.state = 'BILLED'
      AND upper(s.during) = lower(p.during)
    RETURNING s.meter_id, s.price_id
), ended AS (
    UPDATE billing_segment s SET closed_by = %s
    FROM piece p
    WHERE s.meter_id = p.meter_id AND s.price_id <> p.price_id AND s.state = 'BILLED'
      AND upper(s.during) = lower(p.during)
), begun AS (
    INSERT INTO billing_segment
        (id, organization_id, meter_id, price_id, state, during, opened_by, closed_by)
    SELECT gen_random_uuid(), organization_id, meter_id, price_id, 'BILLED', during,
           CASE WHEN lower(during) = opened_at THEN opened_by ELSE %s END, closed_by
    FROM piece p
    WHERE NOT EXISTS (SELECT FROM stretched x
                      WHERE x.meter_id = p.meter_id AND x.price_id = p.price_id)
)
SELECT count(*) FROM grown
"""


def _grow(proofs: Mapping[tuple[UUID, int], datetime]) -> int:
    subjects = [subject for subject, _run in proofs]
    runs = [run for _subject, run in proofs]
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, [subjects, runs])
        cursor.execute(
            _GROW,
            [subjects, runs, list(proofs.values()), PRICE_CHANGE, PRICE_CHANGE, PRICE_CHANGE],
        )
        return int(cursor.fetchone()[0])


_DROP = """
INSERT INTO billing_segment
    (id, organization_id, meter_id, price_id, state, during, opened_by, closed_by)
SELECT gen_random_uuid(), m.organization_id, m.id, price.id, %s,
       tstzrange(m.closed_at, %s) * price.during, 'no proof', %s
FROM billing_meter m JOIN billing_price price
  ON price.sku = m.sku AND price.currency = m.currency
 AND price.during && tstzrange(m.closed_at, %s)
WHERE m.id = %s
"""


def _drop(meter: Meter, until: datetime, cause: str) -> None:
    if meter.closed_at is not None and until > meter.closed_at:
        with connection.cursor() as cursor:
            cursor.execute(_DROP, [SegmentState.DROPPED, until, cause, until, meter.id])
