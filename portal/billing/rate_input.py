"""Read and check the rows that `rating.rate` prices. Pure: no Django, no clock.

Every complaint names the row, so that a person with ten thousand of them finds it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

from portal.billing import periods

_PERS = ("hour", "second")
_DECIMAL = re.compile(r"\d{1,20}(\.\d{1,20})?")


class RatingError(ValueError):
    """The input can't be priced; the sentence names the row and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One run: [start, end) in UTC milliseconds, `quantity` units of the SKU all that time."""

    name: str  # which row, for complaints
    sku: str
    start: int
    end: int
    quantity: Fraction


@dataclass(frozen=True, slots=True)
class PriceRow:
    """One price version, valid in [start, end) in UTC milliseconds; no end is open-ended."""

    name: str
    sku: str
    amount: Decimal
    per: str
    start: int
    end: int | None


def read_usage(rows: Sequence[Mapping[str, Any]]) -> list[UsageRow]:
    """Check usage rows; a replayed id counts once, a changed replay is refused.

    Raises RatingError.
    """
    seen: dict[str, tuple[UsageRow, tuple[object, ...]]] = {}
    for number, row in enumerate(_rows(rows, "usage"), 1):
        name = f"usage row {number}"
        ident = _field(row, "id", name)
        if not isinstance(ident, str | int) or isinstance(ident, bool) or ident == "":
            raise RatingError(f"{name}: id must be a string, not {ident!r}")
        name = f"{name} (id {ident!r})"
        start, end = _instant(row, "start", name), _instant(row, "end", name)
        if end < start:
            raise RatingError(f"{name}: it ends before it starts")
        read = UsageRow(name, _sku(row, name), start, end, _quantity(row, name))
        content = (read.sku, read.start, read.end, read.quantity)
        first, before = seen.setdefault(str(ident), (read, content))
        if before != content:
            raise RatingError(f"{name}: the same id stands in {first.name} with other content")
    return [row for row, _ in seen.values()]


def read_prices(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[PriceRow]]:
    """Check price rows; return each SKU's versions, oldest first. Raises RatingError."""
    versions: dict[str, list[PriceRow]] = defaultdict(list)
    for number, row in enumerate(_rows(rows, "price"), 1):
        name = f"price row {number}"
        sku = _sku(row, name)
        name = f"{name} (sku {sku!r})"
        per = _field(row, "per", name)
        if per not in _PERS:
            raise RatingError(f"{name}: per must be 'hour' or 'second', not {per!r}")
        start = _instant(row, "from", name)
        end = None if row.get("to") is None else _instant(row, "to", name)
        if end is not None and end <= start:
            raise RatingError(f"{name}: it ends before it begins")
        amount = _decimal(_field(row, "amount", name), f"{name}: amount")
        versions[sku].append(PriceRow(name, sku, amount, per, start, end))
    for known in versions.values():
        known.sort(key=lambda version: version.start)
        for earlier, later in pairwise(known):
            if earlier.end is None or later.start < earlier.end:
                raise RatingError(f"{later.name}: it overlaps {earlier.name}")
    return dict(versions)


def _rows(rows: object, kind: str) -> Iterable[Mapping[str, Any]]:
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise RatingError(f"the {kind} file must hold a list of objects")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise RatingError(f"{kind} row {number}: it must be an object, not {row!r}")
        yield row


def _field(row: Mapping[str, Any], field: str, name: str) -> object:
    if row.get(field) is None:
        raise RatingError(f"{name}: {field} is missing")
    value: object = row[field]
    return value


def _sku(row: Mapping[str, Any], name: str) -> str:
    sku = _field(row, "sku", name)
    if not isinstance(sku, str) or not sku:
        raise RatingError(f"{name}: sku must be a string, not {sku!r}")
    return sku


def _instant(row: Mapping[str, Any], field: str, name: str) -> int:
    text = _field(row, field, name)
    try:
        at = datetime.fromisoformat(text)  # type: ignore[arg-type]  # TypeError is caught below
    except (TypeError, ValueError):
        raise RatingError(f"{name}: {field} is not an ISO 8601 time: {text!r}") from None
    if at.tzinfo is None:
        raise RatingError(f"{name}: {field} has no time zone: {text!r} (end it in Z or +02:00)")
    if not 1 < at.year < 9999:  # months are counted one beyond either end
        raise RatingError(f"{name}: {field} lies outside of the calendar: {text!r}")
    return periods.to_ms(at)


def _quantity(row: Mapping[str, Any], name: str) -> Fraction:
    if row.get("quantity") is None:
        return Fraction(1)
    quantity = Fraction(_decimal(row["quantity"], f"{name}: quantity"))
    if quantity == 0:
        raise RatingError(f"{name}: quantity must be more than 0")
    return quantity


def _decimal(value: object, name: str) -> Decimal:
    """Read a decimal string or a whole number. A float has lost digits already and is refused."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, Decimal):
        value = format(value, "f")
    if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
        raise RatingError(f"{name} must be a decimal such as '2.49', not negative: {value!r}")
    return Decimal(value)
