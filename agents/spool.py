"""The samples that the portal has not confirmed yet: a bounded ring, oldest dropped and counted.

Live goes before backlog. An ack is cumulative in the order of sending: it confirms its batch and
all that were sent before it in this session, so a gap left by a dropped batch stalls nothing.
"""

from collections import OrderedDict, deque

from agents import wire

# Half an hour at one reading a second.
MAX_BATCHES = 1800
MAX_BYTES = 16 * 2**20
# How many batches may be under way without an ack.
CREDIT = 64
# A batch of this many samples stays well under any sensible frame limit.
SAMPLES_PER_BATCH = 64


class Spool:
    """The ring of one agent run."""

    def __init__(
        self, agent_run_id: str, *, max_batches: int = MAX_BATCHES, max_bytes: int = MAX_BYTES
    ) -> None:
        self._agent_run_id = agent_run_id
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._batches: OrderedDict[int, list[wire.Sample]] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._last_seq = 0
        self._ever_sent: set[int] = set()
        self._under_way: deque[int] = deque()
        self._fresh: deque[int] = deque()
        self._backlog: deque[int] = deque()
        self.dropped_total = 0

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def has_backlog(self) -> bool:
        """Tell whether a replay would have something to send."""
        return bool(self._backlog) and len(self._under_way) < CREDIT

    def add(self, samples: list[wire.Sample]) -> None:
        """Keep the readings of one moment until they are acked."""
        for begin in range(0, len(samples), SAMPLES_PER_BATCH):
            self._last_seq += 1
            piece = samples[begin : begin + SAMPLES_PER_BATCH]
            self._batches[self._last_seq] = piece
            size = len(wire.encode(self._frame(self._last_seq, replay=False)))
            self._sizes[self._last_seq] = size
            self._bytes += size
            self._fresh.append(self._last_seq)
        while self._batches and (
            len(self._batches) > self._max_batches or self._bytes > self._max_bytes
        ):
            self._drop(next(iter(self._batches)))

    def session_opened(self, ack_seq: int) -> None:
        """Begin anew: what the portal may have missed becomes backlog."""
        for seq in [seq for seq in self._batches if seq <= ack_seq and seq in self._ever_sent]:
            self._remove(seq)
        self._under_way.clear()
        self._fresh.clear()
        self._backlog = deque(self._batches)

    def take_live(self) -> wire.Samples | None:
        """Return the newest batches first; what there is no credit for joins the backlog."""
        while self._fresh:
            if len(self._under_way) >= CREDIT:
                self._backlog.extend(self._fresh)
                self._fresh.clear()
                return None
            seq = self._fresh.popleft()
            if seq in self._batches:
                return self._send(seq, replay=False)
        return None

    def take_replay(self) -> wire.Samples | None:
        """Return the oldest batch of the backlog, if there is credit for it."""
        while self._backlog and len(self._under_way) < CREDIT:
            seq = self._backlog.popleft()
            if seq in self._batches:
                return self._send(seq, replay=True)
        return None

    def ack(self, seq: int) -> None:
        """Forget a batch and all that were sent before it in this session."""
        if seq not in self._under_way:
            return
        while self._under_way:
            first = self._under_way.popleft()
            self._remove(first)
            if first == seq:
                return

    def reject_last_sent(self) -> None:
        """Give up the batch that the portal can't take, so that it is not sent for ever."""
        if self._under_way:
            self._drop(self._under_way.pop())

    def _send(self, seq: int, *, replay: bool) -> wire.Samples:
        self._under_way.append(seq)
        self._ever_sent.add(seq)
        return self._frame(seq, replay=replay)

    def _frame(self, seq: int, *, replay: bool) -> wire.Samples:
        return wire.Samples(
            agent_run_id=self._agent_run_id,
            seq=seq,
            samples=self._batches[seq],
            dropped_total=self.dropped_total,
            replay=replay,
        )

    def _drop(self, seq: int) -> None:
        if self._remove(seq):
            self.dropped_total += 1

    def _remove(self, seq: int) -> bool:
        if self._batches.pop(seq, None) is None:
            return False
        self._bytes -= self._sizes.pop(seq)
        self._ever_sent.discard(seq)
        return True
