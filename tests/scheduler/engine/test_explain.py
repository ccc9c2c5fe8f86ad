import pytest

from scheduler.engine import Code, Policy, RunTimes, plan
from tests.scheduler.engine.site import node, request, run, site


def _decision(nodes, waiting, running=(), policy=None, of=None):
    decisions = {
        decision.request_id: decision
        for decision in plan(site(nodes, waiting, running, policy)).decisions
    }
    return decisions[of or waiting[-1].id]


def test_a_placement_says_where_and_what():
    decision = _decision([node("n1")], [request("r", 2)])

    assert decision.message == "Placed on n1: 2 × A100."
    assert decision.args == {"node": "n1", "gpus": 2, "units": 2000, "model": "A100"}


def test_a_placed_share_is_told_in_percent():
    assert (
        _decision([node("n1")], [request("r", units=125)]).message
        == "Placed on n1: 12.5 % of one A100."
    )


def test_busy_gpus_are_told_with_the_number_that_is_missing():
    decision = _decision([node("n1", busy=5), node("n2", busy=6)], [request("r", 4, model="A100")])

    assert decision.code == Code.GPUS_BUSY
    assert decision.message == (
        "Waiting for 1 more A100 GPU on one machine: 4 needed together, 3 free at best."
    )
    assert decision.args["missing"] == 1


def test_a_share_without_room_is_told_with_the_best_gap():
    decision = _decision([node("n1", 1, free={0: ((900, 1000),)})], [request("r", units=250)])

    assert decision.message == "No GPU has room: 25 % of one is needed, 10 % is free at best."


def test_too_little_cpu_is_told_for_the_machines_that_have_gpus():
    nodes = [node("n1", cores_free=3), node("n2", busy=8, cores_free=60)]
    decision = _decision(nodes, [request("r", cores=12)])

    assert decision.code == Code.TOO_LITTLE_CPU
    assert decision.message == (
        "The machines with enough free GPUs have too little CPU: 12 cores needed, "
        "3 cores free at best."
    )


def test_no_such_gpu_names_model_and_pool():
    decision = _decision([node("n1")], [request("r", model="H100", pool="main")])

    assert decision.code == Code.NO_SUCH_GPU
    assert decision.message == "No machine in pool main has a H100 GPU."


@pytest.mark.parametrize(
    ("waiting", "message"),
    [
        (request("r", 16), "Asks for 16 GPUs on one machine; the largest has 8."),
        (
            request("r", cores=100),
            "Asks for 100 cores of CPU on one machine; the largest that could run it has 64 cores.",
        ),
        (
            request("r", 2, units=500),
            "A share is a part of one GPU; it asks for shares of several.",
        ),
    ],
)
def test_an_impossible_request_is_told_why(waiting, message):
    decision = _decision([node("n1")], [waiting])

    assert (decision.code, decision.message) == (Code.NEVER_FITS, message)
    assert decision.is_impossible


def test_machines_out_of_work_are_told_with_their_reason():
    nodes = [node("n1", schedulable=False, why_not="drained for repair"), node("n2", 1)]
    decision = _decision(nodes, [request("r", 8)])

    assert decision.code == Code.NODES_UNAVAILABLE
    assert decision.message == (
        "1 machine could run this, but none takes work now: drained for repair."
    )
    assert decision.position == 1


def test_sick_gpus_make_a_machine_unavailable_not_the_request_impossible():
    decision = _decision([node("n1", 8, sick=[3])], [request("r", 8)])

    assert decision.message.endswith("a GPU there is not healthy.")


def test_positions_count_the_waiting_only():
    waiting = [request("placed", 8, at=0), request("huge", 16, at=1)]
    waiting += [request("first", 8, at=2), request("second", at=3)]
    decisions = plan(site([node("n1")], waiting)).decisions

    assert {decision.request_id: decision.position for decision in decisions} == {
        "placed": None,
        "huge": None,
        "first": 1,
        "second": 2,
    }


def test_being_behind_others_says_how_many_are_ahead():
    decision = _decision([node("n1", busy=1)], [request("large", 8), request("small", at=1)])

    assert decision.message == "There is room, but it is kept for an older request; 1 ahead."
    assert decision.args == {"ahead": 1}


def test_a_reason_never_names_anybody_elses_request():
    waiting = [request("secret", 8, organization="rival"), request("mine", at=1)]
    decision = _decision([node("n1", busy=1)], waiting)

    assert "secret" not in decision.message
    assert not {"secret", "rival"} & set(map(str, decision.args.values()))


