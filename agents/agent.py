"""What a node does about what it is told and what it sees: events in, instructions out.

No clock, no input or output, no thread. `handle` compares the desired with the observed and names
the difference; `daemon` carries it out and tells what came of it. Level-triggered: a lost event
costs a delay only.
"""

import math
from collections.abc import Callable

import msgspec

from agents import wire
from agents.events import (
    CancelStart,
    DesiredArrived,
    Event,
    GpusSeen,
    Instruction,
    Listed,
    Moment,
    Persist,
    Pulled,
    Remove,
    SendReport,
    SessionClosed,
    SessionOpened,
    Start,
    StartEnded,
    Stop,
    StopEnded,
    Ticked,
)
from agents.runs import Run
from agents.runtimes import Key, Observed

# The two-sided orphan rule: how long apart two complete lists must miss a run, and its least age.
ORPHAN_LISTS_APART_S = 60.0
ORPHAN_AGE_S = 300.0
# A stop that has not worked by then is a kill, repeated until it works.
KILL_MARGIN_S = 5.0
KILL_AGAIN_S = 30.0
# How long the end of a run is still reported when a newer start of the instance is wanted.
SUPERSEDED_TOLD_S = 60.0
# How long the output of an ended run can still be read.
REMAINS_KEPT_S = 3600.0
# How long the agent knows that a run is over, lest it be started again.
MEMORY_KEPT_S = 7 * 24 * 3600.0
REMOVE_AGAIN_S = 30.0
# How long a start waits for a GPU that something else still uses.
GPU_WAIT_S = 120.0


Change = Callable[[Run], Run]


