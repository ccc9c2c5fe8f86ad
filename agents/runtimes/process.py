"""Instances as plain processes, for machines without a container engine: no isolation.

Each run has a directory `STATE/instances/ID-RUN/` in which its supervisor (agents.runtimes.shim)
keeps what it knows; the agent only reads there, so it can die and come back.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from agents import durable, wire
from agents.runtimes import (
    Observed,
    Outcome,
    Progress,
    RuntimeSilent,
    UnableToStart,
    environment,
    explain_exit,
    require_safe_id,
)
from agents.runtimes.shim import boot_id, descendants, starttime

START_SECONDS = 20.0
# A supervisor that has left no trace after this long will not.
LAUNCH_SECONDS = 3.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHIM = Path(__file__).with_name("shim.py")
WORKLOAD = Path(__file__).parent.parent / "workload.py"
# Images that need no command: what they run is the demo workload.
DEMO_IMAGES = "corral/"
MISSING_IMAGES = "missing/"


class ProcessRuntime:
    """Runs instances as supervised process groups below a state directory."""

    name: wire.RuntimeName = "process"
    isolation = False

    def __init__(self, state_dir: Path, *, has_real_gpus: bool) -> None:
        self._root = state_dir / "instances"
        self._root.mkdir(parents=True, exist_ok=True)
        self._has_real_gpus = has_real_gpus

    def start(
        self, spec: wire.InstanceSpec, *, progress: Progress, cancelled: threading.Event
    ) -> None:
        """Start a run under a supervisor of its own; raise `UnableToStart` with the reason."""
        require_safe_id(spec.id)
        directory = self._directory(spec.id, spec.run)
        if _has_begun(directory):
            return
        command = self._command(spec)
        progress(100)
        if cancelled.is_set():
            raise UnableToStart("cancelled", "Stopped before it started.")
        shutil.rmtree(directory, ignore_errors=True)
        work = directory / "work"
        work.mkdir(parents=True, mode=0o700)
        ports = _free_ports(spec.ports)
        (directory / "spec.json").write_bytes(msgspec.json.encode(spec))
        (directory / "ports.json").write_bytes(msgspec.json.encode(ports))
        (directory / "shim-spec.json").write_text(
            json.dumps(
                {
                    "command": command,
                    "cwd": str(work),
                    "env": self._environment(spec, work, ports),
                    "memory_bytes": spec.memory_bytes,
                    "rlimits": _rlimits(spec),
                }
            )
        )
        self._launch(directory)
        failure = _read(directory / "exit.json").get("failure")
        if failure:
            shutil.rmtree(directory, ignore_errors=True)
            raise UnableToStart(
                "command_failed", f'The command "{command[0]}" can\'t be run: {failure}.'
            )

    def stop(self, instance: str, run: int, *, grace_s: float) -> None:
        """Ask the supervisor to end the run; without one, do it here."""
        directory = self._directory(instance, run)
        state = _read(directory / "shim.json")
        if not state or (directory / "exit.json").exists():
            return
        durable.write(directory / "stop.json", json.dumps({"grace_s": grace_s}).encode())
        if state["boot_id"] != boot_id():
            return
        if starttime(state["shim_pid"]) == state["shim_starttime"]:
            os.kill(state["shim_pid"], signal.SIGTERM)
            return
        _end_without_supervisor(state, grace_s)

    def remove(self, instance: str, run: int) -> None:
        """Delete the directory of a run that has ended."""
        directory = self._directory(instance, run)
        state = _read(directory / "shim.json")
        if state and _is_alive(state):
            return
        shutil.rmtree(directory, ignore_errors=True)

    def runs(self) -> list[Observed]:
        """List all runs that have a directory with a supervisor's state."""
        try:
            directories = sorted(path for path in self._root.iterdir() if path.is_dir())
        except OSError as error:
            raise RuntimeSilent(f"The state directory can't be read: {error}") from error
        found = [self._observe(directory) for directory in directories]
        return [one for one in found if one is not None]

    def logs(self, instance: str, run: int, *, tail: int, max_bytes: int) -> str:
        """Return the last lines of the output, at most `max_bytes` of it."""
        directory = self._directory(instance, run)
        if not directory.is_dir():
            raise KeyError(instance)
        data = b""
        for name in ("log", "log.1"):
            if len(data) < max_bytes:
                data = _tail(directory / name, max_bytes - len(data)) + data
        lines = data.decode("utf-8", "replace").splitlines(keepends=True)
        return "".join(lines[-tail:] if tail > 0 else [])

    def close(self) -> None:
        """Do nothing: supervisors need no agent."""

    def _directory(self, instance: str, run: int) -> Path:
        return self._root / f"{instance}-{run}"

    def _command(self, spec: wire.InstanceSpec) -> list[str]:
        if spec.image.startswith(MISSING_IMAGES):
            raise UnableToStart("image_missing", f'The image "{spec.image}" does not exist.')
        if not spec.command:
            if not spec.image.startswith(DEMO_IMAGES):
                raise UnableToStart(
                    "no_command",
                    f'This node runs plain processes, and "{spec.image}" names no command.',
                )
            return [sys.executable, str(WORKLOAD)]
        program = spec.command[0]
        resolved = shutil.which(program, path=PATH)
        if resolved is None:
            raise UnableToStart(
                "command_missing", f'The command "{program}" does not exist on this node.'
            )
        return [resolved, *spec.command[1:]]

    def _environment(
        self, spec: wire.InstanceSpec, work: Path, ports: dict[int, int]
    ) -> dict[str, str]:
        return {
            "PATH": PATH,
            "LANG": "C.UTF-8",
            **environment(spec, has_real_gpus=self._has_real_gpus),
            "HOME": str(work),
            "TMPDIR": str(work),
            **{f"CORRAL_PORT_{inner}": str(outer) for inner, outer in ports.items()},
        }

    def _launch(self, directory: Path) -> None:
        command = [sys.executable, "-I", "-S", str(SHIM), str(directory)]
        try:
            with (directory / "shim.log").open("wb") as log:
                subprocess.run(  # noqa: S603 - our own program and a directory of ours
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={"PATH": PATH, "LANG": "C.UTF-8"},
                    start_new_session=True,
                    timeout=START_SECONDS,
                    check=True,
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise UnableToStart(
                "supervisor_failed", f"The supervisor of the instance did not start: {error}"
            ) from error

    def _observe(self, directory: Path) -> Observed | None:
        state = _read(directory / "shim.json")
        if not state:
            return None
        try:
            spec = msgspec.json.decode(
                (directory / "spec.json").read_bytes(), type=wire.InstanceSpec
            )
        except (OSError, msgspec.DecodeError):
            return None
        is_live = _is_alive(state)
        # Looked for only after the process was seen gone, so that an end is never read half-way.
        end = _read(directory / "exit.json")
        ports = {int(key): value for key, value in _read(directory / "ports.json").items()}
        return Observed(
            spec=spec,
            is_live=not end and is_live,
            container_id=f"process-{state['pid']}-{state['starttime']}",
            started_at_ms=state["started_at_ms"],
            ended_at_ms=end.get("ended_at_ms"),
            outcome=None if is_live and not end else _outcome(spec, state, end),
            ports=ports,
            pid=state["pid"],
        )


def _has_begun(directory: Path) -> bool:
    """Tell whether a run exists, waiting for a supervisor that an earlier agent just launched."""
    while True:
        if (directory / "shim.json").exists() or (directory / "exit.json").exists():
            return True
        try:
            age = time.time() - (directory / "shim-spec.json").stat().st_mtime
        except OSError:
            return False
        if age > LAUNCH_SECONDS:
            return False
        time.sleep(0.05)


def _outcome(spec: wire.InstanceSpec, state: dict[str, Any], end: dict[str, Any]) -> Outcome:
    if not end and state["boot_id"] != boot_id():
        sentence = "It ended when the machine restarted."
        return Outcome(exit_code=None, code="rebooted", sentence=sentence)
    return explain_exit(
        end.get("exit_code"),
        memory_bytes=spec.memory_bytes,
        was_oom=bool(end.get("was_oom")),
    )


def _is_alive(state: dict[str, Any]) -> bool:
    """Tell whether the supervisor or the command lives; a reused process id does not count."""
    return state["boot_id"] == boot_id() and any(
        state[began] is not None and starttime(state[pid]) == state[began]
        for pid, began in (("shim_pid", "shim_starttime"), ("pid", "starttime"))
    )


def _end_without_supervisor(state: dict[str, Any], grace_s: float) -> None:
    """End a process group whose supervisor was killed, and everything below it."""
    pid = state["pid"]
    deadline = time.monotonic() + grace_s
    number = signal.SIGTERM if grace_s > 0 else signal.SIGKILL
    while starttime(pid) == state["starttime"] and state["starttime"] is not None:
        family = [pid, *descendants(pid)]
        if time.monotonic() >= deadline:
            number = signal.SIGKILL
        for member in family if number == signal.SIGKILL else [pid]:
            with contextlib.suppress(OSError):
                os.kill(member, number)
        time.sleep(0.1)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _rlimits(spec: wire.InstanceSpec) -> dict[str, int]:
    limits = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": 65536}
    if spec.disk_bytes > 0:
        limits["RLIMIT_FSIZE"] = spec.disk_bytes
    return limits


def _free_ports(wanted: list[int]) -> dict[int, int]:
    """Find a free loopback port for each port that the instance wants to offer."""
    with contextlib.ExitStack() as stack:
        ports = {}
        for inner in wanted:
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports[inner] = listener.getsockname()[1]
        return ports


def _tail(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size)
    except OSError:
        return b""


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
