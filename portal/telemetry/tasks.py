"""Periodic work on the samples."""

from celery import shared_task
from django.utils import timezone

from portal.telemetry import partitions


@shared_task
def keep_partitions() -> None:
    """Make the days to come, drop the days that are over."""
    partitions.keep(now=timezone.now())
