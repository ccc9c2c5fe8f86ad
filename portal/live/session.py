"""One node's session: what its frames lead to, and what it is told.

Nothing here waits on a browser or on the database while a frame is handled: samples go into
mailboxes and the store's queue, reports and the desired state to a worker each, of which only the
newest counts.
"""

import asyncio
import logging
import time
from collections import Counter
from typing import Any, Final
from uuid import UUID

from django.utils import timezone

from agents import wire
from portal import events
from portal.fleet import nodes
from portal.instances import node_sync
from portal.live import hub
from portal.live.figures import NodeFigures, node_topic
from portal.live.mailbox import Mailbox
from portal.live.storing import SampleStore
from portal.live.threads import REPORTS, call
from portal.telemetry import samples

log = logging.getLogger(__name__)

# Frames of this process that led to nothing, by cause.
ignored: Counter[str] = Counter()

# The whole desired state is said again this often: a node removes only what two lists lack.
_DESIRED_AGAIN_S: Final = 30.0
_CLOCK_WEIGHT: Final = 0.2
_MOST_GAPS: Final = 4096
_LARGEST_SEQ: Final = 2**53
# One late heartbeat is the network; so many in a row mean that the node's clock was set.
_STEPS_BELIEVED: Final = 3


class NodeSession:
    """The socket of one node between its hello and its end."""

    def __init__(
        self, node_id: UUID, hello: wire.Hello, welcome: wire.Welcome, offset_ms: int
    ) -> None:
        self.node_id = node_id
        self.epoch = welcome.session_epoch
        self.boot_id = hello.boot_id
        self.mailbox = Mailbox()
        self.heard_at = time.monotonic()
        self.is_heard = True
        self.stored_seq = welcome.ack_seq
        self.clock_offset_ms = float(round(time.time() * 1000) - hello.wall_time)
        self.desired_generation = -1
        self.end: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self.figures = NodeFigures(topic=node_topic(node_id))
        self.applied_offset_ms = offset_ms
        self._clock_steps = 0
        self._gaps: set[int] = set()
        self._may_ack = True
        self._asked: set[str] = set()
        self._report: wire.Report | None = None
        self._has_report = asyncio.Event()
        self._health: list[wire.GpuHealth] | None = None
        self._observed_generation = -1
        self._desired_is_due = asyncio.Event()
        self._desired_is_due.set()
        self._desired_text = ""
        self._desired_sent_at = 0.0

    # -- what the node says ----------------------------------------------------------------------

    def take(self, data: str | bytes, store: SampleStore) -> None:
        """Act on one frame; one that makes no sense is counted and otherwise ignored."""
        self.heard_at = time.monotonic()
        self.is_heard = True
        try:
            message = wire.decode(data)
        except wire.WireError as error:
            ignored["garbage"] += 1
            log.debug("node %s sent garbage: %s", self.node_id, error)
            return
        match message:
            case wire.Samples():
                self._take_samples(message, store)
            case wire.Heartbeat():
                self._take_heartbeat(message)
            case wire.Report():
                self._report = message
                self._has_report.set()
            case wire.CommandResult():
                self._take_result(message)
            case wire.Unknown():
                ignored["unknown"] += 1
            case _:
                ignored["misplaced"] += 1

    def _take_samples(self, message: wire.Samples, store: SampleStore) -> None:
        if not message.replay:
            news = self.figures.take(message.seq, message.samples, self.applied_offset_ms)
            hub.current().measured(self.figures, news)
        batch = samples.Batch(self.node_id, message.samples, self.applied_offset_ms)
        store.add(self, message.seq, batch)

    def _take_heartbeat(self, message: wire.Heartbeat) -> None:
        now_ms = round(time.time() * 1000)
        self._watch_clock(now_ms - message.wall_time)
        echo = wire.Echo(seq=message.seq, server_time_ms=now_ms)
        self.mailbox.put("echo", wire.encode(echo).decode())

    def _watch_clock(self, offset_ms: int) -> None:
        """Follow the node's clock: smoothly while it runs, at once when it was set."""
        is_step = abs(offset_ms - self.applied_offset_ms) > nodes.CLOCK_TOLERANCE_MS
        self._clock_steps = self._clock_steps + 1 if is_step else 0
        if self._clock_steps >= _STEPS_BELIEVED:
            is_off = abs(offset_ms) > nodes.CLOCK_TOLERANCE_MS
            self.applied_offset_ms = offset_ms if is_off else 0
            self.clock_offset_ms, self._clock_steps = float(offset_ms), 0
        else:
            self.clock_offset_ms += _CLOCK_WEIGHT * (offset_ms - self.clock_offset_ms)

    def _take_result(self, message: wire.CommandResult) -> None:
        if message.id not in self._asked:
            ignored["unasked"] += 1
            return
        self._asked.discard(message.id)
        result = {"ok": message.ok, "data": message.data, "error": message.error}
        hub.current().answer(message.id, result)

    # -- what the store says ---------------------------------------------------------------------

    def stored(self, seq: int) -> None:
        """Ack a batch, and remember up to where there is no gap."""
        if not self._may_ack or not 0 < seq < _LARGEST_SEQ:
            return
        self.mailbox.put("ack", wire.encode(wire.Ack(seq=seq)).decode())
        self._gaps.add(seq)
        while self.stored_seq + 1 in self._gaps:
            self.stored_seq += 1
            self._gaps.discard(self.stored_seq)
        if len(self._gaps) > _MOST_GAPS:
            # What is missing was dropped by the node long ago.
            self.stored_seq = max(self.stored_seq, min(self._gaps) - 1)
        self._gaps = {gap for gap in self._gaps if gap > self.stored_seq}

    def unstored(self) -> None:
        """Ack nothing any more: an ack also speaks for all batches before it."""
        self._may_ack = False

    # -- what the hub says -----------------------------------------------------------------------

    def changed(self, topic: str, kind: str, id: str) -> None:
        """Send the desired state anew, or give way to a newer session."""
        if kind == "desired":
            self._desired_is_due.set()
        elif kind == "session" and id.isdecimal() and int(id) > self.epoch:
            self.finish(wire.CLOSE_TAKEN_OVER, "a newer session of this node was opened")

    def measured(self, topic: str, text: str) -> None:
        """Pass over samples: a node has no use for them."""

    def missed(self) -> None:
        """Check the desired state, since the word that it changed may be lost."""
        self._desired_is_due.set()

    def asked(self, question: dict[str, Any]) -> None:
        """Send a question to the node as a command."""
        command = wire.Command(
            id=str(question["id"]),
            kind=str(question["kind"]),
            deadline_s=float(question["deadline_s"]),
            args=dict(question["args"]),
        )
        self._asked.add(command.id)
        self.mailbox.put(("command", command.id), wire.encode(command).decode())

    def finish(self, code: int, reason: str) -> None:
        """End the session with this close code."""
        if not self.end.done():
            self.end.set_result((code, reason))

    # -- the workers -----------------------------------------------------------------------------

    def check_desired(self, generation: int) -> None:
        """Have the desired state sent if it changed, by its generation, or if it is time anyway."""
        is_old = time.monotonic() - self._desired_sent_at > _DESIRED_AGAIN_S
        if generation != self.desired_generation or is_old:
            self._desired_is_due.set()

    async def keep_desired(self) -> None:
        """Tell the node what it should run whenever that may have changed, for ever."""
        while True:
            await self._desired_is_due.wait()
            self._desired_is_due.clear()
            try:
                desired = await call(REPORTS, node_sync.desired, node_id=self.node_id)
            except Exception:
                # The check every few seconds tries again, whatever it was.
                log.exception("the desired state of node %s can't be read", self.node_id)
                continue
            self.desired_generation = desired.generation
            self.figures.hold(desired)
            text = wire.encode(desired).decode()
            now = time.monotonic()
            if text != self._desired_text or now - self._desired_sent_at > _DESIRED_AGAIN_S:
                self._desired_text, self._desired_sent_at = text, now
                self.mailbox.put("desired", text)

    async def keep_reports(self) -> None:
        """Take in the newest report, and again the newest, for ever."""
        while True:
            await self._has_report.wait()
            self._has_report.clear()
            report, self._report = self._report, None
            if report is None:
                continue
            try:
                is_newest = await call(REPORTS, self._take_in, report)
            except Exception:
                # Reports are the whole state: the next one, in seconds, says it again.
                log.exception("a report of node %s was not taken in", self.node_id)
                continue
            if not is_newest:
                self.finish(wire.CLOSE_TAKEN_OVER, "a newer session of this node was opened")

    def _take_in(self, report: wire.Report) -> bool:
        now = timezone.now()
        if not node_sync.receive(
            node_id=self.node_id, epoch=self.epoch, report=report, boot_id=self.boot_id, now=now
        ):
            return False
        if report.observed_generation != self._observed_generation:
            nodes.observed(
                node_id=self.node_id, epoch=self.epoch, generation=report.observed_generation
            )
            self._observed_generation = report.observed_generation
        if report.gpu_health != self._health:
            nodes.set_gpu_health(
                node_id=self.node_id, epoch=self.epoch, health=report.gpu_health, now=now
            )
            self._health = report.gpu_health
        return True

    def join_hub(self) -> None:
        """Begin to listen and to be heard."""
        switchboard = hub.current()
        switchboard.read(events.node_topic(self.node_id), self)
        switchboard.connected(self.node_id, self.figures, self.asked)

    def leave_hub(self) -> None:
        """End listening and being heard."""
        switchboard = hub.current()
        switchboard.leave(events.node_topic(self.node_id), self)
        switchboard.disconnected(self.node_id, self.asked)
