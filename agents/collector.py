"""Reads the GPUs once a second in a thread of its own, so that a hung driver stops nothing else."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from agents import wire
from agents.gpus import GpuSource

log = logging.getLogger("corral.agent.collector")

HEALTH_SECONDS = 5.0
INVENTORY_SECONDS = 60.0
# A reading that takes longer than this is no reading: the GPUs do not answer.
DEADLINE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the last look at the GPUs showed."""

    gpus: list[wire.GpuInfo] = field(default_factory=list)
    health: list[wire.GpuHealth] = field(default_factory=list)
    driver: tuple[str | None, str | None] = (None, None)


class Collector:
    """The thread that owns the GPU source."""

    def __init__(
        self,
        open_source: Callable[[], GpuSource],
        *,
        on_samples: Callable[[list[wire.Sample]], None],
        on_seen: Callable[[Seen], None],
        deadline_s: float = DEADLINE_SECONDS,
    ) -> None:
        self._open_source = open_source
        self._on_samples = on_samples
        self._on_seen = on_seen
        self._deadline_s = deadline_s
        self._stopping = threading.Event()
        self._seen = Seen()
        self._answered_at = time.monotonic()
        self.interval_s = 1.0

    def start(self) -> None:
        """Begin to read; a daemon thread, for nothing can end a call that hangs in the driver."""
        threading.Thread(target=self._run, name="gpus", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end after its present reading."""
        self._stopping.set()

    def seen(self) -> Seen:
        """Return the last look, with every GPU as not answering if the thread is stuck."""
        seen = self._seen
        silent = time.monotonic() - self._answered_at
        if silent <= self._deadline_s:
            return seen
        detail = f"The driver has not answered for {silent:.0f} s."
        health = [
            wire.GpuHealth(uuid=gpu.uuid, state="not_answering", detail=detail) for gpu in seen.gpus
        ]
        return Seen(gpus=seen.gpus, health=health, driver=seen.driver)

    def _run(self) -> None:
        source = self._open_source()
        health_at = inventory_at = 0.0
        gpus: list[wire.GpuInfo] = []
        driver: tuple[str | None, str | None] = (None, None)
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if began >= inventory_at or not gpus:
                    gpus, driver = source.inventory(), source.driver()
                    inventory_at = began + INVENTORY_SECONDS
                samples = source.sample(time.time_ns() // 1_000_000, int(began * 1000))
                if samples:
                    self._on_samples(samples)
                if began >= health_at:
                    health = source.health()
                    health_at = began + HEALTH_SECONDS
                    self._seen = Seen(gpus=gpus, health=health, driver=driver)
                    self._on_seen(self._seen)
            except Exception:
                # One bad reading must not end all later ones.
                log.exception("a reading of the GPUs failed")
            self._answered_at = time.monotonic()
            self._stopping.wait(max(0.05, began + self.interval_s - time.monotonic()))
        source.close()
