"""Plan, and write the plan down: the only caller of the engine in production.

One advisory lock lets one planner in at a time; the exclusion constraint on leases is the referee
all the same. A placement that it refuses is lost, and its request waits for the next cycle.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from portal import events
from scheduler import past_runs
from scheduler.engine import cycle as engine
from scheduler.engine import snapshot as told
from scheduler.engine.plan import Code, Estimate, Placement
from scheduler.engine.plan import Decision as Answer
from scheduler.models import Decision, Lease, Request, Standing

log = logging.getLogger(__name__)

_LOCK = 0x636F727261_01  # ours among the database's advisory locks
# Answers that only count down (estimates) are written again this often.
_REFRESH = timedelta(seconds=10)

Claim = Callable[[Sequence[UUID]], Collection[UUID]]


@dataclass(frozen=True, slots=True)
class Placed:
    """A request that has its leases now."""

    request: Request
    node_id: UUID


def lock() -> None:
    """Wait to be the only planner until this transaction ends; read the supply after this."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])


def cycle(
    *, supply: Sequence[told.Node], now: datetime, claim: Claim | None = None
) -> list[Placed]:
    """Plan once for all organizations and write leases, decisions and places in the queue.

    To be called in a transaction and outside any scope. `claim` is told the subjects that are
    about to be placed, may lock what belongs to them, and returns those that may still start;
    no row of ours is locked before that.
    """
    lock()
    waiting = {
        str(request.id): request for request in Request.objects.filter(standing=Standing.PENDING)
    }
    if not waiting:
        return []
    plan = engine.plan(_snapshot(supply, waiting, now))
    placed = _apply(plan.placements, waiting, claim, now)
    _keep_decisions(plan.decisions, waiting, {str(one.request.id) for one in placed}, now)
    return placed


def foresee(*, supply: Sequence[told.Node], wish: Request, now: datetime) -> Answer:
    """Say what would become of an unsaved request if it were submitted now; nothing is written."""
    waiting = {
        str(request.id): request for request in Request.objects.filter(standing=Standing.PENDING)
    }
    waiting[str(wish.id)] = wish
    plan = engine.plan(_snapshot(supply, waiting, now))
    return next(one for one in plan.decisions if one.request_id == str(wish.id))


def _snapshot(
    supply: Sequence[told.Node], waiting: Mapping[str, Request], now: datetime
) -> told.Snapshot:
    return told.Snapshot(
        now=now.timestamp(),
        version=int(now.timestamp() * 1000),
        nodes=tuple(supply),
        requests=tuple(_wish(request, now) for request in waiting.values()),
        running=tuple(_running()),
        policy=told.Policy(history=past_runs.run_times(now=now)),
    )


