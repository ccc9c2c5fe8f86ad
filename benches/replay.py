"""Replay a public GPU cluster's task list through the API of a running Corral.

The first 300 tasks of Alibaba's openb list are submitted through `POST /api/v1/instances` with
their arrivals and run times compressed to about a minute, onto a simulated rack of 16 nodes whose
agents start a real process for each. Printed: tasks placed, waiting time, whether any GPU was
promised twice (by the leases, and by what the nodes recorded), and whether the billed milliseconds
equal the run time that the nodes recorded. Loopback only; ends by itself within ten minutes.

    python benches/replay.py [--tasks N] [--nodes N] [--list FILE] [--json]
"""

import argparse
import csv
import gzip
import json
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.stack import Corral  # noqa: E402

LIST = ROOT.parent / "shared/data/traces/openb/openb_pod_list_default.csv.gz"
ARRIVALS_S = 60.0  # the arrivals are compressed to this
RUN_S = (2.0, 20.0)  # and the run times by the same factor, within these bounds
PATIENCE_S = 420.0


@dataclass(frozen=True)
class Task:
    """One task of the list, compressed: when it arrives and how long it runs, in seconds."""

    name: str
    flavor: str
    arrives: float
    runs: float


@dataclass(frozen=True)
class Run:
    """What a node recorded of one run: GPU units held, and wall-clock milliseconds."""

    instance: str
    gpus: tuple[tuple[str, int], ...]
    began_ms: int
    ended_ms: int


