import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import explain
from scheduler.engine import Policy, RunTimes, Snapshot, codec, plan
from tests.scheduler.engine.site import node, request, run, site

FULL = site(
    [
        node("n1", 2, free={0: ((0, 250), (500, 1000))}, sick=[1]),
        node("n2", 0, schedulable=False, why_not="drained"),
    ],
    [request("r", model="A100", pool="main", expected_seconds=60.0), request("huge", 9)],
    [run("old", ["n1/0"], units=(250, 500), until=1500.0)],
    Policy(score="fgd", seed=3, history=(RunTimes(60, 90, gpu_model="A100"),)),
)


def test_a_snapshot_survives_being_saved_and_read():
    assert codec.load_snapshot(codec.dump_snapshot(FULL)) == FULL


@given(
    st.builds(
        Snapshot,
        now=st.floats(0, 2e9),
        version=st.integers(0, 2**62),
        nodes=st.lists(st.text(min_size=1).map(node), max_size=3).map(tuple),
        requests=st.lists(st.text(min_size=1).map(request), max_size=3).map(tuple),
    )
)
@settings(deadline=None, max_examples=50)
def test_any_names_and_numbers_survive(snapshot):
    assert codec.load_snapshot(codec.dump_snapshot(snapshot)) == snapshot


def test_fields_with_a_default_may_be_left_out_and_unknown_ones_are_ignored():
    text = '{"format": "corral-snapshot/1", "now": 5, "version": 1, "colour": "green"}'

    assert codec.load_snapshot(text) == Snapshot(now=5.0, version=1)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not JSON"),
        ("[]", "must begin with"),
        ('{"format": "corral-snapshot/2"}', "must begin with"),
        ('{"format": "corral-snapshot/1", "version": 1}', "now"),
        ('{"format": "corral-snapshot/1", "now": "soon", "version": 1}', "Snapshot.now"),
        ('{"format": "corral-snapshot/1", "now": 1, "version": 1, "nodes": 3}', "a list is needed"),
        (
            '{"format": "corral-snapshot/1", "now": 1, "version": 1, "requests": [{"id": 4}]}',
            "Request.id",
        ),
        (
            '{"format": "corral-snapshot/1", "now": 1, "version": 1, "nodes": [{"gpus": [{"free":'
            " [[1, 2, 3]]}]}]}",
            "Gpu.free",
        ),
        ('{"format": "corral-snapshot/1", "now": 1, "version": true}', "whole number"),
    ],
)
def test_garbage_raises_one_error_that_names_the_place(text, complaint):
    with pytest.raises(codec.UnreadableSnapshotError, match=complaint):
        codec.load_snapshot(text)


def test_explaining_prints_every_decision_with_its_reason(tmp_path, capsys):
    path = tmp_path / "snapshot.json"
    path.write_text(codec.dump_snapshot(FULL), encoding="utf-8")

    assert explain.main([str(path)]) == 0

    out = capsys.readouterr().out
    assert out.startswith("Plan for snapshot 7: 0 placed, 1 waiting, 1 impossible.\n")
    for decision in plan(FULL).decisions:
        assert decision.message in out
    assert "Estimated start: in 0 s to 8 min (from time limits and past runs)" in out
    assert "Sooner: half a GPU: now" in out
    assert "Machines: 1 gpus, 1 node_unavailable" in out


def test_explaining_tells_placements_and_open_ended_estimates(tmp_path, capsys):
    snapshot = site(
        [node("n1", 2, busy=1)],
        [request("a"), request("b", at=1)],
        [run("old", ["n1/0"], since=999.0, until=999.5)],
    )
    path = tmp_path / "snapshot.json"
    path.write_text(codec.dump_snapshot(snapshot), encoding="utf-8")

    assert explain.main([str(path)]) == 0

    out = capsys.readouterr().out
    assert "    GPU n1/1, units 0 to 1000" in out
    assert "not before 0 s" in out


def test_explaining_prints_the_plan_as_json(tmp_path, capsys):
    path = tmp_path / "snapshot.json"
    path.write_text(codec.dump_snapshot(site([node("n1")], [request("r")])), encoding="utf-8")

    assert explain.main([str(path), "--json"]) == 0

    printed = json.loads(capsys.readouterr().out)
    assert printed["placements"] == [
        {"request_id": "r", "node_id": "n1", "gpus": [["n1/0", 0, 1000]]}
    ]
    assert printed["decisions"][0]["code"] == "placed"


@pytest.mark.parametrize("content", [None, "{}"])
def test_explaining_an_unreadable_file_fails_with_a_sentence(tmp_path, capsys, content):
    path = tmp_path / "snapshot.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")

    assert explain.main([str(path)]) == 2
    assert capsys.readouterr().err.startswith("explain: ")
