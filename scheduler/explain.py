"""Print the plan for a saved snapshot and the reason for every decision.

For what waits it also counts the machines by the first constraint that each fails.

`python -m scheduler.explain SNAPSHOT.json [--json]`; `-` reads standard input. The file format is
described in `scheduler.engine.codec`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from scheduler.engine import codec, fit
from scheduler.engine.capacity import Capacity
from scheduler.engine.cycle import plan as plan_cycle
from scheduler.engine.plan import Decision, Estimate, Plan
from scheduler.engine.shape import Shape
from scheduler.engine.snapshot import Snapshot


def explain(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Yield the lines that describe a plan: a summary, then every decision in queue order."""
    machines, asked = _after(snapshot, plan), _shapes(snapshot)
    waiting = sum(decision.position is not None for decision in plan.decisions)
    impossible = sum(decision.is_impossible for decision in plan.decisions)
    yield (
        f"Plan for snapshot {plan.version}: {len(plan.placements)} placed, {waiting} waiting, "
        f"{impossible} impossible."
    )
    places = {placement.request_id: placement for placement in plan.placements}
    for decision in plan.decisions:
        yield f"{decision.request_id}  {_standing(decision)}  [{decision.code}]"
        yield f"    {decision.message}"
        if place := places.get(decision.request_id):
            for gpu_id, low, high in place.gpus:
                yield f"    GPU {gpu_id}, units {low} to {high}"
        else:
            yield f"    Machines: {_misfits(machines, asked[decision.request_id])}"
        if decision.estimate:
            yield f"    Estimated start: {_range(decision.estimate)}"
        for change in decision.sooner:
            yield f"    Sooner: {change}"


def _shapes(snapshot: Snapshot) -> dict[str, Shape]:
    return {request.id: Shape.of(request) for request in snapshot.requests}


def _after(snapshot: Snapshot, plan: Plan) -> Capacity:
    """Return the machines once the plan is carried out."""
    machines, asked = Capacity(snapshot.nodes), _shapes(snapshot)
    for placement in plan.placements:
        row = machines.row_of[placement.node_id]
        machines.book(row, asked[placement.request_id], placement.gpus)
    return machines


def _misfits(machines: Capacity, shape: Shape) -> str:
    """Count the machines by the first constraint that stops the shape on each."""
    found = (fit.on_node(machines, shape, row) for row in range(len(machines.nodes)))
    counts = Counter("with room" if misfit is None else misfit.constraint for misfit in found)
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "none"


def _standing(decision: Decision) -> str:
    if decision.is_impossible:
        return "impossible"
    return "placed" if decision.position is None else f"waiting, position {decision.position}"


def _range(estimate: Estimate) -> str:
    basis = {
        "limits": "from the time limits of what runs",
        "past_runs": "from how long past runs took",
        "limits_and_past_runs": "from time limits and past runs",
    }[estimate.basis]
    low = _duration(estimate.low_s)
    if estimate.high_s is None:
        return f"not before {low} ({basis})"
    return f"in {low} to {_duration(estimate.high_s)} ({basis})"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{seconds / 3600:.1f} h"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m scheduler.explain", description=__doc__)
    parser.add_argument("snapshot", help="a snapshot file, or - for standard input")
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON object")
    given = parser.parse_args(arguments)
    try:
        text = (
            sys.stdin.read()
            if given.snapshot == "-"
            else Path(given.snapshot).read_text(encoding="utf-8")
        )
        snapshot = codec.load_snapshot(text)
        plan = plan_cycle(snapshot)
    except (OSError, ValueError, codec.UnreadableSnapshotError) as error:
        print(f"explain: {error}", file=sys.stderr)
        return 2
    print(codec.dump_plan(plan) if given.json else "\n".join(explain(snapshot, plan)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
