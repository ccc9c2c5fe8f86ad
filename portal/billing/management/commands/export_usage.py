"""Write an organization's usage to a file. docs/billing.md describes the columns."""

from argparse import ArgumentParser
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.core.management.base import BaseCommand, CommandError

from portal.billing import export
from portal.billing.export import Summary
from portal.tenants.models import Organization

FORMATS = ("csv", "parquet", "xlsx", "focus")


class Command(BaseCommand):
    help = "Write everything an organization used in [from, to) to a file."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--organization", required=True, help="short name or id")
        for name in ("from", "to"):
            parser.add_argument(
                f"--{name}",
                required=True,
                dest=f"{name}_at",
                help="ISO 8601; without a zone, in the organization's billing zone",
            )
        parser.add_argument("--format", choices=FORMATS, default="csv")
        parser.add_argument("--out", required=True, help="the file to write, or -")

    def handle(self, *, organization: str, format: str, out: str, **options: Any) -> None:
        if format != "csv":
            raise CommandError(f"Exporting as {format} is not there yet; use --format csv.")
        found = _organization(organization)
        zone = ZoneInfo(found.billing_zone)
        start = _instant(options["from_at"], "--from", zone)
        end = _instant(options["to_at"], "--to", zone)
        if end <= start:
            raise CommandError("--to must be later than --from.")
        if out == "-":
            # The file goes to standard output, so what is said about it goes beside it.
            say = self.stderr
            summary = export.write_csv(organization=found, start=start, end=end, out=self.stdout)
        else:
            say = self.stdout
            summary = _to_file(Path(out), found, start, end)
        total = summary.total
        say.write(
            f"{summary.rows} rows, {summary.milliseconds} ms, {total.amount:f} {total.currency}"
            f" ({summary.rounding_rows} rounding rows), {found.billing_zone}"
        )


def _to_file(path: Path, organization: Organization, start: datetime, end: datetime) -> Summary:
    """Write beside the file and move it there once whole: nobody ever reads half an export."""
    # A pipe or a device is written to as it is.
    draft = path if path.exists() and not path.is_file() else path.with_name(f".{path.name}.part")
    try:
        try:
            with draft.open("w", encoding="utf-8", newline="") as out:
                summary = export.write_csv(organization=organization, start=start, end=end, out=out)
            if draft != path:
                draft.replace(path)
        finally:
            if draft != path:
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"{path} can't be written: {error}") from error
    return summary


def _organization(name: str) -> Organization:
    found = Organization.objects.filter(slug=name).first()
    if found is None:
        with suppress(ValueError):
            found = Organization.objects.filter(id=UUID(name)).first()
    if found is None:
        raise CommandError(f"There is no organization {name!r}.")
    return found


def _instant(text: str, option: str, zone: ZoneInfo) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"{option} is not an ISO 8601 time: {text!r}") from None
    if not 1 < at.year < 9999:  # months are counted one beyond either end
        raise CommandError(f"{option} lies outside of the calendar: {text!r}")
    return (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)
