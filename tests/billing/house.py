"""One organization that runs things, seen by the tests of money."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from portal.billing import meters
from portal.billing.models import Meter
from portal.tenants.access import actor_for_member
from portal.tenants.models import Member, Organization, Role, Team
from portal.tenants.roles import Actor
from portal.tenants.scope import every_tenant
from tests import factories as make


@dataclass
class House:
    """An organization with one team and one member, who runs one flavor."""

    organization: Organization
    team: Team
    member: Member
    sku: str

    def open(self, at: datetime, **changes: Any) -> Meter:
        """Open a meter for a new instance, or for what `changes` says."""
        values: dict[str, Any] = {
            "organization_id": self.organization.id,
            "team_id": self.team.id,
            "member_id": self.member.id,
            "subject": uuid.uuid4(),
            "subject_name": "trainer",
            "run": 1,
            "sku": self.sku,
            "currency": self.organization.currency,
            "at": at,
            "cause": "it became usable",
        }
        return meters.open(**(values | changes))

    def ran(self, start: datetime, end: datetime, **changes: Any) -> Meter:
        """Meter a whole run."""
        meter = self.open(start, **changes)
        return meters.close(subject=meter.subject, run=meter.run, at=end, cause="it was stopped")

    def actor(self, role: str = Role.FINANCE) -> Actor:
        """Return somebody new of this role."""
        member = make.member(self.organization, role)
        with every_tenant("tests"):
            return actor_for_member(member=member)


def build(*, currency: str = "USD", zone: str = "UTC", per_hour: str = "2.49") -> House:
    """Build a house."""
    organization = make.organization(currency=currency, billing_zone=zone)
    team = make.team(organization)
    member = make.member(organization, teams=(team,))
    sku = make.flavor(per_hour=per_hour, currency=currency).code
    return House(organization, team, member, sku)
