"""What browsers are told of a node's samples: which GPU to whom, and in which words. Pure.

An instance's watchers get its own GPUs only, as the node itself was told who holds them. Of a GPU
that is shared they get nothing that others have a part in.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from agents import wire

WHOLE = 1000


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The newest values of one GPU; null is unknown."""

    at: int
    util: int | None = None
    mem_used: int | None = None
    mem_total: int | None = None
    power_mw: int | None = None
    temp_c: int | None = None
    sm_mhz: int | None = None


class _Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="samples"):
    topic: str
    seq: int
    at: int
    gpus: dict[str, Figures]


_encode = msgspec.json.Encoder().encode


def node_topic(node_id: object) -> str:
    """Name the topic of the samples of a whole node, for operators."""
    return f"gpus:node:{node_id}"


def instance_topic(instance_id: object) -> str:
    """Name the topic of the samples of one instance's GPUs."""
    return f"gpus:instance:{instance_id}"


@dataclass(slots=True)
class NodeFigures:
    """The newest values of a node's GPUs and who holds each of them now.

    `holders` maps a GPU's UUID to the instances on it, each with its share.
    """

    topic: str
    seq: int = 0
    gpus: dict[str, Figures] = field(default_factory=dict)
    holders: dict[str, list[tuple[str, wire.GpuShare]]] = field(default_factory=dict)

    def take(self, seq: int, samples: Iterable[wire.Sample], offset_ms: int) -> dict[str, Figures]:
        """Take in samples, whose times are off by `offset_ms`; return the GPUs that have news."""
        news: dict[str, Figures] = {}
        for sample in samples:
            at = sample.at_ms + offset_ms
            known = news.get(sample.gpu) or self.gpus.get(sample.gpu)
            if known is None or known.at <= at:
                news[sample.gpu] = Figures(
                    at=at,
                    util=sample.util,
                    mem_used=sample.mem_used,
                    mem_total=sample.mem_total,
                    power_mw=sample.power_mw,
                    temp_c=sample.temp_c,
                    sm_mhz=sample.sm_mhz,
                )
        self.seq = seq
        self.gpus.update(news)
        return news

    def hold(self, desired: wire.Desired) -> None:
        """Learn from what the node was told who holds its GPUs."""
        holders: dict[str, list[tuple[str, wire.GpuShare]]] = {}
        for spec in desired.instances:
            for share in spec.gpus:
                holders.setdefault(share.uuid, []).append((spec.id, share))
        self.holders = holders

    def topics(self, uuids: Iterable[str]) -> set[str]:
        """Return the topics that have something to tell about these GPUs."""
        told = {self.topic}
        for uuid in uuids:
            told.update(instance_topic(holder) for holder, _ in self.holders.get(uuid, ()))
        return told

    def text(self, topic: str, news: Mapping[str, Figures] | None = None) -> str | None:
        """Write the frame of one topic with `news`, or with all that is known; None if empty."""
        values = self.gpus if news is None else news
        told = values if topic == self.topic else self._held(topic, values)
        if not told:
            return None
        at = max(figures.at for figures in told.values())
        return _encode(_Frame(topic=topic, seq=self.seq, at=at, gpus=dict(told))).decode()

    def _held(self, topic: str, values: Mapping[str, Figures]) -> dict[str, Figures]:
        told: dict[str, Figures] = {}
        for uuid, figures in values.items():
            for holder, share in self.holders.get(uuid, ()):
                if instance_topic(holder) == topic:
                    told[uuid] = figures if share.units >= WHOLE else _of_share(figures, share)
        return told


def _of_share(figures: Figures, share: wire.GpuShare) -> Figures:
    return Figures(at=figures.at, mem_total=share.memory_bytes)
