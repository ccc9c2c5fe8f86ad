import dataclasses

import pytest

from scheduler.engine import Code, Policy, plan
from tests.scheduler.engine.site import node, request, run, site


def _placed(snapshot):
    return {placement.request_id: placement for placement in plan(snapshot).placements}


def _codes(snapshot):
    return {decision.request_id: decision.code for decision in plan(snapshot).decisions}


def test_an_empty_site_gives_an_empty_plan():
    assert plan(site([], [])).decisions == ()


def test_a_request_without_machines_is_told_that_no_such_gpu_exists():
    assert _codes(site([], [request("r")])) == {"r": Code.NO_SUCH_GPU}


def test_a_request_gets_whole_gpus_of_one_machine():
    placement = _placed(site([node("n1", busy=5), node("n2", busy=3)], [request("r", 4)]))["r"]

    assert placement.node_id == "n2"
    assert placement.gpus == tuple((f"n2/{i}", 0, 1000) for i in (3, 4, 5, 6))


def test_a_request_without_gpus_gets_a_machine_only():
    placement = _placed(site([node("n1", busy=8)], [request("r", 0)]))["r"]

    assert (placement.node_id, placement.gpus) == ("n1", ())


def test_the_models_pools_and_gpu_memory_that_are_asked_for_are_respected():
    nodes = [node("n1", model="T4"), node("n2", model="H100", pool="lab"), node("n3", model="H100")]
    placed = _placed(
        site(
            nodes,
            [
                request("h", model="H100", pool="main"),
                request("lab", pool="lab"),
                dataclasses.replace(request("big"), gpu_memory_bytes=81 * 2**30),
            ],
        )
    )

    assert {name: placement.node_id for name, placement in placed.items()} == {
        "h": "n3",
        "lab": "n2",
    }


def test_two_shares_are_packed_on_one_gpu_without_overlap():
    placed = _placed(site([node("n1", 2)], [request("a", units=250), request("b", units=500)]))

    (a,), (b,) = placed["a"].gpus, placed["b"].gpus
    assert a.gpu_id == b.gpu_id
    assert a.hi <= b.lo or b.hi <= a.lo


def test_a_share_takes_the_tightest_gpu_and_the_tightest_range_on_it():
    free = {0: ((0, 600),), 1: ((0, 250), (300, 500)), 2: ((0, 1000),)}

    placed = _placed(site([node("n1", 3, free=free)], [request("r", units=200)]))

    assert placed["r"].gpus == (("n1/1", 300, 500),)


def test_a_share_needs_its_units_in_one_piece():
    snapshot = site([node("n1", 1, free={0: ((0, 300), (500, 800))})], [request("r", units=500)])

    assert _codes(snapshot) == {"r": Code.GPUS_BUSY}


def test_packing_fills_the_fuller_machine_and_spreading_the_emptier():
    nodes = [node("n1", busy=2), node("n2", busy=6), node("n3", busy=4)]
    by_score = {
        score: _placed(site(nodes, [request("r")], policy=Policy(score=score)))["r"].node_id
        for score in ("pack", "spread", "bestfit")
    }

    assert by_score == {"pack": "n2", "spread": "n1", "bestfit": "n2"}


def test_fgd_keeps_the_empty_machine_for_the_usual_large_request():
    nodes = [node("n1"), node("n2", free={0: ((0, 500),)})]
    waiting = [request("small", units=500), *(request(f"big{i}", 8, at=1) for i in range(9))]

    placed = _placed(site(nodes, waiting, policy=Policy(score="fgd")))

    assert placed["small"].gpus == (("n2/0", 0, 500),)
    assert placed["big0"].node_id == "n1"


def test_a_random_score_gives_the_same_plan_for_the_same_seed():
    nodes = [node(f"n{i:02d}") for i in range(30)]
    waiting = [request(f"r{i:02d}", at=i, units=500) for i in range(20)]
    first, again, other = (
        plan(site(nodes, waiting, policy=Policy(score="random", seed=seed))) for seed in (1, 1, 2)
    )

    assert first == again
    assert first.placements != other.placements


