"""One planning cycle: the whole of `plan(snapshot) -> Plan`, step by step."""

import numpy as np

from scheduler.engine import fit, placing
from scheduler.engine.capacity import Capacity
from scheduler.engine.explain import Explainer
from scheduler.engine.holding import Holding
from scheduler.engine.plan import Decision, Placement, Plan
from scheduler.engine.queue_order import ORDERS
from scheduler.engine.score import SCORES, Ranking, Score
from scheduler.engine.shape import Shape
from scheduler.engine.snapshot import Node, Policy, Request, Running, Snapshot


def plan(snapshot: Snapshot) -> Plan:
    """Decide who starts where now, and say for everybody else what they wait for.

    The same snapshot gives the same plan, whatever the order of its lists. Raise ValueError where
    the policy names an unknown order or score, or two requests or nodes have the same id.
    """
    policy = snapshot.policy
    _check(snapshot)

    # 1. Lay out the machines in the order that settles ties.
    open_to_all = Capacity(_in_tie_order(snapshot.nodes, policy))
    unreserved = open_to_all.copy()  # the same without what is kept for blocked requests
    ranking = Ranking(open_to_all, _score(open_to_all, snapshot))
    holding = Holding(open_to_all, unreserved, snapshot.running)

    # 2. Line up everybody who waits.
    line = ORDERS[policy.order](snapshot)

    # 3. Walk the line: place what fits, keep a place for what is blocked, pass over what
    #    could never run. A shape that failed once fails for the rest of the cycle.
    placements: dict[str, Placement] = {}
    failed: set[Shape] = set()
    for request in line:
        shape = Shape.of(request)
        if shape in failed:
            continue
        if placement := placing.place(ranking, request.id, shape):
            unreserved.book(unreserved.row_of[placement.node_id], shape, placement.gpus)
            holding.started(placement)
            placements[request.id] = placement
            continue
        failed.add(shape)
        if not shape.flaw and not fit.rows(unreserved, shape, slice(None)).any():
            holding.keep_for(request.id, shape)

    # 4. Say why, from the machines as they stand after the last placement.
    explainer = Explainer(
        snapshot=snapshot,
        holding=holding,
        started=_as_running(line, placements, snapshot.now),
    )
    return Plan(
        version=snapshot.version,
        placements=tuple(placements.values()),
        decisions=_decisions(explainer, line, placements),
    )


def _decisions(
    explainer: Explainer, line: list[Request], placements: dict[str, Placement]
) -> tuple[Decision, ...]:
    decisions = []
    for request in line:
        if placement := placements.get(request.id):
            decisions.append(explainer.placed(request, placement))
        else:
            decisions.append(explainer.waiting(request))
    return tuple(decisions)


def _check(snapshot: Snapshot) -> None:
    policy = snapshot.policy
    if policy.order not in ORDERS:
        raise ValueError(f"unknown order {policy.order!r}; use {', '.join(sorted(ORDERS))}")
    if policy.score not in SCORES:
        raise ValueError(f"unknown score {policy.score!r}; use {', '.join(sorted(SCORES))}")
    for kind, ids in (
        ("request", [request.id for request in snapshot.requests]),
        ("node", [node.id for node in snapshot.nodes]),
        ("GPU", [gpu.id for node in snapshot.nodes for gpu in node.gpus]),
    ):
        if len(set(ids)) < len(ids):
            raise ValueError(f"the snapshot has two of one {kind} id")


def _in_tie_order(nodes: tuple[Node, ...], policy: Policy) -> list[Node]:
    """Order nodes by name; a seed shuffles them, for names that group machines by model."""
    named = sorted(nodes, key=lambda node: (node.name, node.id))
    if policy.seed:
        order = np.random.default_rng(policy.seed).permutation(len(named))
        named = [named[index] for index in order]
    return named


def _score(capacity: Capacity, snapshot: Snapshot) -> Score:
    """Build the score; the workload that FGD weighs by is what waits now."""
    workload = [Shape.of(request) for request in snapshot.requests]
    return SCORES[snapshot.policy.score](capacity, workload, snapshot.policy.seed)


def _as_running(line: list[Request], placements: dict[str, Placement], now: float) -> list[Running]:
    """Describe what this cycle starts like what ran before, for the estimates of the others."""
    return [
        Running(
            request_id=request.id,
            node_id=placements[request.id].node_id,
            gpus=placements[request.id].gpus,
            started_at=now,
            expected_end=now + request.expected_seconds if request.expected_seconds else None,
            organization=request.organization,
            cpu_milli=request.cpu_milli,
            memory_bytes=request.memory_bytes,
            disk_bytes=request.disk_bytes,
        )
        for request in line
        if request.id in placements
    ]
