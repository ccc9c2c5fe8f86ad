"""From launch to bill: the story of one instance, told from outside."""

from datetime import timedelta

import pytest

from portal.instances.models import State
from tests.instances.conftest import House
from tests.instances.rack import milliseconds


def test_an_instance_is_launched_placed_started_billed_and_stopped(house: House) -> None:
    instance = house.launch()
    assert instance.state == State.QUEUED
    assert house.meter(instance) is None

    house.plan()
    assert house.again(instance).state == State.PLACING
    assert house.busy_gpus() == 1
    assert house.meter(instance) is None

    house.rack.listen()
    house.rack.say(instance, "pulling", house.now, progress=40)
    house.rack.report(house.now)
    assert (house.again(instance).state, house.again(instance).progress) == (State.STARTING, 40)
    assert house.meter(instance) is None

    began = house.pass_time(seconds=20)
    house.rack.say(instance, "running", began, ports={8888: 41000})
    house.rack.report(house.now)
    running = house.again(instance)
    assert (running.state, running.started_at, running.ports) == (
        State.RUNNING,
        began,
        {"8888": 41000},
    )

    house.pass_time(seconds=100)
    house.rack.report(house.now)
    house.stop(instance)
    assert house.again(instance).state == State.STOPPING
    house.pass_time(seconds=3)
    house.rack.obey(house.now)

    assert house.again(instance).state == State.STOPPED
    assert house.busy_gpus() == 0
    assert house.counted() == 0
    assert house.billed_ms(instance) == 100_000
    assert house.moves(instance) == [
        "QUEUED", "PLACING", "STARTING", "RUNNING", "STOPPING", "STOPPED",
    ]  # fmt: skip


@pytest.mark.parametrize("run_s", [1, 59.5, 3600, 26 * 3600 + 0.001])
def test_billed_time_is_from_usable_to_the_wish_to_stop(house: House, run_s: float) -> None:
    instance = house.run()
    began = house.now
    while house.now < began + timedelta(seconds=run_s - 5):
        house.pass_time(seconds=run_s / 7)
        house.rack.report(house.now)

    house.now = began + timedelta(seconds=run_s)
    house.stop(instance)
    house.pass_time(seconds=8)
    house.rack.obey(house.now)

    assert house.billed_ms(instance) == round(run_s * 1000)


def test_a_report_that_overtakes_the_wish_moves_the_wish_not_the_proof(house: House) -> None:
    instance = house.run()
    began = house.now
    house.now = began + timedelta(seconds=60, milliseconds=3)
    house.rack.report(house.now)

    # The wish was made three milliseconds ago, and waited for the report to be taken in.
    house.now = began + timedelta(seconds=60)
    house.stop(instance)

    stopping = house.again(instance)
    assert stopping.state_since == stopping.ending_since == began + timedelta(milliseconds=60_003)
    house.pass_time(seconds=2)
    house.rack.obey(house.now)
    assert house.billed_ms(instance) == 60_003


def test_a_report_proves_what_the_node_saw_not_when_it_spoke(house: House) -> None:
    instance = house.run()
    began = house.now
    looked = house.pass_time(seconds=10)
    house.pass_time(seconds=0.8)
    house.rack.report(house.now, looked_at_ms=milliseconds(looked))

    ended = looked + timedelta(milliseconds=300)
    house.rack.say(instance, "exited", ended, exit_code=0)
    house.rack.report(house.pass_time(seconds=1))

    assert house.again(instance).state == State.STOPPED
    assert house.billed_ms(instance) == (ended - began) // timedelta(milliseconds=1)
