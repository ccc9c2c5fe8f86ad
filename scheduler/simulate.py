"""Replay a published workload through the production planner: `python -m scheduler.simulate`.

The protocol is the one of the FGD experiments: tasks arrive one at a time in list order, nobody
leaves, and a task that finds no place is dropped but counts as arrived.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scheduler import traces
from scheduler.engine import placing
from scheduler.engine.capacity import Capacity
from scheduler.engine.fragmentation import Typical
from scheduler.engine.score import SCORES, Ranking
from scheduler.engine.shape import Shape
from scheduler.engine.snapshot import Node, Request

ORDERS = ("default", "fcfs")
"""Without departures every task is tried once, when it arrives: both orders are the list's."""

LOADS = (60, 100, 130)
"""Arrived GPU demand, in whole percent of capacity, at which the figures are read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one replay; `allocation` and `fragmentation` in percent of GPU capacity.

    Each is the mean over the tasks that arrived while the load was that whole percent, None where
    the load never was.
    """

    order: str
    score: str
    seed: int
    nodes: int
    tasks: int
    placed: int
    seconds: float
    placements_per_second: float
    allocation: dict[str, float | None]
    fragmentation: dict[str, float | None]


def replay(
    *,
    nodes: Sequence[Node],
    tasks: Sequence[Request],
    order: str = "default",
    score: str = "default",
    seed: int = 0,
    inflate: float | None = None,
) -> Outcome:
    """Offer every task once, in order, and measure what the machines hold.

    `inflate` stretches the list until its GPU demand passes that multiple of the capacity, or
    cuts it at random where it is longer. Raise ValueError for an unknown order or score.
    """
    if order not in ORDERS:
        raise ValueError(
            f"order {order!r} needs arrivals and departures; use {' or '.join(ORDERS)}"
        )
    name = "fgd" if score == "default" else score
    if name not in SCORES:
        raise ValueError(f"unknown score {score!r}; use default, {', '.join(sorted(SCORES))}")
    workload = [Shape.of(task) for task in tasks]
    draw = np.random.default_rng(seed)
    # A fixed shuffled order settles ties: names often group machines by model, and a random
    # choice among equals costs five points of allocation.
    capacity = Capacity([nodes[i] for i in draw.permutation(len(nodes))])
    offered = _inflated(tasks, capacity, inflate, draw) if inflate is not None else list(tasks)
    ranking = Ranking(capacity, SCORES[name](capacity, workload, seed))
    meter = _Meter(capacity, Typical(capacity, workload))

    placed, seconds = 0, 0.0
    for task in offered:
        shape = Shape.of(task)
        started = time.perf_counter()
        placement = placing.place(ranking, task.id, shape)
        seconds += time.perf_counter() - started
        placed += placement is not None
        meter.arrived(shape)
    return Outcome(
        order=order,
        score=score,
        seed=seed,
        nodes=len(nodes),
        tasks=len(offered),
        placed=placed,
        seconds=round(seconds, 6),
        placements_per_second=round(placed / seconds, 1) if seconds else 0.0,
        allocation=meter.allocation(),
        fragmentation=meter.fragmentation(),
    )


class _Meter:
    """Reads allocation and fragmentation while tasks arrive."""

    def __init__(self, capacity: Capacity, typical: Typical) -> None:
        self.capacity = capacity
        self.typical = typical
        self.total = int(capacity.free.sum())
        self.demand = 0
        self.amounts = typical.amount(np.arange(len(capacity.nodes)), capacity.free, capacity.cpu)
        self.seen = 0
        self.allocated_at: dict[int, list[float]] = defaultdict(list)
        self.fragmented_at: dict[int, list[float]] = defaultdict(list)

    def arrived(self, shape: Shape) -> None:
        self.demand += shape.total_units
        load = round(100 * self.demand / self.total) if self.total else 0
        if load not in LOADS:
            return
        rows = np.fromiter(set(self.capacity.changes[self.seen :]), np.int64)
        self.seen = len(self.capacity.changes)
        self.amounts[rows] = self.typical.amount(
            rows, self.capacity.free[rows], self.capacity.cpu[rows]
        )
        self.allocated_at[load].append(100 * (1 - int(self.capacity.free.sum()) / self.total))
        self.fragmented_at[load].append(100 * float(self.amounts.sum()) / self.total)

    def allocation(self) -> dict[str, float | None]:
        return {str(load): _mean(self.allocated_at[load]) for load in LOADS}

    def fragmentation(self) -> dict[str, float | None]:
        return {str(load): _mean(self.fragmented_at[load]) for load in LOADS}


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _inflated(
    tasks: Sequence[Request], capacity: Capacity, ratio: float, draw: np.random.Generator
) -> list[Request]:
    """Shuffle the list, then append tasks drawn again until the demand passes the ratio."""
    wanted = ratio * float(capacity.free.sum())
    offered: list[Request] = []
    demand = 0
    for index in draw.permutation(len(tasks)):
        if demand > wanted:
            return offered
        offered.append(tasks[index])
        demand += Shape.of(tasks[index]).total_units
    if not demand:
        return offered
    while demand <= wanted:
        task = tasks[int(draw.integers(len(tasks)))]
        offered.append(dataclasses.replace(task, id=f"{task.id}+{len(offered)}"))
        demand += Shape.of(task).total_units
    return offered


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m scheduler.simulate", description=__doc__)
    parser.add_argument("--nodes", type=Path, required=True, help="node list, openb columns")
    parser.add_argument("--tasks", type=Path, required=True, help="task list, openb columns")
    parser.add_argument("--order", default="default", help=f"{', '.join(ORDERS)}")
    parser.add_argument("--score", default="default", help=f"default, {', '.join(sorted(SCORES))}")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--inflate", type=float, metavar="RATIO", help="stretch the demand to this")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    try:
        outcome = replay(
            nodes=traces.read_nodes(given.nodes),
            tasks=traces.read_tasks(given.tasks),
            order=given.order,
            score=given.score,
            seed=given.seed,
            inflate=given.inflate,
        )
    except (traces.UnreadableTraceError, ValueError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    figures = dataclasses.asdict(outcome)
    if given.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:>22}  {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
