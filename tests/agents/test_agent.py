"""The pure agent: events in, instructions out, with a clock that the test turns."""

import pytest

from agents import events, wire
from tests.agents.stage import GPU, OTHER, WALL, Stage, ended, live, spec


def test_what_should_run_is_started_once() -> None:
    stage = Stage()
    stage.open()
    stage.see()

    first, again = stage.want(spec()), stage.want(spec())

    assert first == [events.Start(spec())]
    assert again == []
    assert stage.status().phase == "starting"


def test_a_start_is_remembered_before_it_is_ordered() -> None:
    stage = Stage()
    stage.see()
    desired = wire.Desired(generation=1, complete=True, count=1, instances=[spec()])

    instructions = stage.agent.handle(events.DesiredArrived(desired), stage.now)

    kinds = [type(one) for one in instructions]
    assert kinds == [events.Persist, events.Start, events.SendReport]


def test_nothing_is_started_before_the_runtime_has_answered() -> None:
    stage = Stage()
    stage.open()

    assert stage.want(spec()) == []
    assert stage.see(live(spec())) == []
    assert stage.status().phase == "running"


def test_a_running_instance_is_reported_with_its_evidence() -> None:
    stage = Stage()
    stage.running(spec())

    status = stage.status()

    assert (status.phase, status.started_at_ms, status.container_id) == ("running", WALL, "c-1")
    assert status.gpus == [GPU]


@pytest.mark.parametrize("exit_code", [0, 3, 137])
def test_a_finished_run_is_never_run_again(exit_code: int) -> None:
    stage = Stage()
    stage.running(spec())

    stage.see(ended(spec(), exit_code))

    assert stage.want(spec()) == []
    assert stage.later(1000) == []
    assert (stage.status().phase, stage.status().exit_code) == ("exited", exit_code)


def test_a_failed_start_is_reported_in_words_and_not_tried_again() -> None:
    stage = Stage()
    stage.open()
    stage.see()
    stage.want(spec())

    stage.tell(events.StartEnded(("i", 1), "image_missing", "There is no such image."))

    assert stage.want(spec()) == []
    assert stage.status().phase == "failed"
    assert stage.status().reason == "There is no such image."


def test_a_failed_start_is_remembered_by_the_next_agent() -> None:
    stage = Stage()
    stage.open()
    stage.see()
    stage.want(spec())
    stage.tell(events.StartEnded(("i", 1), "image_missing", "There is no such image."))

    successor = stage.restarted()
    successor.open()
    successor.see()

    assert successor.want(spec()) == []
    assert successor.status().reason_code == "image_missing"


def test_a_restarted_agent_adopts_what_runs() -> None:
    stage = Stage()
    stage.running(spec())

    successor = stage.restarted()
    successor.see(live(spec()))
    successor.open()

    assert successor.want(spec()) == []
    assert successor.status() == stage.status()


def test_an_agent_that_lost_its_memory_adopts_what_runs() -> None:
    stage = Stage()

    stage.see(live(spec()))

    assert stage.want(spec()) == []
    assert stage.status().phase == "running"
    assert stage.status().started_at_ms == WALL


def test_a_start_that_the_agent_did_not_survive_is_made_again() -> None:
    stage = Stage()
    stage.open()
    stage.see()
    stage.want(spec())

    successor = stage.restarted()
    successor.see()

    assert successor.want(spec()) == [events.Start(spec())]


def test_a_run_that_vanished_while_the_agent_was_dead_is_not_run_again() -> None:
    stage = Stage()
    stage.running(spec())

    successor = stage.restarted()
    successor.see()

    assert successor.want(spec()) == []
    assert (successor.status().phase, successor.status().reason_code) == ("failed", "vanished")


def test_a_container_removed_by_hand_fails_with_the_reason() -> None:
    stage = Stage()
    stage.running(spec())
    stage.time += 1

    stage.see()

    assert (stage.status().phase, stage.status().reason_code) == ("failed", "vanished")
    assert stage.later(1) == []


def test_what_vanished_and_is_seen_again_lives_on() -> None:
    stage = Stage()
    stage.running(spec())
    stage.time += 1
    stage.see()

    stage.see(live(spec()))

    assert (stage.status().phase, stage.status().reason) == ("running", None)
    assert stage.status().started_at_ms == WALL


