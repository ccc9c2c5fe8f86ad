"""Samples on their way to the database: gathered for a second, written at once, then acked.

Nobody waits for it. While the database is away batches wait here, up to a limit; beyond that they
are not acked, so that the node keeps them and sends them again in its next session.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from django.db import DataError
from django.utils import timezone

from portal.live.threads import STORE, call
from portal.telemetry import samples

log = logging.getLogger(__name__)

_GATHER_S = 1.0
_RETRY_S = 2.0
# About two minutes of 3,200 GPUs.
_MOST_WAITING = 400_000


class Sender(Protocol):
    """The session that a batch came from."""

    def stored(self, seq: int) -> None:
        """Learn that the batch of this number is stored."""

    def unstored(self) -> None:
        """Learn that a batch was given up: from now on nothing may be acked in this session."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    sender: Sender
    seq: int
    batch: samples.Batch


class SampleStore:
    """The queue of one process, written in the order of arrival."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._count = 0
        self._some = asyncio.Event()

    def add(self, sender: Sender, seq: int, batch: samples.Batch) -> None:
        """Have a batch written; `sender` is told when it is."""
        if self._count + len(batch.samples) > _MOST_WAITING:
            sender.unstored()
            return
        self._waiting.append(_Waiting(sender, seq, batch))
        self._count += len(batch.samples)
        self._some.set()

    async def run(self) -> None:
        """Write what comes in, for ever; cancel to end."""
        while True:
            await self._some.wait()
            await asyncio.sleep(_GATHER_S)
            if not await self.flush():
                await asyncio.sleep(_RETRY_S)

    async def flush(self) -> bool:
        """Write what waits now; False if the database did not take it."""
        self._some.clear()
        taken, self._waiting, self._count = self._waiting, [], 0
        try:
            await call(STORE, _write, [one.batch for one in taken])
        except Exception:
            log.exception("%d batches of samples wait for the database", len(taken))
            self._waiting = taken + self._waiting
            self._count = sum(len(one.batch.samples) for one in self._waiting)
            self._some.set()
            return False
        for one in taken:
            one.sender.stored(one.seq)
        return True


def _write(batches: list[samples.Batch]) -> None:
    now = timezone.now()
    try:
        samples.record_all(batches=batches, now=now)
    except DataError:
        # One bad batch stalls nothing: the others are written, it is passed over and acked.
        for batch in batches:
            try:
                samples.record_all(batches=[batch], now=now)
            except DataError:
                log.exception("samples of node %s can't be stored", batch.node_id)
