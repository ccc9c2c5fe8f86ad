"""The ledger follows the meters: never twice, never adrift."""

import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import connection

from portal.billing import ledger, meters, postings, prices
from portal.billing.models import AccountKind, Transaction, UsagePosting
from portal.tenants.models import Organization
from portal.tenants.scope import every_tenant
from tests import factories as make
from tests.billing import house as houses
from tests.billing.house import House

T0 = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def owed(house: House) -> Decimal:
    return ledger.balance(organization=house.organization, kind=AccountKind.RECEIVABLE).amount


def lines(house: House) -> list[tuple[date, int, str]]:
    with every_tenant("tests"):
        found = UsagePosting.objects.filter(organization=house.organization)
        return [
            (line.period, line.milliseconds, f"{line.amount:.2f}")
            for line in found.order_by("period", "price__during")
        ]


def transactions(house: House) -> int:
    with every_tenant("tests"):
        return Transaction.objects.filter(organization=house.organization).count()


def at_once(*calls: Callable[[], object]) -> list[BaseException]:
    """Run the calls in threads, each with a connection of its own; return what they raised."""
    barrier = threading.Barrier(len(calls))
    raised: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            barrier.wait(10)
            call()
        except BaseException as error:  # noqa: BLE001  (told to the test)
            raised.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return raised


def test_running_time_is_owed_as_it_is_proved(house: House) -> None:
    meter = house.open(T0)
    meters.prove(proofs={(meter.subject, 1): T0 + HOUR})

    assert meters.accrue(now=T0 + HOUR) == 1

    assert owed(house) == Decimal("2.49")
    assert lines(house) == [(date(2026, 3, 1), 3_600_000, "2.49")]


def test_posting_again_posts_nothing(house: House) -> None:
    house.ran(T0, T0 + HOUR)

    moved = [meters.accrue(now=T0 + n * HOUR) for n in range(1, 6)]

    assert moved == [1, 0, 0, 0, 0]
    assert transactions(house) == 1


def test_hundreds_of_small_postings_do_not_drift(house: House) -> None:
    meter = house.open(T0)
    for step in range(1, 201):
        now = T0 + timedelta(milliseconds=step * 1_237)
        meters.prove(proofs={(meter.subject, 1): now})
        meters.accrue(now=now)

    # 200 × 1.237 s = 247.4 s; rounded once, not two hundred times.
    assert lines(house) == [(date(2026, 3, 1), 247_400, "0.17")]
    assert owed(house) == Decimal("0.17")
    assert transactions(house) == 17  # a cent at a time


@pytest.mark.parametrize(
    ("zone", "turn"),
    [
        ("Europe/Berlin", datetime(2026, 3, 31, 22, 0, tzinfo=UTC)),
        ("America/New_York", datetime(2026, 4, 1, 4, 0, tzinfo=UTC)),
        ("Asia/Kolkata", datetime(2026, 3, 31, 18, 30, tzinfo=UTC)),
    ],
)
def test_a_run_over_the_month_end_is_two_lines_of_the_billing_zone(
    db: None, zone: str, turn: datetime
) -> None:
    house = houses.build(zone=zone)
    meter = house.open(turn - HOUR)
    for minutes in range(-59, 121):
        now = turn + timedelta(minutes=minutes)
        meters.prove(proofs={(meter.subject, 1): now})
        if minutes % 20 == 1:
            meters.accrue(now=now)
    meters.accrue(now=turn + 3 * HOUR)

    assert lines(house) == [
        (date(2026, 3, 1), 3_600_000, "2.49"),
        (date(2026, 4, 1), 7_200_000, "4.98"),
    ]


def test_a_month_that_ended_before_anybody_posted_is_not_lost(house: House) -> None:
    house.ran(datetime(2026, 1, 31, 23, tzinfo=UTC), datetime(2026, 3, 1, 1, tzinfo=UTC))

    meters.accrue(now=T0)

    assert [(first.month, ms) for first, ms, _amount in lines(house)] == [
        (1, 3_600_000),
        (2, 28 * 24 * 3_600_000),
        (3, 3_600_000),
    ]


def test_proof_that_arrives_in_the_next_month_lands_in_its_own(house: House) -> None:
    meter = house.open(datetime(2026, 3, 31, 23, tzinfo=UTC))
    meters.prove(proofs={(meter.subject, 1): datetime(2026, 3, 31, 23, 10, tzinfo=UTC)})
    meters.accrue(now=datetime(2026, 4, 1, 0, 5, tzinfo=UTC))

    meters.prove(proofs={(meter.subject, 1): datetime(2026, 3, 31, 23, 50, tzinfo=UTC)})
    meters.accrue(now=datetime(2026, 4, 1, 0, 10, tzinfo=UTC))

    assert [(first.month, ms) for first, ms, _amount in lines(house)] == [(3, 3_000_000)]
    with every_tenant("tests"):
        dates = Transaction.objects.values_list("effective_at", flat=True)
        assert {at.month for at in dates} == {3}


