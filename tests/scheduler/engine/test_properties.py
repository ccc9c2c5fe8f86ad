"""What holds for every snapshot, on random small sites."""

import dataclasses
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine import Code, Node, Policy, Snapshot, fit, plan
from scheduler.engine.capacity import Capacity
from scheduler.engine.holding import Holding
from scheduler.engine.score import SCORES
from scheduler.engine.shape import Shape
from tests.scheduler.engine.site import node, request, run, site

FREE = st.sampled_from(
    [((0, 1000),), (), ((0, 500),), ((250, 1000),), ((0, 250), (500, 750)), ((0, 250), (250, 1000))]
)
MODELS = st.sampled_from(["A100", "H100", "T4"])


@st.composite
def nodes(draw: st.DrawFn, number: int) -> Node:
    gpus = draw(st.integers(0, 4))
    return node(
        f"n{number}",
        gpus,
        model=draw(MODELS),
        free={index: draw(FREE) for index in range(gpus)},
        sick=draw(st.sets(st.integers(0, 3), max_size=1)),
        pool=draw(st.sampled_from(["main", "lab"])),
        cores=16,
        cores_free=draw(st.integers(0, 16)),
        schedulable=draw(st.sampled_from([True, True, True, False])),
    )


@st.composite
def requests(draw: st.DrawFn, number: int):
    gpus = draw(st.sampled_from([0, 1, 1, 1, 2, 3, 4, 5]))
    return request(
        f"r{number:02d}",
        gpus,
        organization=draw(st.sampled_from(["a", "b", "c"])),
        at=draw(st.integers(0, 5)),
        priority=draw(st.integers(0, 2)),
        units=draw(st.sampled_from([1000, 500, 250, 125])) if gpus == 1 else 1000,
        model=draw(st.none() | MODELS),
        cores=draw(st.integers(0, 6)),
        pool=draw(st.sampled_from([None, None, "main", "lab"])),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    machines = [draw(nodes(number)) for number in range(draw(st.integers(0, 5)))]
    running = [
        run(
            gpu.id,
            [gpu.id],
            units=(900, 1000),
            organization=draw(st.sampled_from(["a", "b"])),
            until=draw(st.none() | st.floats(900, 5000)),
        )
        for machine in machines
        for gpu in machine.gpus
        if not gpu.free
    ]
    return site(
        machines,
        [draw(requests(number)) for number in range(draw(st.integers(0, 14)))],
        running,
        Policy(
            order=draw(st.sampled_from(["priority", "fcfs"])),
            score=draw(st.sampled_from(sorted(SCORES))),
            seed=draw(st.integers(0, 3)),
        ),
    )


@given(snapshots())
@settings(deadline=None, max_examples=150)
def test_every_request_gets_one_decision_and_only_the_placed_a_place(snapshot):
    made = plan(snapshot)

    decided = [decision.request_id for decision in made.decisions]
    assert sorted(decided) == sorted(waiting.id for waiting in snapshot.requests)
    assert {placement.request_id for placement in made.placements} == {
        decision.request_id for decision in made.decisions if decision.code == Code.PLACED
    }


@given(snapshots())
@settings(deadline=None, max_examples=150)
def test_no_unit_has_two_owners_and_every_placement_is_what_was_asked(snapshot):
    made = plan(snapshot)

    owned = {node.id: {gpu.id: gpu for gpu in node.gpus} for node in snapshot.nodes}
    asked = {waiting.id: waiting for waiting in snapshot.requests}
    taken = [gpu for placement in made.placements for gpu in placement.gpus]
    for one, other in combinations(taken, 2):
        assert one.gpu_id != other.gpu_id or one.hi <= other.lo or other.hi <= one.lo
    for placement in made.placements:
        wanted = asked[placement.request_id]
        assert len({gpu_id for gpu_id, _, _ in placement.gpus}) == wanted.gpu_count
        for gpu_id, low, high in placement.gpus:
            gpu = owned[placement.node_id][gpu_id]
            assert gpu.healthy
            assert high - low == wanted.units_per_gpu
            assert not wanted.gpu_models or gpu.model in wanted.gpu_models
            free = {unit for start, end in gpu.free for unit in range(start, end)}
            assert free >= set(range(low, high))


@given(snapshots())
@settings(deadline=None, max_examples=150)
def test_no_machine_is_given_more_than_it_has_free(snapshot):
    made = plan(snapshot)

    asked = {waiting.id: waiting for waiting in snapshot.requests}
    for machine in snapshot.nodes:
        here = [asked[p.request_id] for p in made.placements if p.node_id == machine.id]
        assert sum(wanted.cpu_milli for wanted in here) <= machine.cpu_free
        assert sum(wanted.memory_bytes for wanted in here) <= machine.memory_free
        assert machine.schedulable or not here
        assert all(wanted.pool in (None, machine.pool) for wanted in here)


@given(snapshots(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=150)
def test_the_same_snapshot_gives_the_same_plan_whatever_the_order_of_its_lists(snapshot, random):
    def shuffled(items):
        return tuple(random.sample(items, len(items)))

    mixed = dataclasses.replace(
        snapshot,
        nodes=shuffled(
            [dataclasses.replace(node, gpus=shuffled(node.gpus)) for node in snapshot.nodes]
        ),
        requests=shuffled(snapshot.requests),
        running=shuffled(snapshot.running),
    )

    assert plan(mixed) == plan(snapshot) == plan(snapshot)


def _after(snapshot):
    """Return the machines as they stand once the plan is carried out."""
    made = plan(snapshot)
    capacity = Capacity(snapshot.nodes)
    asked = {waiting.id: waiting for waiting in snapshot.requests}
    for placement in made.placements:
        shape = Shape.of(asked[placement.request_id])
        capacity.book(capacity.row_of[placement.node_id], shape, placement.gpus)
    return made, capacity


@given(snapshots())
@settings(deadline=None, max_examples=200)
def test_nobody_who_could_run_waits_unless_an_older_blocked_request_is_named(snapshot):
    made, capacity = _after(snapshot)

    asked = {waiting.id: waiting for waiting in snapshot.requests}
    blocked = False
    for decision in made.decisions:
        if decision.code == Code.PLACED:
            continue
        fits = fit.rows(capacity, Shape.of(asked[decision.request_id]), slice(None)).any()
        assert fits == (decision.code == Code.BEHIND_OTHERS)
        assert blocked or not fits
        blocked |= decision.code in {
            Code.GPUS_BUSY,
            Code.TOO_LITTLE_CPU,
            Code.TOO_LITTLE_MEMORY,
            Code.TOO_LITTLE_DISK,
        }


@given(snapshots())
@settings(deadline=None, max_examples=200)
def test_the_first_blocked_request_gets_no_farther_from_its_place(snapshot):
    """What must still end for it, units or for a share runs, does not grow by what is placed."""
    made = plan(snapshot)

    asked = {waiting.id: waiting for waiting in snapshot.requests}
    line = [asked[decision.request_id] for decision in made.decisions]
    codes = {decision.request_id: decision.code for decision in made.decisions}
    first = next((waiting for waiting in line if codes[waiting.id] == Code.GPUS_BUSY), None)
    if first is None:
        return
    if any(codes[w.id].startswith("too_little") for w in line[: line.index(first)]):
        return  # a place kept for somebody still older may overlap
    shape = Shape.of(first)
    before, after = Capacity(snapshot.nodes), Capacity(snapshot.nodes)
    ends_before = Holding(before, before, snapshot.running)
    ends_after = Holding(after, after, snapshot.running)
    for placement in made.placements:
        wanted = asked[placement.request_id]
        booked = after.row_of[placement.node_id], Shape.of(wanted), placement.gpus
        after.book(*booked)
        ends_after.started(placement)
        if line.index(wanted) < line.index(first):
            before.book(*booked)
            ends_before.started(placement)

    assert ends_after.distance(shape) // 1001 == ends_before.distance(shape) // 1001
    assert shape.is_share or ends_after.distance(shape) == ends_before.distance(shape)


@given(snapshots())
@settings(deadline=None, max_examples=150)
def test_fit_by_rows_and_fit_on_one_node_agree(snapshot):
    if not snapshot.nodes:
        return
    capacity = Capacity(snapshot.nodes)

    for waiting in snapshot.requests:
        shape = Shape.of(waiting)
        by_rows = fit.rows(capacity, shape, slice(None))
        one_by_one = [fit.on_node(capacity, shape, row) for row in range(len(snapshot.nodes))]
        assert [misfit is None for misfit in one_by_one] == by_rows.tolist()
        assert all(misfit is None or misfit.missing >= 0 for misfit in one_by_one)


@given(snapshots())
@settings(deadline=None, max_examples=100)
def test_estimates_are_ranges_in_the_future(snapshot):
    for decision in plan(snapshot).decisions:
        if decision.estimate is not None:
            assert decision.estimate.low_s >= 0
            high = decision.estimate.high_s
            assert high is None or high >= decision.estimate.low_s


def test_booking_what_somebody_has_is_refused():
    capacity = Capacity([node("n1", 1)])
    shape = Shape.of(request("r"))
    capacity.book(0, shape, [("n1/0", 0, 1000)])

    with pytest.raises(ValueError, match="not free"):
        capacity.book(0, shape, [("n1/0", 0, 1000)])
