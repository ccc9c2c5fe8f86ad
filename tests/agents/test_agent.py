"""The pure agent: events in, instructions out, with a clock that the test turns."""

from typing import Any

import msgspec
import pytest

from agents import agent as agents
from agents import events, wire
from agents.runs import Run
from agents.runtimes import Observed, Outcome

GPU, OTHER = "GPU-1", "GPU-2"
WALL = 1_700_000_000_000
ACTIONS = (events.Start, events.CancelStart, events.Stop, events.Remove)


def spec(instance: str = "i", run: int = 1, **fields: Any) -> wire.InstanceSpec:
    plain = {
        "name": "demo",
        "image": "corral/demo:1",
        "cpu_milli": 1000,
        "memory_bytes": 2**30,
        "disk_bytes": 0,
        "gpus": [wire.GpuShare(uuid=GPU)],
    }
    return wire.InstanceSpec(id=instance, run=run, **{**plain, **fields})


def live(of: wire.InstanceSpec, started_at_ms: int = WALL) -> Observed:
    return Observed(spec=of, is_live=True, container_id="c-1", started_at_ms=started_at_ms)


def ended(of: wire.InstanceSpec, exit_code: int = 0, code: str = "finished") -> Observed:
    outcome = Outcome(exit_code=exit_code, code=code, sentence="It ended.")
    return Observed(
        spec=of,
        is_live=False,
        container_id="c-1",
        started_at_ms=WALL,
        ended_at_ms=WALL + 5000,
        outcome=outcome,
    )


class Stage:
    """An agent on a node with two GPUs, and the hands of the clock."""

    def __init__(self, remembered: list[Run] | None = None) -> None:
        self.time = 1000.0
        self.generation = 0
        self.stored: list[Run] = remembered or []
        self.agent = agents.Agent(
            remembered=remembered or [], gpus=frozenset({GPU, OTHER}), now=self.now
        )

    @property
    def now(self) -> events.Moment:
        return events.Moment(mono=self.time, wall_ms=WALL + int(self.time * 1000) - 1_000_000)

    def tell(self, event: events.Event) -> list[events.Instruction]:
        instructions = self.agent.handle(event, self.now)
        for instruction in instructions:
            if isinstance(instruction, events.Persist):
                self.stored = msgspec.json.decode(
                    msgspec.json.encode(instruction.runs), type=list[Run]
                )
        return [one for one in instructions if isinstance(one, ACTIONS)]

    def want(self, *specs: wire.InstanceSpec, **fields: Any) -> list[events.Instruction]:
        self.generation += 1
        plain = {"generation": self.generation, "complete": True, "count": len(specs)}
        desired = wire.Desired(instances=list(specs), **{**plain, **fields})
        return self.tell(events.DesiredArrived(desired))

    def see(self, *observed: Observed) -> list[events.Instruction]:
        return self.tell(events.Listed(list(observed), self.time))

    def open(self) -> list[events.Instruction]:
        return self.tell(events.SessionOpened())

    def later(self, seconds: float) -> list[events.Instruction]:
        self.time += seconds
        return self.tell(events.Ticked())

    def running(self, *specs: wire.InstanceSpec) -> None:
        """Bring instances to life the usual way."""
        self.open()
        self.see()
        self.want(*specs)
        for one in specs:
            self.tell(events.StartEnded((one.id, one.run)))
        self.time += 1
        self.see(*map(live, specs))

    def status(self, instance: str = "i", run: int = 1) -> wire.InstanceStatus:
        return next(one for one in self.agent.statuses() if (one.id, one.run) == (instance, run))

    def restarted(self) -> "Stage":
        stage = Stage(self.stored)
        stage.generation = self.generation
        return stage


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


def test_an_orphan_is_stopped_after_two_complete_lists_a_minute_apart() -> None:
    stage = Stage()
    stage.running(spec())
    stage.later(300)

    first = stage.want()
    stage.time += 59
    early = stage.want()
    stage.time += 1
    due = stage.want()

    assert (first, early) == ([], [])
    assert due == [events.Stop(("i", 1), 10.0)]
    assert stage.status().reason_code == "orphan"


def test_a_young_instance_is_no_orphan() -> None:
    stage = Stage()
    stage.running(spec())

    stage.want()
    stage.time += 60

    assert stage.want() == []
    assert stage.status().phase == "running"
    assert stage.later(300) == [events.Stop(("i", 1), 10.0)]


@pytest.mark.parametrize("fields", [{"complete": False}, {"count": 5}])
def test_a_list_that_is_not_whole_makes_no_orphans(fields: dict[str, Any]) -> None:
    stage = Stage()
    stage.running(spec())
    stage.later(300)

    for _ in range(5):
        stage.time += 60
        assert stage.want(**fields) == []

    assert stage.status().phase == "running"


def test_absence_does_not_count_across_sessions() -> None:
    stage = Stage()
    stage.running(spec())
    stage.later(300)
    stage.want()

    stage.tell(events.SessionClosed())
    stage.time += 3600
    stage.open()

    assert stage.want() == []
    assert stage.later(3600) == []


def test_an_instance_that_is_listed_again_is_no_orphan() -> None:
    stage = Stage()
    stage.running(spec())
    stage.later(300)

    stage.want()
    stage.time += 30
    stage.want(spec())
    stage.time += 30

    assert stage.want() == []


def test_silence_of_the_portal_stops_nothing() -> None:
    stage = Stage()
    stage.running(spec())

    stage.tell(events.SessionClosed())

    assert stage.later(30 * 24 * 3600) == []
    assert stage.status().phase == "running"


