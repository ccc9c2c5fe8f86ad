"""Print the plan for a saved snapshot and the reason for every decision.

`python -m scheduler.explain SNAPSHOT.json [--json]`; `-` reads standard input. The file format is
described in `scheduler.engine.codec`.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from scheduler.engine import codec
from scheduler.engine.cycle import plan as plan_cycle
from scheduler.engine.plan import Decision, Estimate, Plan


def explain(plan: Plan) -> Iterator[str]:
    """Yield the lines that describe a plan: a summary, then every decision in queue order."""
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
        if decision.estimate:
            yield f"    Estimated start: {_range(decision.estimate)}"
        for change in decision.sooner:
            yield f"    Sooner: {change}"


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
        plan = plan_cycle(codec.load_snapshot(text))
    except (OSError, ValueError, codec.UnreadableSnapshotError) as error:
        print(f"explain: {error}", file=sys.stderr)
        return 2
    print(codec.dump_plan(plan) if given.json else "\n".join(explain(plan)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
