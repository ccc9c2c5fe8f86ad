"""The tables of states and moves; no path of events leaves anything held or billed twice."""

import contextlib
import itertools
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agents import wire
from portal.billing.models import Meter
from portal.errors import DomainError
from portal.fleet.models import Link
from portal.instances import lifecycle, limits, reasons
from portal.instances.models import Instance, Move, State
from portal.tenants.scope import every_tenant
from scheduler.models import Lease, Request, Standing
from tests.instances.conftest import House, new_house

DOCS = Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md"


def test_the_tables_cover_every_state() -> None:
    assert set(lifecycle.STATES) == set(lifecycle.MOVES) == set(State)
    assert set(State) == lifecycle.LIVE | lifecycle.ENDED
    assert [state for state, meaning in lifecycle.STATES.items() if meaning.billed] == [
        State.RUNNING
    ]


def test_every_state_can_end_and_every_passing_one_has_a_limit() -> None:
    for state in State:
        reached, frontier = {state}, {state}
        while frontier:
            frontier = {to for one in frontier for to in lifecycle.MOVES[one]} - reached
            reached |= frontier
        assert State.TERMINATED in reached
    for state in (State.PLACING, State.STARTING, State.STOPPING):
        assert lifecycle.STATES[state].limit is not None


def test_the_page_for_people_shows_the_same_tables() -> None:
    rows = [
        [cell.strip() for cell in line.strip("| \n").split("|")]
        for line in DOCS.read_text().splitlines()
        if line.startswith("| `")
    ]
    states = {row[0].strip("`"): row for row in rows if len(row) == 5}
    moves = {
        row[0].strip("`"): row for row in rows if len(row) == 2 and row[0].strip("`") in list(State)
    }
    assert list(states) == list(moves) == [state.value for state in State]
    for state, meaning in lifecycle.STATES.items():
        _name, billed, holds, limit, _words = states[state]
        assert billed == ("yes" if meaning.billed else "no"), state
        assert holds == ("yes" if meaning.holds else "no"), state
        minutes = f"{meaning.limit.total_seconds() / 60:g} min" if meaning.limit else "none"
        assert limit == minutes, state
        shown = {word.strip(" `") for word in moves[state][1].split(",")} - {"none"}
        assert shown == set(lifecycle.MOVES[state]), state
    for code in reasons.REASONS:
        assert f"`{code}`" in DOCS.read_text()


@pytest.mark.parametrize("before", list(State))
@pytest.mark.parametrize("to", list(State))
def test_only_moves_of_the_table_are_made(house: House, before: State, to: State) -> None:
    instance = house.launch()
    # Set up past the choke point, to stand in every state.
    with every_tenant("tests"):
        Instance.objects.filter(id=instance.id).update(state=before, node=house.rack.node)
        instance = house.again(instance)
        if to in lifecycle.MOVES[before]:
            lifecycle.move(instance=instance, to=to, now=house.now)
            assert house.again(instance).state == to
        else:
            with pytest.raises(lifecycle.UnableToMove):
                lifecycle.move(instance=instance, to=to, now=house.now)
            assert house.again(instance).state == before


def test_moves_are_only_ever_added(house: House) -> None:
    house.launch()
    refused = pytest.raises(IntegrityError, match="only ever added")
    with every_tenant("tests"), refused, transaction.atomic():
        Move.objects.update(reason="another story")


def check_books(instances: list[Instance], now: datetime) -> None:
    """Assert what must hold after every event, whatever happened before."""
    for instance in instances:
        runs = range(1, instance.run + 1)
        requests = Request.objects.filter(subject=instance.id)
        live = list(requests.exclude(standing=Standing.ENDED))
        meters = {meter.run: meter for meter in Meter.objects.filter(subject=instance.id)}
        assert len(live) <= 1
        assert requests.count() == instance.run
        leases = Lease.objects.filter(request__in=requests, during__endswith__isnull=True)
        if instance.state in lifecycle.ENDED:
            assert not live, f"{instance.state} still counts"
            assert not leases.exists(), f"{instance.state} still holds GPUs"
            assert all(meter.closed_at for meter in meters.values())
        else:
            assert live == [instance.request]
            assert leases.count() == (instance.state != State.QUEUED)
        for run in runs:
            if run < instance.run and run in meters:
                assert meters[run].closed_at is not None
        if instance.state == State.RUNNING:
            assert meters[instance.run].closed_at is None
        for meter in meters.values():
            assert meter.opened_at <= meter.proved_until <= now
            if meter.run == instance.run and instance.ending_since is not None:
                assert meter.proved_until <= max(instance.ending_since, meter.opened_at)
        story = list(instance.moves.order_by("id").values_list("from_state", "to_state"))
        assert story[0] == ("", State.QUEUED)
        for (_, to), (came_from, next_to) in itertools.pairwise(story):
            assert came_from == to
            assert next_to in lifecycle.MOVES[State(came_from)]
        for run in runs:
            ends = instance.moves.filter(run=run, to_state__in=lifecycle.ENDED)
            # A termination may follow an end, but GPUs and quota were free with the first.
            assert len(set(ends.values_list("to_state", flat=True))) == ends.count()


