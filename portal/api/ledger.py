"""`ledger`: the organization's books, as they were written."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.endpoint import Endpoint, listed
from portal.api.fields import ColumnMoneyField, MoneyField
from portal.api.pages import page
from portal.api.schema import operation, paged
from portal.billing import ledger
from portal.billing.models import AccountKind, Transaction
from portal.tenants import roles


class EntryOut(serializers.Serializer[Any]):
    """One side of a transaction."""

    account = serializers.ChoiceField(AccountKind.choices, source="account.kind")
    amount = ColumnMoneyField("amount", help_text="Debit positive, credit negative.")


class TransactionOut(serializers.Serializer[Any]):
    """One posting: its entries sum to zero."""

    id = serializers.UUIDField()
    organization = serializers.UUIDField(source="organization_id")
    kind = serializers.CharField()
    memo = serializers.CharField()
    effective_at = serializers.DateTimeField(help_text="When it happened.")
    booked_at = serializers.DateTimeField(help_text="When it was written down.")
    reverses = serializers.UUIDField(source="reverses_id", allow_null=True)
    entries = EntryOut(many=True)


class BalanceOut(serializers.Serializer[Any]):
    """What one account holds."""

    account = serializers.ChoiceField(AccountKind.choices)
    balance = MoneyField()


class Ledger(Endpoint):
    """`/ledger`."""

    needs = {"GET": "money.view"}

    @operation(
        "list_ledger", "List the postings, the newest first.", gives=TransactionOut, pages=True
    )
    def get(self, request: Request) -> Response:
        """Answer one page of them."""
        roles.require(self.actor, "money.view")
        rows = Transaction.objects.filter(organization=self.actor.organization).prefetch_related(
            "entries__account"
        )
        return page(self, rows, TransactionOut, ordering=["-booked_at", "-id"])


class Balances(Endpoint):
    """`/ledger/balances`."""

    needs = {"GET": "money.view"}

    @operation("list_balances", "List what each account holds.", gives=paged(BalanceOut))
    def get(self, request: Request) -> Response:
        """Answer all accounts."""
        roles.require(self.actor, "money.view")
        organization = self.actor.organization
        return listed(
            [
                BalanceOut(
                    {
                        "account": kind,
                        "balance": ledger.balance(organization=organization, kind=kind),
                    }
                ).data
                for kind in AccountKind
            ]
        )
