"""Who sees which usage, and why every figure is the same everywhere."""

import uuid
from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from portal.billing import ledger, meters, usage
from portal.billing.models import AccountKind
from portal.billing.selection import Filters
from portal.billing.usage import Grouping, Report
from portal.tenants.access import actor_for_member
from portal.tenants.models import Member, Role
from portal.tenants.roles import UnableToAct
from portal.tenants.scope import every_tenant
from tests import factories as make
from tests.billing import house as houses
from tests.billing.house import House

T0 = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
MARCH = datetime(2026, 3, 1, tzinfo=UTC)
APRIL = datetime(2026, 4, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def report(
    house: House,
    group_by: Collection[Grouping] = (),
    *,
    member: Member | None = None,
    role: str = Role.FINANCE,
    now: datetime = APRIL,
    **more: Any,
) -> Report:
    with every_tenant("tests"):
        actor = actor_for_member(member=member) if member else house.actor(role)
    values: dict[str, Any] = {"start": MARCH, "end": APRIL} | more
    return usage.report(actor=actor, group_by=group_by, now=now, **values)


def busy() -> tuple[House, Member]:
    """Build a house in which two members of two teams ran two flavors for odd times."""
    house = houses.build()
    second_team = make.team(house.organization, "Vision")
    colleague = make.member(house.organization, teams=(second_team,))
    small = make.flavor(per_hour="0.7").code
    for n in range(1, 8):
        start = T0 + n * HOUR
        house.ran(start, start + timedelta(milliseconds=100_003 * n), subject_name=f"run-{n}")
        house.ran(
            start,
            start + timedelta(milliseconds=77_777 * n),
            team_id=second_team.id,
            member_id=colleague.id,
            sku=small,
        )
    return house, colleague


@pytest.mark.django_db
@pytest.mark.parametrize(
    "group_by",
    [
        (),
        ("team",),
        ("member",),
        ("flavor",),
        ("day",),
        ("instance",),
        ("team", "member", "flavor", "day", "instance"),
    ],
)
def test_every_grouping_has_the_total_of_the_ledger(group_by: tuple[Grouping, ...]) -> None:
    house, _colleague = busy()
    meters.accrue(now=APRIL)

    seen = report(house, group_by)

    owed = ledger.balance(organization=house.organization, kind=AccountKind.RECEIVABLE)
    assert seen.total == owed
    assert seen.total.amount > 0
    assert sum(row.cost.amount for row in seen.rows) + seen.rounding.amount == seen.total.amount
    assert seen.milliseconds == sum(range(1, 8)) * (100_003 + 77_777)
    assert seen.count == 14


@pytest.mark.django_db
def test_rows_name_what_they_are_about() -> None:
    house, colleague = busy()

    rows = report(house, ("team", "member", "flavor")).rows

    assert len(rows) == 2
    by_team = {row.team.name: row for row in rows if row.team}
    vision = by_team["Vision"]
    assert vision.member is not None
    assert vision.member.id == colleague.id
    assert vision.milliseconds == sum(range(1, 8)) * 77_777
    exact = Fraction("0.7") * vision.milliseconds / 3_600_000
    assert abs(Fraction(vision.cost.amount) - exact) < Fraction(1, 10**12)
    assert (vision.day, vision.instance) == (None, None)


@pytest.mark.django_db
def test_rows_of_instances_bear_the_latest_name() -> None:
    house = houses.build()
    subject = uuid.uuid4()
    house.ran(T0, T0 + HOUR, subject=subject, subject_name="old")
    house.ran(T0 + HOUR, T0 + 2 * HOUR, subject=subject, run=2, subject_name="new")

    (row,) = report(house, ("instance",)).rows

    assert row.instance == usage.Named(subject, "new")
    assert row.milliseconds == 7_200_000


@pytest.mark.django_db
def test_days_are_days_of_the_billing_zone() -> None:
    house = houses.build(zone="Europe/Berlin")
    # From noon before to noon after the night in which clocks go forward.
    house.ran(datetime(2026, 3, 28, 11, tzinfo=UTC), datetime(2026, 3, 30, 10, tzinfo=UTC))

    rows = report(house, ("day",)).rows

    hours = [(row.day, row.milliseconds // 3_600_000) for row in rows]
    assert hours == [(date(2026, 3, 28), 12), (date(2026, 3, 29), 23), (date(2026, 3, 30), 12)]


@pytest.mark.django_db
def test_a_report_counts_only_its_own_stretch() -> None:
    house = houses.build()
    house.ran(T0, T0 + 3 * HOUR)

    seen = report(house, start=T0 + HOUR, end=T0 + 2 * HOUR)

    assert (seen.milliseconds, seen.total.amount) == (3_600_000, Decimal("2.49"))


@pytest.mark.django_db
def test_months_side_by_side_add_up_to_both() -> None:
    house = houses.build(zone="Asia/Kolkata")
    turn = datetime(2026, 3, 31, 18, 30, tzinfo=UTC)
    house.ran(turn - timedelta(seconds=29.75), turn + timedelta(seconds=30.75))

    march = report(house, start=MARCH, end=turn)
    april = report(house, start=turn, end=turn + 24 * HOUR)
    both = report(house, start=MARCH, end=turn + 24 * HOUR)

    assert (march.milliseconds, april.milliseconds, both.milliseconds) == (29_750, 30_750, 60_500)
    assert march.total + april.total == both.total


@pytest.mark.django_db
def test_everybody_sees_what_his_role_reaches() -> None:
    house, colleague = busy()
    own = sum(range(1, 8)) * 100_003
    others = sum(range(1, 8)) * 77_777
    with every_tenant("tests"):
        vision = house.organization and next(
            row.team.id
            for row in report(house, ("team",)).rows
            if row.team and row.team.name == "Vision"
        )
        from portal.tenants.models import Team

        lead = make.member(house.organization, admin_of=(Team.objects.get(id=vision),))

    for role in (Role.OWNER, Role.ADMIN, Role.FINANCE):
        assert report(house, role=role).milliseconds == own + others
    assert report(house, member=house.member).milliseconds == own
    assert report(house, member=colleague).milliseconds == others
    assert report(house, member=lead).milliseconds == others
    assert report(house, role=Role.MEMBER).milliseconds == 0


@pytest.mark.django_db
def test_a_filter_never_shows_more_than_the_role_does() -> None:
    house, colleague = busy()

    seen = report(house, member=house.member, filters=Filters(member_id=colleague.id))

    assert (seen.milliseconds, seen.rows, seen.count) == (0, (), 0)


@pytest.mark.django_db
def test_filters_narrow_to_a_team_a_member_a_flavor_or_an_instance() -> None:
    house, _colleague = busy()
    own = sum(range(1, 8)) * 100_003
    (first,) = [
        row.instance.id
        for row in report(house, ("instance",)).rows
        if row.instance and row.instance.name == "run-1"
    ]

    assert report(house, filters=Filters(team_id=house.team.id)).milliseconds == own
    assert report(house, filters=Filters(member_id=house.member.id)).milliseconds == own
    assert report(house, filters=Filters(flavor=house.sku)).milliseconds == own
    assert report(house, filters=Filters(instance_id=first)).milliseconds == 100_003
    assert report(house, filters=Filters(flavor="none")).milliseconds == 0


@pytest.mark.django_db
def test_another_organization_sees_nothing_of_it() -> None:
    busy()

    assert report(houses.build()).milliseconds == 0


@pytest.mark.django_db
def test_a_viewer_without_a_team_sees_no_usage() -> None:
    house = houses.build()

    with pytest.raises(UnableToAct):
        report(house, role=Role.VIEWER)


@pytest.mark.django_db
def test_silence_and_dropped_time_are_shown_and_not_billed() -> None:
    house = houses.build()
    silent = house.open(T0)
    meters.prove(proofs={(silent.subject, 1): T0 + HOUR})
    lost = house.open(T0)
    meters.close(
        subject=lost.subject, run=1, at=T0 + HOUR, cause="lost", dropped_until=T0 + 3 * HOUR
    )

    seen = report(house, ("instance",), now=T0 + 90 * MINUTE)

    assert (seen.milliseconds, seen.unverified_ms, seen.dropped_ms) == (
        7_200_000,
        1_800_000,
        7_200_000,
    )
    by_instance = {row.instance.id: row for row in seen.rows if row.instance}
    assert by_instance[silent.subject].unverified_ms == 1_800_000
    assert by_instance[lost.subject].dropped_ms == 7_200_000
    assert seen.total.amount == Decimal("4.98")


@pytest.mark.django_db
def test_an_instance_that_only_ever_was_silent_is_shown() -> None:
    house = houses.build()
    house.open(T0)

    rows = report(house, ("day",), now=T0 + 20 * HOUR, end=T0 + 15 * HOUR).rows

    # The report ends at one in the morning of the third.
    assert [(row.day, row.unverified_ms // 3_600_000, row.cost.amount) for row in rows] == [
        (date(2026, 3, 2), 14, 0),
        (date(2026, 3, 3), 1, 0),
    ]


@pytest.mark.django_db
def test_yen_reports_are_in_whole_yen() -> None:
    house = houses.build(currency="JPY", per_hour="373")
    house.ran(T0, T0 + timedelta(seconds=90))

    seen = report(house)

    assert seen.total.as_json() == {"amount": "9", "currency": "JPY"}
    assert seen.rounding.amount == Decimal("-0.325")
