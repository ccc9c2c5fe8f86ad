"""A second is never billed twice, and never lost."""

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction

from portal.billing import meters, prices, usage
from portal.billing.models import Meter, Price, Segment
from portal.billing.prices import UnableToPrice
from portal.tenants.scope import every_tenant, scope
from tests import factories as make
from tests.billing.house import House

T0 = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)


def after(milliseconds: int) -> datetime:
    return T0 + timedelta(milliseconds=milliseconds)


def times(meter: Meter) -> list[tuple[str, int, int]]:
    """Return the meter's segments in milliseconds after T0."""
    with every_tenant("tests"):
        return [
            (
                segment.state,
                (segment.during.lower - T0) // timedelta(milliseconds=1),
                (segment.during.upper - T0) // timedelta(milliseconds=1),
            )
            for segment in Segment.objects.filter(meter=meter).order_by("during")
        ]


def prove(meter: Meter, milliseconds: int) -> int:
    return meters.prove(proofs={(meter.subject, meter.run): after(milliseconds)})


def close(meter: Meter, milliseconds: int, dropped_until: int | None = None) -> Meter:
    return meters.close(
        subject=meter.subject,
        run=meter.run,
        at=after(milliseconds),
        cause="stopped",
        dropped_until=None if dropped_until is None else after(dropped_until),
    )


def test_a_lost_host_is_billed_to_its_last_proof(house: House) -> None:
    meter = house.open(T0)
    for minute in range(1, 42):
        prove(meter, minute * 60_000)
    meter.refresh_from_db()
    last_proof = (meter.proved_until - T0) // timedelta(milliseconds=1)

    close(meter, last_proof, dropped_until=7_200_000)

    with scope(organization=house.organization):
        cost = usage.cost_of(subject=meter.subject, now=after(7_200_000))
    assert cost.milliseconds == 2_460_000
    assert cost.money.amount == Decimal("1.7015")
    assert cost.dropped_ms == 7_200_000 - 2_460_000
    assert [stretch.is_billed for stretch in cost.segments] == [True, False]


def test_a_full_hour_is_3600_seconds_over_adjacent_runs(house: House) -> None:
    subject = uuid.uuid4()
    for run in range(1, 11):
        house.ran(after((run - 1) * 360_000), after(run * 360_000), subject=subject, run=run)

    with scope(organization=house.organization):
        cost = usage.cost_of(subject=subject, now=after(3_600_000))
    assert cost.milliseconds == 3_600_000
    assert cost.money.amount == Decimal("2.49")


def test_silence_is_shown_as_unverified_and_settled_when_proof_arrives(house: House) -> None:
    meter = house.open(T0)
    prove(meter, 60_000)

    with scope(organization=house.organization):
        fresh = usage.cost_of(subject=meter.subject, now=after(70_000))
        silent = usage.cost_of(subject=meter.subject, now=after(360_000))
        prove(meter, 355_000)
        settled = usage.cost_of(subject=meter.subject, now=after(360_000))

    assert (fresh.milliseconds, fresh.unverified_ms) == (60_000, 0)
    assert (silent.milliseconds, silent.unverified_ms) == (60_000, 300_000)
    assert (settled.milliseconds, settled.unverified_ms) == (355_000, 0)


def test_late_and_repeated_proofs_change_nothing(house: House) -> None:
    meter = house.open(T0)

    grown = [prove(meter, at) for at in (5_000, 5_000, 2_000, 9_000, 5_000, -3_000)]

    assert grown == [1, 0, 0, 1, 0, 0]
    assert times(meter) == [("BILLED", 0, 9_000)]


def test_a_proof_after_the_close_changes_nothing(house: House) -> None:
    meter = house.open(T0)
    close(meter, 5_000)

    assert prove(meter, 60_000) == 0
    assert times(meter) == [("BILLED", 0, 5_000)]


def test_closing_again_changes_nothing(house: House) -> None:
    meter = house.open(T0)
    close(meter, 5_000, dropped_until=8_000)

    again = close(meter, 60_000, dropped_until=90_000)

    assert again.closed_at == after(5_000)
    assert times(meter) == [("BILLED", 0, 5_000), ("DROPPED", 5_000, 8_000)]