def _wish(request: Request, now: datetime) -> told.Request:
    ends_by = request.ends_by
    return told.Request(
        id=str(request.id),
        organization=str(request.organization_id),
        team=str(request.team_id),
        member=str(request.member_id),
        submitted_at=request.submitted_at.timestamp(),
        priority=request.priority,
        gpu_models=frozenset(request.gpu_models),
        gpu_count=request.gpu_count,
        units_per_gpu=request.units_per_gpu,
        # The planner asks for the memory of the whole GPU that a share is cut from.
        gpu_memory_bytes=-(-request.gpu_memory_bytes * told.WHOLE_GPU // request.units_per_gpu),
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        disk_bytes=request.disk_bytes,
        pool=request.pool or None,
        expected_seconds=max(1.0, (ends_by - now).total_seconds()) if ends_by else None,
    )


def _running() -> list[told.Running]:
    held: dict[UUID, list[tuple[str, int, int]]] = {}
    leases = Lease.objects.filter(during__endswith__isnull=True)
    for request_id, gpu_id, units in leases.values_list("request_id", "gpu_id", "units"):
        held.setdefault(request_id, []).extend((str(gpu_id), low, high) for low, high in units)
    placed = Request.objects.filter(standing=Standing.PLACED).values_list(
        "id", "node_id", "placed_at", "ends_by", "organization_id",
        "cpu_milli", "memory_bytes", "disk_bytes",
    )  # fmt: skip
    return [
        told.Running(
            request_id=str(request_id),
            node_id=str(node_id),
            gpus=tuple(sorted(held.get(request_id, ()))),
            started_at=placed_at.timestamp() if placed_at else 0.0,
            expected_end=ends_by.timestamp() if ends_by else None,
            organization=str(organization_id),
            cpu_milli=cpu,
            memory_bytes=memory,
            disk_bytes=disk,
        )
        for request_id, node_id, placed_at, ends_by, organization_id, cpu, memory, disk in placed
    ]


def _apply(
    placements: Sequence[Placement],
    waiting: Mapping[str, Request],
    claim: Claim | None,
    now: datetime,
) -> list[Placed]:
    chosen = [(waiting[placement.request_id], placement) for placement in placements]
    if claim is not None and chosen:
        allowed = claim(sorted(request.subject for request, _ in chosen))
        chosen = [(request, place) for request, place in chosen if request.subject in allowed]
    placed = []
    for request, placement in chosen:
        try:
            with transaction.atomic():
                if _write(request, placement, now):
                    placed.append(Placed(request, UUID(placement.node_id)))
        except IntegrityError as error:
            # Somebody else holds a GPU of this stale placement; the request goes on waiting.
            log.warning("the place for request %s was refused: %s", request.id, error)
            request.refresh_from_db()
    return placed


def _write(request: Request, placement: Placement, now: datetime) -> bool:
    """Take the place for a request; False where it was withdrawn meanwhile."""
    pending = Request.objects.filter(id=request.id, standing=Standing.PENDING)
    if not pending.update(
        standing=Standing.PLACED, node_id=UUID(placement.node_id), placed_at=now, position=None
    ):
        return False
    units: dict[str, list[tuple[int, int]]] = {}
    for gpu_id, low, high in placement.gpus:
        units.setdefault(gpu_id, []).append((low, high))
    Lease.objects.bulk_create(
        Lease(
            organization_id=request.organization_id,
            request=request,
            gpu_id=UUID(gpu_id),
            units=tuple(ranges),
            during=DateTimeTZRange(now, None),
        )
        for gpu_id, ranges in sorted(units.items())
    )
    request.standing, request.node_id = Standing.PLACED, UUID(placement.node_id)
    request.placed_at, request.position = now, None
    return True


def _keep_decisions(
    decisions: Sequence[Answer],
    waiting: Mapping[str, Request],
    placed: Set[str],
    now: datetime,
) -> None:
    """Write each request's answer, and a Decision where the answer is new."""
    answers: list[Request] = []
    news: list[Decision] = []
    told_anew: set[UUID] = set()
    for decision in decisions:
        request = waiting[decision.request_id]
        if decision.code == Code.PLACED and decision.request_id not in placed:
            continue  # the referee said no: the old answer stands until the next cycle
        args = dict(decision.args)
        is_placed = decision.request_id in placed
        is_reworded = (request.reason_code, request.reason_args) != (decision.code, args)
        is_moved = request.position != decision.position
        is_old = request.decided_at is None or now - request.decided_at >= _REFRESH
        if not (is_placed or is_reworded or is_moved or is_old):
            continue
        is_news = is_placed or _gist(request.reason_code, request.reason_args) != _gist(
            decision.code, args
        )
        if is_news or is_moved:
            told_anew.add(request.organization_id)
        request.reason_code, request.reason_args = decision.code, args
        request.position, request.sooner = decision.position, list(decision.sooner)
        request.estimate, request.decided_at = as_json(decision.estimate), now
        answers.append(request)
        if is_news:
            news.append(_as_row(request, now))
    fields = ["reason_code", "reason_args", "position", "sooner", "estimate", "decided_at"]
    Request.objects.bulk_update(answers, fields, batch_size=500)
    Decision.objects.bulk_create(news, batch_size=500)
    for organization_id in sorted(told_anew):
        topic = events.organization_topic(organization_id)
        events.announce(topic=topic, kind="queue", id=organization_id)


def _gist(code: str, args: Mapping[str, int | str]) -> tuple[str, dict[str, int | str]]:
    """Return what makes an answer another one; a row for every step of the queue would be noise."""
    return code, {
        name: value
        for name, value in args.items()
        if name != "ahead" and not name.startswith("sooner_")
    }


def as_json(estimate: Estimate | None) -> dict[str, float | str | None] | None:
    """Write an estimate as `Request.estimate` keeps it: {"low_s", "high_s", "basis"}."""
    if estimate is None:
        return None
    return {"low_s": estimate.low_s, "high_s": estimate.high_s, "basis": estimate.basis}


def _as_row(request: Request, now: datetime) -> Decision:
    return Decision(
        organization_id=request.organization_id,
        request=request,
        at=now,
        code=request.reason_code,
        args=request.reason_args,
        position=request.position,
        estimate=request.estimate,
    )
