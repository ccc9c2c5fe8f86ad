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


def remaining(run: Running, model: str, history: Iterable[RunTimes], now: float) -> Span:
    """Return how long a run may still take; a run past its limit or its p90 may take for ever."""
    past = run_times(history, run.organization, model)
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


def run_times(history: Iterable[RunTimes], organization: str, model: str) -> RunTimes | None:
    """Return the most specific past run times for an organization and a GPU model."""
    matching = [
        past
        for past in history
        if past.organization in (None, organization) and past.gpu_model in (None, model)
    ]
    return max(matching, key=_specificity, default=None)


def _specificity(past: RunTimes) -> tuple[bool, bool, float, float]:
    own, same = past.organization is not None, past.gpu_model is not None
    return (own, same, past.median_s, past.p90_s)
