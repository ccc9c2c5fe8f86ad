"""How long an agent waits, and what it keeps for the portal meanwhile."""

import time

from agents import wire
from agents.backoff import Backoff
from agents.spool import Spool


def reading(number: int) -> list[wire.Sample]:
    return [wire.Sample(gpu="GPU-1", at_ms=number, mono_ms=number, util=50)]


def test_the_wait_grows_with_jitter_and_shrinks_only_when_stable() -> None:
    backoff = Backoff(rng=Highest())

    waits = [backoff.after(lasted_s=1) for _ in range(8)]
    stable = backoff.after(lasted_s=120)

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert stable == 1


def test_a_refusal_waits_five_minutes_and_a_busy_portal_what_it_asks() -> None:
    backoff = Backoff(rng=Highest())

    assert backoff.after(lasted_s=0, was_refused=True) >= 300
    assert 30 <= backoff.after(lasted_s=0, retry_after_s=30) <= 35


class Highest:
    """Dice that always fall on the highest number."""

    def uniform(self, _: float, highest: float) -> float:
        return highest


def test_the_spool_drops_the_oldest_and_counts() -> None:
    spool = Spool("r", max_batches=3)

    for number in range(5):
        spool.add(reading(number))
    spool.session_opened(0)

    assert spool.dropped_total == 2
    replay = [spool.take_replay() for _ in range(4)]
    assert [batch and batch.seq for batch in replay] == [3, 4, 5, None]


def test_the_spool_is_bounded_in_bytes() -> None:
    spool = Spool("r", max_bytes=1000)

    for number in range(50):
        spool.add(reading(number))

    assert 0 < len(spool) < 10
    assert spool.dropped_total == 50 - len(spool)


def test_without_credit_nothing_is_sent_until_an_ack() -> None:
    spool = Spool("r")
    spool.session_opened(0)
    for number in range(70):
        spool.add(reading(number))

    sent = list(iter(spool.take_live, None))
    stalled = spool.take_replay()
    spool.ack(64)
    replay = list(iter(spool.take_replay, None))

    assert [batch.seq for batch in sent] == list(range(1, 65))
    assert stalled is None
    assert [batch.seq for batch in replay] == list(range(65, 71))


def test_an_ack_confirms_only_what_was_sent_before_it() -> None:
    spool = Spool("r")
    for number in range(3):
        spool.add(reading(number))
    spool.session_opened(0)
    spool.add(reading(4))
    live = spool.take_live()

    spool.ack(4)

    assert live is not None
    assert live.seq == 4
    assert len(spool) == 3


def test_a_wall_clock_jump_leaves_the_order_of_batches() -> None:
    spool = Spool("r")
    spool.session_opened(0)
    now = time.monotonic_ns() // 1_000_000

    spool.add([wire.Sample(gpu="GPU-1", at_ms=2_000_000_000_000, mono_ms=now)])
    spool.add([wire.Sample(gpu="GPU-1", at_ms=1_000_000_000_000, mono_ms=now + 1000)])

    first, second = spool.take_live(), spool.take_live()
    assert first is not None
    assert second is not None
    assert first.seq < second.seq