def test_closing_before_the_last_proof_takes_no_proved_time_back(house: House) -> None:
    meter = house.open(T0)
    prove(meter, 9_000)

    assert close(meter, 5_000).closed_at == after(9_000)
    assert times(meter) == [("BILLED", 0, 9_000)]


def test_one_report_proves_many_runs_and_passes_over_unknown_ones(house: House) -> None:
    running = [house.open(T0) for _ in range(20)]
    proofs = {(meter.subject, 1): after(1_000 + n) for n, meter in enumerate(running)}

    grown = meters.prove(
        proofs={**proofs, (uuid.uuid4(), 1): after(1), (running[0].subject, 2): after(1)}
    )

    assert grown == 20
    assert [times(meter) for meter in running] == [[("BILLED", 0, 1_000 + n)] for n in range(20)]


def test_a_report_is_two_statements_and_a_lock_however_long_it_is(
    house: House, django_assert_num_queries: object
) -> None:
    proofs = {(house.open(T0).subject, 1): after(1_000) for _ in range(30)}

    with django_assert_num_queries(5):  # type: ignore[operator]  # two are the savepoint's
        meters.prove(proofs=proofs)


def test_opening_again_returns_the_same_meter(house: House) -> None:
    meter = house.open(T0)

    again = house.open(after(5_000), subject=meter.subject)

    assert (again.id, again.opened_at) == (meter.id, T0)


def test_a_run_cannot_be_metered_as_two_things(house: House) -> None:
    meter = house.open(T0)
    other = make.flavor(per_hour="9.99").code

    with pytest.raises(meters.UnableToOpen, match="already metered"):
        house.open(T0, subject=meter.subject, sku=other)


def test_what_has_no_price_is_not_metered(house: House) -> None:
    with pytest.raises(UnableToPrice, match="no price for nothing in USD"):
        house.open(T0, sku="nothing")


def test_what_was_never_metered_cannot_be_closed(db: None) -> None:
    with pytest.raises(meters.UnableToClose):
        meters.close(subject=uuid.uuid4(), run=1, at=T0, cause="stopped")


def test_a_price_change_splits_a_run_at_its_millisecond(house: House) -> None:
    operator = make.user(is_operator=True)
    meter = house.open(T0)
    prove(meter, 1_000)
    prices.set_price(
        user=operator,
        sku=house.sku,
        currency="USD",
        per_hour=Decimal("2.99"),
        from_at=after(1_800_001),
        now=after(2_000),
    )

    prove(meter, 7_200_000)

    assert times(meter) == [("BILLED", 0, 1_800_001), ("BILLED", 1_800_001, 7_200_000)]
    with scope(organization=house.organization):
        cost = usage.cost_of(subject=meter.subject, now=after(7_200_000))
    assert [stretch.per_hour.amount for stretch in cost.segments] == [
        Decimal("2.49"),
        Decimal("2.99"),
    ]
    assert [stretch.closed_by for stretch in cost.segments] == ["price change", ""]


def test_a_proof_that_ends_at_the_price_change_leaves_no_gap(house: House) -> None:
    operator = make.user(is_operator=True)
    meter = house.open(T0)
    prices.set_price(
        user=operator,
        sku=house.sku,
        currency="USD",
        per_hour=Decimal(3),
        from_at=after(5_000),
        now=T0,
    )

    for at in (5_000, 5_001, 6_000):
        prove(meter, at)

    assert times(meter) == [("BILLED", 0, 5_000), ("BILLED", 5_000, 6_000)]


def test_time_without_a_price_stays_unproved_and_harms_nobody_else(house: House) -> None:
    ending = make.flavor().code
    Price.objects.filter(sku=ending).update(during=(datetime(2020, 1, 1, tzinfo=UTC), after(5_000)))
    orphan = house.open(T0, sku=ending)
    healthy = house.open(T0)

    grown = meters.prove(
        proofs={(orphan.subject, 1): after(9_000), (healthy.subject, 1): after(9_000)}
    )

    assert grown == 1
    assert (times(orphan), times(healthy)) == ([], [("BILLED", 0, 9_000)])
    with pytest.raises(UnableToPrice):
        close(orphan, 9_000)


