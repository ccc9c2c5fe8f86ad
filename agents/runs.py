"""One start of one instance, as the agent knows it, and every way in which that knowledge changes.

A finished run never starts again: its memory outlives the agent (see `Persist` in agents.agent).
"""

from typing import Self

import msgspec

from agents import wire
from agents.runtimes import Key, Observed

# Monotonic clocks begin at 0 and infinity is no JSON.
NEVER = -1.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one (id, run). Times without `_ms` are monotonic seconds, not remembered."""

    spec: wire.InstanceSpec
    phase: wire.Phase
    since: int
    container_id: str | None = None
    started_at_ms: int | None = None
    exit_code: int | None = None
    reason: str | None = None
    reason_code: str | None = None
    ports: dict[int, int] = {}
    stop_code: str | None = None
    stop_sentence: str | None = None
    is_removed: bool = False

    progress: int | None = None
    known_since: float = NEVER
    settled_at: float = NEVER
    start_in_flight: bool = False
    has_started: bool = False
    cancel_asked: bool = False
    stop_asked_at: float | None = None
    kill_at: float | None = None
    removed_at: float | None = None
    is_stray: bool = False
    is_hidden: bool = False

    @classmethod
    def waiting(cls, spec: wire.InstanceSpec, mono: float, wall_ms: int) -> Self:
        """Begin a run that is wanted and not there yet."""
        return cls(spec=spec, phase="starting", since=wall_ms, known_since=mono)

    @classmethod
    def never_started(cls, spec: wire.InstanceSpec, wall_ms: int) -> Self:
        """Answer the wish to stop something that was never here."""
        return cls(
            spec=spec,
            phase="exited",
            since=wall_ms,
            reason="It had not started on this node.",
            reason_code="never_started",
            stop_code="stopped",
        )

    @classmethod
    def adopted(cls, one: Observed, mono: float, wall_ms: int) -> Self:
        """Take over a run that the runtime already has."""
        return cls(
            spec=one.spec, phase="starting", since=wall_ms, known_since=mono, has_started=True
        )

    @property
    def key(self) -> Key:
        """Name the run."""
        return (self.spec.id, self.spec.run)

    @property
    def is_finished(self) -> bool:
        """Tell whether this run is over for good."""
        return self.phase in wire.FINISHED_PHASES

    @property
    def is_waiting(self) -> bool:
        """Tell whether the run is wanted and nothing has been done for it yet."""
        return not (self.is_finished or self.start_in_flight or self.has_started) and (
            self.phase in ("starting", "pulling") or self.started_at_ms is None
        )

    @property
    def may_hold_gpus(self) -> bool:
        """Tell whether the run has, or may have, its GPUs in its hands."""
        return self.is_stray or not (self.is_finished or self.is_waiting)

    def age_s(self, mono: float, wall_ms: int) -> float:
        """Return the seconds since it started or, before that, since it is known."""
        if self.started_at_ms is not None:
            return (wall_ms - self.started_at_ms) / 1000
        return mono - self.known_since

    def must_be_listed(self, asked_at: float) -> bool:
        """Tell whether a list asked for at `asked_at` must show this run if it exists."""
        is_there = self.may_hold_gpus and not self.is_finished and not self.start_in_flight
        return is_there and asked_at > self.settled_at

    def status(self) -> wire.InstanceStatus:
        """Return what the portal is told."""
        return wire.InstanceStatus(
            id=self.spec.id,
            run=self.spec.run,
            phase=self.phase,
            since=self.since,
            container_id=self.container_id,
            started_at_ms=self.started_at_ms,
            exit_code=self.exit_code,
            reason=self.reason,
            reason_code=self.reason_code,
            gpus=[share.uuid for share in self.spec.gpus],
            progress=self.progress,
            ports=self.ports,
        )

    def memory(self) -> Self:
        """Return the part that must survive the agent."""
        return msgspec.structs.replace(
            self,
            phase="starting" if self.phase == "pulling" else self.phase,
            progress=None,
            known_since=NEVER,
            settled_at=NEVER,
            start_in_flight=False,
            has_started=False,
            cancel_asked=False,
            stop_asked_at=None,
            kill_at=None,
            removed_at=None,
            is_stray=False,
            is_hidden=False,
        )

    # -- starting --------------------------------------------------------------------------------

    def start_asked(self, spec: wire.InstanceSpec, wall_ms: int) -> Self:
        """Note that a Start is on its way."""
        changed = msgspec.structs.replace(self, spec=spec, start_in_flight=True, reason=None)
        return changed._in_phase("starting", wall_ms)

    def waits_because(self, obstacle: str) -> Self:
        """Tell why the start is not tried yet."""
        return msgspec.structs.replace(self, reason=obstacle, reason_code="waiting")

    def pulled(self, percent: int, wall_ms: int) -> Self:
        """Note how much of the image is here."""
        if not self.start_in_flight or self.stop_code is not None:
            return self
        if percent >= 100:
            return msgspec.structs.replace(self, progress=None)._in_phase("starting", wall_ms)
        return msgspec.structs.replace(self, progress=percent)._in_phase("pulling", wall_ms)

    def start_worked(self, mono: float) -> Self:
        """Note that the runtime has it; the next list will show it."""
        return msgspec.structs.replace(
            self, start_in_flight=False, has_started=True, settled_at=mono, progress=None
        )

    def start_failed(self, code: str, sentence: str, mono: float, wall_ms: int) -> Self:
        """End the run because it could not start, or because its start was given up."""
        if self.stop_code is not None:
            return self.cancelled(wall_ms)
        changed = msgspec.structs.replace(
            self,
            start_in_flight=False,
            settled_at=mono,
            progress=None,
            reason=sentence,
            reason_code=code,
        )
        return changed._in_phase("failed", wall_ms)

    def cancelled(self, wall_ms: int) -> Self:
        """End the run before it started, because that was wished."""
        changed = msgspec.structs.replace(
            self,
            start_in_flight=False,
            progress=None,
            reason="Stopped before it started.",
            reason_code="cancelled",
        )
        return changed._in_phase("exited", wall_ms)

    # -- stopping --------------------------------------------------------------------------------

    def stop_wanted(self, code: str, sentence: str, wall_ms: int) -> Self:
        """Note that the run shall end, and why."""
        changed = msgspec.structs.replace(
            self,
            stop_code=code,
            stop_sentence=sentence,
            reason=sentence,
            reason_code=code,
            progress=None,
        )
        return self._keep_waiting(changed, wall_ms)

    def _keep_waiting(self, changed: Self, wall_ms: int) -> Self:
        # A run that waits goes straight to its end, without a moment of "stopping".
        return changed if self.is_waiting else changed._in_phase("stopping", wall_ms)

    def stop_asked(self, mono: float, *, kill_at: float) -> Self:
        """Note that a Stop is on its way."""
        return msgspec.structs.replace(self, stop_asked_at=mono, kill_at=kill_at)

    def kill_asked(self, *, kill_at: float) -> Self:
        """Note that asking did not help."""
        return msgspec.structs.replace(
            self,
            kill_at=kill_at,
            reason="It has not ended in time; it is being killed.",
            reason_code="stop_stuck",
        )

    def stop_answered(self, sentence: str | None, mono: float) -> Self:
        """Note how a Stop went."""
        if sentence is None or self.is_finished:
            return msgspec.structs.replace(self, settled_at=mono)
        return msgspec.structs.replace(
            self, settled_at=mono, reason=sentence, reason_code="stop_stuck"
        )

    def removing(self, mono: float) -> Self:
        """Note that what is left of it is being deleted."""
        return msgspec.structs.replace(self, removed_at=mono)

    def removed(self) -> Self:
        """Note that nothing is left of it but the memory that it is over."""
        return msgspec.structs.replace(self, removed_at=None, is_removed=True)

    # -- seeing ----------------------------------------------------------------------------------

    def observed(self, one: Observed, wall_ms: int) -> Self:
        """Take in what the runtime sees."""
        if self.start_in_flight:
            # Not usable before the start has been verified.
            return msgspec.structs.replace(self, container_id=one.container_id)
        if self.is_finished and self.reason_code != "vanished":
            # It is over, whatever a failed clean-up has left behind.
            return msgspec.structs.replace(self, is_stray=one.is_live)
        changed = msgspec.structs.replace(
            self,
            has_started=True,
            container_id=one.container_id,
            started_at_ms=self.started_at_ms or one.started_at_ms,
            ports=one.ports,
            progress=None,
        )
        if one.is_live:
            if self.stop_code is not None:
                return changed._in_phase("stopping", wall_ms)
            return msgspec.structs.replace(changed, reason=None, reason_code=None)._in_phase(
                "running", one.started_at_ms or wall_ms
            )
        if self.is_finished:
            return self
        return changed._ended(one, wall_ms)

    def _ended(self, one: Observed, wall_ms: int) -> Self:
        outcome = one.outcome
        code = outcome.code if outcome else "exit_unknown"
        sentence = outcome.sentence if outcome else "It ended."
        if self.stop_code is not None and code != "oom":
            code, sentence = self.stop_code, self.stop_sentence or "Stopped."
            if outcome is not None and outcome.exit_code == 137:
                sentence += f" It did not end within {self.spec.stop_grace_s} s and was killed."
        changed = msgspec.structs.replace(
            self,
            exit_code=outcome.exit_code if outcome else None,
            reason=sentence,
            reason_code=code,
        )
        return changed._in_phase(
            "failed" if one.has_failed else "exited", one.ended_at_ms or wall_ms
        )

    def vanished(self, wall_ms: int) -> Self:
        """End the run because the runtime has it no longer."""
        if self.stop_code is not None:
            return self._in_phase("exited", wall_ms)
        changed = msgspec.structs.replace(
            self,
            reason="It is gone: removed outside Corral, or lost when the machine restarted.",
            reason_code="vanished",
        )
        return changed._in_phase("failed", wall_ms)

    def _in_phase(self, phase: wire.Phase, wall_ms: int) -> Self:
        if phase == self.phase:
            return self
        return msgspec.structs.replace(self, phase=phase, since=wall_ms)
