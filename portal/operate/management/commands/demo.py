"""`manage.py demo`: make the demo data, once, and print the sign-ins."""

import json
from argparse import ArgumentParser
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand

from portal.operate import demo


class Command(BaseCommand):
    """Seed and print."""

    help = "Make the demo's organizations, people and catalogue, unless they exist."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        demo.seed(now=datetime.now(UTC))
        if options["json"]:
            self.stdout.write(json.dumps({"sign_ins": [asdict(sign) for sign in demo.SIGN_INS]}))
            return
        for sign in demo.SIGN_INS:
            self.stdout.write(f"{sign.role:<11} {sign.email:<26} {sign.password}")
