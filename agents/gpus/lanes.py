"""Call a driver that may never answer without waiting for it for ever.

A thread stuck inside the driver cannot be stopped, only left alone: its lane says so, takes no more
work, and is itself again when the call returns.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Answer = TypeVar("Answer")


class LaneIsBusyError(RuntimeError):
    """The lane's last call has not returned."""


class Lane:
    """One thread that makes blocking calls, one at a time, in the order they are given."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._work = queue.SimpleQueue()
        self._pending: Future[Any] | None = None
        self._pending_since = 0.0
        self._thread: threading.Thread | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether a call is still out."""
        return self._pending is not None and not self._pending.done()

    @property
    def waiting_seconds(self) -> float:
        """How long the call that is out has been out; 0 when none is."""
        return time.monotonic() - self._pending_since if self.is_stuck else 0.0

    def submit(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Start a call and return its future; raise LaneIsBusyError while another is out."""
        if self.is_stuck:
            raise LaneIsBusyError(f"{self._name} has not answered its last call.")
        if self._thread is None:
            # A daemon thread: one that hangs in the driver must not keep the agent from ending.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[Answer] = Future()
        self._pending = future
        self._pending_since = time.monotonic()
        self._work.put((future, work))
        return future

    def close(self) -> None:
        """Let the thread end after the call that is out, if that ever returns."""
        self._work.put(None)

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            future, work = job
            try:
                answer = work()
            except Exception as error:  # noqa: BLE001  (carried to whoever asked)
                future.set_exception(error)
            else:
                future.set_result(answer)


class Answers(Generic[Key, Answer]):
    """What came back in time, what failed, and who did not answer."""

    def __init__(self) -> None:
        self.given: dict[Key, Answer] = {}
        self.failed: dict[Key, BaseException] = {}
        self.silent: set[Key] = set()


def ask_all(
    asks: Mapping[Key, tuple[Lane, Callable[[], Answer]]], *, seconds: float
) -> Answers[Key, Answer]:
    """Make one call on each lane at once and wait for them together, at most `seconds`.

    Lanes that are stuck from before are not waited for.
    """
    answers: Answers[Key, Answer] = Answers()
    futures: dict[Key, Future[Answer]] = {}
    for key, (lane, work) in asks.items():
        try:
            futures[key] = lane.submit(work)
        except LaneIsBusyError:
            answers.silent.add(key)
    wait(futures.values(), timeout=seconds)
    for key, future in futures.items():
        if not future.done():
            answers.silent.add(key)
        elif (error := future.exception()) is not None:
            answers.failed[key] = error
        else:
            answers.given[key] = future.result()
    return answers
