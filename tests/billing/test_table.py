"""A report as a file has the page's rows and the page's total."""

import csv
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from portal.billing import bills, table, usage
from portal.tenants.access import actor_for_member
from portal.tenants.scope import scope
from tests import factories as make
from tests.billing.house import House

T0 = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
APRIL = datetime(2026, 4, 1, tzinfo=UTC)


def test_the_column_of_costs_adds_up_to_the_total_of_the_page(house: House) -> None:
    for n in range(1, 6):
        house.ran(T0, T0 + timedelta(milliseconds=100_003 * n), subject_name=f"=run-{n}")
    report = usage.report(
        actor=house.actor(), start=T0, end=APRIL, now=APRIL, group_by=["instance"]
    )

    lines = table.csv_rows(organization=house.organization, report=report, group_by=["instance"])

    rows = list(csv.DictReader(lines))
    assert sum(Decimal(row["cost_USD"]) for row in rows) == report.total.amount
    assert [row["kind"] for row in rows] == ["USAGE"] * 5 + ["ROUNDING"]
    assert rows[0]["instance"] == "'=run-5"
    assert rows[0]["instance_id"] == str(report.rows[0].instance and report.rows[0].instance.id)


def test_a_bill_is_for_those_who_may_see_the_usage(house: House) -> None:
    meter = house.ran(T0, T0 + timedelta(hours=1), subject_name="web-1")
    colleague = make.member(house.organization, teams=(house.team,))

    with scope(organization=house.organization):
        bill = bills.of_instance(actor=house.actor(), instance_id=meter.subject, now=APRIL)
        own = actor_for_member(member=house.member)
        assert bills.of_instance(actor=own, instance_id=meter.subject, now=APRIL) == bill
        for actor, instance_id in (
            (actor_for_member(member=colleague), meter.subject),
            (house.actor(), uuid.uuid4()),
        ):
            with pytest.raises(bills.UnableToFindBill):
                bills.of_instance(actor=actor, instance_id=instance_id, now=APRIL)

    assert (bill.name, bill.flavor, bill.cost.money.amount) == ("web-1", house.sku, Decimal("2.49"))
