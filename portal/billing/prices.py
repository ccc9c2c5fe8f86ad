"""List prices: which one holds when, and how a new one takes over.

A SKU that has a price once has one for ever after: the next price ends the present one at the same
instant, so metered time is never without a price. Prices only change in the future.
"""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import ClassVar

from django.db import connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from portal.billing import periods
from portal.billing.models import Price
from portal.errors import DomainError
from portal.money import EXACT_DIGITS
from portal.tenants import audit
from portal.tenants.models import User

# Those who meter hold this lock shared, who changes prices holds it alone: no second is metered at
# a price that has just ended.
_LOCK = 0x434F5250
_LARGEST = Decimal(10) ** 12


class UnableToPrice(DomainError):
    """There is no price for this at that time, so it can't be sold or metered."""


class UnableToSetPrice(DomainError):
    """The price can't be changed in this way."""


class UnableToOperate(UnableToSetPrice):
    """Only operators set prices."""

    status: ClassVar[int] = 403


def current(*, sku: str, currency: str, at: datetime) -> Price:
    """Return the price that holds at the instant `at`. Raises UnableToPrice."""
    found = Price.objects.filter(sku=sku, currency=currency, during__contains=at).first()
    if found is None:
        raise missing(sku=sku, currency=currency)
    return found


def missing(*, sku: str, currency: str) -> UnableToPrice:
    """Return the refusal that says so, to be raised."""
    return UnableToPrice(
        "no_price",
        _("There is no price for %(sku)s in %(currency)s.") % {"sku": sku, "currency": currency},
        help=_("Ask the operator to set one, or choose another flavor."),
        details={"sku": sku, "currency": currency},
    )


def list_prices(*, at: datetime) -> QuerySet[Price]:
    """Return the prices that hold at the instant `at`, by SKU and currency."""
    return Price.objects.filter(during__contains=at).order_by("sku", "currency")


def announced(*, currency: str, at: datetime) -> list[Price]:
    """Return the prices in a currency that hold at `at` or begin later, by SKU, oldest first."""
    versions = Price.objects.filter(currency=currency, during__endswith__isnull=True)
    versions |= Price.objects.filter(currency=currency, during__endswith__gt=at)
    return list(versions.order_by("sku", "during"))


def history(*, sku: str) -> QuerySet[Price]:
    """Return every price a SKU had, has and will have, oldest first, by currency."""
    return Price.objects.filter(sku=sku).order_by("currency", "during")


@transaction.atomic
def set_price(
    *, user: User, sku: str, currency: str, per_hour: Decimal, from_at: datetime, now: datetime
) -> Price:
    """Let a new price hold from `from_at` until the next one that is already planned.

    What has begun is ended there; a planned price of the same instant is replaced. Only the first
    price of a SKU may begin in the past. Raises UnableToSetPrice.
    """
    if not (user.is_active and user.is_operator):
        raise UnableToOperate("not_operator", _("Only operators can set prices."))
    begins = periods.floor(from_at)
    _check_amount(per_hour)
    _hold_alone()
    versions = list(Price.objects.filter(sku=sku, currency=currency).order_by("during"))
    if versions and begins < periods.floor(now):
        raise UnableToSetPrice(
            "price_in_the_past",
            _("A price can only change from now on."),
            help=_("Time already used stays billed at the price that was shown."),
            details={"from": begins.isoformat(), "now": now.isoformat()},
        )
    ends = _make_room(versions, begins, now)
    price = Price.objects.create(
        sku=sku, currency=currency, per_hour=per_hour, during=(begins, ends), created_at=now
    )
    audit.record(
        actor=None,
        organization=None,
        verb="price.set",
        target_kind="price",
        target_id=price.id,
        target_name=sku,
        details={
            "currency": currency,
            "per_hour": format(per_hour, "f"),
            "from": begins.isoformat(),
        },
        now=now,
        user=user,
    )
    return price


def hold() -> None:
    """Keep prices from changing until this database transaction ends. For those who meter."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [_LOCK])


def _hold_alone() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])


def _check_amount(per_hour: Decimal) -> None:
    exponent = per_hour.as_tuple().exponent
    if (
        not isinstance(exponent, int)  # NaN and infinity
        or -exponent > EXACT_DIGITS
        or not 0 <= per_hour < _LARGEST
    ):
        raise UnableToSetPrice(
            "amount_out_of_range",
            _("A price is zero or more, with at most 12 decimals."),
            details={"per_hour": [str(per_hour)]},
        )


def _make_room(versions: Sequence[Price], begins: datetime, now: datetime) -> datetime | None:
    """End or remove the version that holds at `begins`; return when the next one begins."""
    following: datetime | None = None
    for version in versions:
        lower, upper = version.during.lower, version.during.upper
        if lower > begins:
            following = following or lower
        elif lower == begins:
            following = upper
            _remove(version, now)
        elif upper is None or upper > begins:
            version.during = DateTimeTZRange(lower, begins)
            version.save(update_fields=["during"])
    return following


def _remove(version: Price, now: datetime) -> None:
    if version.during.lower <= now:
        raise UnableToSetPrice(
            "price_has_begun",
            _("Another price began at this very instant, and a price that has begun stays."),
            help=_("Choose a later instant."),
        )
    version.delete()
