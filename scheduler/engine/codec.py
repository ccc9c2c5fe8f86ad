"""Snapshots and plans as JSON, so that a cycle of production can be saved and planned again.

A snapshot file is one object: `format` ("corral-snapshot/1"), `now`, `version`, `policy`,
`nodes`, `requests`, `running`, with the field names of `scheduler.engine.snapshot`. Ranges are
pairs, sets are sorted lists. Fields with a default may be left out; unknown fields are ignored.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from scheduler.engine.plan import Plan
from scheduler.engine.snapshot import (
    Gpu,
    Node,
    Policy,
    Request,
    Running,
    RunTimes,
    Snapshot,
)

FORMAT = "corral-snapshot/1"

_T = TypeVar("_T")
_Readers = Mapping[str, Callable[[Any], Any]]


class UnreadableSnapshotError(Exception):
    """The text is not a snapshot in the format `corral-snapshot/1`."""


def dump_snapshot(snapshot: Snapshot) -> str:
    """Write a snapshot as JSON; the same snapshot gives the same text."""
    return json.dumps({"format": FORMAT, **_plain(snapshot)}, sort_keys=True)


def load_snapshot(text: str) -> Snapshot:
    """Read a snapshot; raise UnreadableSnapshotError where it is none."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableSnapshotError(f"not JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise UnreadableSnapshotError(f'the object must begin with "format": "{FORMAT}"')
    return _snapshot(raw)


def dump_plan(plan: Plan) -> str:
    """Write a plan as JSON."""
    return json.dumps(_plain(plan), sort_keys=True)


def _plain(value: Any) -> Any:
    """Turn dataclasses into objects, sets into sorted lists and tuples into lists."""
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _build(kind: type[_T], raw: Any, readers: _Readers) -> _T:
    """Make a `kind` from an object, each field by its reader."""
    if not isinstance(raw, dict):
        raise UnreadableSnapshotError(f"{kind.__name__}: an object is needed, not {raw!r}")
    fields = {}
    for name, read in readers.items():
        if name in raw:
            try:
                fields[name] = read(raw[name])
            except (TypeError, ValueError, AttributeError) as error:
                raise UnreadableSnapshotError(f"{kind.__name__}.{name}: {error}") from error
    try:
        return kind(**fields)
    except TypeError as error:
        raise UnreadableSnapshotError(f"{kind.__name__}: {error}") from error


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"a text is needed, not {raw!r}")
    return raw


def _whole(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise TypeError(f"a whole number is needed, not {raw!r}")
    return raw


def _number(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        raise TypeError(f"a number is needed, not {raw!r}")
    return float(raw)


def _truth(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise TypeError(f"true or false is needed, not {raw!r}")
    return raw


def _maybe(read: Callable[[object], _T]) -> Callable[[object], _T | None]:
    return lambda raw: None if raw is None else read(raw)


def _each(read: Callable[[Any], _T]) -> Callable[[object], tuple[_T, ...]]:
    def read_all(raw: object) -> tuple[_T, ...]:
        if not isinstance(raw, list):
            raise TypeError(f"a list is needed, not {raw!r}")
        return tuple(read(item) for item in raw)

    return read_all


def _range(raw: Any) -> tuple[int, int]:
    low, high = raw
    return _whole(low), _whole(high)


def _units(raw: Any) -> tuple[str, int, int]:
    gpu_id, low, high = raw
    return _text(gpu_id), _whole(low), _whole(high)


def _labels(raw: Any) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in raw.items()}


def _models(raw: object) -> frozenset[str]:
    return frozenset(_each(_text)(raw))


_GPU: _Readers = {
    "id": _text,
    "model": _text,
    "memory_bytes": _whole,
    "free": _each(_range),
    "healthy": _truth,
}
_NODE: _Readers = {
    **dict.fromkeys(("id", "name", "pool"), _text),
    **dict.fromkeys(("cpu_milli", "memory_bytes", "disk_bytes"), _whole),
    **dict.fromkeys(("cpu_free", "memory_free", "disk_free"), _whole),
    "labels": _labels,
    "schedulable": _truth,
    "why_not": _maybe(_text),
    "gpus": _each(lambda raw: _build(Gpu, raw, _GPU)),
}
_REQUEST: _Readers = {
    **dict.fromkeys(("id", "organization", "team", "member"), _text),
    **dict.fromkeys(("priority", "gpu_count", "units_per_gpu", "gpu_memory_bytes"), _whole),
    **dict.fromkeys(("cpu_milli", "memory_bytes", "disk_bytes"), _whole),
    "submitted_at": _number,
    "gpu_models": _models,
    "pool": _maybe(_text),
    "expected_seconds": _maybe(_number),
}
_RUNNING: _Readers = {
    **dict.fromkeys(("request_id", "node_id", "organization"), _text),
    **dict.fromkeys(("cpu_milli", "memory_bytes", "disk_bytes"), _whole),
    "gpus": _each(_units),
    "started_at": _number,
    "expected_end": _maybe(_number),
}
_RUN_TIMES: _Readers = {
    **dict.fromkeys(("median_s", "p90_s"), _number),
    **dict.fromkeys(("organization", "gpu_model"), _maybe(_text)),
}
_POLICY: _Readers = {
    **dict.fromkeys(("order", "score"), _text),
    "seed": _whole,
    "history": _each(lambda raw: _build(RunTimes, raw, _RUN_TIMES)),
}
_SNAPSHOT: _Readers = {
    "now": _number,
    "version": _whole,
    "nodes": _each(lambda raw: _build(Node, raw, _NODE)),
    "requests": _each(lambda raw: _build(Request, raw, _REQUEST)),
    "running": _each(lambda raw: _build(Running, raw, _RUNNING)),
    "policy": lambda raw: _build(Policy, raw, _POLICY),
}


def _snapshot(raw: object) -> Snapshot:
    return _build(Snapshot, raw, _SNAPSHOT)
