"""What runs cost: time × price, split at months and price versions. Pure: no Django, no clock.

Everything is exact (integers and fractions) until a line is done; then `portal.money` rounds it,
once. docs/rate.md describes what goes in and what comes out.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from portal import money
from portal.billing import periods
from portal.billing.rate_input import PriceRow, RatingError, UsageRow, read_prices, read_usage

UNIT_MS: Mapping[str, int] = {"hour": periods.HOUR_MS, "second": periods.SECOND_MS}
# Decimals of `exact` in what is printed. The promise is 12; sums of many lines need some more.
PRINTED_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Line:
    """One SKU at one price version in one month. `milliseconds` counts time × quantity."""

    sku: str
    unit_price: Decimal
    per: str
    milliseconds: Fraction
    exact: Fraction
    amount: Decimal  # `exact`, rounded once

    def as_json(self) -> dict[str, Any]:
        """Return the line as `manage.py rate` prints it."""
        whole = self.milliseconds.denominator == 1
        return {
            "sku": self.sku,
            "unit_price": format(self.unit_price, "f"),
            "per": self.per,
            # A share of a GPU can run for a part of a millisecond; a decimal string keeps it exact.
            "milliseconds": int(self.milliseconds)
            if whole
            else format(money.to_decimal(self.milliseconds).normalize(), "f"),
            "exact": format(money.to_decimal(self.exact, PRINTED_DIGITS), "f"),
            "amount": format(self.amount, "f"),
        }


@dataclass(frozen=True, slots=True)
class Month:
    """A month of the billing zone that has usage, and its lines by SKU and price version."""

    first: date
    lines: tuple[Line, ...]
    total: Decimal  # the sum of the rounded lines


@dataclass(frozen=True, slots=True)
class Rated:
    """What the usage costs, month by month."""

    currency: str
    zone: str
    months: tuple[Month, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the answer as `manage.py rate` prints it."""
        return {
            "currency": self.currency,
            "zone": self.zone,
            "periods": [
                {
                    "period": f"{month.first:%Y-%m}",
                    "lines": [line.as_json() for line in month.lines],
                    "total": format(month.total, "f"),
                }
                for month in self.months
            ],
        }


def rate(
    *,
    usage: Sequence[Mapping[str, Any]],
    prices: Sequence[Mapping[str, Any]],
    zone: str,
    currency: str,
) -> Rated:
    """Price usage rows line by line and month by month of the billing zone.

    Rows are decoded JSON as docs/rate.md describes. A usage row that comes again with the same id
    and the same content counts once. Raises RatingError, which names the row.
    """
    known = _zone(zone)
    if not re.fullmatch("[A-Z]{3}", currency):
        raise RatingError(f"{currency!r} is no currency code; write for example USD")
    versions = read_prices(prices)
    time: dict[tuple[date, PriceRow], Fraction] = defaultdict(Fraction)
    for row in read_usage(usage):
        for start, end, version in _at_prices(row, versions.get(row.sku, [])):
            for month in periods.months(start=start, end=end, zone=known):
                overlap = min(end, month.end) - max(start, month.start)
                time[month.first, version] += row.quantity * overlap
    return Rated(currency=currency, zone=zone, months=_by_month(time, currency))


def cost(
    unit_price: Decimal, milliseconds: Fraction | int, unit_ms: int = periods.HOUR_MS
) -> Fraction:
    """Return rate × time / unit, exact: the one formula of every line, here and in the ledger."""
    return Fraction(unit_price) * milliseconds / unit_ms


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise RatingError(f"{name!r} is no time zone; write for example Europe/Berlin") from None


def _at_prices(row: UsageRow, versions: list[PriceRow]) -> Iterator[tuple[int, int, PriceRow]]:
    """Split a row at price versions (sorted, not overlapping); refuse a stretch without a price."""
    reached = row.start
    for version in versions:
        end = row.end if version.end is None else min(row.end, version.end)
        start = max(row.start, version.start)
        if start >= end:
            continue
        if start > reached:
            break
        yield start, end, version
        reached = end
    if reached < row.end:
        following = [version.start for version in versions if version.start > reached]
        raise RatingError(
            f"{row.name}: no price for {row.sku!r} from {periods.iso(reached)} "
            f"to {periods.iso(min([row.end, *following]))}"
        )


def _by_month(time: Mapping[tuple[date, PriceRow], Fraction], currency: str) -> tuple[Month, ...]:
    months: dict[date, list[Line]] = defaultdict(list)
    for (first, version), milliseconds in sorted(
        time.items(), key=lambda item: (item[0][0], item[0][1].sku, item[0][1].start)
    ):
        exact = cost(version.amount, milliseconds, UNIT_MS[version.per])
        months[first].append(
            Line(
                sku=version.sku,
                unit_price=version.amount,
                per=version.per,
                milliseconds=milliseconds,
                exact=exact,
                amount=money.round_amount(exact, currency),
            )
        )
    return tuple(
        Month(first, tuple(lines), sum((line.amount for line in lines), Decimal(0)))
        for first, lines in months.items()
    )
