"""`manage.py prove_ledger` says nothing about right books, and everything about wrong ones."""

import io
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from portal.billing import ledger, meters, proof
from portal.billing.models import AccountKind, Price, UsagePosting
from portal.tenants.scope import every_tenant
from tests.billing import house as houses
from tests.billing.house import House

T0 = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def posted(house: House) -> House:
    house.ran(T0, T0 + HOUR)
    meter = house.open(T0)
    meters.prove(proofs={(meter.subject, 1): T0 + HOUR})
    meters.accrue(now=T0 + HOUR)
    return house


def faults() -> list[str]:
    return list(proof.differences(now=T0 + HOUR))


def behind_the_back(statement: str) -> None:
    """Change rows as no code of ours could: with triggers off."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(statement)
        cursor.execute("SET LOCAL session_replication_role = origin")


def test_right_books_prove_right(posted: House) -> None:
    said = io.StringIO()

    call_command("prove_ledger", stdout=said)

    assert said.getvalue() == "The ledger balances and holds exactly what was metered.\n"


def test_time_that_runs_on_is_posted_first_and_no_false_alarm(posted: House) -> None:
    meter = posted.open(T0)
    meters.prove(proofs={(meter.subject, 1): T0 + HOUR})

    assert faults() == []


def test_a_reversal_leaves_the_proof_standing(posted: House) -> None:
    with every_tenant("tests"):
        first = UsagePosting.objects.get().transactions.get()
    ledger.reverse(posted=first, memo="goodwill", effective_at=T0, now=T0)

    assert faults() == []


@pytest.mark.django_db(transaction=True)
def test_the_proof_stands_while_things_run_and_are_posted() -> None:
    house = houses.build()
    running = [house.open(T0) for _ in range(4)]
    stop = threading.Event()

    def run() -> None:
        now = T0
        while not stop.is_set():
            now += timedelta(seconds=7)
            meters.prove(proofs={(meter.subject, 1): now for meter in running})
            meters.accrue(now=now)
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        said = io.StringIO()
        for _ in range(8):
            call_command("prove_ledger", stdout=said)
    finally:
        stop.set()
        thread.join(30)

    assert (
        said.getvalue().splitlines()
        == ["The ledger balances and holds exactly what was metered."] * 8
    )


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE billing_entry SET amount = amount + 1 WHERE amount > 0", "trial balance"),
        ("UPDATE billing_entry SET amount = amount * 2", "posted are 4.98"),
        ("UPDATE billing_usageposting SET amount = amount + 1", "it costs 4.98"),
        ("UPDATE billing_usageposting SET milliseconds = 1", "7200000 ms are metered, 1 ms"),
        (
            "DELETE FROM billing_segment WHERE id = (SELECT id FROM billing_segment LIMIT 1)",
            "but not billed to there",
        ),
        (
            "UPDATE billing_segment SET during = tstzrange(lower(during) + '1 s', upper(during))",
            "missing or doubled",
        ),
        (
            "UPDATE billing_segment SET during = tstzrange(lower(during), upper(during) + '1 s')",
            "after its last proof",
        ),
        ("UPDATE billing_meter SET sku = 'other'", "its price is for"),
    ],
)
def test_every_kind_of_difference_is_printed(posted: House, statement: str, words: str) -> None:
    # The posting of the proof itself would repair what a meter still open has to say.
    behind_the_back("UPDATE billing_meter SET closed_at = proved_until, is_settled = true")
    behind_the_back(statement)
    said = io.StringIO()

    with pytest.raises(CommandError, match="differences") as failure:
        call_command("prove_ledger", stdout=said)

    assert words in said.getvalue()
    assert failure.value.returncode == 1


def test_metered_time_without_a_posting_is_printed(house: House) -> None:
    house.ran(T0, T0 + HOUR)
    behind_the_back("UPDATE billing_meter SET is_settled = true")

    (words,) = faults()

    assert "3600000 ms are metered and not posted" in words


def test_the_account_kinds_hold_what_the_proof_reads(posted: House) -> None:
    owed = ledger.balance(organization=posted.organization, kind=AccountKind.RECEIVABLE)

    assert owed.amount == Decimal("4.98")
    assert Price.objects.filter(sku=posted.sku).count() == 1
