"""The file holds the whole selection, and its total is the page's and the ledger's."""

import csv
import io
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from portal.billing import export, ledger, meters, usage
from portal.billing.export import Summary
from portal.billing.models import AccountKind
from portal.billing.selection import Filters
from portal.tenants.models import Role
from portal.tenants.roles import Actor
from tests import factories as make
from tests.billing import house as houses
from tests.billing.house import House

T0 = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
MARCH = datetime(2026, 3, 1, tzinfo=UTC)
MAY = datetime(2026, 5, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def exported(actor: Actor, **more: Any) -> tuple[list[dict[str, str]], Summary]:
    rows = export.csv_rows(actor=actor, **({"start": MARCH, "end": MAY} | more))
    text = ""
    while True:
        try:
            text += next(rows)
        except StopIteration as finished:
            return list(csv.DictReader(io.StringIO(text, newline=""))), finished.value


def cost(rows: list[dict[str, str]]) -> Decimal:
    return sum((Decimal(row["cost_USD"]) for row in rows), Decimal(0))


def ten_thousand_and_one_runs(house: House) -> None:
    """Write the rows that as many short runs, 7 minutes apart, would have left."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH made AS (
                INSERT INTO billing_meter (id, organization_id, team_id, member_id, subject,
                    subject_name, run, sku, currency, opened_at, opened_by, proved_until, closed_at,
                    closed_by, posted_until, is_settled)
                SELECT gen_random_uuid(), %s, %s, %s, gen_random_uuid(), 'run-' || n, 1, %s, 'USD',
                       begins, 'usable', ends, ends, 'stopped', begins, false
                FROM (SELECT n, begins, begins + (1 + n * 37 %% 300000) * interval '1 ms' AS ends
                      FROM (SELECT n, %s + n * interval '7 min' AS begins
                            FROM generate_series(0, 10000) AS n)) AS runs
                RETURNING id, organization_id, opened_at, closed_at
            )
            INSERT INTO billing_segment (id, organization_id, meter_id, price_id, state, during,
                                         opened_by, closed_by)
            SELECT gen_random_uuid(), organization_id, made.id, price.id, 'BILLED',
                   tstzrange(opened_at, closed_at), 'usable', 'stopped'
            FROM made, billing_price price WHERE price.sku = %s
            """,
            [house.organization.id, house.team.id, house.member.id, house.sku, T0, house.sku],
        )
        cursor.execute("ANALYZE billing_meter, billing_segment")  # as autovacuum would have


@pytest.mark.slow
def test_ten_thousand_and_one_rows_are_the_page_and_the_ledger(house: House) -> None:
    ten_thousand_and_one_runs(house)
    meters.accrue(now=MAY)
    actor = house.actor()

    rows, summary = exported(actor)
    page = usage.report(actor=actor, start=MARCH, end=MAY, now=MAY, group_by=["day"])

    used = [row for row in rows if row["kind"] == "BILLED"]
    assert page.count == summary.rows == len(used)
    assert len({row["segment_id"] for row in used}) == 10_001
    assert sum(int(row["duration_ms"]) for row in used) == page.milliseconds == summary.milliseconds
    owed = ledger.balance(organization=house.organization, kind=AccountKind.RECEIVABLE)
    assert cost(rows) == page.total.amount == summary.total.amount == owed.amount


def test_every_row_names_its_tenant_and_stable_ids(house: House) -> None:
    meter = house.ran(T0, T0 + HOUR, subject_name="web-1")

    (row,), summary = exported(house.actor())

    assert row == {
        "kind": "BILLED",
        "organization_id": str(house.organization.id),
        "organization": house.organization.name,
        "month": "2026-03",
        "billing_zone": "UTC",
        "start_utc": "2026-03-02T10:00:00.000Z",
        "end_utc": "2026-03-02T11:00:00.000Z",
        "team_id": str(house.team.id),
        "team": house.team.name,
        "member_id": str(house.member.id),
        "member": house.member.user.email,
        "instance_id": str(meter.subject),
        "instance": "web-1",
        "run": "1",
        "meter_id": str(meter.id),
        "segment_id": row["segment_id"],
        "sku": house.sku,
        "price_id": row["price_id"],
        "price_USD_per_hour": "2.490000000000",
        "duration_ms": "3600000",
        "cost_USD": "2.490000000000",
    }
    assert summary == Summary(1, 0, 3_600_000, summary.total)


def test_a_run_over_the_month_end_is_two_rows(db: None) -> None:
    house = houses.build(zone="Europe/Berlin")
    house.ran(datetime(2026, 3, 31, 21, tzinfo=UTC), datetime(2026, 3, 31, 23, tzinfo=UTC))

    rows, _summary = exported(house.actor())

    assert [(row["month"], row["duration_ms"]) for row in rows] == [
        ("2026-03", "3600000"),
        ("2026-04", "3600000"),
    ]


