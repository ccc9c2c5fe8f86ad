"""How answers look in a terminal: plain columns, amounts with currency, times without noise."""

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from portal.cli.language import _

# What a terminal would obey rather than show.
_CONTROL = dict.fromkeys([*range(32), *range(0x7F, 0xA0)])
_COST_DIGITS = 4  # at most, for people


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return the rows in columns."""
    cells = [[_clean(str(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(
            cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    )
    return "\n".join(lines)


def facts(pairs: Sequence[tuple[str, object]]) -> str:
    """Return one fact a line."""
    (name, value), *rest = pairs
    return table((name, str(value)), rest)


def money(value: dict[str, str] | None) -> str:
    """Write "2.49 USD", or a dash where there is none."""
    return f"{value['amount']} {value['currency']}" if value else "–"


def cost(value: dict[str, str] | None) -> str:
    """Write an exact amount for people: "0.0159 USD"; --json has all its digits."""
    if not value:
        return "–"
    exact = Decimal(value["amount"])
    if -(exponent := int(exact.as_tuple().exponent)) > _COST_DIGITS:
        exact = exact.quantize(Decimal(1).scaleb(-_COST_DIGITS), ROUND_HALF_UP)
        exponent = -_COST_DIGITS
    return f"{exact:.{-exponent}f} {value['currency']}"


def moment(text: str | None) -> str:
    """Write "2026-03-02 09:00 UTC", or a dash."""
    if not text:
        return "–"
    at = datetime.fromisoformat(text).astimezone(UTC)
    return at.strftime("%Y-%m-%d %H:%M UTC")


def hours(milliseconds: int) -> str:
    """Write a time span as "1:30:05" (hours, minutes, seconds)."""
    seconds = milliseconds // 1000
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def gpus(milli_gpus: int | None) -> str:
    """Write thousandths as GPUs: "4", "0.25"; "no limit" for none."""
    return _("no limit") if milli_gpus is None else f"{milli_gpus / 1000:g}"


def standing(instance: dict[str, Any]) -> str:
    """Say where an instance stands, in one line."""
    parts = [str(instance["state_words"])]
    if instance["queue_position"]:
        parts.append(_("position %s") % instance["queue_position"])
    if instance["estimate"]:
        parts.append(str(instance["estimate"]["words"]))
    line = ", ".join(parts)
    return f"{line}: {instance['reason']}" if instance["reason"] else line


def _clean(text: str) -> str:
    return text.translate(_CONTROL)


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
