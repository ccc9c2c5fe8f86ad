"""Housekeeping of the API."""

from celery import shared_task
from django.utils import timezone

from portal.api import idempotency


@shared_task
def forget_replies() -> None:
    """Delete kept answers whose day is over."""
    idempotency.forget(now=timezone.now())