def test_stop_on_disconnect_is_the_customers_choice() -> None:
    wish = spec(stop_on_disconnect_after_s=600)
    stage = Stage()
    stage.running(wish)

    stage.tell(events.SessionClosed())
    early = stage.later(599)
    stage.tell(events.SessionClosed())
    due = stage.later(1)

    assert early == []
    assert due == [events.Stop(("i", 1), 10.0)]
    stage.see(ended(wish, 143))
    assert stage.status().reason_code == "disconnected"
    stage.open()
    assert stage.want(wish) == []


def test_a_reconnect_in_time_resets_the_clock_of_disconnection() -> None:
    stage = Stage()
    stage.running(spec(stop_on_disconnect_after_s=600))

    stage.tell(events.SessionClosed())
    stage.later(500)
    stage.open()
    stage.later(500)
    stage.tell(events.SessionClosed())

    assert stage.later(500) == []


def test_an_ended_orphan_is_told_no_more_and_its_remains_go_later() -> None:
    stage = Stage()
    stage.running(spec())
    stage.see(ended(spec()))

    stage.want()
    stage.time += 60
    told = stage.agent.statuses()
    first = stage.want()
    untold = stage.agent.statuses()
    removed = stage.later(3600)
    patient = stage.later(29)
    again = stage.later(1)
    stage.time += 1
    stage.see()

    assert len(told) == 1
    assert (first, untold) == ([], [])
    assert removed == again == [events.Remove(("i", 1))]
    assert patient == []
    assert stage.later(3600) == []


def test_a_run_is_known_to_be_over_long_after_its_remains_are_gone() -> None:
    stage = Stage()
    stage.running(spec())
    stage.see(ended(spec()))
    stage.want()
    stage.time += 3700
    stage.want()
    stage.time += 1
    stage.see()

    successor = stage.restarted()
    successor.see()
    untold = successor.agent.statuses()

    assert untold == []
    assert successor.want(spec()) == []
    assert successor.status().phase == "exited"
    successor.want()
    assert successor.later(8 * 24 * 3600) == []
    assert successor.stored == []


def test_an_ended_run_that_is_asked_for_again_is_told_again() -> None:
    stage = Stage()
    stage.running(spec())
    stage.see(ended(spec()))
    stage.want()
    stage.time += 60
    stage.want()

    assert stage.want(spec()) == []
    assert stage.status().phase == "exited"


def test_a_newer_start_waits_for_the_older_to_end() -> None:
    stage = Stage()
    stage.running(spec())

    both = stage.want(spec(run=2))
    stage.see(ended(spec(), 143))
    started = stage.later(1)

    assert both == [events.Stop(("i", 1), 10.0)]
    assert started == []
    assert stage.status(run=2).phase == "starting"
    assert stage.status(run=1).reason_code == "superseded"
    stage.later(70)
    assert [one.run for one in stage.agent.statuses()] == [2]
    assert events.Remove(("i", 1)) in stage.later(3600)


def test_a_gpu_is_not_given_to_a_second_instance_while_the_first_lives() -> None:
    stage = Stage()
    stage.running(spec("a"))

    waits = stage.want(spec("a", wanted="stop"), spec("b"))
    status = stage.status("b")
    frees = stage.see(ended(spec("a"), 143))

    assert waits == [events.Stop(("a", 1), 10.0)]
    assert "another instance still holds it" in (status.reason or "")
    assert frees == [events.Start(spec("b"))]


def test_shares_of_one_gpu_run_side_by_side() -> None:
    half = [wire.GpuShare(uuid=GPU, units=500)]
    stage = Stage()
    stage.running(spec("a", gpus=half))

    assert stage.want(spec("a", gpus=half), spec("b", gpus=half)) == [
        events.Start(spec("b", gpus=half))
    ]


def test_a_gpu_that_this_node_lacks_fails_the_start() -> None:
    stage = Stage()
    stage.open()
    stage.see()

    assert stage.want(spec(gpus=[wire.GpuShare(uuid="GPU-9")])) == []
    assert (stage.status().phase, stage.status().reason_code) == ("failed", "gpu_missing")


def test_a_gpu_in_foreign_hands_is_waited_for_and_then_given_up() -> None:
    stage = Stage()
    stage.open()
    stage.see()
    busy = [wire.GpuHealth(uuid=GPU, state="busy")]
    stage.tell(events.GpusSeen(frozenset({GPU}), busy))

    assert stage.want(spec()) == []
    assert stage.status().reason_code == "waiting"
    stage.later(120)

    assert (stage.status().phase, stage.status().reason_code) == ("failed", "gpu_busy")


def test_an_older_generation_of_the_same_session_is_ignored() -> None:
    stage = Stage()
    stage.running(spec())

    stage.want(spec(wanted="stop"), generation=0)

    assert stage.status().phase == "running"
    assert stage.agent.observed_generation == 1


def test_a_pull_shows_its_progress() -> None:
    stage = Stage()
    stage.open()
    stage.see()
    stage.want(spec())

    stage.tell(events.Pulled(("i", 1), 40))

    assert (stage.status().phase, stage.status().progress) == ("pulling", 40)


def test_a_report_is_sent_on_change_only() -> None:
    stage = Stage()
    stage.running(spec())

    same = stage.agent.handle(events.Listed([live(spec())], stage.time), stage.now)
    change = stage.agent.handle(events.Listed([ended(spec())], stage.time), stage.now)

    assert same == []
    assert events.SendReport() in change
