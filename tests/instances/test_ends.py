"""Every way to end frees GPUs and quota once, and bills what ran."""

import random
from datetime import timedelta

import pytest

from portal.instances import actions, limits
from portal.instances.models import State
from portal.tenants.scope import every_tenant
from scheduler.models import Request, Standing
from tests.instances.conftest import House, new_house


def test_a_failed_start_frees_everything_and_bills_nothing(house: House) -> None:
    instance = house.launch()
    house.plan()
    house.rack.listen()
    house.pass_time(seconds=9)
    house.rack.say(
        instance,
        "failed",
        house.now,
        reason_code="image_not_found",
        reason="There is no image corral/demo:1.",
    )
    house.rack.report(house.now)

    failed = house.again(instance)
    assert failed.state == State.FAILED
    assert (failed.reason_code, failed.reason) == (
        "image_not_found",
        "There is no image corral/demo:1.",
    )
    assert (house.busy_gpus(), house.counted(), house.meter(instance)) == (0, 0, None)
    assert house.rack.listen().instances == []


def test_a_command_that_ends_well_is_stopped_and_one_that_fails_is_failed(house: House) -> None:
    good, bad = house.run(), house.run()
    house.pass_time(seconds=30)
    house.rack.say(good, "exited", house.now, exit_code=0)
    house.rack.say(bad, "failed", house.now, exit_code=3, reason="It ended with code 3.")
    house.pass_time(seconds=2)
    house.rack.report(house.now)

    assert (house.again(good).state, house.again(good).reason_code) == (State.STOPPED, "finished")
    assert (house.again(bad).state, house.again(bad).reason) == (
        State.FAILED,
        "It ended with code 3.",
    )
    assert house.billed_ms(good) == house.billed_ms(bad) == 30_000
    assert house.busy_gpus() == 0


def test_a_command_that_was_over_before_a_report_is_billed_for_its_time(house: House) -> None:
    instance = house.launch()
    house.plan()
    house.rack.listen()
    began = house.pass_time(seconds=1)
    house.rack.say(instance, "exited", began + timedelta(seconds=2), started_at=began, exit_code=0)
    house.pass_time(seconds=4)
    house.rack.report(house.now)

    assert house.again(instance).state == State.STOPPED
    assert house.moves(instance)[-2:] == ["RUNNING", "STOPPED"]
    assert house.billed_ms(instance) == 2000


def test_cancelling_in_the_queue_is_immediate_and_free(house: House) -> None:
    instance = house.launch()

    house.stop(instance)

    assert house.again(instance).state == State.STOPPED
    assert house.counted() == 0
    assert house.plan() == []
    assert house.meter(instance) is None


@pytest.mark.parametrize("seed", range(50))
def test_cancelling_at_any_moment_of_starting_leaves_no_gpu_busy(db: None, seed: int) -> None:
    moment = random.Random(seed)
    house = new_house(gpus=1)
    instance = house.launch()
    steps = [
        house.plan,
        house.rack.listen,
        lambda: house.rack.say(instance, "pulling", house.now, progress=1),
        lambda: house.rack.report(house.now),
        lambda: house.rack.say(instance, "starting", house.now),
        lambda: house.rack.report(house.now),
        lambda: house.rack.say(instance, "running", house.now),
        lambda: house.rack.report(house.now),
    ]
    for step in steps[: moment.randrange(len(steps) + 1)]:
        step()
        house.pass_time(milliseconds=moment.randrange(3000))

    wish = moment.choice([house.stop, house.terminate])
    wish(instance)
    house.pass_time(milliseconds=moment.randrange(3000))
    if moment.random() < 0.3:
        house.rack.report(house.now)  # one that was on its way
    house.plan()
    house.rack.obey(house.now)

    ended = house.again(instance).state
    assert ended == (State.STOPPED if wish == house.stop else State.TERMINATED)
    assert (house.busy_gpus(), house.counted()) == (0, 0)
    other = house.run()
    assert house.again(other).state == State.RUNNING


def test_a_start_that_never_began_is_given_up_and_its_gpu_kept_until_confirmed(
    house: House,
) -> None:
    instance = house.launch()
    house.plan()
    house.pass_time(minutes=3)

    assert limits.end_stuck(now=house.now) == 1

    assert house.again(instance).state == State.STOPPING
    assert house.busy_gpus() == 1
    [spec] = house.rack.listen().instances
    assert spec.wanted == "stop"
    house.rack.obey(house.now)
    failed = house.again(instance)
    assert (failed.state, failed.reason_code) == (State.FAILED, "placing_timed_out")
    assert (house.busy_gpus(), house.meter(instance)) == (0, None)


def test_a_start_that_takes_too_long_is_given_up(house: House) -> None:
    instance = house.launch()
    house.plan()
    house.rack.listen()
    house.rack.say(instance, "pulling", house.now, progress=1)
    house.rack.report(house.now)
    house.pass_time(minutes=29)
    assert limits.end_stuck(now=house.now) == 0
    house.pass_time(minutes=2)

    assert limits.end_stuck(now=house.now) == 1
    house.rack.obey(house.now)

    failed = house.again(instance)
    assert (failed.state, failed.reason_code) == (State.FAILED, "starting_timed_out")
    assert house.busy_gpus() == 0


def test_an_end_that_is_not_confirmed_becomes_lost_and_keeps_the_gpu(house: House) -> None:
    instance = house.run()
    house.stop(instance)
    house.pass_time(minutes=6)

    assert limits.end_stuck(now=house.now) == 1

    assert house.again(instance).state == State.LOST
    assert house.busy_gpus() == 1
    house.rack.obey(house.now)
    assert house.again(instance).state == State.STOPPED
    assert house.busy_gpus() == 0


