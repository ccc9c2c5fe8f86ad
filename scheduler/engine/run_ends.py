"""When what runs now comes to an end: from limits where known, else from past run times."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.engine.snapshot import Running, RunTimes

NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds from now: not before `low`, not after `high` (infinite where nobody knows)."""

    low: float
    high: float


class History:
    """Past run times, found by organization and GPU model; the most specific entry counts."""

    def __init__(self, entries: Iterable[RunTimes]) -> None:
        longest_last = sorted(entries, key=lambda past: (past.median_s, past.p90_s))
        self._known = {(past.organization, past.gpu_model): past for past in longest_last}

    def run_times(self, organization: str, model: str) -> RunTimes | None:
        """Return the run times of this organization on this model, else of wider groups."""
        for key in ((organization, model), (organization, None), (None, model), (None, None)):
            if key in self._known:
                return self._known[key]
        return None

    def remaining(self, run: Running, model: str, now: float) -> Span:
        """Return how long a run may still take.

        One that has outlived its limit, or the 90th percentile, may take for ever.
        """
        past = self.run_times(run.organization, model)
        elapsed = max(0.0, now - run.started_at)
        typical = max(0.0, past.median_s - elapsed) if past else None
        if run.expected_end is not None:
            left = run.expected_end - now
            if left <= 0:
                return Span(0.0, NEVER)
            return Span(left if typical is None else min(left, typical), left)
        if past is None or typical is None:
            return Span(NEVER, NEVER)
        return Span(typical, past.p90_s - elapsed if past.p90_s > elapsed else NEVER)
