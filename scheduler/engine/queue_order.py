"""Who is next. Priority counts inside an organization only; between them the smaller share goes.

The order is a list of all waiting requests, so that a position is a plain number in it.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.engine.snapshot import Node, Request, Running, Snapshot

_SHARE_SCALE = 10**9  # whole numbers, so that no order of adding up changes a comparison


@dataclass(frozen=True, slots=True)
class Totals:
    """What all machines have together: the measure of a share."""

    units: int
    cpu_milli: int
    memory_bytes: int

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> "Totals":
        """Add up the nodes, whether or not they take work now."""
        nodes = tuple(nodes)
        return cls(
            units=1000 * sum(len(node.gpus) for node in nodes),
            cpu_milli=sum(node.cpu_milli for node in nodes),
            memory_bytes=sum(node.memory_bytes for node in nodes),
        )

    def share(self, units: int, cpu_milli: int, memory_bytes: int) -> int:
        """Return the dominant share, in billionths: the largest part of any one resource."""
        return max(
            _SHARE_SCALE * have // total
            for have, total in (
                (units, self.units or 1),
                (cpu_milli, self.cpu_milli or 1),
                (memory_bytes, self.memory_bytes or 1),
            )
        )


def by_priority(snapshot: Snapshot) -> list[Request]:
    """Let the organization with the smallest share go next, with its most urgent request.

    The share counts what the organization holds and what stands before in this order. Inside an
    organization: priority, then submission, then id. Equal shares: the older request first.
    """
    totals = Totals.of(snapshot.nodes)
    shares = _held(snapshot.running, totals)
    queues: dict[str, list[Request]] = defaultdict(list)
    for request in sorted(snapshot.requests, key=_urgency, reverse=True):
        queues[request.organization].append(request)  # the most urgent stands last
    heads = [_entry(shares, queue) for queue in queues.values()]
    heapq.heapify(heads)
    order: list[Request] = []
    while heads:
        organization = heapq.heappop(heads)[3]
        queue = queues[organization]
        request = queue.pop()
        order.append(request)
        shares[organization] += max(1, _cost(request, totals))
        if queue:
            heapq.heappush(heads, _entry(shares, queue))
    return order


def by_submission(snapshot: Snapshot) -> list[Request]:
    """First come, first served, whoever asks and however urgent."""
    return sorted(snapshot.requests, key=lambda request: (request.submitted_at, request.id))


ORDERS: Mapping[str, Callable[[Snapshot], list[Request]]] = {
    "priority": by_priority,
    "fcfs": by_submission,
}
"""Every order by its name in `Policy.order`."""


def _urgency(request: Request) -> tuple[int, float, str]:
    return (-request.priority, request.submitted_at, request.id)


def _entry(shares: Mapping[str, int], queue: Sequence[Request]) -> tuple[int, float, str, str]:
    head = queue[-1]
    return (shares[head.organization], head.submitted_at, head.id, head.organization)


def _cost(request: Request, totals: Totals) -> int:
    units = request.gpu_count * request.units_per_gpu
    return totals.share(units, request.cpu_milli, request.memory_bytes)


def _held(running: Iterable[Running], totals: Totals) -> dict[str, int]:
    units: dict[str, int] = defaultdict(int)
    cpu: dict[str, int] = defaultdict(int)
    memory: dict[str, int] = defaultdict(int)
    for run in running:
        units[run.organization] += sum(high - low for _, low, high in run.gpus)
        cpu[run.organization] += run.cpu_milli
        memory[run.organization] += run.memory_bytes
    shares = {name: totals.share(units[name], cpu[name], memory[name]) for name in units}
    return defaultdict(int, shares)