def test_a_stop_time_is_shown_and_enforced(house: House) -> None:
    at = house.now + timedelta(minutes=4)
    instance = house.run(stop_at=at)
    assert house.again(instance).stop_at == at
    house.pass_time(minutes=3)
    house.rack.report(house.now)
    assert limits.stop_due(now=house.now) == 0
    house.pass_time(minutes=1)

    assert limits.stop_due(now=house.now) == 1
    assert limits.stop_due(now=house.now) == 0
    assert house.again(instance).reason_code == "stop_at_reached"
    house.pass_time(seconds=3)
    house.rack.obey(house.now)

    assert house.again(instance).state == State.STOPPED
    assert house.billed_ms(instance) == 240_000


@pytest.mark.parametrize("end", ["by its limit", "by hand", "by itself", "in silence"])
def test_the_bill_ends_at_the_stop_time_even_if_the_stop_comes_late(house: House, end: str) -> None:
    instance = house.run(stop_at=house.now + timedelta(seconds=60))
    for _ in range(15):
        house.pass_time(seconds=5)
        house.rack.report(house.now)

    if end == "by its limit":
        limits.stop_due(now=house.now)
    elif end == "by hand":
        house.stop(instance)
    elif end == "by itself":
        house.rack.say(instance, "exited", house.now, exit_code=0)
    else:
        house.rack.go_silent()
        limits.lose_silent(now=house.now)
        limits.stop_due(now=house.now)
        house.pass_time(hours=1)
        house.rack.come_back()
    house.pass_time(seconds=3)
    house.rack.obey(house.now)

    assert house.again(instance).state == State.STOPPED
    assert house.billed_ms(instance) == 60_000


def test_a_stop_time_that_is_put_off_in_time_leaves_no_gap_in_the_bill(house: House) -> None:
    instance = house.run(stop_at=house.now + timedelta(seconds=60))
    house.pass_time(seconds=70)
    house.rack.report(house.now)
    actions.set_stop_at(actor=house.actor, instance_id=instance.id, stop_at=None, now=house.now)
    house.pass_time(seconds=5)
    house.rack.report(house.now)

    assert house.billed_ms(instance) == 75_000


def test_a_changed_stop_time_counts_at_once(house: House) -> None:
    instance = house.run(stop_at=house.now + timedelta(minutes=4))
    later = house.now + timedelta(hours=1)
    actions.set_stop_at(actor=house.actor, instance_id=instance.id, stop_at=later, now=house.now)
    house.pass_time(minutes=5)
    assert limits.stop_due(now=house.now) == 0
    with every_tenant("tests"):
        assert Request.objects.get(standing=Standing.PLACED).ends_by == later

    actions.set_stop_at(actor=house.actor, instance_id=instance.id, stop_at=None, now=house.now)
    house.pass_time(hours=2)
    assert limits.stop_due(now=house.now) == 0


def test_a_stop_time_in_the_queue_ends_the_waiting(house: House) -> None:
    house.rack.go_silent()
    instance = house.launch(stop_at=house.now + timedelta(minutes=4))
    house.pass_time(minutes=4)

    limits.stop_due(now=house.now)

    ended = house.again(instance)
    assert (ended.state, ended.reason_code) == (State.STOPPED, "stop_at_reached")
    assert house.counted() == 0


def test_starting_again_is_a_new_run_with_a_bill_of_its_own(house: House) -> None:
    instance = house.run(stop_at=house.now + timedelta(minutes=1))
    house.pass_time(minutes=1)
    limits.stop_due(now=house.now)
    house.rack.obey(house.now)

    again = house.start(instance)
    assert (again.state, again.run, again.stop_at) == (State.QUEUED, 2, None)
    house.plan()
    house.rack.obey(house.now)
    house.pass_time(seconds=10)
    house.rack.report(house.now)
    house.stop(instance)
    house.rack.obey(house.now)

    assert house.billed_ms(instance) == 70_000
    assert house.busy_gpus() == 0


def test_termination_works_from_every_state(house: House) -> None:
    queued, placing, running, stopping, stopped, failed = (
        house.launch(), *(house.launch() for _ in range(5))
    )  # fmt: skip
    house.terminate(queued)
    house.plan()
    house.rack.listen()
    for instance in (running, stopping, stopped, failed):
        house.rack.say(instance, "running", house.now)
    house.rack.report(house.now)
    house.pass_time(seconds=5)
    house.stop(stopping)
    house.rack.say(stopped, "exited", house.now, exit_code=0)
    house.rack.say(failed, "failed", house.now, exit_code=1)
    house.rack.report(house.now)
    everyone = [queued, placing, running, stopping, stopped, failed]
    assert [house.again(instance).state for instance in everyone] == [
        "TERMINATED", "PLACING", "RUNNING", "STOPPING", "STOPPED", "FAILED",
    ]  # fmt: skip

    for instance in everyone:
        house.terminate(instance)
        house.terminate(instance)
    house.pass_time(seconds=5)
    house.rack.obey(house.now)

    assert {house.again(instance).state for instance in everyone} == {State.TERMINATED}
    assert (house.busy_gpus(), house.counted()) == (0, 0)
    for instance in everyone:
        with pytest.raises(actions.UnableToStart, match="terminated"):
            house.start(instance)


def test_a_stop_never_takes_back_a_termination(house: House) -> None:
    instance = house.run()
    house.terminate(instance)
    house.stop(instance)
    house.rack.obey(house.now)

    assert house.again(instance).state == State.TERMINATED
