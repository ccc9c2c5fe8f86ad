"""Work about people that nobody waits for: mail, and what ends by itself."""

from celery import shared_task
from django.utils import timezone

from portal.tenants import invitations, mail


@shared_task(
    autoretry_for=(OSError,),  # the mail server is away (SMTPException is an OSError)
    retry_backoff=True,
    retry_backoff_max=600,
    max_retries=12,
)
def send_invitation(invitation_id: str, secret: str) -> None:
    """Mail the link of an invitation, unless it was closed meanwhile."""
    mail.send_invitation(invitation_id=invitation_id, secret=secret)


@shared_task
def expire() -> None:
    """Close invitations whose time is over."""
    invitations.expire(now=timezone.now())
