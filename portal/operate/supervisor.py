"""Keep a handful of processes alive: start in order, restart what dies, stop in reverse.

Knows nothing of Django or of what the processes do. Linux also ends the children when the
supervisor itself is killed (PR_SET_PDEATHSIG), so nothing is left behind.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Child = subprocess.Popen[bytes]
_PR_SET_PDEATHSIG = 1
# A process that dies at once, again and again, is started at most this often.
_LONGEST_WAIT_S = 5.0


def dies_with_parent(sign: int = signal.SIGTERM) -> Callable[[], None]:
    """Return a `preexec_fn` that makes the child receive `sign` when its parent dies."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        prctl = libc.prctl
    except (OSError, AttributeError):  # not Linux
        return lambda: None
    return lambda: prctl(_PR_SET_PDEATHSIG, int(sign), 0, 0, 0) and None


@dataclass
class Program:
    """One process to keep alive. `start` returns a running child; `ready` says when it serves."""

    name: str
    start: Callable[[], Child]
    ready: Callable[[], bool] = lambda: True
    stop_signal: int = signal.SIGTERM
    patience_s: float = 15.0
    child: Child | None = None
    started_at: float = 0.0
    failures: int = 0
    retry_at: float = field(default=0.0)


class Output:
    """One line per process, on a terminal or in a file."""

    def line(self, mark: str, text: str) -> None:
        """Print one line with its mark."""
        sys.stdout.write(f"  {mark} {text}\n")
        sys.stdout.flush()


class Supervisor:
    """Runs programs until `stop` is asked for, by SIGINT or SIGTERM."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.programs: list[Program] = []
        self.stopping = False

    def catch_signals(self) -> None:
        """Turn SIGINT and SIGTERM into a request to stop."""
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, lambda *_: setattr(self, "stopping", True))

    def add(self, program: Program, *, timeout_s: float = 60) -> None:
        """Start a program and wait until it is ready, or raise RuntimeError."""
        if self.stopping:
            raise KeyboardInterrupt
        began = time.monotonic()
        self.programs.append(program)
        self._start(program)
        while not program.ready():
            if self.stopping:
                raise KeyboardInterrupt
            if program.child is not None and program.child.poll() is not None:
                raise RuntimeError(f"{program.name} ended with status {program.child.returncode}")
            if time.monotonic() - began > timeout_s:
                raise RuntimeError(f"{program.name} was not ready within {timeout_s:.0f} s")
            time.sleep(0.1)
        self.output.line("✓", f"{program.name:<12} ready  ({time.monotonic() - began:.1f} s)")

    def watch(self) -> None:
        """Restart what dies, until asked to stop."""
        while not self.stopping:
            now = time.monotonic()
            for program in self.programs:
                self._look_after(program, now)
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop everything, the last started first."""
        self.stopping = True
        for program in reversed(self.programs):
            child = program.child
            if child is None or child.poll() is not None:
                continue
            child.send_signal(program.stop_signal)
            try:
                child.wait(program.patience_s)
            except subprocess.TimeoutExpired:
                self.output.line("!", f"{program.name} did not stop in time; ended by force")
                child.kill()
                child.wait()

    def _look_after(self, program: Program, now: float) -> None:
        child = program.child
        if child is None:
            if now >= program.retry_at:
                self._start(program)
                self.output.line("↻", f"{program.name:<12} started again")
            return
        if child.poll() is None:
            if program.failures and now - program.started_at > 30:
                program.failures = 0
            return
        program.failures += 1
        program.retry_at = now + min(_LONGEST_WAIT_S, 0.2 * 2 ** (program.failures - 1))
        program.child = None
        self.output.line("✗", f"{program.name:<12} stopped ({_how(child.returncode)})")

    def _start(self, program: Program) -> None:
        program.started_at = time.monotonic()
        try:
            program.child = program.start()
        except Exception as error:
            if program.failures == 0 and program.child is None and not self._is_running(program):
                raise
            program.failures += 1
            program.retry_at = time.monotonic() + _LONGEST_WAIT_S
            self.output.line("✗", f"{program.name:<12} could not start: {error}")

    def _is_running(self, program: Program) -> bool:
        return program in self.programs and self.programs[-1] is not program


def spawn(command: list[str], *, environ: Mapping[str, str], log: Path, cwd: Path) -> Child:
    """Start a child in its own session, its output appended to `log`; it dies with us."""
    with log.open("ab") as sink:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=dies_with_parent(),
        )


def _how(status: int) -> str:
    if status < 0:
        return f"signal {signal.Signals(-status).name}"
    return f"status {status}"


def is_alive(pid: int) -> bool:
    """Whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
