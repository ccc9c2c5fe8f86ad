"""How busy the instances are that hold a GPU, from the processor time of their processes."""

import contextlib
import os
import time
from collections.abc import Mapping

from agents.runtimes import Observed
from agents.runtimes.shim import descendants

# An instance that uses this share of one core counts as fully busy: the processor only feeds the
# GPU, and one machine must be able to carry a whole simulated rack.
FULL_LOAD_CORES = 0.05
# Weight of the newest reading in the moving average.
NEWEST_WEIGHT = 0.4


class Activity:
    """Callable that tells, by GPU, how busy (0..1) its holders are; for one reader thread."""

    def __init__(self) -> None:
        self._holders: dict[str, list[int]] = {}
        self._readings: dict[int, tuple[float, int]] = {}
        self._averages: dict[int, float] = {}

    def watch(self, observed: list[Observed]) -> None:
        """Learn which processes hold which GPUs now."""
        holders: dict[str, list[int]] = {}
        for one in observed:
            if one.is_live and one.pid is not None:
                for share in one.spec.gpus:
                    holders.setdefault(share.uuid, []).append(one.pid)
        self._holders = holders

    def __call__(self) -> Mapping[str, float]:
        """Return the activity of each GPU that somebody holds."""
        holders = self._holders
        pids = {pid for members in holders.values() for pid in members}
        self._readings = {pid: self._readings[pid] for pid in pids if pid in self._readings}
        self._averages = {pid: self._averages[pid] for pid in pids if pid in self._averages}
        levels = {pid: self._level(pid) for pid in pids}
        return {
            uuid: min(1.0, sum(levels[pid] for pid in members)) for uuid, members in holders.items()
        }

    def _level(self, pid: int) -> float:
        now, used = time.monotonic(), cpu_ns(pid)
        then, before = self._readings.get(pid, (now, used))
        self._readings[pid] = (now, used)
        if now <= then:
            return self._averages.get(pid, 0.0)
        # A child that ended takes its time with it: less than before means nothing new is known.
        cores = max(0, used - before) / (now - then) / 1e9
        level = min(1.0, cores / FULL_LOAD_CORES)
        average = self._averages.get(pid, level)
        self._averages[pid] = average + NEWEST_WEIGHT * (level - average)
        return self._averages[pid]


def cpu_ns(pid: int) -> int:
    """Return the processor time of a process and its living descendants, in nanoseconds."""
    total = 0
    for member in [pid, *descendants(pid)]:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for thread in os.listdir(f"/proc/{member}/task"):
                with open(f"/proc/{member}/task/{thread}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[0])
    return total
