"""An organization with an instance that holds GPUs of a node, as rows."""

import uuid
from dataclasses import dataclass
from uuid import UUID

from django.utils import timezone

from portal.fleet import nodes
from portal.fleet.models import Gpu
from portal.instances.models import Instance, State
from portal.tenants.models import Member, Organization
from portal.tenants.scope import every_tenant
from scheduler.models import Lease, Request
from tests.factories import flavor, image, member, organization, team


@dataclass
class World:
    """Who launched what, where."""

    organization: Organization
    member: Member
    instance: Instance

    @property
    def topic(self) -> str:
        return f"gpus:instance:{self.instance.pk}"


def running(node_id: UUID, *gpu_uuids: str, units: tuple[int, int] = (0, 1000)) -> World:
    """Have a new organization run an instance on these GPUs of a node."""
    now = timezone.now()
    tenant = organization()
    crew = team(tenant)
    person = member(tenant, teams=(crew,))
    share = units[1] - units[0]
    with every_tenant("tests"):
        subject = uuid.uuid4()
        request = Request.objects.create(
            organization=tenant, team=crew, member=person, subject=subject, standing="PLACED",
            submitted_at=now, placed_at=now, node_id=node_id, gpu_count=len(gpu_uuids),
            units_per_gpu=share,
        )  # fmt: skip
        instance = Instance.objects.create(
            id=subject, organization=tenant, team=crew, member=person, name="train", run=1,
            flavor=flavor(gpu_count=len(gpu_uuids), units_per_gpu=share), image=image(),
            created_at=now, state=State.STARTING, state_since=now, node_id=node_id, request=request,
        )  # fmt: skip
        for gpu in Gpu.objects.filter(uuid__in=gpu_uuids):
            Lease.objects.create(
                organization=tenant, request=request, gpu=gpu, units=[units], during=(now, None)
            )
    nodes.raise_desired(node_ids=[node_id])
    return World(tenant, person, instance)


def over(world: World) -> None:
    """End the instance and give its GPUs back."""
    with every_tenant("tests"):
        leases = Lease.objects.filter(request=world.instance.request)
        for lease in leases:
            lease.during = (lease.during.lower, timezone.now())
            lease.save()
        Instance.objects.filter(pk=world.instance.pk).update(state=State.STOPPED)
    assert world.instance.node_id
    nodes.raise_desired(node_ids=[world.instance.node_id])
