"""Print a one-time join token for a new node."""

import json
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from portal.fleet import nodes


class Command(BaseCommand):
    help = "Print a token that lets one machine join as a node, once, within the hour."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--pool", default="default", help="the pool that the node joins")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        token, secret = nodes.issue_join_token(pool=options["pool"], now=timezone.now())
        if options["json"]:
            answer = {
                "token": secret,
                "pool": token.pool,
                "expires_at": token.expires_at.isoformat().replace("+00:00", "Z"),
                "portal": settings.PUBLIC_URL,
            }
            self.stdout.write(json.dumps(answer))
            return
        self.stdout.write(secret)
        self.stderr.write(
            f"Valid once, until {token.expires_at:%H:%M} UTC. On the machine:\n"
            f"  corral-agent --portal {settings.PUBLIC_URL} --join {secret} --state-dir DIR"
        )
