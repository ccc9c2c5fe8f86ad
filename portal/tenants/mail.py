"""The letters that tenants get: plain text, in the reader's language if we know it."""

from django.conf import settings
from django.core.mail import send_mail
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.translation import gettext as _

from portal.tenants.models import Invitation, User
from portal.tenants.scope import every_tenant


def invitation_link(*, secret: str) -> str:
    """Return the address at which an invitation is accepted."""
    return f"{settings.PUBLIC_URL.rstrip('/')}/invitations/{secret}/"


def send_invitation(*, invitation_id: str, secret: str) -> None:
    """Mail the link with `secret`; an invitation that is no longer open sends nothing."""
    with every_tenant("a letter is sent outside any request"):
        invitation = (
            Invitation.objects.select_related("organization", "team", "invited_by__user")
            .filter(id=invitation_id, accepted_at=None, revoked_at=None)
            .first()
        )
    if invitation is None:
        return
    inviter = invitation.invited_by.user
    reader = User.objects.filter(email__iexact=invitation.email).first()
    language = (reader or inviter).language or settings.LANGUAGE_CODE
    with translation.override(language):
        subject = _("%(inviter)s invites you to %(organization)s") % {
            "inviter": inviter,
            "organization": invitation.organization,
        }
        text = render_to_string(
            "mail/invitation.txt",
            {
                "invitation": invitation,
                "inviter": inviter,
                "organization": invitation.organization,
                "link": invitation_link(secret=secret),
            },
        )
    # A name with a line break in it must not become a second header.
    subject = settings.ACCOUNT_EMAIL_SUBJECT_PREFIX + " ".join(subject.split())
    send_mail(subject, text, None, [invitation.email])
