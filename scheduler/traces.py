"""Published workloads as requests and nodes of the planner: the `openb` columns, plain or `.gz`."""

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from scheduler.engine.snapshot import WHOLE_GPU, Gpu, Node, Request

_MIB = 2**20


class UnreadableTraceError(Exception):
    """The file is not a node or task list that the simulator understands."""


def read_nodes(path: Path) -> list[Node]:
    """Read a node list: `sn, cpu_milli, memory_mib, gpu, model`."""
    return [_node(path, row) for row in _rows(path, {"sn", "cpu_milli", "memory_mib", "gpu"})]


def read_tasks(path: Path) -> list[Request]:
    """Read a task list in file order; `submitted_at` is the place in the list."""
    columns = {"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}
    return [_request(path, number, row) for number, row in enumerate(_rows(path, columns))]


def _rows(path: Path, columns: set[str]) -> Iterator[dict[str, str]]:
    try:
        with _opened(path) as lines:
            reader = csv.DictReader(lines)
            if missing := columns - set(reader.fieldnames or ()):
                if "iterations" in (reader.fieldnames or ()):
                    raise UnreadableTraceError(
                        f"{path}: tasks in the muri columns arrive and leave; "
                        "the simulator replays lists without departures only"
                    )
                raise UnreadableTraceError(f"{path}: no column {', '.join(sorted(missing))}")
            yield from reader
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UnreadableTraceError(f"{path}: {error}") from error


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _node(path: Path, row: dict[str, str]) -> Node:
    name, cpu = row["sn"], _number(path, row, "cpu_milli")
    memory = _number(path, row, "memory_mib") * _MIB
    model = row.get("model") or "GPU"
    gpus = tuple(Gpu(f"{name}/{i:02d}", model, 0) for i in range(_number(path, row, "gpu")))
    return Node(name, name, "", cpu, memory, 0, cpu, memory, 0, gpus=gpus)


def _request(path: Path, number: int, row: dict[str, str]) -> Request:
    count = _number(path, row, "num_gpu")
    return Request(
        id=f"{number:06d}/{row['name']}",
        organization="",
        submitted_at=float(number),
        gpu_models=frozenset(filter(None, (row.get("gpu_spec") or "").split("|"))),
        gpu_count=count,
        units_per_gpu=_number(path, row, "gpu_milli") if count == 1 else WHOLE_GPU,
        cpu_milli=_number(path, row, "cpu_milli"),
        memory_bytes=_number(path, row, "memory_mib") * _MIB,
    )


def _number(path: Path, row: dict[str, str], column: str) -> int:
    try:
        return int(float(row[column]))
    except (TypeError, ValueError):
        raise UnreadableTraceError(f"{path}: {column} is {row[column]!r}, not a number") from None
