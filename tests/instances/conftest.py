"""One organization with a team and a member, a flavor, an image, and a rack."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from portal.billing.models import Meter
from portal.instances import actions, placement
from portal.instances.models import Flavor, Image, Instance
from portal.tenants.access import actor_for_member
from portal.tenants.models import Organization, Role, Team
from portal.tenants.roles import Actor
from portal.tenants.scope import every_tenant
from scheduler.models import Lease, Request, Standing
from tests import factories as make
from tests.instances.rack import Rack


@dataclass
class House:
    """Everything a story needs, and a clock that the test turns."""

    organization: Organization
    team: Team
    actor: Actor
    flavor: Flavor
    image: Image
    rack: Rack
    now: datetime = make.NOW
    launched: int = field(default=0)

    def pass_time(self, **span: float) -> datetime:
        self.now += timedelta(**span)
        return self.now

    def launch(self, **fields: Any) -> Instance:
        self.launched += 1
        values = {
            "actor": self.actor, "team_id": self.team.id, "name": f"box-{self.launched}",
            "flavor": self.flavor.code, "image": self.image.code, "now": self.now,
        }  # fmt: skip
        return actions.launch(**(values | fields))

    def run(self, **fields: Any) -> Instance:
        """Launch, place and start."""
        instance = self.launch(**fields)
        self.plan()
        self.rack.obey(self.now)
        return self.again(instance)

    def plan(self) -> list[Instance]:
        return placement.cycle(now=self.now)

    def again(self, instance: Instance) -> Instance:
        with every_tenant("tests"):
            return Instance.objects.get(id=instance.id)

    def stop(self, instance: Instance) -> Instance:
        return actions.stop(actor=self.actor, instance_id=instance.id, now=self.now)

    def terminate(self, instance: Instance) -> Instance:
        return actions.terminate(actor=self.actor, instance_id=instance.id, now=self.now)

    def start(self, instance: Instance) -> Instance:
        return actions.start(actor=self.actor, instance_id=instance.id, now=self.now)

    def busy_gpus(self) -> int:
        with every_tenant("tests"):
            return Lease.objects.filter(during__endswith__isnull=True).count()

    def counted(self) -> int:
        with every_tenant("tests"):
            return Request.objects.exclude(standing=Standing.ENDED).count()

    def meter(self, instance: Instance, run: int | None = None) -> Meter | None:
        with every_tenant("tests"):
            return Meter.objects.filter(
                subject=instance.id, run=run or self.again(instance).run
            ).first()

    def moves(self, instance: Instance) -> list[str]:
        with every_tenant("tests"):
            return list(instance.moves.order_by("id").values_list("to_state", flat=True))

    def billed_ms(self, instance: Instance) -> int:
        """Whole milliseconds that are billed, over all runs."""
        with every_tenant("tests"):
            spans = [
                segment.during.upper - segment.during.lower
                for meter in Meter.objects.filter(subject=instance.id)
                for segment in meter.segments.filter(state="BILLED")
            ]
        return sum(round(span.total_seconds() * 1000) for span in spans)


def new_house(gpus: int = 8, **flavor: Any) -> House:
    organization = make.organization()
    team = make.team(organization)
    member = make.member(organization, Role.MEMBER, teams=(team,))
    return House(
        organization=organization,
        team=team,
        actor=actor_for_member(member=member),
        flavor=make.flavor(**flavor),
        image=make.image(),
        rack=Rack.with_gpus(gpus),
    )


@pytest.fixture
def house(db: None) -> House:
    """Return a house with eight GPUs."""
    return new_house()