class Story(RuleBasedStateMachine):
    """One GPU, two instances, people, a node that lies, falls silent and reboots, and limits."""

    def __init__(self) -> None:
        super().__init__()
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.scope = every_tenant("tests")
        self.scope.__enter__()
        self.house = new_house(gpus=1)
        self.instances = [self.house.launch(), self.house.launch()]
        self.boots = 1

    def teardown(self) -> None:
        try:
            self.end_everything()
        finally:
            transaction.set_rollback(True)
            self.scope.__exit__(None, None, None)
            self.atomic.__exit__(None, None, None)

    def end_everything(self) -> None:
        """Whatever happened: after a termination and one obedient node nothing is left."""
        house = self.house
        house.rack.come_back()
        for instance in self.instances:
            house.terminate(instance)
        for _ in range(3):
            house.pass_time(seconds=30)
            house.rack.obey(house.now)
        assert {house.again(one).state for one in self.instances} == {State.TERMINATED}
        assert (house.busy_gpus(), house.counted()) == (0, 0)
        check_books([house.again(one) for one in self.instances], house.now)

    @rule(which=st.integers(0, 1), ask=st.sampled_from(["stop", "start", "terminate"]))
    def somebody_asks(self, which: int, ask: str) -> None:
        with contextlib.suppress(DomainError):
            getattr(self.house, ask)(self.instances[which])

    @rule()
    def the_scheduler_plans(self) -> None:
        self.house.plan()

    @rule()
    def the_node_listens(self) -> None:
        self.house.rack.listen()

    @rule()
    def the_node_obeys(self) -> None:
        self.house.rack.come_back()
        self.house.rack.obey(self.house.now)

    @rule(
        which=st.integers(0, 1),
        back=st.integers(0, 1),
        phase=st.sampled_from(["pulling", "starting", "running", "stopping", "exited", "failed"]),
        code=st.sampled_from([0, 1, None]),
    )
    def the_node_says(self, which: int, back: int, phase: wire.Phase, code: int | None) -> None:
        instance = self.house.again(self.instances[which])
        run = max(1, instance.run - back)
        exit_code = code if phase in wire.FINISHED_PHASES else None
        self.house.rack.say(instance, phase, self.house.now, run=run, exit_code=exit_code)
        self.house.rack.report(self.house.now)

    @rule(which=st.integers(0, 1))
    def the_node_forgets(self, which: int) -> None:
        instance = self.house.again(self.instances[which])
        self.house.rack.said.pop((str(instance.id), instance.run), None)
        self.house.rack.report(self.house.now)

    @rule(epoch=st.integers(0, 1), generation=st.booleans())
    def the_node_reports(self, epoch: int, generation: bool) -> None:
        extra: dict[str, Any] = {} if generation else {"generation": 0}
        self.house.rack.report(self.house.now, epoch=epoch, **extra)

    @rule(link=st.sampled_from([Link.OFFLINE, Link.LOST, Link.ONLINE]))
    def the_link_changes(self, link: Link) -> None:
        self.house.rack.go_silent(link)
        limits.lose_silent(now=self.house.now)

    @rule(is_reboot=st.booleans())
    def the_node_connects(self, is_reboot: bool) -> None:
        self.boots += is_reboot
        self.house.rack.come_back()
        self.house.rack.hello(self.house.now, boot_id=f"boot-{self.boots}")

    @rule(seconds=st.sampled_from([0.001, 3, 12, 70, 400, 2000]))
    def time_goes_by(self, seconds: float) -> None:
        self.house.pass_time(seconds=seconds)

    @rule()
    def limits_are_looked_at(self) -> None:
        limits.stop_due(now=self.house.now)
        limits.end_stuck(now=self.house.now)

    @precondition(lambda self: self.instances)
    @invariant()
    def the_books_are_right(self) -> None:
        check_books([self.house.again(one) for one in self.instances], self.house.now)


@pytest.mark.slow
def test_no_sequence_of_events_leaves_anything_held_or_billed_twice(db: None) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Story,
        settings=settings(
            max_examples=20,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@given(code=st.sampled_from(sorted(reasons.REASONS)))
def test_every_reason_is_a_sentence(code: str) -> None:
    sentence = reasons.in_english(code)
    assert sentence.endswith(".")
    assert sentence[0].isupper()