def test_what_is_given_in_a_cycle_is_not_given_again():
    placed = _placed(site([node("n1", 4)], [request(f"r{i}", 2, at=i) for i in range(5)]))

    units = [gpu for placement in placed.values() for gpu in placement.gpus]
    assert sorted(placed) == ["r0", "r1"]
    assert len(set(units)) == len(units) == 4


def test_machines_that_take_no_work_and_sick_gpus_are_left_out():
    nodes = [node("n1", schedulable=False), node("n2", 2, sick=[0])]

    placed = _placed(site(nodes, [request("a", at=1), request("b", at=2)]))

    assert {name: p.gpus[0].gpu_id for name, p in placed.items()} == {"a": "n2/1"}


def test_an_impossible_request_is_passed_over():
    waiting = [request("huge", 16, priority=9), request("small", at=5)]
    decisions = {d.request_id: d for d in plan(site([node("n1")], waiting)).decisions}

    assert decisions["huge"].is_impossible
    assert decisions["huge"].position is None
    assert decisions["small"].code == Code.PLACED


@pytest.mark.parametrize("senseless", [(2, 500), (1, 0), (1, 1500), (-1, 1000)])
def test_a_senseless_request_never_fits_and_stops_nobody(senseless):
    gpus, units = senseless
    codes = _codes(site([node("n1")], [request("odd", gpus, units=units), request("fine", at=1)]))

    assert codes == {"odd": Code.NEVER_FITS, "fine": Code.PLACED}


def test_small_requests_cannot_take_what_a_large_urgent_one_waits_for():
    waiting = [request("large", 8, priority=9, at=5), *(request(f"s{i}", at=i) for i in range(4))]

    codes = _codes(site([node("n1", busy=1)], waiting))

    assert codes.pop("large") == Code.GPUS_BUSY
    assert set(codes.values()) == {Code.BEHIND_OTHERS}


def test_small_requests_pass_where_they_do_not_delay_the_large_one():
    nodes = [node("n1", busy=1), node("n2", busy=6), node("n3", busy=4, model="T4")]
    waiting = [request("large", 8, model="A100", priority=9)]
    waiting += [request(f"s{i}", at=1 + i) for i in range(9)]

    placed = _placed(site(nodes, waiting))

    assert sorted(p.node_id for p in placed.values()) == ["n2"] * 2 + ["n3"] * 4


def test_a_request_that_waits_for_cpu_keeps_cpu_and_gpus_but_not_the_gpus_beyond_its_need():
    nodes = [node("n1", 8, cores=9, cores_free=2)]
    waiting = [
        request("large", 4, cores=8, at=0),
        request("one-core", cores=1, at=1),
        request("no-core", cores=0, at=2),
    ]

    codes = _codes(site(nodes, waiting))

    assert codes == {
        "large": Code.TOO_LITTLE_CPU,
        "one-core": Code.BEHIND_OTHERS,
        "no-core": Code.PLACED,
    }


def test_shares_do_not_creep_onto_a_gpu_that_a_whole_gpu_request_waits_for():
    nodes = [node("n1", 2, free={0: ((250, 1000),), 1: ((500, 1000),)})]
    waiting = [request("whole", 1, at=0), request("share", units=500, at=1)]

    placed = _placed(site(nodes, waiting))

    assert placed["share"].gpus == (("n1/1", 500, 1000),)  # n1/0 is nearer to being free


def test_a_blocked_share_keeps_a_window_and_leaves_the_rest_of_the_gpu_open():
    nodes = [node("n0", 2, free={0: ((500, 1000),)})]
    waiting = [request(f"p{i}", units=units, at=i) for i, units in enumerate((600, 500, 500, 300))]

    placed = _placed(site(nodes, waiting, [run("r", ["n0/0"], units=(0, 500))]))

    assert {name: placement.gpus[0] for name, placement in placed.items()} == {
        "p0": ("n0/1", 0, 600),
        "p1": ("n0/0", 500, 1000),
        "p3": ("n0/1", 600, 900),  # p2 waits for one run to end, wherever this one goes
    }