def test_fewer_gpus_or_another_model_would_start_sooner():
    nodes = [node("n1", busy=6), node("n2", model="L40S")]
    decision = _decision(nodes, [request("r", 8, model="A100")])

    assert decision.sooner == ("2 GPUs instead of 8: now", "L40S instead: now")
    assert decision.args["sooner_gpus"] == 2
    assert decision.args["sooner_model_1"] == "L40S"


def test_half_a_gpu_would_start_sooner():
    decision = _decision([node("n1", 1, free={0: ((500, 1000),)})], [request("r")])

    assert decision.sooner == ("half a GPU: now",)
    assert decision.args["sooner_units"] == 500


def test_nothing_that_is_kept_for_an_older_request_is_offered():
    decision = _decision([node("n1", busy=1)], [request("large", 8), request("r", 2, at=1)])

    assert decision.sooner == ()


def test_an_estimate_rests_on_the_limits_of_what_runs():
    decision = _decision(
        [node("n1", 2, busy=2)],
        [request("r", 2)],
        [run("a", ["n1/0"], until=1600.0), run("b", ["n1/1"], until=1900.0)],
    )

    assert decision.estimate is not None
    assert (decision.estimate.low_s, decision.estimate.high_s) == (900.0, 900.0)
    assert decision.estimate.basis == "limits"


def test_an_estimate_rests_on_past_runs_where_there_is_no_limit():
    decision = _decision(
        [node("n1", 1, busy=1)],
        [request("r")],
        [run("a", ["n1/0"], since=900.0)],
        Policy(history=(RunTimes(300, 700), RunTimes(400, 1000, gpu_model="A100"))),
    )

    assert decision.estimate is not None
    assert (decision.estimate.low_s, decision.estimate.high_s) == (300.0, 900.0)
    assert decision.estimate.basis == "past_runs"


def test_without_limits_or_past_runs_there_is_no_estimate():
    assert _decision([node("n1", 1, busy=1)], [request("r")], [run("a", ["n1/0"])]).estimate is None


def test_a_run_beyond_its_limit_bounds_nothing_from_above():
    decision = _decision([node("n1", 1, busy=1)], [request("r")], [run("a", ["n1/0"], until=990.0)])

    assert decision.estimate is not None
    assert (decision.estimate.low_s, decision.estimate.high_s) == (0.0, None)


def test_those_ahead_in_line_make_the_estimate_later():
    running = [run(f"a{i}", [f"n1/{i}"], until=1100.0 + 100 * i) for i in range(4)]
    waiting = [request("first", 1, at=0), request("second", 1, at=1), request("third", 2, at=2)]
    decisions = plan(site([node("n1", 4, busy=4)], waiting, running)).decisions

    assert [decision.estimate.low_s for decision in decisions if decision.estimate] == [
        100.0,
        200.0,
        400.0,
    ]


def test_a_line_longer_than_the_machines_waits_for_whole_rounds_of_past_runs():
    running = [run("a", ["n1/0"], since=1000.0, until=1100.0)]
    waiting = [request(f"r{i}", at=i) for i in range(3)]
    policy = Policy(history=(RunTimes(100, 200),))
    decisions = plan(site([node("n1", 1, busy=1)], waiting, running, policy)).decisions

    assert [(d.estimate.low_s, d.estimate.high_s) for d in decisions if d.estimate] == [
        (100.0, 100.0),
        (200.0, 300.0),
        (300.0, 500.0),
    ]


def test_a_request_that_waits_for_cpu_is_estimated_by_the_runs_that_hold_it():
    decision = _decision(
        [node("n1", 8, cores_free=1)],
        [request("r", cores=40)],
        [run("a", node_id="n1", cores=63, until=1500.0)],
    )

    assert decision.code == Code.TOO_LITTLE_CPU
    assert decision.estimate is not None
    assert decision.estimate.low_s == 500.0


def test_what_starts_in_this_cycle_counts_in_the_estimates():
    waiting = [request("now", expected_seconds=600.0), request("next", at=1)]
    decision = _decision([node("n1", 1)], waiting)

    assert decision.estimate is not None
    assert decision.estimate.high_s == 600.0


def test_a_share_is_estimated_by_the_first_run_that_leaves_enough():
    running = [
        run("a", ["n1/0"], units=(0, 500), until=2000.0),
        run("b", ["n1/0"], units=(500, 1000), until=1200.0),
    ]
    decision = _decision([node("n1", 1, busy=1)], [request("r", units=500)], running)

    assert decision.estimate is not None
    assert decision.estimate.low_s == 200.0
