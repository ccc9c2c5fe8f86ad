"""Prove that the books are right, or print every difference and exit 1."""

from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from portal.billing import proof

_TRIES = 5
_OVERTAKEN = "40001"  # serialization failure: the snapshot was too old to write to


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
        except DatabaseError as error:
            if getattr(error.__cause__, "sqlstate", "") != _OVERTAKEN:
                raise
    return list(proof.differences(now=datetime.now(UTC)))
