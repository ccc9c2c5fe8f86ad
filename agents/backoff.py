"""How long to wait before the next attempt to reach the portal."""

import random
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Backoff:
    """Full jitter, a slow class for refusals, and a reset only after a stable time; in seconds."""

    first_s: float = 2.0
    cap_s: float = 60.0
    slow_s: float = 300.0
    stable_s: float = 120.0
    rng: random.Random = field(default_factory=random.SystemRandom)
    _failures: int = 0

    def first(self) -> float:
        """Return the wait before the very first attempt."""
        return self.rng.uniform(0, self.first_s)

    def after(
        self, *, lasted_s: float, was_refused: bool = False, retry_after_s: float | None = None
    ) -> float:
        """Return the wait after a session of `lasted_s` seconds, 0 if none was reached."""
        if was_refused:
            return self.slow_s * self.rng.uniform(1.0, 1.2)
        if lasted_s >= self.stable_s:
            self._failures = 0
        wait = self.rng.uniform(0, min(self.cap_s, 2.0**self._failures))
        self._failures = min(self._failures + 1, 16)
        if retry_after_s is not None:
            return retry_after_s + self.rng.uniform(0, 5.0)
        return wait
