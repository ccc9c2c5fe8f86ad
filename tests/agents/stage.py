"""A stage for the pure agent: it says events, keeps the time, and remembers the orders."""

from typing import Any

import msgspec

from agents import agent as agents
from agents import events, wire
from agents.runs import Run
from agents.runtimes import Observed, Outcome

GPU, OTHER = "GPU-1", "GPU-2"
WALL = 1_700_000_000_000
ACTIONS = (events.Start, events.CancelStart, events.Stop, events.Remove)


def spec(instance: str = "i", run: int = 1, **fields: Any) -> wire.InstanceSpec:
    plain = {
        "name": "demo",
        "image": "corral/demo:1",
        "cpu_milli": 1000,
        "memory_bytes": 2**30,
        "disk_bytes": 0,
        "gpus": [wire.GpuShare(uuid=GPU)],
    }
    return wire.InstanceSpec(id=instance, run=run, **{**plain, **fields})


def live(of: wire.InstanceSpec, started_at_ms: int = WALL) -> Observed:
    return Observed(spec=of, is_live=True, container_id="c-1", started_at_ms=started_at_ms)


def ended(of: wire.InstanceSpec, exit_code: int = 0, code: str = "finished") -> Observed:
    outcome = Outcome(exit_code=exit_code, code=code, sentence="It ended.")
    return Observed(
        spec=of,
        is_live=False,
        container_id="c-1",
        started_at_ms=WALL,
        ended_at_ms=WALL + 5000,
        outcome=outcome,
    )


class Stage:
    """An agent on a node with two GPUs, and the hands of the clock."""

    def __init__(self, remembered: list[Run] | None = None) -> None:
        self.time = 1000.0
        self.generation = 0
        self.stored: list[Run] = remembered or []
        self.agent = agents.Agent(
            remembered=remembered or [], gpus=frozenset({GPU, OTHER}), now=self.now
        )

    @property
    def now(self) -> events.Moment:
        return events.Moment(mono=self.time, wall_ms=WALL + int(self.time * 1000) - 1_000_000)

    def tell(self, event: events.Event) -> list[events.Instruction]:
        instructions = self.agent.handle(event, self.now)
        for instruction in instructions:
            if isinstance(instruction, events.Persist):
                self.stored = msgspec.json.decode(
                    msgspec.json.encode(instruction.runs), type=list[Run]
                )
        return [one for one in instructions if isinstance(one, ACTIONS)]

    def want(self, *specs: wire.InstanceSpec, **fields: Any) -> list[events.Instruction]:
        self.generation += 1
        plain = {"generation": self.generation, "complete": True, "count": len(specs)}
        desired = wire.Desired(instances=list(specs), **{**plain, **fields})
        return self.tell(events.DesiredArrived(desired))

    def see(self, *observed: Observed) -> list[events.Instruction]:
        return self.tell(events.Listed(list(observed), self.time))

    def open(self) -> list[events.Instruction]:
        return self.tell(events.SessionOpened())

    def later(self, seconds: float) -> list[events.Instruction]:
        self.time += seconds
        return self.tell(events.Ticked())

    def running(self, *specs: wire.InstanceSpec) -> None:
        """Bring instances to life the usual way."""
        self.open()
        self.see()
        self.want(*specs)
        for one in specs:
            self.tell(events.StartEnded((one.id, one.run)))
        self.time += 1
        self.see(*map(live, specs))

    def status(self, instance: str = "i", run: int = 1) -> wire.InstanceStatus:
        return next(one for one in self.agent.statuses() if (one.id, one.run) == (instance, run))

    def restarted(self) -> "Stage":
        stage = Stage(self.stored)
        stage.generation = self.generation
        return stage
