"""Write and read money: double entry, append-only. `post` is its only writer.

Debit is positive, credit negative; the entries of a transaction sum to zero. The database refuses
anything else (migration 0002), here it is only said more kindly.
"""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from django.db import IntegrityError, transaction
from django.db.models import Sum
from django.utils.translation import gettext as _

from portal.billing.models import Account, AccountKind, Entry, Transaction, UsagePosting
from portal.errors import DomainError
from portal.money import EXACT_DIGITS, Money
from portal.tenants.models import Organization
from portal.tenants.scope import scope

Line = tuple[AccountKind, Decimal]


class UnableToPost(DomainError):
    """These lines are no transaction, or their key already stands for another one."""


class UnableToReverse(DomainError):
    """This transaction can't be undone."""


@transaction.atomic
def post(
    *,
    organization: Organization,
    idempotency_key: str,
    kind: str,
    lines: Sequence[Line],
    currency: str,
    memo: str,
    effective_at: datetime,
    now: datetime,
    usage_line: UsagePosting | None = None,
    reverses: Transaction | None = None,
) -> Transaction:
    """Write one transaction into an organization's books; the same key again returns the first.

    `lines` are two or more (account, amount) that sum to zero, none of them zero, with at most 12
    decimals. Raises UnableToPost.
    """
    _check(lines)
    with scope(organization=organization):
        try:
            with transaction.atomic():
                posted = Transaction.objects.create(
                    organization=organization,
                    idempotency_key=idempotency_key,
                    kind=kind,
                    entry_count=len(lines),
                    memo=memo,
                    effective_at=effective_at,
                    booked_at=now,
                    usage_line=usage_line,
                    reverses=reverses,
                )
        except IntegrityError:
            return _same(organization, idempotency_key, kind, lines, currency)
        Entry.objects.bulk_create(
            Entry(
                organization=organization,
                transaction=posted,
                account=_account(organization, account, currency),
                currency=currency,
                amount=amount,
            )
            for account, amount in lines
        )
    return posted


@transaction.atomic
def reverse(
    *, posted: Transaction, memo: str, effective_at: datetime, now: datetime
) -> Transaction:
    """Undo a transaction by its mirror image, which names it. Again returns the first reversal.

    `effective_at` lies in a period that is still open. Raises UnableToReverse for a reversal.
    """
    if posted.reverses_id is not None:
        raise UnableToReverse("is_a_reversal", _("A reversal is undone by posting anew."))
    organization = posted.organization
    with scope(organization=organization):
        entries = list(posted.entries.select_related("account").order_by("id"))
    return post(
        organization=organization,
        idempotency_key=f"reversal:{posted.id}",
        kind="reversal",
        lines=[(AccountKind(entry.account.kind), -entry.amount) for entry in entries],
        currency=entries[0].currency,
        memo=memo,
        effective_at=effective_at,
        now=now,
        reverses=posted,
    )


def balance(*, organization: Organization, kind: AccountKind) -> Money:
    """Return what an account of the organization holds, in the organization's currency."""
    currency = organization.currency
    with scope(organization=organization):
        held = Entry.objects.filter(account__kind=kind, currency=currency).aggregate(
            total=Sum("amount")
        )
    return Money(held["total"] or Decimal(0), currency)


def _check(lines: Sequence[Line]) -> None:
    if len(lines) < 2:
        raise UnableToPost("too_few_lines", _("A transaction has two or more entries."))
    for _account_kind, amount in lines:
        exponent = amount.as_tuple().exponent
        if not isinstance(exponent, int) or -exponent > EXACT_DIGITS or amount == 0:
            raise UnableToPost(
                "bad_amount",
                _("An entry is not zero and has at most 12 decimals."),
                details={"amount": str(amount)},
            )
    total = sum((amount for _account_kind, amount in lines), Decimal(0))
    if total != 0:
        raise UnableToPost(
            "unbalanced",
            _("The entries of a transaction must sum to zero."),
            details={"sum": format(total, "f")},
        )


def _same(
    organization: Organization,
    idempotency_key: str,
    kind: str,
    lines: Sequence[Line],
    currency: str,
) -> Transaction:
    """Return the transaction that took the key, if it says the same."""
    first = Transaction.objects.filter(idempotency_key=idempotency_key).first()
    if first is not None:
        written = [
            (AccountKind(entry.account.kind), entry.amount, entry.currency)
            for entry in first.entries.select_related("account")
        ]
        wanted = [(account, amount, currency) for account, amount in lines]
        if first.kind == kind and sorted(written) == sorted(wanted):
            return first
    raise UnableToPost(
        "key_reused",
        _("This key already stands for another transaction."),
        details={"idempotency_key": idempotency_key},
    )


def _account(organization: Organization, kind: AccountKind, currency: str) -> Account:
    account, _created = Account.objects.get_or_create(
        organization=organization, kind=kind, currency=currency
    )
    return account