def test_a_stream_of_smaller_shares_does_not_starve_a_larger_one():
    ends = {(0, 300): 100, (300, 600): 200, (600, 900): 300}
    for step in range(60):
        now = 10.0 * step
        ends = {units: end for units, end in ends.items() if end > now}
        cuts = [0, *(edge for units in sorted(ends) for edge in units), 1000]
        free = tuple(
            (low, high) for low, high in zip(cuts[::2], cuts[1::2], strict=True) if low < high
        )
        running = [run(f"{low}", ["n0/0"], units=(low, high)) for low, high in ends]
        waiting = [request("half", units=500, priority=1)]
        waiting += [request(f"s{step}-{i}", units=300, at=step) for i in range(3)]
        placed = _placed(site([node("n0", 1, free={0: free})], waiting, running, now=now))
        if "half" in placed:
            return
        ends |= {placement.gpus[0][1:]: now + 300 for placement in placed.values()}
    pytest.fail("the larger share never started")


def test_blocked_requests_for_other_gpus_each_keep_a_place():
    nodes = [node("n1", 2, busy=1), node("n2", 2, busy=1, model="H100")]
    waiting = [
        request("a", 2, model="A100", at=0),
        request("h", 2, model="H100", at=1),
        request("small", at=2),
    ]

    assert _codes(site(nodes, waiting))["small"] == Code.BEHIND_OTHERS


@pytest.mark.parametrize("size", [8, 5])
def test_a_stream_of_small_requests_does_not_starve_a_large_one(size):
    """Runs end one by one, and each end meets new small requests; the large one still starts."""
    ends = {f"n{n}/{g}": 10 * (8 * n + g + 1) for n in range(2) for g in range(8)}
    for step in range(40):
        now = 10.0 * step
        free = {gpu for gpu, end in ends.items() if end <= now}
        nodes = [
            node(
                f"n{n}",
                free={g: ((0, 1000),) if f"n{n}/{g}" in free else () for g in range(8)},
            )
            for n in range(2)
        ]
        waiting = [request("large", size, at=1, priority=1)]
        waiting += [request(f"s{step}-{i}", at=step) for i in range(8)]
        placed = _placed(site(nodes, waiting, now=now))
        if "large" in placed:
            return
        for placement in placed.values():
            ends |= {gpu.gpu_id: now + 500 for gpu in placement.gpus}
    pytest.fail("the large request never started")


def test_the_plan_carries_the_version_of_its_snapshot():
    assert plan(site([node("n1")], [])).version == 7


@pytest.mark.parametrize("policy", [Policy(order="nonsense"), Policy(score="nonsense")])
def test_an_unknown_policy_is_refused_by_name(policy):
    with pytest.raises(ValueError, match="nonsense"):
        plan(site([node("n1")], [], policy=policy))


def test_two_requests_of_one_id_are_refused():
    with pytest.raises(ValueError, match="two of one request id"):
        plan(site([node("n1")], [request("r"), request("r")]))


def test_a_run_on_a_machine_that_is_gone_does_not_disturb_the_plan():
    snapshot = site([node("n1")], [request("r")], [run("old", ["gone/0"])])

    assert _codes(snapshot) == {"r": Code.PLACED}


@pytest.mark.slow
@pytest.mark.parametrize("busy", [4, 8])
def test_a_thousand_nodes_and_five_hundred_requests_are_planned_at_once(busy):
    nodes = [node(f"n{i:04d}", busy=busy, model=f"M{i % 3}") for i in range(1000)]
    running = [
        run(gpu.id, [gpu.id], organization=f"o{number % 9}", until=2000.0 + number)
        for machine in nodes
        for number, gpu in enumerate(machine.gpus[:busy])
    ]
    waiting = [
        request(
            f"r{i:03d}",
            1 + i % 8,
            organization=f"o{i % 9}",
            at=i,
            cores=1 + i % 4,
            model=(None, "M0", "M1")[i % 3],
        )
        for i in range(500)
    ]
    snapshot = site(nodes, waiting, running)

    made = plan(snapshot)

    assert len(made.decisions) == 500
