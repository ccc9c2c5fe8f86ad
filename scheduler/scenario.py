"""Run scenario files through the production planner: `python -m scheduler.scenario FILE...`.

A file in the format `gpu-scheduler-scenario/1` is a small cluster with the decision expected of one
cycle. Each prints one line; the exit status is 1 if any fails. What the planner does not decide
yet (gangs, quotas between queues, MIG profiles, several cycles) fails, and the line says so.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scheduler.engine.cycle import plan
from scheduler.engine.plan import Plan
from scheduler.engine.snapshot import WHOLE_GPU, Gpu, Node, Request, Running, Snapshot

FORMAT = "gpu-scheduler-scenario/1"
_NOW = 1_000_000.0  # job times are relative to each other


class UnjudgeableError(Exception):
    """The file can't be put to the planner: unreadable, or it needs what is not decided yet."""


def judge(path: Path) -> list[str]:
    """Return what differs from the expected decision, in words; empty where all agrees.

    Raise UnjudgeableError where the scenario can't be put to the planner.
    """
    raw = _read(path)
    if lacking := _lacking(raw):
        raise UnjudgeableError(f"needs {', '.join(lacking)}, which the planner does not decide yet")
    try:
        return _differences(raw, plan(_snapshot(raw)))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise UnjudgeableError(f"malformed: {type(error).__name__} {error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UnjudgeableError(f"unreadable: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise UnjudgeableError(f"not in the format {FORMAT}")
    return raw


def _lacking(raw: Mapping[str, Any]) -> list[str]:
    """Name what the scenario turns on and the planner does not know."""
    jobs, queues = raw.get("jobs", []), raw.get("queues", [])
    tasks = [task for job in jobs for task in job.get("tasks", [])]
    pending = [job for job in jobs if job.get("state") == "pending"]
    needs = {
        "several cycles": raw.get("action") != "full-cycle",
        "quotas of a pool": "pool_gpus" in raw.get("cluster", {}),
        "MIG profiles": any("mig" in task for task in tasks),
        "gangs": any(len(job.get("tasks", [])) > 1 for job in pending),
        "capacity that is being released": any(job.get("state") == "releasing" for job in jobs),
        "eviction": any(
            raw.get("expect", {}).get(key) for key in ("evict", "evict_any_of", "move")
        ),
        "limits of queues": any("max" in queue or "parent" in queue for queue in queues),
    }
    return [name for name, needed in needs.items() if needed]


def _snapshot(raw: Mapping[str, Any]) -> Snapshot:
    """Put the cluster and its jobs into the planner's words; a queue is an organization."""
    free = {
        node["name"]: [[(0, WHOLE_GPU)] for _ in range(node["gpus"])]
        for node in raw["cluster"]["nodes"]
    }
    running = [
        _running(job, number, task, free)
        for job in raw["jobs"]
        if job["state"] == "running"
        for number, task in enumerate(job["tasks"])
    ]
    return Snapshot(
        now=_NOW,
        version=1,
        nodes=tuple(_node(name, gpus) for name, gpus in free.items()),
        requests=tuple(_request(job) for job in raw["jobs"] if job["state"] == "pending"),
        running=tuple(running),
    )


def _node(name: str, gpus: Sequence[Sequence[tuple[int, int]]]) -> Node:
    return Node(
        id=name,
        name=name,
        pool="",
        cpu_milli=0,
        memory_bytes=0,
        disk_bytes=0,
        cpu_free=0,
        memory_free=0,
        disk_free=0,
        gpus=tuple(
            Gpu(id=f"{name}/{index:03d}", model="GPU", memory_bytes=0, free=tuple(ranges))
            for index, ranges in enumerate(gpus)
        ),
    )


def _request(job: Mapping[str, Any]) -> Request:
    (task,) = job["tasks"]
    return Request(
        id=job["name"],
        organization=job["queue"],
        submitted_at=_NOW + float(job.get("created", 0)),
        priority=job.get("priority", 0),
        gpu_count=int(task.get("gpus", 1)),
        units_per_gpu=_units(task),
    )


def _running(
    job: Mapping[str, Any],
    number: int,
    task: Mapping[str, Any],
    free: Mapping[str, list[list[tuple[int, int]]]],
) -> Running:
    """Let a running task take its units: on the GPUs it names, else on the first with room."""
    gpus, units = free[task["node"]], _units(task)
    named = task.get("gpu")
    indexes = range(len(gpus)) if named is None else named if isinstance(named, list) else [named]
    held: list[tuple[str, int, int]] = []
    for index in indexes:
        room = [pair for pair in gpus[index] if pair[1] - pair[0] >= units]
        if room and len(held) < int(task.get("gpus", 1)):
            low, high = room[0]
            gpus[index].remove(room[0])
            if low + units < high:
                gpus[index].append((low + units, high))
            held.append((f"{task['node']}/{index:03d}", low, low + units))
    return Running(
        request_id=f"{job['name']}/{task.get('id', number)}",
        node_id=task["node"],
        gpus=tuple(held),
        started_at=_NOW + float(job.get("started", 0)),
        organization=job["queue"],
    )


def _units(task: Mapping[str, Any]) -> int:
    return round(WHOLE_GPU * float(task["fraction"])) if "fraction" in task else WHOLE_GPU


def _differences(raw: Mapping[str, Any], made: Plan) -> list[str]:
    expect = raw["expect"]
    places = {placement.request_id: placement for placement in made.placements}
    reasons = {decision.request_id: decision.message for decision in made.decisions}
    found = [
        f"{name} should start: {reasons[name]}"
        for name in expect.get("start", [])
        if name not in places
    ]
    any_of = expect.get("start_any_of", {"count": 0, "of": []})
    started_of = sum(name in places for name in any_of["of"])
    if started_of != any_of["count"]:
        found.append(
            f"{any_of['count']} of {', '.join(any_of['of'])} should start: {started_of} do"
        )
    allowed = {*expect.get("start", []), *any_of["of"]}
    found += [f"{name} should not start" for name in places if name not in allowed]
    for wanted in expect.get("place", []):
        place = places.get(wanted["job"])
        if place is None:
            continue  # told above
        gpus = [int(gpu_id.rpartition("/")[2]) for gpu_id, _, _ in place.gpus]
        asked = wanted.get("gpu", gpus)
        if place.node_id != wanted["node"] or gpus != (
            asked if isinstance(asked, list) else [asked]
        ):
            found.append(f"{wanted['job']} is on {place.node_id}, GPU {gpus}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m scheduler.scenario", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    failed = False
    for path in parser.parse_args(arguments).files:
        try:
            found = judge(path)
        except UnjudgeableError as error:
            found = [str(error)]
        failed |= bool(found)
        print(f"{'FAIL' if found else 'ok  '} {path.stem}{': ' if found else ''}{'; '.join(found)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
