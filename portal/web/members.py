"""Who is in the organization, as what, and what each role may do."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from portal.errors import DomainError
from portal.tenants import invitations, mail, members, roles
from portal.tenants.models import Member, Role, Team, TeamMember
from portal.tenants.roles import Permission, Reach
from portal.web import answers, once
from portal.web.access import MemberRequest, member_page
from portal.web.forms import InviteForm

_LINK = "invitation"
PERMISSIONS: Mapping[Permission, Promise] = {
    "instances.view": gettext_lazy("See instances"),
    "instances.launch": gettext_lazy("Launch instances"),
    "instances.manage": gettext_lazy("Start, stop and terminate instances"),
    "usage.view": gettext_lazy("See usage and what it cost"),
    "money.view": gettext_lazy("See bills and the ledger"),
    "quotas.view": gettext_lazy("See quotas"),
    "quotas.manage": gettext_lazy("Set quotas"),
    "members.view": gettext_lazy("See members and teams"),
    "members.manage": gettext_lazy("Invite, change and remove members"),
    "teams.manage": gettext_lazy("Make and change teams"),
    "tokens.manage": gettext_lazy("Make and revoke API tokens"),
    "audit.view": gettext_lazy("Read the audit log"),
    "organization.manage": gettext_lazy("Change the organization's settings"),
}


@member_page("members.view")
@require_http_methods(["GET", "HEAD", "POST"])
def index(request: MemberRequest) -> HttpResponse:
    """List the members, the open invitations and the roles; a POST invites somebody."""
    form = _invite_form(request, is_sent=request.method == "POST")
    refusal: DomainError | None = None
    if request.method == "POST" and form.is_valid():
        try:
            invitation = invitations.invite(
                actor=request.actor, now=datetime.now(UTC), **form.invited()
            )
        except DomainError as error:
            if error.status == 403:
                raise
            refusal = error
        else:
            once.keep(request, _LINK, mail.invitation_link(secret=invitation.secret))
            sentence = _("The invitation is on its way to %(email)s.") % form.cleaned_data
            return answers.done(request, sentence, "members", request.actor.organization.slug)
    context = {"form": form, "refusal": refusal, "link": once.take(request, _LINK)}
    status = 422 if request.method == "POST" else 200
    return _page(request, context, status=status)


def _invite_form(request: MemberRequest, *, is_sent: bool) -> InviteForm:
    rows = Team.objects.filter(organization=request.actor.organization).order_by("name")
    form = InviteForm(request.POST if is_sent else None, initial={"role": Role.MEMBER})
    form.offer(roles=_roles(request), teams=[(str(team.id), team.name) for team in rows])
    return form


def _page(request: MemberRequest, context: dict[str, Any], *, status: int) -> HttpResponse:
    actor = request.actor
    may_manage = actor.may("members.manage")
    whole = {
        "rows": _rows(request),
        "invitations": invitations.visible(actor=actor) if may_manage else [],
        "roles": _roles(request),
        "rights": _rights(),
        "role_names": Role.labels,
        "may_manage": may_manage,
        "me": actor.member,
        **context,
    }
    response = answers.page(request, "people/members.html", whole, status=status)
    if context.get("link"):
        response["Cache-Control"] = "no-store"
    return response


def _roles(request: MemberRequest) -> list[tuple[str, str]]:
    """Return the roles that this member may give; only owners make owners."""
    is_owner = request.actor.member.role == Role.OWNER
    return [(role.value, str(role.label)) for role in Role if is_owner or role != Role.OWNER]


def _rows(request: MemberRequest) -> list[dict[str, Any]]:
    present = Member.objects.filter(organization=request.actor.organization, removed_at=None)
    places: dict[UUID, list[TeamMember]] = {}
    for place in TeamMember.objects.select_related("team").order_by("team__name"):
        places.setdefault(place.member_id, []).append(place)
    is_owner = request.actor.member.role == Role.OWNER
    return [
        {
            "member": member,
            "places": places.get(member.id, []),
            "dialog": f"remove-{member.id}",
            "hidden": {"act": "remove"},
            # Owners are changed by owners only.
            "may_change": is_owner or member.role != Role.OWNER,
        }
        for member in present.select_related("user").order_by("user__name", "user__email")
    ]


def _rights() -> list[tuple[Promise, list[str]]]:
    """Lay the table of roles out in words, one row per permission."""
    return [
        (words, [_reach(roles.REACH[role][permission]) for role in Role])
        for permission, words in PERMISSIONS.items()
    ]


def _reach(reach: Reach) -> str:
    if Reach.ALL in reach:
        return _("all")
    if Reach.OWN in reach and Reach.TEAMS in reach:
        return _("own teams")
    if Reach.OWN in reach:
        return _("own")
    return _("own teams") if Reach.TEAMS in reach else ""


@member_page("members.view")
@require_POST
def change(request: MemberRequest, member_id: UUID) -> HttpResponse:
    """Give a member another role, or take him out."""
    back = ("members", request.actor.organization.slug)
    now = datetime.now(UTC)
    try:
        if request.POST.get("act") == "remove":
            members.remove_member(actor=request.actor, member_id=member_id, now=now)
            return answers.done(request, _("Removed. All access ended at once."), *back)
        wanted = request.POST.get("role", "")
        if wanted in Role:
            members.change_role(
                actor=request.actor, member_id=member_id, role=Role(wanted), now=now
            )
            return answers.done(request, _("The role is changed."), *back)
    except DomainError as refusal:
        if refusal.status in {403, 404}:
            raise
        trouble = {"member_id": member_id, "refusal": refusal}
        context = {"form": _invite_form(request, is_sent=False), "trouble": trouble}
        return _page(request, context, status=refusal.status)
    return redirect(*back)


@member_page()
@require_POST
def leave(request: MemberRequest) -> HttpResponseRedirect:
    """Leave the organization oneself."""
    try:
        members.leave(actor=request.actor, now=datetime.now(UTC))
    except DomainError as refusal:
        return answers.refused(request, refusal, "organization", request.actor.organization.slug)
    sentence = _("You have left %(organization)s.")
    return answers.done(request, sentence % {"organization": request.actor.organization}, "home")
