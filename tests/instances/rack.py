"""A pretend node for these tests: it keeps what it was told, and reports as an agent would."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from agents import wire
from portal.fleet.models import Link, Node
from portal.instances import node_sync
from tests import factories as make


def milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


@dataclass
class Rack:
    """One node whose containers do what the test says."""

    node: Node
    boot_id: str = "boot-1"
    epoch: int = 1
    generation: int = 0
    wanted: dict[tuple[str, int], wire.InstanceSpec] = field(default_factory=dict)
    said: dict[tuple[str, int], wire.InstanceStatus] = field(default_factory=dict)
    seq: int = 0

    @classmethod
    def with_gpus(cls, gpus: int = 8, **fields: Any) -> "Rack":
        return cls(make.node(gpus=gpus, **fields))

    def listen(self) -> wire.Desired:
        """Take in the desired state."""
        desired = node_sync.desired(node_id=self.node.id)
        assert desired.complete
        assert desired.count == len(desired.instances)
        self.wanted = {(spec.id, spec.run): spec for spec in desired.instances}
        self.generation = desired.generation
        return desired

    def say(self, instance: Any, phase: wire.Phase, at: datetime, **fields: Any) -> None:
        """Let a run be in a phase from `at` on."""
        key = (str(instance.id), fields.pop("run", instance.run))
        before = self.said.get(key)
        started = fields.pop("started_at", None)
        if phase in {"running", "stopping"} or started:
            fields.setdefault("container_id", f"c-{key[0][:8]}-{key[1]}")
            fields.setdefault(
                "started_at_ms",
                (before and before.started_at_ms) or milliseconds(started or at),
            )
        elif before is not None:
            fields.setdefault("container_id", before.container_id)
            fields.setdefault("started_at_ms", before.started_at_ms)
        self.said[key] = wire.InstanceStatus(
            id=key[0], run=key[1], phase=phase, since=milliseconds(at), **fields
        )

    def report(self, now: datetime, **fields: Any) -> bool:
        self.seq += 1
        wall = milliseconds(fields.pop("wall", now))
        return node_sync.receive(
            node_id=self.node.id,
            epoch=fields.pop("epoch", self.epoch),
            boot_id=fields.pop("boot_id", self.boot_id),
            report=wire.Report(
                seq=self.seq,
                wall_time=wall,
                looked_at_ms=fields.pop("looked_at_ms", wall),
                mono_ms=0,
                observed_generation=fields.pop("generation", self.generation),
                instances=list(self.said.values()),
            ),
            now=now,
        )

    def obey(self, now: datetime) -> None:
        """Do at once what is wanted, as a real node does within seconds, and report it."""
        self.listen()
        for key, spec in self.wanted.items():
            known = self.said.get(key)
            thing = Run(UUID(key[0]), key[1])
            if spec.wanted == "run" and known is None:
                self.say(thing, "running", now)
            elif spec.wanted == "stop" and known is None:
                self.say(thing, "exited", now, reason_code="never_started")
            elif spec.wanted == "stop" and known and known.phase not in wire.FINISHED_PHASES:
                self.say(thing, "exited", now, exit_code=143, reason_code="stopped")
        self.report(now)

    def hello(self, now: datetime, *, boot_id: str | None = None) -> None:
        self.boot_id = boot_id or self.boot_id
        node_sync.hello(
            node_id=self.node.id,
            hello=wire.Hello(
                proto_min=1, proto_max=1, agent_version="1", node_id=str(self.node.id),
                boot_id=self.boot_id, agent_run_id="run", generation=1,
                wall_time=milliseconds(now), looked_at_ms=milliseconds(now),
                runtime="process", isolation=False,
                inventory=wire.Inventory(hostname="h", cpu_milli=1, memory_bytes=1, disk_bytes=1),
                instances=list(self.said.values()),
            ),
            now=now,
        )  # fmt: skip

    def go_silent(self, link: Link = Link.OFFLINE) -> None:
        Node.objects.filter(id=self.node.id).update(link=link)

    def come_back(self) -> None:
        Node.objects.filter(id=self.node.id).update(link=Link.ONLINE)


@dataclass(frozen=True)
class Run:
    """Something with an id and a run, for `Rack.say`."""

    id: UUID
    run: int


def after(moment: datetime, **span: float) -> datetime:
    return moment + timedelta(**span)
