"""The way in: an invitation as its reader sees it, and closing it as who sent it does."""

from datetime import UTC, datetime
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from portal.errors import DomainError
from portal.tenants import invitations
from portal.tenants.models import User
from portal.web import answers
from portal.web.access import MemberRequest, member_page


@require_http_methods(["GET", "HEAD", "POST"])
def accept(request: HttpRequest, secret: str) -> HttpResponse:
    """Show what an invitation is to, and accept it once its reader is signed in."""
    now = datetime.now(UTC)
    person = request.user if isinstance(request.user, User) else None
    try:
        if request.method == "POST" and person is not None:
            member = invitations.accept_invitation(secret=secret, user=person, now=now)
            sentence = _("Welcome to %(organization)s.") % {"organization": member.organization}
            return answers.done(request, sentence, "dashboard", member.organization.slug)
        invitation = invitations.find_invitation(secret=secret, now=now)
    except DomainError as refusal:
        context = {"refusal": refusal, "person": person}
        return answers.page(request, "people/invitation.html", context, status=refusal.status)
    is_theirs = person is not None and person.email.lower() == invitation.email.lower()
    return answers.page(
        request,
        "people/invitation.html",
        {"invitation": invitation, "person": person, "is_theirs": is_theirs},
    )


@member_page("members.manage")
@require_POST
def revoke(request: MemberRequest, invitation_id: UUID) -> HttpResponseRedirect:
    """Close an open invitation."""
    invitations.revoke_invitation(
        actor=request.actor, invitation_id=invitation_id, now=datetime.now(UTC)
    )
    return answers.done(
        request, _("The invitation is closed."), "members", request.actor.organization.slug
    )
