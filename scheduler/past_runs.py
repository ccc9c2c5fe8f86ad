"""How long past runs took, so that those who wait get an estimate and not a shrug."""

from collections import defaultdict
from datetime import datetime, timedelta

from scheduler.engine.snapshot import RunTimes
from scheduler.models import Request, Standing

_REMEMBERED = timedelta(days=30)
_MOST = 1000  # of the latest runs: enough for a median, cheap in every cycle
_LEAST = 3  # fewer runs than that say nothing


def run_times(*, now: datetime) -> tuple[RunTimes, ...]:
    """Return median and 90th percentile in seconds, for all, per organization, model, and both."""
    ended = Request.objects.filter(
        standing=Standing.ENDED, placed_at__isnull=False, ended_at__gte=now - _REMEMBERED
    )
    rows = ended.order_by("-ended_at").values_list(
        "organization_id", "gpu_models", "placed_at", "ended_at"
    )[:_MOST]
    seconds: dict[tuple[str | None, str | None], list[float]] = defaultdict(list)
    for organization_id, gpu_models, placed_at, ended_at in rows:
        if placed_at is None or ended_at is None:
            continue
        took = (ended_at - placed_at).total_seconds()
        models = [*gpu_models, None] if len(gpu_models) == 1 else [None]
        for model in models:
            seconds[None, model].append(took)
            seconds[str(organization_id), model].append(took)
    return tuple(
        RunTimes(
            median_s=_quantile(values, 0.5),
            p90_s=_quantile(values, 0.9),
            organization=organization,
            gpu_model=model,
        )
        for (organization, model), values in seconds.items()
        if len(values) >= _LEAST
    )


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return max(1.0, ordered[min(len(ordered) - 1, int(share * len(ordered)))])
