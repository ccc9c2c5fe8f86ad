from datetime import timedelta

import pytest

from agents import wire
from portal.fleet import nodes
from portal.fleet.gpu_models import canonical
from portal.fleet.models import Gpu, GpuState, Link, Node
from tests.factories import NOW, node
from tests.fleet.agents import gpu, inventory

pytestmark = pytest.mark.django_db

LATER = NOW + timedelta(minutes=1)


def test_a_gpu_that_is_gone_is_absent_and_never_deleted() -> None:
    one = node(gpus=0)
    nodes.update_inventory(node_id=one.pk, inventory=inventory(gpu("GPU-a"), gpu("GPU-b")), now=NOW)

    changes = nodes.update_inventory(node_id=one.pk, inventory=inventory(gpu("GPU-a")), now=LATER)

    assert [(change.uuid, change.after) for change in changes] == [("GPU-b", GpuState.ABSENT)]
    gone = Gpu.objects.get(uuid="GPU-b")
    assert (gone.state, gone.state_since) == (GpuState.ABSENT, LATER)


def test_a_gpu_that_comes_back_is_the_same_gpu() -> None:
    one = node(gpus=0)
    nodes.update_inventory(node_id=one.pk, inventory=inventory(gpu("GPU-a")), now=NOW)
    first = Gpu.objects.get()
    nodes.update_inventory(node_id=one.pk, inventory=inventory(), now=NOW)

    nodes.update_inventory(node_id=one.pk, inventory=inventory(gpu("GPU-a", index=3)), now=LATER)

    back = Gpu.objects.get()
    assert (back.pk, back.state, back.index) == (first.pk, GpuState.OK, 3)


def test_the_same_inventory_twice_changes_nothing() -> None:
    one = node(gpus=0)
    said = inventory(gpu("GPU-a"))
    nodes.update_inventory(node_id=one.pk, inventory=said, now=NOW)
    events = one.events.count()

    assert nodes.update_inventory(node_id=one.pk, inventory=said, now=LATER) == []
    assert one.events.count() == events


def test_a_gpu_moves_with_its_history_when_its_old_node_is_dead() -> None:
    old, new = node(gpus=1), node(gpus=0)
    moved = Gpu.objects.get()
    Node.objects.filter(pk=old.pk).update(link=Link.LOST)

    nodes.update_inventory(node_id=new.pk, inventory=inventory(gpu(moved.uuid)), now=LATER)

    assert Gpu.objects.get(pk=moved.pk).node_id == new.pk


def test_a_gpu_of_a_living_node_cannot_be_claimed_by_another() -> None:
    old, new = node(gpus=1), node(gpus=0)
    claimed = Gpu.objects.get()

    nodes.update_inventory(node_id=new.pk, inventory=inventory(gpu(claimed.uuid)), now=LATER)

    assert Gpu.objects.get().node_id == old.pk
    assert new.events.get().kind == "gpu_elsewhere"


def test_health_is_kept_with_since_when_and_why() -> None:
    one = node(gpus=2)
    sick, well = Gpu.objects.order_by("index")
    said = [
        wire.GpuHealth(uuid=sick.uuid, state="lost", detail="fell off the bus"),
        wire.GpuHealth(uuid=well.uuid, state="ok"),
        wire.GpuHealth(uuid="GPU-unheard-of", state="lost"),
    ]

    changes = nodes.set_gpu_health(node_id=one.pk, epoch=1, health=said, now=LATER)

    assert [change.gpu_id for change in changes] == [sick.pk]
    sick.refresh_from_db()
    assert (sick.state, sick.state_since, sick.state_detail) == (
        GpuState.LOST,
        LATER,
        "fell off the bus",
    )
    assert nodes.set_gpu_health(node_id=one.pk, epoch=1, health=said, now=LATER) == []


def test_a_gpu_recovers_and_its_history_stays() -> None:
    one = node(gpus=1)
    uuid = Gpu.objects.get().uuid
    for state in ("not_answering", "ok"):
        said = [wire.GpuHealth(uuid=uuid, state=state)]  # type: ignore[arg-type]
        nodes.set_gpu_health(node_id=one.pk, epoch=1, health=said, now=LATER)

    assert Gpu.objects.get().state == GpuState.OK
    assert list(one.events.order_by("id").values_list("kind", flat=True)) == [
        "gpu_not_answering",
        "gpu_ok",
    ]


def test_an_outdated_session_says_nothing_about_health() -> None:
    one = node(gpus=1)
    said = [wire.GpuHealth(uuid=Gpu.objects.get().uuid, state="lost")]

    assert nodes.set_gpu_health(node_id=one.pk, epoch=0, health=said, now=LATER) == []
    assert Gpu.objects.get().state == GpuState.OK


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("NVIDIA H200", "H200 SXM 141GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090 24GB"),
        ("NVIDIA L40S", "L40S 48GB"),
        ("Tesla T4", "T4 16GB"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100 MIG 1g.10gb"),
        ("AMD Instinct MI300X", "MI300X 192GB"),
        ("Acme Thinker 9000", "Acme Thinker 9000"),
        ("NVIDIA Z900", "NVIDIA Z900"),
    ],
)
def test_a_model_has_one_name(raw: str, name: str) -> None:
    assert canonical(raw) == name
