from datetime import timedelta

import pytest

from agents import wire
from portal.fleet import nodes
from portal.fleet.models import Link, Node
from tests.factories import NOW, user
from tests.fleet.agents import Machine

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


@pytest.fixture
def machine() -> Machine:
    made = Machine()
    made.join(NOW)
    return made


def twin(machine: Machine) -> Machine:
    """Copy the disk of a machine: the same key and identity, another boot."""
    copy = Machine()
    copy.key, copy.node_id = machine.key, machine.node_id
    return copy


def test_every_session_has_a_higher_epoch(machine: Machine) -> None:
    epochs = [machine.open(NOW + n * SECOND).session_epoch for n in range(3)]

    assert epochs == [1, 2, 3]


def test_an_older_session_can_write_nothing(machine: Machine) -> None:
    old, new = machine.open(NOW).session_epoch, machine.open(NOW + SECOND).session_epoch
    assert machine.node_id is not None

    later = NOW + 10 * SECOND
    assert not nodes.seen(node_id=machine.node_id, epoch=old, now=later)
    assert not nodes.observed(node_id=machine.node_id, epoch=old, generation=9)
    assert Node.objects.get().last_seen_at == NOW + SECOND
    assert nodes.seen(node_id=machine.node_id, epoch=new, now=later, clock_offset_ms=-40)
    node = Node.objects.get()
    assert (node.last_seen_at, node.clock_offset_ms, node.observed_generation) == (later, -40, 0)


def test_a_hello_brings_the_node_online_with_what_it_has(machine: Machine) -> None:
    machine.open(NOW)

    node = Node.objects.get()
    assert (node.link, node.runtime, node.cpu_milli) == (Link.ONLINE, "process", 64_000)
    assert [gpu.model for gpu in node.gpus.all()] == ["H100 SXM 80GB"]


def test_no_common_version_is_said_readably(machine: Machine) -> None:
    with pytest.raises(nodes.UnableToOpenSession) as refused:
        machine.open(NOW, proto_min=7, proto_max=9)

    assert refused.value.code == "no_common_version"
    assert "7" in refused.value.message


def test_two_machines_with_one_identity_stop_taking_the_session_from_each_other(
    machine: Machine,
) -> None:
    copy = twin(machine)
    machine.open(NOW)

    def take_turns() -> None:
        for n in range(1, 10):
            (copy, machine)[n % 2 == 0].open(NOW + n * SECOND)

    with pytest.raises(nodes.UnableToOpenSession) as refused:
        take_turns()

    assert refused.value.code == "identity_conflict"
    assert Node.objects.get().link == Link.CONFLICT
    assert Node.objects.get().events.filter(kind="conflict").count() == 1


def conflict(machine: Machine) -> Machine:
    """Bring the node into conflict; return the machine that was shut out."""
    copy = twin(machine)
    machine.open(NOW)
    for n in range(1, 10):
        one = (copy, machine)[n % 2 == 0]
        try:
            one.open(NOW + n * SECOND)
        except nodes.UnableToOpenSession:
            return one
    raise AssertionError("no conflict")


def test_in_a_conflict_the_machine_inside_stays_and_the_other_stays_outside(
    machine: Machine,
) -> None:
    outside = conflict(machine)
    holder_epoch = Node.objects.get().session_epoch
    assert machine.node_id is not None

    later = NOW + timedelta(hours=1)
    assert nodes.seen(node_id=machine.node_id, epoch=holder_epoch, now=later)
    with pytest.raises(nodes.UnableToOpenSession):
        outside.open(later)
    assert Node.objects.get().link == Link.CONFLICT


def test_an_operator_settles_a_conflict(machine: Machine) -> None:
    outside = conflict(machine)
    assert machine.node_id is not None

    nodes.settle_conflict(actor=user(is_operator=True), node_id=machine.node_id, now=NOW)

    assert outside.open(NOW + timedelta(minutes=1)).session_epoch
    assert Node.objects.get().link == Link.ONLINE


def test_reconnects_of_one_machine_are_never_a_conflict(machine: Machine) -> None:
    for n in range(30):
        machine.open(NOW + n * SECOND)

    assert Node.objects.get().link == Link.ONLINE


def test_an_agent_that_restarts_again_and_again_is_never_a_conflict(machine: Machine) -> None:
    for n in range(30):
        machine.open(NOW + n * SECOND, agent_run_id=f"run-{n}")

    assert Node.objects.get().link == Link.ONLINE


def test_two_agents_on_one_machine_are_a_conflict(machine: Machine) -> None:
    def take_turns() -> None:
        for n in range(30):
            machine.open(NOW + n * SECOND, agent_run_id=f"run-{n % 2}")

    with pytest.raises(nodes.UnableToOpenSession):
        take_turns()


def test_a_machine_that_reboots_now_and_then_is_never_a_conflict(machine: Machine) -> None:
    for n in range(10):
        machine.open(NOW + n * timedelta(minutes=2), boot_id=f"boot-{n}", agent_run_id=f"run-{n}")

    assert Node.objects.get().link == Link.ONLINE


def test_a_clock_hours_behind_changes_nothing_but_the_offset(machine: Machine) -> None:
    behind = NOW - timedelta(hours=2)
    machine.open(NOW, wall_time=round(behind.timestamp() * 1000))

    node = Node.objects.get()
    assert node.link == Link.ONLINE
    assert node.clock_offset_ms == node.applied_offset_ms == 2 * 3600 * 1000


def test_a_small_clock_offset_is_not_added_to_samples(machine: Machine) -> None:
    machine.open(NOW, wall_time=round(NOW.timestamp() * 1000) - 1500)

    node = Node.objects.get()
    assert (node.clock_offset_ms, node.applied_offset_ms) == (1500, 0)


def test_stored_batches_are_remembered_for_one_run_of_the_agent(machine: Machine) -> None:
    welcome = machine.open(NOW)
    assert machine.node_id is not None
    sighting = nodes.Sighting(node_id=machine.node_id, epoch=welcome.session_epoch, ack_seq=41)
    nodes.seen_all(sightings=[sighting], now=NOW)

    assert machine.open(NOW + SECOND).ack_seq == 41
    assert machine.open(NOW + 2 * SECOND, agent_run_id="another").ack_seq == 0


@pytest.mark.parametrize("wall_time", [-(2**63), 0, 2**63])
def test_a_clock_that_is_nonsense_keeps_nobody_out(machine: Machine, wall_time: int) -> None:
    welcome = machine.open(NOW, wall_time=wall_time)

    assert welcome.session_epoch == 1
    assert Node.objects.get().link == Link.ONLINE


def test_numbers_that_a_database_cannot_hold_do_no_harm(machine: Machine) -> None:
    welcome = machine.open(
        NOW,
        inventory=wire.Inventory(
            hostname="h",
            cpu_milli=2**63,
            memory_bytes=2**64 - 1,
            disk_bytes=-5,
            gpus=[wire.GpuInfo(uuid="GPU-x", index=2**40, model="m" * 999, memory_bytes=2**64 - 1)],
        ),
    )
    assert machine.node_id is not None
    assert nodes.observed(
        node_id=machine.node_id, epoch=welcome.session_epoch, generation=2**64 - 1
    )

    assert (Node.objects.get().disk_bytes, Node.objects.get().gpus.count()) == (0, 1)


def test_strings_that_a_database_cannot_hold_do_no_harm(machine: Machine) -> None:
    machine.open(NOW, boot_id="a\0b" * 100, agent_run_id="x" * 500, agent_version="v\0" * 99)

    assert len(Node.objects.get().boot_id) == 64