def test_microseconds_are_cut_to_milliseconds(house: House) -> None:
    meter = house.open(T0 + timedelta(microseconds=1_999))

    meters.prove(proofs={(meter.subject, 1): after(5_000) + timedelta(microseconds=999)})

    assert times(meter) == [("BILLED", 1, 5_000)]


def test_a_run_of_no_length_has_no_segment(house: House) -> None:
    meter = house.open(T0)

    close(meter, 0)

    assert times(meter) == []


def test_an_instance_that_never_ran_costs_nothing(house: House) -> None:
    subject = uuid.uuid4()

    with scope(organization=house.organization):
        cost = usage.cost_of(subject=subject, now=T0)

    assert cost.money.as_json() == {"amount": "0.000000000000", "currency": "USD"}
    assert cost.segments == ()


def test_the_costs_of_a_list_are_those_of_its_instances(house: House) -> None:
    subjects = [house.ran(T0, after(n * 1_000)).subject for n in range(1, 4)]

    with scope(organization=house.organization):
        together = usage.costs_of(subjects=subjects, now=after(9_000))
        apart = {subject: usage.cost_of(subject=subject, now=after(9_000)) for subject in subjects}

    assert together == apart
    assert [together[subject].milliseconds for subject in subjects] == [1_000, 2_000, 3_000]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE billing_segment SET during = tstzrange(lower(during), lower(during) + '1 ms')",
        "UPDATE billing_segment SET state = 'DROPPED'",
        "DELETE FROM billing_segment",
    ],
)
def test_metered_time_cannot_be_taken_back_by_raw_sql(house: House, statement: str) -> None:
    house.ran(T0, after(5_000))

    with pytest.raises(IntegrityError, match=r"grows|never deleted"), transaction.atomic():
        connection.cursor().execute(statement)


@pytest.mark.parametrize(
    "during",
    [
        "empty",
        "[2026-03-02 12:00:00.0001+00,2026-03-02 12:00:01+00)",
        "[2026-03-02 12:00:00+00,2026-03-02 12:00:01+00]",
        "[2026-03-02 12:00:00+00,)",
        "[2026-03-02 12:00:00+00,infinity)",
        "[2026-03-02 10:00:01+00,2026-03-02 10:00:02+00)",  # overlaps
    ],
)
def test_a_bad_segment_cannot_be_written_by_raw_sql(house: House, during: str) -> None:
    house.ran(T0, after(5_000))

    with pytest.raises(IntegrityError), transaction.atomic():
        connection.cursor().execute(
            "INSERT INTO billing_segment (id, organization_id, meter_id, price_id, state, during,"
            " opened_by, closed_by) SELECT gen_random_uuid(), organization_id, meter_id, price_id,"
            " state, %s::tstzrange, '', '' FROM billing_segment LIMIT 1",
            [during],
        )


def test_a_segment_of_another_organization_cannot_be_written(house: House) -> None:
    meter = house.ran(T0, after(5_000))
    other = make.organization()

    with pytest.raises(IntegrityError, match="segment_of_own_meter"), transaction.atomic():
        connection.cursor().execute(
            "INSERT INTO billing_segment (id, organization_id, meter_id, price_id, state, during,"
            " opened_by, closed_by) SELECT gen_random_uuid(), %s, meter_id, price_id, state,"
            " tstzrange(upper(during), upper(during) + interval '1 s'), '', ''"
            " FROM billing_segment WHERE meter_id = %s",
            [other.id, meter.id],
        )


def test_a_meter_cannot_name_a_team_of_another_organization(house: House) -> None:
    foreign = make.team(make.organization())

    with pytest.raises(IntegrityError, match="meter_of_own_team"), transaction.atomic():
        house.open(T0, team_id=foreign.id)


def test_currency_and_zone_are_fixed_once_time_was_metered(house: House) -> None:
    house.organization.billing_zone = "Europe/Berlin"
    house.organization.save()
    house.open(T0)

    house.organization.billing_zone = "Asia/Tokyo"
    with pytest.raises(IntegrityError, match="fixed"), transaction.atomic():
        house.organization.save()
