"""What runs instances on this node: one small protocol, and the choice among its implementations.

A runtime starts, stops, removes and lists; it decides nothing. All calls may block and are made
from worker threads. Every call is idempotent on (id, run).
"""

import re
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from agents import wire

Key = tuple[str, int]
Progress = Callable[[int], None]

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class UnableToStart(Exception):
    """The instance can't start; `code` is a word for programs, the text a sentence for people."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


class UnableToChoose(Exception):
    """The runtime that was asked for does not answer."""


class RuntimeSilent(Exception):
    """The runtime does not answer: nothing is known, least of all that something is gone."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended, in a code, a word and a sentence."""

    exit_code: int | None
    code: str
    sentence: str


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """One run as the runtime sees it. `pid` is the host's process id of its first process."""

    spec: wire.InstanceSpec
    is_live: bool
    container_id: str | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    outcome: Outcome | None = None
    has_failed: bool = False
    ports: dict[int, int] = {}
    pid: int | None = None

    @property
    def key(self) -> Key:
        """Name the run."""
        return (self.spec.id, self.spec.run)


class Runtime(Protocol):
    """Something that can run instances."""

    name: wire.RuntimeName
    isolation: bool

    def start(
        self, spec: wire.InstanceSpec, *, progress: Progress, cancelled: threading.Event
    ) -> None:
        """Start a run, or leave it alone if it exists; raise `UnableToStart` with the reason."""

    def stop(self, instance: str, run: int, *, grace_s: float) -> None:
        """Ask a run to end, and kill it after `grace_s` seconds; return when it was asked."""

    def remove(self, instance: str, run: int) -> None:
        """Delete what is left of a run that has ended."""

    def runs(self) -> list[Observed]:
        """List all runs of this node; raise `RuntimeSilent` if that is not known."""

    def logs(self, instance: str, run: int, *, tail: int, max_bytes: int) -> str:
        """Return the last lines of a run's output; raise `KeyError` if there is no such run."""

    def close(self) -> None:
        """Let go of the runtime; runs go on."""


def require_safe_id(instance: str) -> None:
    """Refuse an id that could not be a directory or container name."""
    if not _SAFE_ID.fullmatch(instance):
        raise UnableToStart("bad_id", f"The instance id {instance!r} has characters not allowed.")


def environment(spec: wire.InstanceSpec, *, has_real_gpus: bool) -> dict[str, str]:
    """Return the variables of an instance: the customer's own, then ours, which win."""
    uuids = ",".join(share.uuid for share in spec.gpus)
    ours = {"CORRAL_INSTANCE": spec.id, "CORRAL_RUN": str(spec.run), "CORRAL_GPUS": uuids}
    if has_real_gpus:
        ours["NVIDIA_VISIBLE_DEVICES"] = uuids or "void"
        ours["CUDA_VISIBLE_DEVICES"] = uuids
        ours["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return {**spec.env, **ours}


def explain_exit(exit_code: int | None, *, memory_bytes: int, was_oom: bool) -> Outcome:
    """Put the end of a process in words; codes above 128 are signals, as shells count them."""
    if was_oom:
        sentence = f"Killed: out of memory. It used more than its {memory_bytes / 2**20:.0f} MiB."
        return Outcome(exit_code=exit_code, code="oom", sentence=sentence)
    if exit_code is None:
        sentence = "It ended, but how is not known: its supervisor was gone too."
        return Outcome(exit_code=None, code="exit_unknown", sentence=sentence)
    if exit_code == 0:
        return Outcome(exit_code=0, code="finished", sentence="It finished.")
    if exit_code == 128 + signal.SIGKILL:
        # Some engines don't tell the kernel's out-of-memory killer from any other.
        sentence = (
            f"It was killed from outside (SIGKILL, exit code {exit_code}); most often that means "
            f"that memory ran out (its limit was {memory_bytes / 2**20:.0f} MiB)."
        )
        return Outcome(exit_code=exit_code, code="killed", sentence=sentence)
    number = exit_code - 128
    if number in _SIGNALS:
        sentence = f"It was ended by {_SIGNALS[number]} (exit code {exit_code})."
        return Outcome(exit_code=exit_code, code="signal", sentence=sentence)
    sentence = f"It ended with exit code {exit_code}."
    return Outcome(exit_code=exit_code, code="exit_code", sentence=sentence)


_SIGNALS: Mapping[int, str] = {
    signal.SIGHUP: "a hang-up signal (SIGHUP)",
    signal.SIGINT: "an interrupt (SIGINT)",
    signal.SIGQUIT: "a quit signal (SIGQUIT)",
    signal.SIGILL: "an illegal instruction (SIGILL)",
    signal.SIGABRT: "its own abort (SIGABRT)",
    signal.SIGBUS: "a bus error (SIGBUS)",
    signal.SIGFPE: "an arithmetic error (SIGFPE)",
    signal.SIGSEGV: "a memory access error (SIGSEGV)",
    signal.SIGPIPE: "a broken pipe (SIGPIPE)",
    signal.SIGTERM: "a request to end (SIGTERM)",
    signal.SIGXFSZ: "writing a file above its disk limit (SIGXFSZ)",
}
