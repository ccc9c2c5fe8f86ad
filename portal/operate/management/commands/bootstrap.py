"""`manage.py bootstrap`: the first operator and organization of a fresh installation."""

import json
from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from portal.errors import DomainError
from portal.operate import catalogue
from portal.operate.people import person
from portal.tenants import access, members, tokens
from portal.tenants.models import Organization
from portal.tenants.scope import scope


class Command(BaseCommand):
    """Make them and print an API token of full scope, once."""

    help = "Make the first operator and organization; prints an API token of full scope."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--email", required=True)
        parser.add_argument("--password", required=True)
        parser.add_argument("--organization", required=True, help="its name")
        parser.add_argument("--zone", default="UTC", help="billing time zone (IANA name)")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        now = datetime.now(UTC)
        try:
            made = self._make(options, now)
        except DomainError as error:
            raise CommandError(f"{error.message} {error.help}".strip()) from error
        if options["json"]:
            self.stdout.write(json.dumps(made))
            return
        self.stdout.write(
            f"Organization {made['organization']['name']} and {made['user']['email']}"
        )
        self.stdout.write(f"API token (shown once): {made['token']}")

    @transaction.atomic
    def _make(self, options: dict[str, Any], now: datetime) -> dict[str, Any]:
        catalogue.stock(now=now)
        user = person(email=options["email"], password=options["password"], is_operator=True)
        mine = [m.organization for m in access.memberships(user=user)]
        organization: Organization | None = next(
            (one for one in mine if one.name == options["organization"]), None
        )
        if organization is None:
            organization = members.create_organization(
                user=user,
                name=options["organization"],
                currency=settings.DEFAULT_CURRENCY,
                billing_zone=options["zone"],
                now=now,
            )
        with scope(organization=organization):
            actor = access.actor_for(user=user, slug=organization.slug)
            _token, secret = tokens.issue(
                actor=actor, name="bootstrap", scopes=["full"], expires_at=None, now=now
            )
        return {
            "organization": {
                "id": str(organization.id),
                "slug": organization.slug,
                "name": organization.name,
            },
            "user": {"id": str(user.id), "email": user.email},
            "token": secret,
        }
