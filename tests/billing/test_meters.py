"""A second is never billed twice, and never lost."""

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from portal.billing import meters, prices, usage
from portal.billing.models import Meter, Segment, SegmentState
from portal.tenants.scope import every_tenant, scope
from tests.billing.house import House

T0 = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return T0 + timedelta(milliseconds=round(seconds * 1000))


def segments(meter: Meter) -> list[Segment]:
    with every_tenant("tests"):
        return list(Segment.objects.filter(meter=meter).order_by("during"))


def test_a_run_is_billed_from_usable_to_its_last_proof(house: House) -> None:
    meter = house.open(T0)
    for minute in range(1, 42):
        meters.prove(proofs={(meter.subject, 1): after(60 * minute)})

    back = after(2 * 3600)
    meters.close(subject=meter.subject, run=1, at=after(0), cause="host lost", dropped_until=back)

    with scope(organization=house.organization):
        cost = usage.cost_of(subject=meter.subject, now=back)
    assert cost.milliseconds == 2_460_000
    assert cost.money.amount == Decimal("1.7015")
    assert cost.dropped_ms == 7_200_000 - 2_460_000
    assert [segment.state for segment in segments(meter)] == ["BILLED", "DROPPED"]
