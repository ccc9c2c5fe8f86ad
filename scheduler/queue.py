"""Requests come in and end; each time, after commit, the scheduler is woken."""

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from django.db import connection
from django.db.models import QuerySet

from portal.tenants.scope import every_tenant
from scheduler.models import Request, Standing
from scheduler.words import words as words

CHANNEL = "corral_scheduler"
"""PostgreSQL notifies here, after commit, whenever a plan may have a new answer."""


def submit(
    *,
    organization_id: UUID,
    team_id: UUID,
    member_id: UUID,
    subject: UUID,
    gpu_count: int,
    units_per_gpu: int = 1000,
    gpu_models: Iterable[str] = (),
    gpu_memory_bytes: int = 0,
    cpu_milli: int = 0,
    memory_bytes: int = 0,
    disk_bytes: int = 0,
    priority: int = 0,
    pool: str = "",
    ends_by: datetime | None = None,
    now: datetime,
) -> Request:
    """Add a request to the queue and wake the scheduler; call `quotas.reserve` first.

    Everything is in thousandths (`units_per_gpu`, `cpu_milli`) or bytes. A subject has one live
    request at most: the database raises IntegrityError for a second one.
    """
    request = Request.objects.create(
        organization_id=organization_id,
        team_id=team_id,
        member_id=member_id,
        subject=subject,
        priority=priority,
        submitted_at=now,
        gpu_models=list(gpu_models),
        gpu_count=gpu_count,
        units_per_gpu=units_per_gpu,
        gpu_memory_bytes=gpu_memory_bytes,
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        disk_bytes=disk_bytes,
        pool=pool,
        ends_by=ends_by,
    )
    wake()
    return request


def end(*, request_id: UUID, now: datetime) -> bool:
    """End a request: its leases end now, its quota is free, the scheduler is woken.

    Return False, and do nothing, where it had ended before: everything is freed once.
    """
    live = Request.objects.filter(id=request_id).exclude(standing=Standing.ENDED)
    if not live.update(standing=Standing.ENDED, ended_at=now, position=None, estimate=None):
        return False
    with connection.cursor() as cursor:
        # What lasted no time, by clocks that may differ a little, leaves no row.
        cursor.execute(
            "DELETE FROM scheduler_lease WHERE request_id = %s AND lower(during) >= %s",
            [request_id, now],
        )
        cursor.execute(
            "UPDATE scheduler_lease SET during = tstzrange(lower(during), %s) "
            "WHERE request_id = %s AND upper_inf(during)",
            [now, request_id],
        )
    wake()
    return True


def set_end(*, request_id: UUID, ends_by: datetime | None) -> None:
    """Note when a request will be over at the latest, for the estimates of those who wait."""
    Request.objects.filter(id=request_id).update(ends_by=ends_by)


def waiting() -> QuerySet[Request]:
    """Return the requests in scope that wait, the oldest first."""
    return Request.objects.filter(standing=Standing.PENDING).order_by("submitted_at", "id")


def position(*, request: Request) -> int | None:
    """Return a waiting request's place, from 1; None where it could never run.

    Until it was planned for the first time this is the place behind those who came before.
    """
    if request.decided_at is not None:
        return request.position
    with every_tenant("a place in the queue counts everybody's requests"):
        ahead = Request.objects.filter(
            standing=Standing.PENDING, submitted_at__lt=request.submitted_at
        )
        return ahead.count() + 1


def wake() -> None:
    """Have the scheduler plan again once this transaction is committed."""
    with connection.cursor() as cursor:
        cursor.execute(f"NOTIFY {CHANNEL}")
