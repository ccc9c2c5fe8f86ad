"""The supervisor of one instance without a container engine; it outlives the agent.

Run as a file by any Python, standard library only: `python -I -S shim.py DIRECTORY`. It reads
`shim-spec.json` there, starts the command in a process group of its own, and leaves `shim.json`
when it runs, `exit.json` when it has ended, and `log` (one older piece in `log.1`). SIGTERM means:
end within the grace of `stop.json`, then be killed.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

LOG_BYTES = 4 * 2**20
POLL_SECONDS = 1.0
PR_SET_CHILD_SUBREAPER = 36


def main(directory: str) -> None:
    """Detach, start the command, and stay until it and all its descendants have ended."""
    with open(os.path.join(directory, "shim-spec.json"), encoding="utf-8") as file:
        spec: dict[str, Any] = json.load(file)
    ready_read, ready_write = os.pipe()
    if os.fork():
        # The agent waits for this process only: by its exit the state is on disk.
        os.close(ready_write)
        os.read(ready_read, 1)
        os._exit(0)
    os.close(ready_read)
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    Supervisor(directory, spec).run(ready_write)


class Supervisor:
    """One command, its output and its end."""

    def __init__(self, directory: str, spec: dict[str, Any]) -> None:
        self._directory = directory
        self._spec = spec
        self._log = os.open(self._path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._kill_at: float | None = None
        self._memory_due = 0.0
        self._was_oom = False
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self, ready: int) -> None:
        """Start the command and see it to its end."""
        output, failure = self._spawn()
        if failure is not None:
            self._write("exit.json", failure)
            os._exit(0)
        self._write(
            "shim.json",
            {
                "shim_pid": os.getpid(),
                "shim_starttime": starttime(os.getpid()),
                "pid": self._child,
                "starttime": starttime(self._child, even_if_ended=True),
                "started_at_ms": time.time_ns() // 1_000_000,
                "boot_id": boot_id(),
            },
        )
        os.write(ready, b"1")
        os.close(ready)
        status = self._watch(output)
        self._end_descendants()
        self._drain(output)
        code = os.waitstatus_to_exitcode(status)
        self._write(
            "exit.json",
            {
                "exit_code": 128 - code if code < 0 else code,
                "was_oom": self._was_oom,
                "ended_at_ms": time.time_ns() // 1_000_000,
            },
        )
        os._exit(0)

    def _spawn(self) -> tuple[int, dict[str, Any] | None]:
        output_read, output_write = os.pipe()
        # Closed by a successful exec, so that reading nothing from it means success.
        error_read, error_write = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            self._exec(output_write, error_write)
        os.close(output_write)
        os.close(error_write)
        problem = os.read(error_read, 4096).decode()
        os.close(error_read)
        os.set_blocking(output_read, False)
        if not problem:
            return output_read, None
        os.waitpid(self._child, 0)
        now = time.time_ns() // 1_000_000
        return output_read, {"exit_code": 127, "failure": problem, "ended_at_ms": now}

    def _exec(self, output: int, error: int) -> None:
        command = self._spec["command"]
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            for name, value in self._spec["rlimits"].items():
                kind = getattr(resource, name)
                hard = resource.getrlimit(kind)[1]
                limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
                resource.setrlimit(kind, (limit, limit))
            os.chdir(self._spec["cwd"])
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.execvpe(command[0], command, self._spec["env"])  # noqa: S606 - that is its purpose
        except OSError as problem:
            os.write(error, (problem.strerror or str(problem)).encode())
        finally:
            os._exit(127)

    def _watch(self, output: int) -> int:
        """Wait for the command, copying its output and keeping its memory limit."""
        watched = [output, self._wake_read]
        while True:
            readable, _, _ = select.select(watched, [], [], POLL_SECONDS)
            if self._wake_read in readable:
                os.read(self._wake_read, 4096)
            if output in readable and not self._copy(output):
                watched = [self._wake_read]
            status = self._reap()
            if status is not None:
                return status
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._signal_all(signal.SIGKILL)
            if time.monotonic() >= self._memory_due and self._is_over_memory():
                self._was_oom = True
                self._signal_all(signal.SIGKILL)

    def _reap(self) -> int | None:
        found = None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._child:
                    found = status
        return found

    def _stop(self) -> None:
        grace = 0.0
        with (
            contextlib.suppress(OSError, ValueError),
            open(self._path("stop.json"), encoding="utf-8") as file,
        ):
            grace = float(json.load(file)["grace_s"])
        deadline = time.monotonic() + grace
        self._kill_at = deadline if self._kill_at is None else min(deadline, self._kill_at)
        with contextlib.suppress(OSError):
            os.killpg(self._child, signal.SIGTERM if grace > 0 else signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._child, number)
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def _end_descendants(self) -> None:
        # Being their reaper, this process inherits even those that left the process group.
        for _ in range(100):
            if not descendants(os.getpid()):
                return
            self._signal_all(signal.SIGKILL)
            self._reap()
            time.sleep(0.02)

    def _is_over_memory(self) -> bool:
        self._memory_due = time.monotonic() + POLL_SECONDS
        page = resource.getpagesize()
        total = 0
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                    _, resident, shared, *_ = file.read().split()
                total += (int(resident) - int(shared)) * page
        limit: int = self._spec["memory_bytes"]
        return 0 < limit < total

    def _copy(self, output: int) -> bool:
        try:
            data = os.read(output, 65536)
        except BlockingIOError:
            return True
        if data:
            with contextlib.suppress(OSError):
                os.write(self._log, data)
                self._rotate()
        return bool(data)

    def _drain(self, output: int) -> None:
        while select.select([output], [], [], 0)[0] and self._copy(output):
            pass

    def _rotate(self) -> None:
        if os.fstat(self._log).st_size < LOG_BYTES:
            return
        os.close(self._log)
        os.replace(self._path("log"), self._path("log.1"))
        self._log = os.open(self._path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _write(self, name: str, value: dict[str, Any]) -> None:
        temporary = self._path(name + ".new")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def starttime(pid: int, *, even_if_ended: bool = False) -> int | None:
    """Return when a process began, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name in brackets may hold anything, so count from its end.
            fields = file.read().rpartition(")")[2].split()
        return None if fields[0] in "ZX" and not even_if_ended else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def boot_id() -> str:
    """Return the id that the kernel drew when the machine started."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def descendants(pid: int) -> list[int]:
    """List the living descendants of a process."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                children = [int(child) for child in file.read().split()]
            for child in children:
                found += [child, *descendants(child)]
    return found


if __name__ == "__main__":
    main(sys.argv[1])