class Agent:
    """The state of one node, and the only place that decides about its instances."""

    def __init__(self, *, remembered: list[Run], gpus: frozenset[str], now: Moment) -> None:
        self._runs: dict[Key, Run] = {
            run.key: msgspec.structs.replace(run, known_since=now.mono) for run in remembered
        }
        self._gpus = gpus
        self._wanted: dict[Key, wire.InstanceSpec] = {}
        self._generation = 0
        self._looked_at_ms: int | None = None
        self._session_generation: int | None = None
        self._disconnected_at: float | None = now.mono
        self._absent_since: dict[Key, float] = {}
        self._orphans: set[Key] = set()
        self._health: dict[str, wire.GpuHealth] = {}
        self._reported: tuple[int, list[wire.InstanceStatus]] = (0, [])
        self._persisted: list[Run] = list(remembered)

    @property
    def observed_generation(self) -> int:
        """The generation of the last desired state that was taken in."""
        return self._generation

    @property
    def looked_at_ms(self) -> int | None:
        """When the runtime was asked for the list that the statuses rest on; None: not yet."""
        return self._looked_at_ms

    def statuses(self) -> list[wire.InstanceStatus]:
        """Return the whole observed state."""
        return [run.status() for _, run in sorted(self._runs.items()) if not run.is_hidden]

    def handle(self, event: Event, now: Moment) -> list[Instruction]:
        """Take in one event and return what to do, in order."""
        match event:
            case SessionOpened():
                self._disconnected_at = None
                # Absence counts within one session only.
                self._absent_since.clear()
                self._session_generation = None
            case SessionClosed():
                if self._disconnected_at is None:
                    self._disconnected_at = now.mono
            case DesiredArrived(desired=desired):
                self._take_desired(desired, now)
            case Listed(observed=observed, asked_at=asked_at):
                self._take_list(observed, asked_at, now)
            case Pulled(key=key, percent=percent):
                self._replace(key, lambda run: run.pulled(percent, now.wall_ms))
            case StartEnded(key=key, code=code, sentence=sentence):
                self._take_start_end(key, code, sentence, now)
            case StopEnded(key=key, sentence=sentence):
                self._replace(key, lambda run: run.stop_answered(sentence, now.mono))
            case GpusSeen(uuids=uuids, health=health):
                self._gpus = uuids
                self._health = {one.uuid: one for one in health}
            case Ticked():
                pass
        return self._instructions(now)

    # -- taking in -------------------------------------------------------------------------------

    def _take_desired(self, desired: wire.Desired, now: Moment) -> None:
        last = self._session_generation
        if last is not None and desired.generation < last:
            return
        self._session_generation = desired.generation
        self._generation = desired.generation
        listed = {(spec.id, spec.run): spec for spec in desired.instances}
        is_whole = desired.complete and desired.count == len(desired.instances) == len(listed)
        # A partial list can add and change; only a whole one says that something is gone.
        self._wanted = listed if is_whole else {**self._wanted, **listed}
        for key in listed:
            self._absent_since.pop(key, None)
            self._orphans.discard(key)
        if not is_whole:
            return
        for key in self._runs.keys() - listed.keys():
            first = self._absent_since.setdefault(key, now.mono)
            if now.mono - first >= ORPHAN_LISTS_APART_S:
                self._orphans.add(key)

    def _take_list(self, observed: list[Observed], asked_at: float, now: Moment) -> None:
        # The clocks are read when the list is taken in; it was true when it was asked for.
        self._looked_at_ms = now.wall_ms - math.ceil((now.mono - asked_at) * 1000)
        seen = {one.key: one for one in observed}
        for key, one in seen.items():
            run = self._runs.get(key) or Run.adopted(one, now.mono, now.wall_ms)
            self._runs[key] = run.observed(one, now.wall_ms)
        for key, run in list(self._runs.items()):
            if key in seen:
                continue
            if run.removed_at is not None and asked_at > run.removed_at:
                self._runs[key] = run.removed()
            elif run.must_be_listed(asked_at):
                self._runs[key] = run.vanished(now.wall_ms)
            elif run.is_stray:
                self._runs[key] = msgspec.structs.replace(run, is_stray=False)

    def _take_start_end(
        self, key: Key, code: str | None, sentence: str | None, now: Moment
    ) -> None:
        if code is None:
            self._replace(key, lambda run: run.start_worked(now.mono))
        else:
            self._replace(
                key, lambda run: run.start_failed(code, sentence or code, now.mono, now.wall_ms)
            )

    def _replace(self, key: Key, change: Change) -> None:
        run = self._runs.get(key)
        if run is not None:
            self._runs[key] = change(run)

    # -- deciding --------------------------------------------------------------------------------

    def _instructions(self, now: Moment) -> list[Instruction]:
        # Until the runtime has answered once nothing is known to be absent, so nothing is started.
        actions = [] if self._looked_at_ms is None else self._reconcile(now)
        memory = [run.memory() for _, run in sorted(self._runs.items())]
        before: list[Instruction] = []
        if memory != self._persisted:
            self._persisted = memory
            before.append(Persist(memory))
        after: list[Instruction] = []
        report = (self._generation, self.statuses())
        if report != self._reported:
            self._reported = report
            after.append(SendReport())
        return [*before, *actions, *after]

    def _reconcile(self, now: Moment) -> list[Instruction]:
        actions: list[Instruction] = []
        for key, spec in sorted(self._wanted.items()):
            if key not in self._runs and spec.wanted == "stop":
                self._runs[key] = Run.never_started(spec, now.wall_ms)
        for key, run in sorted(self._runs.items()):
            actions += self._settle(key, run, now)
        for key, spec in sorted(self._wanted.items()):
            if spec.wanted == "run":
                actions += self._start(key, spec, now)
        return actions

    def _settle(self, key: Key, run: Run, now: Moment) -> list[Instruction]:
        """Stop, kill or remove one known run, if that is due."""
        if run.is_stray:
            return self._end_stray(key, run, now)
        if run.is_finished:
            return self._remove(key, run, now)
        reason = self._reason_to_stop(key, run, now)
        if reason is not None and run.stop_code is None:
            run = run.stop_wanted(*reason, now.wall_ms)
            self._runs[key] = run
        if run.stop_code is None:
            return []
        if run.is_waiting:
            self._runs[key] = run.cancelled(now.wall_ms)
            return []
        if run.start_in_flight:
            if run.cancel_asked:
                return []
            self._runs[key] = msgspec.structs.replace(run, cancel_asked=True)
            return [CancelStart(key)]
        return self._stop_or_kill(key, run, now)

    def _end_stray(self, key: Key, run: Run, now: Moment) -> list[Instruction]:
        if run.kill_at is not None and now.mono < run.kill_at:
            return []
        self._runs[key] = msgspec.structs.replace(run, kill_at=now.mono + KILL_AGAIN_S)
        return [Stop(key, 0.0)]

    def _remove(self, key: Key, run: Run, now: Moment) -> list[Instruction]:
        """Say no more of an ended run once nobody asks for it, and delete its remains later."""
        ended_s = (now.wall_ms - run.since) / 1000
        # A newer start does not hide it at once: the end of this one is evidence for the bill.
        is_told = self._is_superseded(key) and ended_s >= SUPERSEDED_TOLD_S
        is_over = key in self._orphans or is_told or (run.is_removed and key not in self._wanted)
        if is_over != run.is_hidden:
            run = msgspec.structs.replace(run, is_hidden=is_over)
            self._runs[key] = run
        if run.is_removed and is_over and ended_s >= MEMORY_KEPT_S:
            self._forget(key)
        is_going = run.removed_at is not None and now.mono < run.removed_at + REMOVE_AGAIN_S
        if not is_over or ended_s < REMAINS_KEPT_S or is_going or run.is_removed:
            return []
        self._runs[key] = run.removing(now.mono)
        return [Remove(key)]

    def _reason_to_stop(self, key: Key, run: Run, now: Moment) -> tuple[str, str] | None:
        spec = self._wanted.get(key)
        if spec is not None and spec.wanted == "stop":
            return ("stopped", "Stopped on request.")
        if self._is_superseded(key):
            return ("superseded", "Stopped: a newer start of this instance is wanted.")
        is_old = run.age_s(now.mono, now.wall_ms) >= ORPHAN_AGE_S
        if key in self._orphans and is_old:
            return ("orphan", "Stopped: the portal no longer knows this instance.")
        limit = (spec or run.spec).stop_on_disconnect_after_s
        if limit is not None and self._disconnected_at is not None:
            silent = now.mono - self._disconnected_at
            if silent >= limit:
                return ("disconnected", f"Stopped: the portal was out of reach for {limit} s.")
        return None

    def _stop_or_kill(self, key: Key, run: Run, now: Moment) -> list[Instruction]:
        grace = float((self._wanted.get(key) or run.spec).stop_grace_s)
        if run.stop_asked_at is None:
            self._runs[key] = run.stop_asked(now.mono, kill_at=now.mono + grace + KILL_MARGIN_S)
            return [Stop(key, grace)]
        if run.kill_at is not None and now.mono >= run.kill_at:
            self._runs[key] = run.kill_asked(kill_at=now.mono + KILL_AGAIN_S)
            return [Stop(key, 0.0)]
        return []

    def _start(self, key: Key, spec: wire.InstanceSpec, now: Moment) -> list[Instruction]:
        run = self._runs.get(key)
        if run is None:
            if self._is_superseded(key):
                return []
            run = Run.waiting(spec, now.mono, now.wall_ms)
            self._runs[key] = run
        if not run.is_waiting or run.stop_code is not None:
            return []
        missing = [share.uuid for share in spec.gpus if share.uuid not in self._gpus]
        lost = [share.uuid for share in spec.gpus if self._state_of(share.uuid) == "lost"]
        if missing or lost:
            code, words = ("gpu_missing", "is not in") if missing else ("gpu_lost", "was lost by")
            sentence = f"GPU {(missing or lost)[0]} {words} this node."
            self._runs[key] = run.start_failed(code, sentence, now.mono, now.wall_ms)
            return []
        obstacle = self._obstacle(key, spec)
        if obstacle is None:
            self._runs[key] = run.start_asked(spec, now.wall_ms)
            return [Start(spec)]
        if now.mono - run.known_since >= GPU_WAIT_S:
            self._runs[key] = run.start_failed("gpu_busy", obstacle, now.mono, now.wall_ms)
        else:
            self._runs[key] = run.waits_because(obstacle)
        return []

    def _obstacle(self, key: Key, spec: wire.InstanceSpec) -> str | None:
        """Say why a start must wait: an older run of it lives, or a GPU is not free yet."""
        live = [run for other, run in self._runs.items() if other != key and run.may_hold_gpus]
        if any(run.spec.id == spec.id for run in live):
            return "Waiting for the previous start of this instance to end."
        for share in spec.gpus:
            others = [
                held.units for run in live for held in run.spec.gpus if held.uuid == share.uuid
            ]
            if sum(others) + share.units > 1000:
                return f"Waiting for GPU {share.uuid}: another instance still holds it."
            if not others and self._state_of(share.uuid) == "busy":
                return f"Waiting for GPU {share.uuid}: something else still uses it."
        return None

    def _state_of(self, uuid: str) -> str:
        health = self._health.get(uuid)
        return health.state if health is not None else "ok"

    def _is_superseded(self, key: Key) -> bool:
        """Tell whether a newer start of the same instance is wanted, or has been here already."""
        instance, number = key
        newer = {run for name, run in self._wanted if name == instance}
        newer |= {run for name, run in self._runs if name == instance and key not in self._runs}
        return any(run > number for run in newer)

    def _forget(self, key: Key) -> None:
        self._runs.pop(key, None)
        self._orphans.discard(key)
        self._absent_since.pop(key, None)
