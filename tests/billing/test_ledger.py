"""Every transaction sums to zero, and nothing is ever changed."""

import importlib
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from portal.billing import ledger
from portal.billing.models import Account, AccountKind, Entry, Transaction
from portal.tenants.models import Organization
from portal.tenants.scope import every_tenant
from tests import factories as make

NOW = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
TEN = [(AccountKind.RECEIVABLE, Decimal(10)), (AccountKind.REVENUE, Decimal(-10))]


@pytest.fixture
def organization(db: None) -> Organization:
    return make.organization()


def post(organization: Organization, key: str = "a", lines: Any = TEN, **more: Any) -> Transaction:
    values: dict[str, Any] = {
        "idempotency_key": key,
        "kind": "usage",
        "currency": "USD",
        "memo": "a test",
        "effective_at": NOW,
        "now": NOW,
    }
    return ledger.post(organization=organization, lines=lines, **(values | more))


def owed(organization: Organization) -> Decimal:
    return ledger.balance(organization=organization, kind=AccountKind.RECEIVABLE).amount


def test_a_posting_moves_money_from_one_account_to_another(organization: Organization) -> None:
    post(organization)
    post(organization, "b")

    assert owed(organization) == 20
    assert ledger.balance(organization=organization, kind=AccountKind.REVENUE).amount == -20
    assert ledger.balance(organization=make.organization(), kind=AccountKind.REVENUE).amount == 0


def test_the_same_key_posts_once(organization: Organization) -> None:
    first = post(organization)

    assert post(organization).id == first.id
    assert owed(organization) == 10


def test_the_same_key_for_something_else_is_refused(organization: Organization) -> None:
    post(organization)
    more = [(AccountKind.RECEIVABLE, Decimal(11)), (AccountKind.REVENUE, Decimal(-11))]

    with pytest.raises(ledger.UnableToPost, match="another transaction"):
        post(organization, lines=more)
    with pytest.raises(ledger.UnableToPost, match="another transaction"):
        post(make.organization())


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (TEN[:1], "too_few_lines"),
        ([TEN[0], (AccountKind.REVENUE, Decimal("-9.99"))], "unbalanced"),
        ([*TEN, (AccountKind.ROUNDING, Decimal(0))], "bad_amount"),
        ([(kind, amount / 10**14) for kind, amount in TEN], "bad_amount"),
    ],
)
def test_what_does_not_add_up_is_refused(organization: Organization, lines: Any, code: str) -> None:
    with pytest.raises(ledger.UnableToPost) as refusal:
        post(organization, lines=lines)
    assert refusal.value.code == code


def test_a_mistake_is_undone_by_its_mirror_image_once(organization: Organization) -> None:
    mistake = post(organization)

    undone = [
        ledger.reverse(posted=mistake, memo="it was wrong", effective_at=NOW, now=NOW)
        for _ in range(2)
    ]

    assert undone[0].id == undone[1].id
    assert undone[0].reverses_id == mistake.id
    assert owed(organization) == 0
    with pytest.raises(ledger.UnableToReverse):
        ledger.reverse(posted=undone[0], memo="", effective_at=NOW, now=NOW)


@pytest.mark.parametrize("table", ["billing_transaction", "billing_entry"])
@pytest.mark.parametrize("change", ["UPDATE {} SET id = id", "DELETE FROM {}"])
def test_raw_sql_cannot_change_what_was_posted(
    organization: Organization, table: str, change: str
) -> None:
    post(organization)

    with pytest.raises(IntegrityError, match="only ever added to"), transaction.atomic():
        connection.cursor().execute(change.format(table))
    assert owed(organization) == 10


@pytest.mark.parametrize("table", ["billing_transaction", "billing_entry", "billing_segment"])
def test_raw_sql_cannot_empty_the_books(organization: Organization, table: str) -> None:
    # The suite takes these triggers away, to flush between tests; the migration's own text makes
    # them again here.
    promises = importlib.import_module("portal.billing.migrations.0002_promises")
    sql = promises.APPEND_ONLY + promises.SEGMENTS_STAND
    make_trigger = next(
        statement for statement in sql.split(";") if f"BEFORE TRUNCATE ON {table}" in statement
    )

    @transaction.atomic
    def empty() -> None:
        cursor = connection.cursor()
        cursor.execute(f"SELECT 1 FROM pg_trigger WHERE tgname = '{make_trigger.split()[2]}'")
        if not cursor.fetchall():
            cursor.execute(make_trigger)
        cursor.execute(f"TRUNCATE {table} CASCADE")

    with pytest.raises(IntegrityError, match=r"only ever|never deleted"):
        empty()


def entries(organization: Organization, *amounts: str) -> None:
    with every_tenant("tests"):
        posted = Transaction.objects.create(
            organization=organization,
            idempotency_key="raw",
            kind="raw",
            entry_count=len(amounts),
            effective_at=NOW,
            booked_at=NOW,
        )
        account = Account.objects.create(
            organization=organization, kind=AccountKind.WALLET, currency="USD"
        )
        for amount in amounts:
            Entry.objects.create(
                organization=organization,
                transaction=posted,
                account=account,
                currency="USD",
                amount=Decimal(amount),
            )


@pytest.mark.parametrize("amounts", [(), ("1",), ("1", "-0.999999999999")])
def test_the_database_refuses_a_transaction_that_does_not_balance(
    organization: Organization, amounts: tuple[str, ...]
) -> None:
    entries(organization, *amounts)

    with (
        pytest.raises(IntegrityError, match=r"fewer than two|entries, not|sum to zero"),
        transaction.atomic(),
    ):
        connection.cursor().execute("SET CONSTRAINTS ALL IMMEDIATE")
    transaction.set_rollback(True)


def test_no_entry_can_be_added_to_a_transaction_later(organization: Organization) -> None:
    posted = post(organization)
    with every_tenant("tests"):
        for entry in Entry.objects.filter(transaction=posted):
            entry.pk = None
            entry.save()

    with pytest.raises(IntegrityError, match="has 4 entries, not 2"), transaction.atomic():
        connection.cursor().execute("SET CONSTRAINTS ALL IMMEDIATE")
    transaction.set_rollback(True)


def test_the_database_accepts_one_that_does(organization: Organization) -> None:
    entries(organization, "1", "-0.5", "-0.5")

    connection.cursor().execute("SET CONSTRAINTS ALL IMMEDIATE")


@pytest.mark.parametrize("change", [{"organization": True}, {"currency": "EUR"}])
def test_an_entry_stays_in_its_organization_and_currency(
    organization: Organization, change: dict[str, Any]
) -> None:
    posted = post(organization)
    with every_tenant("tests"):
        account = Account.objects.filter(organization=organization)[0]
        values: dict[str, Any] = {"organization": organization, "currency": "USD"} | change
        if values["organization"] is True:
            values["organization"] = make.organization()

        with (
            pytest.raises(IntegrityError, match=r"entry_in_own|entry_of_own"),
            transaction.atomic(),
        ):
            Entry.objects.create(transaction=posted, account=account, amount=Decimal(1), **values)
