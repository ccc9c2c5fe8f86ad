"""Silent nodes, vanished containers, restarted agents: what the node proves counts, no more."""

from datetime import timedelta

import pytest

from portal.fleet import nodes
from portal.fleet.models import Link, Node
from portal.instances import limits
from portal.instances.models import State
from portal.tenants.scope import every_tenant
from tests import factories as make
from tests.instances.conftest import House


def run_for(house: House, seconds: int) -> None:
    for _ in range(seconds // 5):
        house.pass_time(seconds=5)
        house.rack.report(house.now)


def test_a_silent_node_makes_its_instances_lost_and_keeps_their_gpus(house: House) -> None:
    instance = house.run()
    run_for(house, 60)
    house.rack.go_silent()
    house.pass_time(seconds=70)

    assert limits.lose_silent(now=house.now) == 1
    assert limits.lose_silent(now=house.now) == 0

    assert house.again(instance).state == State.LOST
    assert house.busy_gpus() == 1
    assert house.counted() == 1
    assert house.billed_ms(instance) == 60_000


def test_a_node_that_comes_back_with_the_same_container_settles_the_silence(house: House) -> None:
    instance = house.run()
    run_for(house, 60)
    house.rack.go_silent(Link.LOST)
    house.pass_time(hours=2)
    limits.lose_silent(now=house.now)

    house.rack.come_back()
    house.rack.hello(house.now)

    assert house.again(instance).state == State.RUNNING
    assert house.billed_ms(instance) == 60_000 + 2 * 3600_000


@pytest.mark.parametrize("change", ["boot", "container"])
def test_what_is_not_the_same_container_on_the_same_boot_ends_at_the_last_proof(
    house: House, change: str
) -> None:
    instance = house.run()
    run_for(house, 60)
    house.rack.go_silent(Link.LOST)
    house.pass_time(hours=2)
    limits.lose_silent(now=house.now)
    house.rack.come_back()

    if change == "container":
        house.rack.say(instance, "running", house.now, container_id="another")
    house.rack.hello(house.now, boot_id="boot-2" if change == "boot" else None)

    assert house.again(instance).state == State.STOPPING
    assert house.busy_gpus() == 1
    house.pass_time(seconds=10)
    house.rack.obey(house.now)
    ended = house.again(instance)
    assert ended.state == State.FAILED
    assert ended.reason_code == ("node_rebooted" if change == "boot" else "container_replaced")
    assert house.billed_ms(instance) == 60_000
    assert house.busy_gpus() == 0
    # The time that nobody can prove is shown, and not billed.
    meter = house.meter(instance)
    assert meter is not None
    with every_tenant("tests"):
        dropped = meter.segments.get(state="DROPPED")
    assert dropped.during.upper - dropped.during.lower == timedelta(hours=2)


def test_an_end_during_the_silence_is_billed_to_its_own_moment(house: House) -> None:
    instance = house.run()
    run_for(house, 60)
    house.rack.go_silent()
    ended_at = house.now + timedelta(seconds=33)
    house.pass_time(minutes=10)
    limits.lose_silent(now=house.now)

    house.rack.say(instance, "exited", ended_at, exit_code=0)
    house.rack.come_back()
    house.rack.hello(house.now)

    assert house.again(instance).state == State.STOPPED
    assert house.again(instance).reason_code == "finished"
    assert house.billed_ms(instance) == 93_000


def test_stop_during_the_silence_is_obeyed_on_return_and_bills_till_the_wish(house: House) -> None:
    instance = house.run()
    run_for(house, 60)
    house.rack.go_silent()
    house.pass_time(seconds=100)
    limits.lose_silent(now=house.now)
    house.stop(instance)
    assert house.again(instance).state == State.LOST
    assert house.busy_gpus() == 1

    house.pass_time(hours=1)
    house.rack.come_back()
    house.rack.hello(house.now)
    assert house.again(instance).state == State.STOPPING
    [spec] = house.rack.listen().instances
    assert spec.wanted == "stop"
    house.rack.obey(house.now)

    assert house.again(instance).state == State.STOPPED
    assert house.rack.listen().instances == []
    assert house.busy_gpus() == 0
    assert house.billed_ms(instance) == 160_000


def test_a_stopped_and_restarted_instance_never_lives_beside_its_old_container(
    house: House,
) -> None:
    instance = house.run()
    run_for(house, 20)
    house.stop(instance)
    house.pass_time(seconds=2)
    house.rack.obey(house.now)
    old_run = house.again(instance).run
    house.start(instance)
    house.plan()

    # The old container is reported alive once more, late: it belongs to another run.
    house.rack.say(instance, "running", house.now, run=old_run)
    house.rack.report(house.now)

    again = house.again(instance)
    assert (again.state, again.run) == (State.PLACING, old_run + 1)
    assert [(spec.id, spec.run) for spec in house.rack.listen().instances] == [
        (str(instance.id), old_run + 1)
    ]


def test_a_vanished_container_ends_the_instance_and_its_bill_at_the_last_proof(
    house: House,
) -> None:
    instance = house.run()
    run_for(house, 60)
    del house.rack.said[str(instance.id), 1]

    run_for(house, 10)
    assert house.again(instance).state == State.RUNNING  # a moment of doubt costs nothing
    run_for(house, 5)

    ended = house.again(instance)
    assert (ended.state, ended.reason_code) == (State.FAILED, "vanished")
    assert house.billed_ms(instance) == 60_000
    assert house.busy_gpus() == 0


def test_a_container_that_the_agent_saw_vanish_is_billed_to_the_last_proof(house: House) -> None:
    instance = house.run()
    run_for(house, 60)
    house.pass_time(seconds=4)
    house.rack.say(instance, "failed", house.now, reason_code="vanished", reason="It is gone.")
    house.rack.report(house.now)

    assert house.again(instance).state == State.FAILED
    assert house.billed_ms(instance) == 60_000


def test_an_instance_missing_for_a_moment_goes_on_without_a_gap(house: House) -> None:
    instance = house.run()
    run_for(house, 30)
    status = house.rack.said.pop((str(instance.id), 1))
    run_for(house, 5)
    house.rack.said[str(instance.id), 1] = status
    run_for(house, 30)

    assert house.again(instance).state == State.RUNNING
    assert house.again(instance).missing_since is None
    assert house.billed_ms(instance) == 65_000


def test_what_the_node_was_told_only_now_is_not_missing(house: House) -> None:
    instance = house.launch()
    house.plan()

    for _ in range(5):
        house.pass_time(seconds=5)
        house.rack.report(house.now, generation=0)

    assert house.again(instance).state == State.PLACING


def test_a_retired_node_ends_what_was_on_it(house: House) -> None:
    instance = house.run()
    run_for(house, 60)
    house.rack.go_silent(Link.LOST)
    house.pass_time(hours=1)
    limits.lose_silent(now=house.now)
    nodes.retire(actor=make.user(is_operator=True), node_id=house.rack.node.id, now=house.now)

    limits.lose_silent(now=house.now)

    ended = house.again(instance)
    assert (ended.state, ended.reason_code) == (State.FAILED, "node_retired")
    assert house.busy_gpus() == 0
    assert house.billed_ms(instance) == 60_000


def test_terminating_what_is_lost_ends_when_its_node_is_retired(house: House) -> None:
    instance = house.run()
    house.rack.go_silent(Link.LOST)
    limits.lose_silent(now=house.now)
    house.terminate(instance)
    assert house.busy_gpus() == 1

    nodes.retire(actor=make.user(is_operator=True), node_id=house.rack.node.id, now=house.now)
    limits.lose_silent(now=house.now)

    assert house.again(instance).state == State.TERMINATED
    assert house.busy_gpus() == 0


def test_draining_a_node_does_not_stop_endings_there(house: House) -> None:
    instance = house.run()
    nodes.cordon(
        actor=make.user(is_operator=True),
        node_id=house.rack.node.id,
        reason="new fans",
        now=house.now,
    )
    waiting = house.launch()
    house.plan()
    assert house.again(waiting).state == State.QUEUED

    house.terminate(instance)
    house.rack.obey(house.now)

    assert house.again(instance).state == State.TERMINATED
    assert house.busy_gpus() == 0


def test_reports_of_an_older_session_change_nothing(house: House) -> None:
    instance = house.launch()
    house.plan()
    house.rack.listen()
    house.rack.say(instance, "running", house.now)

    assert house.rack.report(house.now, epoch=0) is False

    assert house.again(instance).state == State.PLACING


def test_replayed_and_reordered_reports_change_nothing(house: House) -> None:
    instance = house.run()
    running = house.rack.said.copy()
    run_for(house, 60)
    house.stop(instance)
    house.pass_time(seconds=5)
    house.rack.obey(house.now)
    ended = house.rack.said
    before = (house.moves(instance), house.billed_ms(instance))

    for said, ago in ((running, 50), (ended, 0), ({}, 70), (running, 20), (ended, 0)):
        house.rack.said = said
        house.rack.report(house.now, wall=house.now - timedelta(seconds=ago))

    assert (house.moves(instance), house.billed_ms(instance)) == before
    assert house.busy_gpus() == 0


def test_a_conflict_of_identities_loses_only_what_is_not_heard_of(house: House) -> None:
    instance = house.run()
    Node.objects.filter(id=house.rack.node.id).update(link=Link.CONFLICT, last_seen_at=house.now)
    house.pass_time(seconds=30)
    assert limits.lose_silent(now=house.now) == 0

    house.pass_time(seconds=60)
    assert limits.lose_silent(now=house.now) == 1
    assert house.again(instance).state == State.LOST