def test_what_a_failed_start_left_behind_is_killed_and_never_called_running() -> None:
    stage = Stage()
    stage.open()
    stage.see()
    stage.want(spec(), spec("b", gpus=[wire.GpuShare(uuid=OTHER)]))
    stage.tell(events.StartEnded(("i", 1), "gpu_not_visible", "It sees no GPU."))

    killed = stage.see(live(spec()))
    patient = stage.later(29)
    again = stage.later(1)
    waits = stage.want(spec("c"))
    gone = stage.see()

    assert killed == again == [events.Stop(("i", 1), 0.0)]
    assert patient == []
    assert stage.status().phase == "failed"
    assert events.Start(spec("c")) not in waits
    assert events.Start(spec("c")) in gone


def test_a_stop_that_the_agent_did_not_survive_is_asked_again() -> None:
    stage = Stage()
    stage.running(spec())
    stage.want(spec(wanted="stop"))

    successor = stage.restarted()

    assert successor.see(live(spec())) == [events.Stop(("i", 1), 10.0)]
    assert successor.status().phase == "stopping"


def test_a_list_from_before_the_start_proves_nothing() -> None:
    stage = Stage()
    stage.open()
    stage.see()
    asked_at = stage.time
    stage.want(spec())
    stage.time += 5
    stage.tell(events.StartEnded(("i", 1)))

    stage.tell(events.Listed([], asked_at))

    assert stage.status().phase == "starting"


def test_stop_asks_with_grace_and_kills_when_that_does_not_help() -> None:
    stage = Stage()
    stage.running(spec(stop_grace_s=10))

    asked = stage.want(spec(wanted="stop", stop_grace_s=10))
    in_time = stage.later(14)
    killed = stage.later(1)
    patient = stage.later(29)
    again = stage.later(1)

    assert asked == [events.Stop(("i", 1), 10.0)]
    assert (in_time, patient) == ([], [])
    assert killed == again == [events.Stop(("i", 1), 0.0)]
    assert stage.status().phase == "stopping"
    assert stage.status().reason_code == "stop_stuck"


def test_a_stopped_instance_says_that_it_was_asked_to() -> None:
    stage = Stage()
    stage.running(spec())
    stage.want(spec(wanted="stop"))

    stage.see(ended(spec(), 143, "signal"))

    assert (stage.status().phase, stage.status().reason_code) == ("exited", "stopped")
    assert stage.status().reason == "Stopped on request."


def test_a_stop_that_needed_force_says_so() -> None:
    stage = Stage()
    stage.running(spec())
    stage.want(spec(wanted="stop"))

    stage.see(ended(spec(), 137, "signal"))

    assert "did not end within 10 s" in (stage.status().reason or "")


def test_out_of_memory_is_told_even_while_stopping() -> None:
    stage = Stage()
    stage.running(spec())
    stage.want(spec(wanted="stop"))

    stage.see(ended(spec(), 137, "oom"))

    assert stage.status().reason_code == "oom"


def test_a_stop_during_the_start_cancels_it() -> None:
    stage = Stage()
    stage.open()
    stage.see()
    stage.want(spec())

    cancelled = stage.want(spec(wanted="stop"))
    again = stage.later(1)
    after = stage.tell(events.StartEnded(("i", 1), "cancelled", "Stopped."))

    assert cancelled == [events.CancelStart(("i", 1))]
    assert (again, after) == ([], [])
    assert (stage.status().phase, stage.status().reason_code) == ("exited", "cancelled")


def test_a_start_that_could_not_be_cancelled_is_stopped() -> None:
    stage = Stage()
    stage.open()
    stage.see()
    stage.want(spec())
    stage.want(spec(wanted="stop"))

    after = stage.tell(events.StartEnded(("i", 1)))

    assert after == [events.Stop(("i", 1), 10.0)]
    assert stage.status().phase == "stopping"


def test_a_stop_of_what_never_started_is_confirmed() -> None:
    stage = Stage()
    stage.open()
    stage.see()

    assert stage.want(spec(wanted="stop")) == []
    assert (stage.status().phase, stage.status().reason_code) == ("exited", "never_started")
