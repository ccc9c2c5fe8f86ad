"""Every answer of the planner becomes a full sentence, from its code and arguments alone."""

from dataclasses import replace
from typing import Any

import pytest
from django.utils.translation import override

from scheduler import words
from scheduler.engine import Code, Gpu, Node, Request, Snapshot, plan

GIB = 2**30
H100 = "H100 SXM 80GB"


def machine(
    name: str, gpus: int, free: tuple[tuple[int, int], ...] = ((0, 1000),), **values: Any
) -> Node:
    amounts = {
        "cpu_milli": 64_000, "memory_bytes": 512 * GIB, "disk_bytes": 1000 * GIB,
        "cpu_free": 64_000, "memory_free": 512 * GIB, "disk_free": 1000 * GIB,
    }  # fmt: skip
    return Node(
        id=name,
        name=name,
        pool="default",
        gpus=tuple(Gpu(f"{name}-{n}", H100, 80 * GIB, free) for n in range(gpus)),
        **(amounts | values),
    )


def ask(number: int = 1, **values: Any) -> Request:
    amounts = {"gpu_models": frozenset({H100}), "cpu_milli": 1000}
    return Request(
        id=str(number), organization="o", submitted_at=float(number), **(amounts | values)
    )


FEW = "The machines with enough free GPUs have too little "

CASES: list[tuple[str, list[Node], list[Request], Code, str]] = [
    ("placed", [machine("a", 2)], [ask(gpu_count=2)], Code.PLACED,
     "Placed on a: 2 × H100 SXM 80GB."),
    ("a share", [machine("a", 1)], [ask(units_per_gpu=250)], Code.PLACED,
     "Placed on a: 25 % H100 SXM 80GB."),
    ("without a GPU", [machine("a", 0)], [ask(gpu_count=0, gpu_models=frozenset())], Code.PLACED,
     "Placed on a."),
    ("GPUs", [machine("a", 2, ())], [ask(gpu_count=2)], Code.GPUS_BUSY,
     "Waiting for 2 more H100 SXM 80GB GPU on one machine: 2 needed together, 0 free at best."),
    ("units", [machine("a", 1, ((0, 400),))], [ask(units_per_gpu=500)], Code.GPUS_BUSY,
     "No H100 SXM 80GB GPU has room: 50 % of one is needed, 40 % is free at best."),
    ("CPU", [machine("a", 1, cpu_free=500)], [ask()], Code.TOO_LITTLE_CPU,
     FEW + "CPU: 1 core needed, 0.5 cores free at best."),
    ("memory", [machine("a", 1, memory_free=GIB)], [ask(memory_bytes=2 * GIB)],
     Code.TOO_LITTLE_MEMORY,
     FEW + "memory: 2 GiB needed, 1 GiB free at best."),
    ("disk", [machine("a", 1, disk_free=GIB)], [ask(disk_bytes=2 * GIB)], Code.TOO_LITTLE_DISK,
     FEW + "disk: 2 GiB needed, 1 GiB free at best."),
    ("silence", [machine("a", 1, schedulable=False, why_not=words.WHY_SILENT)], [ask()],
     Code.NODES_UNAVAILABLE,
     "1 machine could run this, but it takes no work now: not answering."),
    ("model", [machine("a", 1)], [ask(gpu_models=frozenset({"B200"}), pool="lab")],
     Code.NO_SUCH_GPU, "No machine in pool lab has a B200 GPU."),
    ("memory of a GPU", [machine("a", 1)], [ask(gpu_memory_bytes=141 * GIB)], Code.NO_SUCH_GPU,
     "No machine has a H100 SXM 80GB GPU with 141 GiB."),
    ("too many", [machine("a", 2)], [ask(gpu_count=3)], Code.NEVER_FITS,
     "Asks for 3 × H100 SXM 80GB GPU on one machine; the largest has 2."),
    ("too much", [machine("a", 2)], [ask(cpu_milli=65_000)], Code.NEVER_FITS,
     "Asks for 65 cores of CPU on one machine; the largest that could run it has 64 cores."),
    ("a share of two", [machine("a", 2)], [ask(gpu_count=2, units_per_gpu=500)], Code.NEVER_FITS,
     "A share is a part of one GPU; it asks for shares of several."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "requests", "code", "said"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_an_answer_is_a_sentence(
    nodes: list[Node], requests: list[Request], code: Code, said: str
) -> None:
    decision = plan(
        Snapshot(now=0.0, version=1, nodes=tuple(nodes), requests=tuple(requests))
    ).decisions[-1]

    assert decision.code == code
    with override("en"):
        assert words.sentence(decision.code, decision.args) == said


def test_who_waits_behind_a_kept_place_is_told_how_many_are_ahead() -> None:
    half = machine("a", 2)
    half = replace(half, gpus=(half.gpus[0], Gpu("busy", H100, 80 * GIB, ())))
    snapshot = Snapshot(
        now=0.0, version=1, nodes=(half,), requests=(ask(1, gpu_count=2), ask(2, gpu_count=1))
    )

    decision = plan(snapshot).decisions[-1]

    assert decision.code == Code.BEHIND_OTHERS
    with override("en"):
        assert (
            words.sentence(decision.code, decision.args)
            == "There is room, but it is kept for an older request; 1 is ahead."
        )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "No estimate yet."),
        ({"low_s": 30, "high_s": None, "basis": "past_runs"}, "In 30 s or later"),
        ({"low_s": 240, "high_s": 245, "basis": "limits"}, "In about 4 min"),
        ({"low_s": 240, "high_s": 7200, "basis": "limits"}, "In 4 min to 2 h"),
        ({"low_s": 240, "high_s": 300_000, "basis": "limits"}, "In 4 min to 3 d"),
    ],
)
def test_an_estimate_is_a_range_in_plain_units(value: Any, said: str) -> None:
    with override("en"):
        assert words.estimate(value) == said
