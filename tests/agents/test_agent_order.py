"""Who goes first, which GPU is whose, and what is told when."""

from agents import events, wire
from tests.agents.stage import GPU, Stage, ended, live, spec


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


def test_a_report_says_when_the_runtime_was_asked_not_when_it_is_sent() -> None:
    stage = Stage()
    assert stage.agent.looked_at_ms is None
    asked_at, asked_wall_ms = stage.time, stage.now.wall_ms

    stage.time += 0.7
    stage.tell(events.Listed([live(spec())], asked_at))

    # To the millisecond, and never later than it was.
    assert asked_wall_ms - 1 <= stage.agent.looked_at_ms <= asked_wall_ms