def test_a_rounding_row_per_line_makes_the_column_tie_out(house: House) -> None:
    house.ran(T0, T0 + timedelta(seconds=1))

    rows, summary = exported(house.actor())

    assert [(row["kind"], row["cost_USD"]) for row in rows] == [
        ("BILLED", "0.000691666667"),
        ("ROUNDING", "-0.000691666667"),
    ]
    assert (summary.rows, summary.rounding_rows, summary.total.amount) == (1, 1, 0)


def test_dropped_time_is_in_the_file_and_costs_nothing(house: House) -> None:
    meter = house.open(T0)
    meters.close(subject=meter.subject, run=1, at=T0, cause="lost", dropped_until=T0 + HOUR)

    (row,), _summary = exported(house.actor())

    assert (row["kind"], row["duration_ms"]) == ("DROPPED", "3600000")
    assert Decimal(row["cost_USD"]) == 0


def test_the_file_follows_the_filter_and_the_role(house: House) -> None:
    colleague = make.member(house.organization, teams=(house.team,))
    house.ran(T0, T0 + HOUR)
    house.ran(T0, T0 + 2 * HOUR, member_id=colleague.id)

    everything, _ = exported(house.actor())
    filtered, _ = exported(house.actor(), filters=Filters(member_id=colleague.id))
    nothing, _ = exported(house.actor(Role.MEMBER))
    clipped, _ = exported(house.actor(), start=T0 + HOUR)

    assert [len(rows) for rows in (everything, filtered, nothing, clipped)] == [2, 1, 0, 1]
    assert filtered[0]["member_id"] == str(colleague.id)
    assert clipped[0]["start_utc"] == "2026-03-02T11:00:00.000Z"


def test_names_cannot_become_formulas(house: House) -> None:
    house.ran(T0, T0 + HOUR, subject_name='=HYPERLINK("x")')
    house.ran(T0, T0 + HOUR, subject_name="训练, 一号")

    names = {row["instance"] for row in exported(house.actor())[0]}

    assert names == {'\'=HYPERLINK("x")', "训练, 一号"}


@given(st.text(max_size=20))
def test_no_text_cell_begins_like_a_formula(value: str) -> None:
    written = export.text(value)

    assert written.lstrip(" ")[:1] not in {*"=+-@\t\r\n＝＋－＠"}
    assert written in {value, f"'{value}"}


@pytest.mark.django_db(transaction=True)
def test_an_export_is_a_picture_of_one_moment() -> None:
    house = houses.build()
    for n in range(5):
        house.ran(T0 + n * HOUR, T0 + n * HOUR + timedelta(seconds=n + 1))
    rows = export.csv_rows(actor=house.actor(), start=MARCH, end=MAY)
    text = next(rows) + next(rows)

    connection.cursor().execute("SHOW transaction_isolation")
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        isolation = cursor.fetchone()[0]
    text += "".join(rows)

    assert isolation == "repeatable read"
    assert len(text.splitlines()) == 1 + 5 + 1


def command(house: House, out: Path | str, **more: str) -> str:
    said = io.StringIO()
    options = {"from": "2026-03-01", "to": "2026-05-01", "format": "csv"} | more
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    call_command(
        "export_usage",
        "--organization",
        house.organization.slug,
        "--out",
        str(out),
        *arguments,
        stdout=said,
        stderr=said,
    )
    return said.getvalue()


def test_the_command_writes_the_file_and_prints_its_total(house: House, tmp_path: Path) -> None:
    house.ran(T0, T0 + HOUR)

    said = command(house, tmp_path / "march.csv")

    assert said == "1 rows, 3600000 ms, 2.49 USD (0 rounding rows), UTC\n"
    text = (tmp_path / "march.csv").read_bytes().decode()
    assert text.count("\r\n") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["march.csv"]


def test_the_command_can_write_to_standard_output(house: House) -> None:
    house.ran(T0, T0 + HOUR)

    said = command(house, "-")

    assert said.startswith("kind,organization_id,")
    assert said.endswith("1 rows, 3600000 ms, 2.49 USD (0 rounding rows), UTC\n")


@pytest.mark.parametrize("kind", ["parquet", "xlsx", "focus"])
def test_other_formats_say_that_they_are_not_there_yet(
    house: House, tmp_path: Path, kind: str
) -> None:
    with pytest.raises(CommandError, match=f"Exporting as {kind} is not there yet"):
        command(house, tmp_path / "march", format=kind)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"organization": "nobody"}, "no organization 'nobody'"),
        ({"organization": str(uuid.uuid4())}, "no organization"),
        ({"from": "March"}, "--from is not an ISO 8601 time"),
        ({"from": "0001-01-01"}, "--from lies outside of the calendar"),
        ({"to": "9999-12-31"}, "--to lies outside of the calendar"),
        ({"to": "2026-03-01"}, "--to must be later"),
    ],
)
def test_the_command_says_what_is_wrong(
    house: House, tmp_path: Path, options: dict[str, str], words: str
) -> None:
    with pytest.raises(CommandError, match=words):
        command(house, tmp_path / "march.csv", **options)


def test_a_place_that_cannot_be_written_is_said(house: House, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="can't be written"):
        command(house, tmp_path / "nowhere" / "march.csv")
