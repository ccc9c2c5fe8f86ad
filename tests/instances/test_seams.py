"""Where the story meets the rest: periodic tasks, choke points, a planner that dies midway."""

import ast
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from agents import wire
from portal import celery
from portal.instances import lifecycle, limits, node_sync, placement, tasks
from portal.instances.models import State
from portal.tenants.scope import every_tenant
from scheduler import queue
from scheduler.models import Decision, Lease, Request, Standing
from tests.instances.conftest import House

ROOT = Path(__file__).resolve().parents[2]
WRITERS = {ROOT / "portal" / "instances" / "lifecycle.py"}


def writes_state_of_an_instance(node: ast.AST) -> bool:
    """Tell whether this is `instance.state = ...` or `Instance.objects...update(state=...)`."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        flat = [part for one in targets for part in getattr(one, "elts", [one])]
        return any(
            isinstance(part, ast.Attribute)
            and part.attr == "state"
            and isinstance(part.value, ast.Name)
            and "instance" in part.value.id
            for part in flat
        )
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"update", "update_or_create"}
        and any(keyword.arg == "state" for keyword in node.keywords)
        and "Instance." in ast.unparse(node.func)
    )


def test_only_lifecycle_writes_the_state_of_an_instance() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("portal", "scheduler")
        for path in (ROOT / folder).rglob("*.py")
        if path not in WRITERS
        for node in ast.walk(ast.parse(path.read_text()))
        if writes_state_of_an_instance(node)
    ]
    assert found == []
    [writer] = WRITERS
    assert any(
        writes_state_of_an_instance(node) for node in ast.walk(ast.parse(writer.read_text()))
    )


def test_the_timetable_names_tasks_that_exist() -> None:
    for name, task in (
        ("accrue-meters", tasks.accrue),
        ("watch-nodes", tasks.watch_nodes),
        ("end-stuck-moves", tasks.end_stuck),
    ):
        assert settings.CELERY_BEAT_SCHEDULE[name]["task"] == task.name
        assert task.name in celery.app.tasks


def test_tasks_run_on_an_empty_house(db: None) -> None:
    assert tasks.accrue.delay().get() == 0
    assert tasks.watch_nodes.delay().get() == 0
    assert tasks.end_stuck.delay().get() == 0


def test_tasks_act_by_the_clock(house: House) -> None:
    instance = house.run(stop_at=house.now.replace(year=2026, month=3, day=3))
    # By the real clock that time has long passed.
    assert tasks.end_stuck.delay().get() == 1
    assert house.again(instance).state == State.STOPPING

    house.rack.go_silent()
    assert tasks.watch_nodes.delay().get() == 1
    assert house.again(instance).state == State.LOST


def test_a_planner_that_dies_midway_leaves_nothing_behind(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = [house.launch(), house.launch()]
    real, calls = lifecycle.move, []

    def dies(**arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(**arguments)

    monkeypatch.setattr(lifecycle, "move", dies)
    with pytest.raises(KeyboardInterrupt):
        house.plan()
    monkeypatch.undo()

    with every_tenant("tests"):
        assert not Lease.objects.exists()
        assert not Decision.objects.exists()
        assert Request.objects.filter(standing=Standing.PENDING).count() == 2
    assert {house.again(instance).state for instance in instances} == {State.QUEUED}
    assert len(house.plan()) == 2


def test_one_instance_that_cannot_move_does_not_hold_up_the_others(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = house.launch(), house.launch()
    house.plan()
    house.rack.listen()
    real = lifecycle.move

    def refuses(**arguments: Any) -> None:
        if arguments["instance"].id == first.id:
            raise lifecycle.UnableToMove("refused", "Not this one.")
        real(**arguments)

    monkeypatch.setattr(lifecycle, "move", refuses)
    for instance in (first, second):
        house.rack.say(instance, "running", house.now)
    house.rack.report(house.now)
    house.pass_time(minutes=5)
    limits.end_stuck(now=house.now)

    assert house.again(first).state == State.PLACING
    assert house.again(second).state == State.RUNNING
    assert "was not taken in" in caplog.text
    assert "could not be brought on" in caplog.text


def test_desired_names_everything_that_an_agent_needs(house: House) -> None:
    instance = house.launch(command=["python", "train.py"], env={"SEED": "7"})
    house.plan()

    desired = node_sync.desired(node_id=house.rack.node.id)

    assert (desired.complete, desired.count) == (True, 1)
    [spec] = desired.instances
    assert (spec.id, spec.run, spec.name) == (str(instance.id), 1, instance.name)
    assert (spec.command, spec.env, spec.image) == (
        ["python", "train.py"],
        {"SEED": "7"},
        house.image.reference,
    )
    assert [share.units for share in spec.gpus] == [1000]
    assert spec.gpus[0].uuid in set(house.rack.node.gpus.values_list("uuid", flat=True))
    assert spec.wanted == "run"
    assert wire.decode(wire.encode(desired)) == desired


def test_desired_is_raised_when_it_changes_and_only_then(house: House) -> None:
    def generation() -> int:
        house.rack.node.refresh_from_db()
        return house.rack.node.desired_generation

    instance = house.launch()
    assert generation() == 0
    house.plan()
    assert generation() == 1
    house.rack.obey(house.now)
    house.rack.report(house.now)
    assert generation() == 1
    house.stop(instance)
    house.stop(instance)
    assert generation() == 2
    house.rack.obey(house.now)
    assert generation() == 3
    house.plan()
    assert generation() == 3


def test_a_place_in_the_queue_is_known_before_the_first_plan(house: House) -> None:
    first, second = house.launch(), house.launch(now=house.pass_time(seconds=1))
    for place, instance in enumerate((first, second), start=1):
        assert instance.request is not None
        assert queue.position(request=instance.request) == place


def test_what_can_never_run_has_no_place_in_the_queue(house: House) -> None:
    house.flavor.__class__.objects.filter(id=house.flavor.id).update(gpu_count=64)
    instance = house.launch()
    placement.cycle(now=house.now)

    request = house.again(instance).request
    assert request is not None
    assert queue.position(request=request) is None
    assert "on one machine; the largest has 8" in queue.words(request)


def test_a_node_that_talks_nonsense_harms_nobody(house: House) -> None:
    strange, plain = house.launch(), house.launch()
    house.plan()
    house.rack.listen()
    house.rack.node.__class__.objects.update(applied_offset_ms=2**62)
    house.rack.say(
        strange,
        "pulling",
        house.now,
        progress=5000,
        reason="x\0y" * 400,
        reason_code="code" * 30,
    )
    house.rack.say(plain, "running", house.now)
    house.rack.report(house.now)
    house.rack.say(strange, "running", house.now, container_id="c\0" * 500, started_at_ms=-(2**62))
    house.rack.report(house.now)
    house.rack.report(house.now, boot_id="b\0" * 100)

    assert house.again(strange).started_at == house.now
    assert house.again(plain).state == State.STOPPING  # another boot
    house.rack.say(strange, "failed", house.now, reason="\0" * 9000, reason_code="z" * 99)
    house.rack.report(house.now)
    failed = house.again(strange)
    assert failed.state == State.FAILED
    assert len(failed.reason_code) <= 40
