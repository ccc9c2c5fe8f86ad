"""The bill of one instance, for those who may see its cost without seeing the machine itself."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar
from uuid import UUID

from django.utils.translation import gettext as _

from portal.billing import costs
from portal.billing.costs import InstanceCost
from portal.billing.models import Meter
from portal.errors import NotFound
from portal.tenants.roles import Actor


class UnableToFindBill(NotFound):
    """Nothing of that id was metered, or not for this reader: the answer is the same."""

    status: ClassVar[int] = 404


@dataclass(frozen=True, slots=True)
class Bill:
    """Everything that was metered of one instance; the names are those of its latest run."""

    instance_id: UUID
    name: str
    team: str
    member: str
    flavor: str
    cost: InstanceCost


def of_instance(*, actor: Actor, instance_id: UUID, now: datetime) -> Bill:
    """Return the bill of an instance of the organization in scope. Raises UnableToFindBill."""
    meter = (
        Meter.objects.filter(organization=actor.organization, subject=instance_id)
        .select_related("team", "member__user")
        .order_by("-opened_at")
        .first()
    )
    if meter is None or not actor.may(
        "usage.view", team_id=meter.team_id, owner_id=meter.member_id
    ):
        raise UnableToFindBill("bill_not_found", _("Nothing was metered under this address."))
    return Bill(
        instance_id=instance_id,
        name=meter.subject_name,
        team=str(meter.team),
        member=str(meter.member),
        flavor=meter.sku,
        cost=costs.of(subjects=[instance_id], now=now)[instance_id],
    )