def main() -> None:
    """Replay, check, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--list", type=Path, default=LIST)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.list.exists():
        print(f"skipped: {options.list} is not here (it is not part of the checkout)")
        return
    tasks, shapes = read(options.list, options.tasks)
    with Corral(nodes=options.nodes, CORRAL_RACK="h100x8") as corral:
        result = replay(corral, tasks, shapes)
    print(json.dumps(result) if options.json else table(result))
    sys.exit(0 if result["promised_twice"] == 0 and result["difference_ms"] == 0 else 1)


def read(path: Path, count: int) -> tuple[list[Task], dict[str, tuple[int, int, int, int]]]:
    """Read the first GPU tasks; return them and their shapes (GPUs, units, mCPU, MiB) by flavor."""
    with gzip.open(path, "rt") as text:
        rows = [row for row in csv.DictReader(text) if int(row["num_gpu"]) > 0][:count]
    began = [float(row["creation_time"]) for row in rows]
    factor = ARRIVALS_S / (max(began) - min(began))
    shapes: dict[str, tuple[int, int, int, int]] = {}
    tasks = []
    for row, start in zip(rows, began, strict=True):
        gpus, units = int(row["num_gpu"]), int(row["gpu_milli"])
        shape = (gpus, units if gpus == 1 else 1000, int(row["cpu_milli"]), int(row["memory_mib"]))
        flavor = "openb-" + "-".join(map(str, shape))
        shapes[flavor] = shape
        lasted = (float(row["deletion_time"]) - start) * factor
        runs = min(max(lasted, RUN_S[0]), RUN_S[1])
        tasks.append(Task(row["name"], flavor, (start - min(began)) * factor, round(runs, 1)))
    return tasks, shapes


def replay(
    corral: Corral, tasks: list[Task], shapes: dict[str, tuple[int, int, int, int]]
) -> dict[str, Any]:
    """Submit all, wait for the end, and compare what everybody recorded."""
    stock(corral, shapes)
    token = corral.token("user@meadow.test")
    team = next(
        one["id"]
        for one in corral.api("GET", "teams", token)["results"]
        if one["name"] == "Research"
    )
    began = time.monotonic()

    def submit(task: Task) -> str:
        time.sleep(max(0.0, began + task.arrives - time.monotonic()))
        body = {
            "team": team,
            "name": task.name,
            "flavor": task.flavor,
            "image": "demo",
            "command": ["sleep", str(task.runs)],
        }
        answer = corral.api("POST", "instances", token, body, **{"Idempotency-Key": task.name})
        return str(answer["id"])

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(submit, tasks))
    submitted_s = time.monotonic() - began
    runs = watch(corral, token, set(ids))
    return judge(corral, token, ids, runs) | {
        "tasks": len(tasks),
        "nodes": len(list((corral.data / "nodes").iterdir())),
        "submitted_in_s": round(submitted_s, 1),
        "ended_after_s": round(time.monotonic() - began, 1),
    }


def stock(corral: Corral, shapes: dict[str, tuple[int, int, int, int]]) -> None:
    """Put a flavor with a price on offer for each shape of the list."""
    program = (
        "import datetime as d, json, sys; from decimal import Decimal\n"
        "from portal.billing.models import Price; from portal.instances.models import Flavor\n"
        f"for code, (gpus, units, cpu, mib) in json.loads({json.dumps(shapes)!r}).items():\n"
        "    Flavor.objects.create(code=code, name=code, gpu_models=[], gpu_count=gpus,\n"
        "        units_per_gpu=units, gpu_memory_bytes=0, cpu_milli=cpu, memory_bytes=mib << 20,\n"
        "        disk_bytes=2**30)\n"
        "    rate = Decimal('2.49') * gpus * units / 1000\n"
        "    Price.objects.create(sku=code, currency='USD', per_hour=rate, \n"
        "        during=(d.datetime(2020, 1, 1, tzinfo=d.UTC), None),\n"
        "        created_at=d.datetime.now(d.UTC))\n"
    )
    corral.manage("shell", "--no-imports", "-c", program)


def watch(corral: Corral, token: str, ids: set[str]) -> dict[str, Run]:
    """Collect what the nodes record until every run has ended and the portal knows."""
    runs: dict[str, Run] = {}
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for exit_file in (corral.data / "nodes").glob("*/instances/*/exit.json"):
            instance = exit_file.parent.name.rsplit("-", 1)[0]
            if instance in ids and instance not in runs:
                runs[instance] = recorded(instance, exit_file.parent)
        live = corral.api(
            "GET", "instances?state=QUEUED&state=PLACING&state=STARTING&state=RUNNING", token
        )
        if not live["results"] and len(runs) == len(ids):
            break
        time.sleep(0.5)
    return runs


def recorded(instance: str, folder: Path) -> Run:
    """Read one run from the files of the node that ran it."""
    spec = json.loads((folder / "spec.json").read_text())
    began = json.loads((folder / "shim.json").read_text())["started_at_ms"]
    ended = json.loads((folder / "exit.json").read_text())["ended_at_ms"]
    gpus = tuple((share["uuid"], int(share["units"])) for share in spec["gpus"])
    return Run(instance, gpus, int(began), int(ended))


def judge(corral: Corral, token: str, ids: list[str], runs: dict[str, Run]) -> dict[str, Any]:
    """Compare leases, nodes and bill."""
    rows = corral.api("GET", "usage?group_by=instance", token)["results"]
    billed = {row["instance"]["id"]: int(row["milliseconds"]) for row in rows}
    waits = [wait for one in ids if (wait := waited(corral.api("GET", f"instances/{one}", token)))]
    billed_ms = sum(billed.get(one, 0) for one in ids)
    ran_ms = sum(run.ended_ms - run.began_ms for run in runs.values())
    cuts = quantiles(waits, n=100) if len(waits) > 1 else [0.0] * 99
    return {
        "placed": len(waits),
        "waiting_s": {
            "mean": round(mean(waits), 3),
            "p50": round(cuts[49], 3),
            "p99": round(cuts[98], 3),
        },
        "promised_twice": leased_twice(corral) + held_twice(list(runs.values())),
        "billed_ms": billed_ms,
        "ran_ms": ran_ms,
        "difference_ms": billed_ms - ran_ms,
    }


def waited(instance: dict[str, Any]) -> float | None:
    """Return seconds from submission to running, or None if it never ran."""
    if instance["started_at"] is None:
        return None
    began = datetime.fromisoformat(instance["started_at"])
    return (began - datetime.fromisoformat(instance["created_at"])).total_seconds()


def leased_twice(corral: Corral) -> int:
    """Count pairs of leases that promise the same units at the same time."""
    program = (
        "from django.db import connection as c; k = c.cursor()\n"
        "k.execute('select count(*) from scheduler_lease a join scheduler_lease b on a.id < b.id'\n"
        "    ' and a.gpu_id = b.gpu_id and a.units && b.units and a.during && b.during')\n"
        "print(k.fetchone()[0])\n"
    )
    return int(corral.manage("shell", "--no-imports", "-c", program).split()[-1])


def held_twice(runs: list[Run]) -> int:
    """Count the moments at which runs on one GPU held more than the whole of it."""
    moments: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for run in runs:
        for gpu, units in run.gpus:
            moments[gpu] += [(run.began_ms, units), (run.ended_ms, -units)]
    count = 0
    for changes in moments.values():
        held = 0
        for _, change in sorted(changes):
            held += change
            count += held > 1000
    return count


def table(result: dict[str, Any]) -> str:
    """Lay the result out for people."""
    wait = result["waiting_s"]
    return "\n".join(
        [
            f"tasks submitted        {result['tasks']} in {result['submitted_in_s']} s, "
            f"{result['nodes']} nodes",
            f"placed                 {result['placed']}",
            f"waiting, seconds       mean {wait['mean']}  p50 {wait['p50']}  p99 {wait['p99']}",
            f"GPU promised twice     {result['promised_twice']}",
            f"billed                 {result['billed_ms']} ms",
            f"run time of the nodes  {result['ran_ms']} ms",
            f"difference             {result['difference_ms']} ms",
        ]
    )


if __name__ == "__main__":
    main()
