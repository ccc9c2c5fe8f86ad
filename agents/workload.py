"""The demo workload: trains a tiny neural network, in bursts, on any Python 3 without packages.

It learns the sine curve by gradient descent, really; it prints its loss and takes little of a core
(INTENSITY, a share of one core), so that one laptop can carry a whole demo rack. Ends on SIGTERM.
"""

import argparse
import math
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence

HIDDEN = 16
LEARNING_RATE = 0.02
BURST_SECONDS = 0.25


class Network:
    """A network of one input, one hidden layer and one output."""

    def __init__(self, rng: random.Random) -> None:
        self._into = [rng.uniform(-1, 1) for _ in range(HIDDEN)]
        self._bias = [rng.uniform(-1, 1) for _ in range(HIDDEN)]
        self._out = [rng.uniform(-1, 1) for _ in range(HIDDEN)]
        self._offset = 0.0

    def learn(self, x: float, target: float) -> float:
        """Take one step of gradient descent and return the squared error before it."""
        hidden = [math.tanh(w * x + b) for w, b in zip(self._into, self._bias, strict=True)]
        error = sum(o * h for o, h in zip(self._out, hidden, strict=True)) + self._offset - target
        step = LEARNING_RATE * error
        for i, h in enumerate(hidden):
            slope = step * self._out[i] * (1 - h * h)
            self._out[i] -= step * h
            self._into[i] -= slope * x
            self._bias[i] -= slope
        self._offset -= step
        return error * error


def intensities(profile: str, rng: random.Random) -> Iterator[float]:
    """Yield the share of full intensity for each burst, forever."""
    level, phase = 0.9, rng.uniform(0, math.tau)
    for burst in range(sys.maxsize):
        moment = burst * BURST_SECONDS
        if profile == "steady":
            yield 0.95
        elif profile == "wave":
            yield 0.55 + 0.4 * math.sin(phase + moment / 20)
        elif profile == "epochs":
            # Forty busy seconds, then eight of loading and saving.
            yield 0.97 if (moment + phase * 8) % 48 < 40 else 0.15
        else:
            level = min(1.0, max(0.05, level + rng.uniform(-0.06, 0.06)))
            yield level


def train(profile: str, *, intensity: float, report_seconds: float, seed: int) -> None:
    """Train until asked to stop; print a line every `report_seconds`."""
    rng = random.Random(seed)  # noqa: S311 - a demo's dice
    network = Network(rng)
    steps, loss, reported = 0, 1.0, time.monotonic()
    name = os.environ.get("CORRAL_INSTANCE", "no instance")
    say(f"training for {name} on GPUs {os.environ.get('CORRAL_GPUS') or 'none'}")
    for share in intensities(profile, rng):
        began, used = time.monotonic(), time.process_time()
        while time.process_time() - used < BURST_SECONDS * intensity * share:
            x = rng.uniform(-math.pi, math.pi)
            loss += 0.001 * (network.learn(x, math.sin(x)) - loss)
            steps += 1
        if began - reported >= report_seconds:
            reported = began
            say(f"step {steps} loss {loss:.5f} load {share:.0%}")
        time.sleep(max(0.0, BURST_SECONDS - (time.monotonic() - began)))


def say(line: str) -> None:
    """Print a line with the time, at once."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S', time.gmtime())} {line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=["walk", "steady", "wave", "epochs"], default="walk")
    parser.add_argument("--intensity", type=float, default=0.05, help="share of one core")
    parser.add_argument("--report-seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=os.getpid())
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)
    try:
        train(
            options.profile,
            intensity=options.intensity,
            report_seconds=options.report_seconds,
            seed=options.seed,
        )
    except Asked:
        say("asked to stop: saved the last step, good-bye")


class Asked(BaseException):
    """SIGTERM came. The handler says nothing itself: the signal may come amid a line of output."""


def _end(*_: object) -> None:
    raise Asked


if __name__ == "__main__":
    main()