def test_each_price_version_is_a_line_of_its_own(house: House) -> None:
    operator = make.user(is_operator=True)
    meter = house.open(T0)
    prices.set_price(
        user=operator,
        sku=house.sku,
        currency="USD",
        per_hour=Decimal("2.99"),
        from_at=T0 + HOUR,
        now=T0,
    )
    meters.close(subject=meter.subject, run=1, at=T0 + 2 * HOUR, cause="stopped")
    meters.accrue(now=T0 + 2 * HOUR)

    assert [(ms, amount) for _first, ms, amount in lines(house)] == [
        (3_600_000, "2.49"),
        (3_600_000, "2.99"),
    ]


def test_many_runs_of_one_price_are_rounded_together(house: House) -> None:
    for n in range(100):
        house.ran(T0 + n * HOUR, T0 + n * HOUR + timedelta(seconds=1))

    meters.accrue(now=T0 + 100 * HOUR)

    # One by one each second would cost 0.00.
    assert lines(house) == [(date(2026, 3, 1), 100_000, "0.07")]


def test_yen_are_owed_in_whole_yen(db: None) -> None:
    house = houses.build(currency="JPY", per_hour="373")
    house.ran(T0, T0 + timedelta(seconds=90))

    meters.accrue(now=T0 + HOUR)

    assert owed(house) == 9


def test_dropped_time_is_never_owed(house: House) -> None:
    meter = house.open(T0)
    meters.close(
        subject=meter.subject, run=1, at=T0, cause="host lost", dropped_until=T0 + 5 * HOUR
    )

    meters.accrue(now=T0 + 5 * HOUR)

    assert lines(house) == []


def test_organizations_do_not_mix(house: House) -> None:
    other = houses.build(zone="Asia/Kolkata", per_hour="1")
    house.ran(T0, T0 + HOUR)
    other.ran(T0, T0 + HOUR)

    meters.accrue(now=T0 + HOUR)

    assert (owed(house), owed(other)) == (Decimal("2.49"), Decimal(1))


def test_trouble_with_one_organization_is_raised_after_the_others_are_posted(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = sorted((houses.build() for _ in range(3)), key=lambda house: house.organization.id)
    for house in built:
        house.ran(T0, T0 + HOUR)
    post = postings.post

    def failing(*, organization: Organization, now: datetime) -> int:
        moved = post(organization=organization, now=now)
        if organization == built[1].organization:
            raise OSError("the disk is full")
        return moved

    monkeypatch.setattr(postings, "post", failing)
    with pytest.raises(OSError, match="disk"):
        meters.accrue(now=T0 + HOUR)

    assert [owed(house) for house in built] == [Decimal("2.49"), 0, Decimal("2.49")]


@pytest.mark.django_db(transaction=True)
def test_two_workers_at_once_post_once() -> None:
    house = houses.build()
    house.ran(T0, T0 + HOUR)

    raised = at_once(*[lambda: meters.accrue(now=T0 + HOUR)] * 4)

    assert raised == []
    assert (owed(house), transactions(house)) == (Decimal("2.49"), 1)


@pytest.mark.django_db(transaction=True)
def test_one_key_posted_by_two_workers_is_one_transaction() -> None:
    house = houses.build()

    def post() -> None:
        ledger.post(
            organization=house.organization,
            idempotency_key="once",
            kind="usage",
            lines=[(AccountKind.RECEIVABLE, Decimal(1)), (AccountKind.REVENUE, Decimal(-1))],
            currency="USD",
            memo="",
            effective_at=T0,
            now=T0,
        )

    assert at_once(*[post] * 4) == []
    assert (owed(house), transactions(house)) == (Decimal(1), 1)


@pytest.mark.django_db(transaction=True)
def test_proofs_closes_and_postings_at_once_lose_nothing() -> None:
    house = houses.build()
    running = [house.open(T0) for _ in range(8)]
    keys = [(meter.subject, 1) for meter in running]

    def report(ordered: list[tuple[object, int]]) -> Callable[[], None]:
        def send() -> None:
            for second in range(1, 31):
                meters.prove(proofs={key: T0 + timedelta(seconds=second) for key in ordered})  # type: ignore[misc]

        return send

    def post() -> None:
        for second in range(10):
            meters.accrue(now=T0 + timedelta(seconds=second))

    def stop() -> None:
        for meter in running:
            meters.close(
                subject=meter.subject, run=1, at=T0 + timedelta(seconds=60), cause="stopped"
            )

    raised = at_once(report(list(keys)), report(list(reversed(keys))), post, post, stop)
    meters.accrue(now=T0 + HOUR)

    assert raised == []
    assert lines(house) == [(date(2026, 3, 1), 8 * 60_000, "0.33")]
    assert owed(house) == Decimal("0.33")


@pytest.mark.django_db(transaction=True)
def test_a_price_never_ends_under_the_hands_of_those_who_meter() -> None:
    house = houses.build()
    operator = make.user(is_operator=True)
    meter = house.open(T0)

    def prove() -> None:
        for second in range(1, 41):
            meters.prove(proofs={(meter.subject, 1): T0 + timedelta(seconds=second)})

    def change() -> None:
        prices.set_price(
            user=operator,
            sku=house.sku,
            currency="USD",
            per_hour=Decimal(9),
            from_at=T0 + timedelta(seconds=41),
            now=T0,
        )

    assert at_once(prove, change) == []
    meters.close(subject=meter.subject, run=1, at=T0 + timedelta(seconds=51), cause="stopped")
    meters.accrue(now=T0 + HOUR)
    assert [ms for _first, ms, _amount in lines(house)] == [41_000, 10_000]
