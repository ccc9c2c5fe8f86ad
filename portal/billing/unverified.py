"""When the time of an open meter counts as unverified: one threshold for all who show it."""

from datetime import datetime, timedelta

from django.conf import settings


def silent_since(proved_until: datetime, now: datetime) -> datetime | None:
    """Return since when an open meter's time is unproved, or None while its node reports in time.

    Between two reports some time is always unproved; it is said once the node is stale.
    """
    if now - proved_until <= timedelta(seconds=settings.NODE_STALE_SECONDS):
        return None
    return proved_until
