"""What would these runs cost? docs/rate.md describes the files and the answer."""

import json
import sys
from argparse import ArgumentParser
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from portal.billing.rate_input import RatingError
from portal.billing.rating import Rated, rate


class Command(BaseCommand):
    help = "Price usage rows line by line and month by month, by the production rating code."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--usage", required=True, help="JSON file of usage rows, or -")
        parser.add_argument("--prices", required=True, help="JSON file of price rows, or -")
        parser.add_argument("--zone", required=True, help="billing zone, such as Europe/Berlin")
        parser.add_argument("--currency", required=True, help="ISO 4217 code, such as USD")
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")

    def handle(self, *, usage: str, prices: str, zone: str, currency: str, **options: Any) -> None:
        if usage == "-" and prices == "-":
            raise CommandError("Only one of --usage and --prices can come from standard input.")
        try:
            rated = rate(
                usage=_read(usage, "usage"),
                prices=_read(prices, "prices"),
                zone=zone,
                currency=currency,
            )
        except RatingError as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            self.stdout.write(json.dumps(rated.as_json(), indent=2))
        else:
            self.stdout.write(_table(rated))


def _read(name: str, what: str) -> Any:
    try:
        content = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        return json.loads(content, parse_float=Decimal)  # no digit is lost on the way in
    except (OSError, ValueError) as error:
        raise CommandError(f"The {what} file can't be read: {error}") from error


def _table(rated: Rated) -> str:
    lines = []
    for month in rated.months:
        lines.append(f"{month.first:%Y-%m} ({rated.zone})")
        lines += [
            f"  {line.sku:<30} {line.unit_price:f} per {line.per}  "
            f"{line.as_json()['milliseconds']} ms  {line.amount:f}"
            for line in month.lines
        ]
        lines.append(f"  total {month.total:f} {rated.currency}")
    return "\n".join(lines)
