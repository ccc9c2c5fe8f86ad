"""Prove that the books are right, or print every difference and exit 1."""

from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError

from portal.billing import proof

_TRIES = 5


class Command(BaseCommand):
    help = "Check that the ledger balances and holds exactly what the meters measured."

    def handle(self, **options: Any) -> None:
        found = _differences()
        for words in found:
            self.stdout.write(words)
        if found:
            raise CommandError(f"{len(found)} differences.", returncode=1)
        self.stdout.write("The ledger balances and holds exactly what was metered.")


def _differences() -> list[str]:
    for _ in range(_TRIES - 1):
        try:
            return list(proof.differences(now=datetime.now(UTC)))
        except OperationalError as error:
            # Somebody posted at the same instant: the snapshot was too old to write to.
            if getattr(error.__cause__, "sqlstate", "") != "40001":
                raise
    return list(proof.differences(now=datetime.now(UTC)))
