"""Whatever happens, in whatever order: what must never be untrue of the pure agent."""

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agents import events, wire
from agents.agent import Agent
from agents.runs import Run
from agents.runtimes import Key, Observed, Outcome

GPUS = ("GPU-1", "GPU-2")
KEYS = st.tuples(st.sampled_from("abc"), st.integers(1, 2))
WALL = 1_700_000_000_000


def spec(key: Key, gpu: str, units: int, wanted: wire.Wanted) -> wire.InstanceSpec:
    return wire.InstanceSpec(
        id=key[0],
        run=key[1],
        name="x",
        image="corral/demo:1",
        cpu_milli=1,
        memory_bytes=1,
        disk_bytes=0,
        gpus=[wire.GpuShare(uuid=gpu, units=units)],
        wanted=wanted,
    )


class Node(RuleBasedStateMachine):
    """A portal that changes its mind, a runtime that fails, and an agent that dies."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.generation = 0
        self.stored = b"[]"
        self.live: dict[Key, Observed] = {}
        self.ended: dict[Key, Observed] = {}
        self.starting: dict[Key, wire.InstanceSpec] = {}
        self.has_lived: set[Key] = set()
        self.evidence: dict[Key, int] = {}
        self.agent = self.boot()

    def boot(self) -> Agent:
        remembered = msgspec.json.decode(self.stored, type=list[Run])
        return Agent(remembered=remembered, gpus=frozenset(GPUS), now=self.now)

    @property
    def now(self) -> events.Moment:
        return events.Moment(mono=self.seconds, wall_ms=WALL + int(self.seconds * 1000))

    def tell(self, event: events.Event) -> None:
        for order in self.agent.handle(event, self.now):
            match order:
                case events.Persist(runs=runs):
                    self.stored = msgspec.json.encode(runs)
                case events.Start(spec=wish):
                    key = (wish.id, wish.run)
                    assert key not in self.has_lived, "a run was started twice"
                    assert key not in self.starting, "a start was ordered twice"
                    self.starting[key] = wish
                case events.Stop(key=key):
                    self.end(key, 143)
                case events.Remove(key=key):
                    assert key not in self.live, "a living instance was removed"
                    self.ended.pop(key, None)

    def end(self, key: Key, code: int) -> None:
        one = self.live.pop(key, None)
        if one is not None:
            outcome = Outcome(exit_code=code, code="exit_code", sentence="It ended.")
            self.ended[key] = msgspec.structs.replace(
                one, is_live=False, outcome=outcome, ended_at_ms=self.now.wall_ms
            )

    @rule(
        wishes=st.dictionaries(
            KEYS,
            st.tuples(
                st.sampled_from(GPUS),
                st.sampled_from([500, 1000]),
                st.sampled_from(["run", "stop"]),
            ),
            max_size=4,
        ),
        is_whole=st.booleans(),
    )
    def want(self, wishes: dict[Key, tuple[str, int, Any]], is_whole: bool) -> None:
        self.generation += 1
        specs = [spec(key, *wish) for key, wish in wishes.items()]
        count = len(specs) if is_whole else len(specs) + 1
        self.tell(
            events.DesiredArrived(
                wire.Desired(
                    generation=self.generation, complete=True, count=count, instances=specs
                )
            )
        )

    @rule(works=st.booleans())
    def finish_starts(self, works: bool) -> None:
        for key, wish in list(self.starting.items()):
            del self.starting[key]
            if not works:
                self.tell(events.StartEnded(key, "image_missing", "There is no such image."))
                continue
            self.has_lived.add(key)
            self.live[key] = Observed(
                spec=wish, is_live=True, container_id="c", started_at_ms=self.now.wall_ms
            )
            self.tell(events.StartEnded(key))

    @rule()
    def look(self) -> None:
        self.seconds += 0.5
        self.tell(events.Listed([*self.live.values(), *self.ended.values()], self.seconds))

    @rule(code=st.sampled_from([0, 1, 137]), key=KEYS)
    def end_by_itself(self, code: int, key: Key) -> None:
        self.end(key, code)

    @rule(key=KEYS)
    def remove_by_hand(self, key: Key) -> None:
        self.live.pop(key, None)
        self.ended.pop(key, None)

    @rule(seconds=st.sampled_from([1, 20, 70, 400, 4000]))
    def wait(self, seconds: int) -> None:
        self.seconds += seconds
        self.tell(events.Ticked())

    @rule(is_open=st.booleans())
    def connect(self, is_open: bool) -> None:
        self.tell(events.SessionOpened() if is_open else events.SessionClosed())

    @rule()
    def kill_the_agent(self) -> None:
        # A start under way either has reached the runtime by then or never will.
        for key, wish in self.starting.items():
            if key[1] % 2:
                self.has_lived.add(key)
                self.live[key] = Observed(
                    spec=wish, is_live=True, container_id="c", started_at_ms=self.now.wall_ms
                )
        self.starting.clear()
        self.agent = self.boot()
        self.look()

    @invariant()
    def no_gpu_is_held_twice(self) -> None:
        held = [one.spec for one in self.live.values()] + list(self.starting.values())
        for gpu in GPUS:
            units = sum(share.units for wish in held for share in wish.gpus if share.uuid == gpu)
            assert units <= 1000

    @invariant()
    def one_start_of_an_instance_lives_at_a_time(self) -> None:
        names = [name for name, _ in [*self.live, *self.starting]]
        assert len(names) == len(set(names))

    @invariant()
    def the_evidence_of_a_run_never_changes(self) -> None:
        for status in self.agent.statuses():
            if status.started_at_ms is not None:
                first = self.evidence.setdefault((status.id, status.run), status.started_at_ms)
                assert status.started_at_ms == first

    @invariant()
    def every_end_has_a_reason(self) -> None:
        for status in self.agent.statuses():
            if status.phase in wire.FINISHED_PHASES:
                assert status.reason
                assert status.reason_code


Node.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestNode = Node.TestCase
