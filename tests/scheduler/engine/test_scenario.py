from pathlib import Path

import pytest

from scheduler import scenario

SCENARIOS = Path(__file__).resolve().parents[4] / "shared" / "data" / "scenarios"
HEAD = "format: gpu-scheduler-scenario/1\naction: full-cycle\nqueues: [{name: q}]\n"
SMALL = (
    HEAD
    + """
cluster: {nodes: [{name: n0, gpus: 2}, {name: n1, gpus: 2}]}
jobs:
- {name: old, queue: q, state: running, tasks: [{gpus: 1, node: n0}]}
- {name: half, queue: q, state: running, tasks: [{fraction: 0.5, node: n1, gpu: 1}]}
- {name: share, queue: q, state: pending, created: 1, tasks: [{fraction: 0.5}]}
- {name: one, queue: q, state: pending, created: 2, tasks: [{gpus: 1}]}
- {name: two, queue: q, state: pending, created: 3, tasks: [{gpus: 2}]}
expect:
  start: [share, one]
  place: [{job: share, node: n1, gpu: 1}]
  pending: [{job: two, because: no machine has two}]
"""
)


def _run(tmp_path, capsys, text):
    path = tmp_path / "case.yaml"
    path.write_text(text, encoding="utf-8")
    return scenario.main([str(path)]), capsys.readouterr().out


def test_a_decision_as_expected_is_told_in_one_line(tmp_path, capsys):
    assert _run(tmp_path, capsys, SMALL) == (0, "ok   case\n")


def test_one_of_several_may_start(tmp_path, capsys):
    text = SMALL.replace(
        "start: [share, one]", "start: [share]\n  start_any_of: {count: 1, of: [one]}"
    )

    assert _run(tmp_path, capsys, text)[0] == 0


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("start: [share, one]", "start: [share, one, two]", "two should start: Waiting for 1 more"),
        ("start: [share, one]", "start: [share]", "one should not start"),
        (
            "node: n1, gpu: 1}]\n  pending",
            "node: n0, gpu: 1}]\n  pending",
            "share is on n1, GPU [1]",
        ),
        ("start: [share, one]", "start_any_of: {count: 1, of: [share, one]}", "should start: 2 do"),
        ("full-cycle", "multi-cycle", "needs several cycles"),
        ("{gpus: 2}]}\nexpect", "{gpus: 2}, {gpus: 2}]}\nexpect", "needs gangs"),
        ("expect:", "expect:\n  evict: [old]", "needs eviction"),
        ("{fraction: 0.5}", "{mig: 1g.5gb}", "needs MIG profiles"),
        ("scenario/1", "scenario/2", "not in the format"),
        ("queues: [{name: q}]", "queues: [", "unreadable"),
        (
            "state: running, tasks: [{gpus: 1, node: n0}]",
            "state: running, tasks: [{gpus: 1}]",
            "malformed",
        ),
    ],
)
def test_a_difference_fails_and_says_what_it_is(tmp_path, capsys, old, new, complaint):
    assert old in SMALL

    status, line = _run(tmp_path, capsys, SMALL.replace(old, new))

    assert (status, line.count("\n")) == (1, 1)
    assert line.startswith("FAIL case: ")
    assert complaint in line


@pytest.mark.skipif(not SCENARIOS.is_dir(), reason="the scenarios are not beside this checkout")
@pytest.mark.parametrize(
    "name",
    [
        "K03-no-reclaim-at-fair-share",
        "K13-fractions-tightest-gpu",
        "K16-consolidation-never-moves-non-preemptible",
        "K19-priority-does-not-cross-queues",
    ],
)
def test_the_public_scenarios_without_quotas_and_eviction_come_out_as_expected(name):
    assert scenario.judge(SCENARIOS / f"{name}.yaml") == []
