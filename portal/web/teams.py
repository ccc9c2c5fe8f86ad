"""Teams and who is in them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import Count
from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from portal.errors import DomainError
from portal.tenants import teams
from portal.tenants.models import Member, Team, TeamMember
from portal.web import answers
from portal.web.access import MemberRequest, member_page
from portal.web.forms import TeamForm


@member_page("members.view")
@require_http_methods(["GET", "HEAD", "POST"])
def index(request: MemberRequest) -> HttpResponse:
    """List the teams; a POST makes one."""
    actor = request.actor
    form = TeamForm(request.POST or None)
    refusal: DomainError | None = None
    if request.method == "POST" and form.is_valid():
        try:
            team = teams.create_team(actor=actor, now=datetime.now(UTC), **form.cleaned_data)
        except DomainError as error:
            if error.status == 403:
                raise
            refusal = error
        else:
            return answers.done(
                request, _("The team is there."), "team", actor.organization.slug, team.id
            )
    return answers.page(
        request,
        "people/teams.html",
        {
            "rows": _rows(request),
            "form": form,
            "refusal": refusal,
            "may_manage": actor.may("teams.manage"),
        },
        status=422 if request.method == "POST" else 200,
    )


def _rows(request: MemberRequest) -> list[dict[str, Any]]:
    actor = request.actor
    counts = dict(TeamMember.objects.values_list("team_id").annotate(count=Count("id")))
    leaders: dict[UUID, list[Member]] = {}
    for place in TeamMember.objects.filter(is_admin=True).select_related("member__user"):
        leaders.setdefault(place.team_id, []).append(place.member)
    return [
        {
            "team": team,
            "count": counts.get(team.id, 0),
            "leaders": leaders.get(team.id, []),
            "is_mine": team.id in actor.team_ids,
            "is_led": team.id in actor.admin_team_ids,
        }
        for team in Team.objects.filter(organization=actor.organization).order_by("name")
    ]


@member_page("members.view")
@require_http_methods(["GET", "HEAD", "POST"])
def show(request: MemberRequest, team_id: UUID) -> HttpResponse:
    """Show who is in a team; a POST adds, removes, renames, or makes an admin."""
    actor = request.actor
    team = teams.get_team(actor=actor, team_id=team_id)
    refusal: DomainError | None = None
    act = request.POST.get("act", "")
    if request.method == "POST":
        try:
            sentence = _ACTS.get(act, _rename)(request, team)
        except DomainError as error:
            if error.status in {403, 404}:
                raise
            refusal = error
        else:
            if act == "remove" and _member_id(request) == actor.member.id:
                return answers.done(request, sentence, "teams", actor.organization.slug)
            return answers.done(request, sentence, "team", actor.organization.slug, team.id)
    places = TeamMember.objects.filter(team=team).select_related("member__user")
    inside = [place.member_id for place in places]
    others = Member.objects.filter(organization=actor.organization, removed_at=None)
    return answers.page(
        request,
        "people/team.html",
        {
            "team": team,
            "places": sorted(places, key=lambda place: str(place.member).lower()),
            "others": others.exclude(pk__in=inside).select_related("user").order_by("user__email"),
            "may_manage": actor.may("teams.manage", team_id=team.id),
            "may_appoint": actor.may("teams.manage"),
            "refusal": refusal,
            "name": request.POST.get("name", team.name) if refusal else team.name,
        },
        status=refusal.status if refusal else 200,
    )


def _member_id(request: MemberRequest) -> UUID:
    try:
        return UUID(request.POST.get("member", ""))
    except ValueError:
        return UUID(int=0)  # nobody's: the domain answers that there is none


def _rename(request: MemberRequest, team: Team) -> str:
    teams.rename_team(
        actor=request.actor,
        team_id=team.id,
        name=request.POST.get("name", ""),
        now=datetime.now(UTC),
    )
    return _("Renamed.")


def _add(request: MemberRequest, team: Team) -> str:
    teams.add_to_team(
        actor=request.actor,
        team_id=team.id,
        member_id=_member_id(request),
        now=datetime.now(UTC),
    )
    return _("Added to the team.")


def _remove(request: MemberRequest, team: Team) -> str:
    teams.remove_from_team(
        actor=request.actor,
        team_id=team.id,
        member_id=_member_id(request),
        now=datetime.now(UTC),
    )
    if _member_id(request) == request.actor.member.id:
        return _("You have left the team.")
    return _("Removed from the team.")


def _appoint(request: MemberRequest, team: Team) -> str:
    is_admin = request.POST.get("act") == "appoint"
    teams.set_team_admin(
        actor=request.actor,
        team_id=team.id,
        member_id=_member_id(request),
        is_admin=is_admin,
        now=datetime.now(UTC),
    )
    return _("Is an admin of the team now.") if is_admin else _("Is no admin any more.")


_ACTS: dict[str, Callable[[MemberRequest, Team], str]] = {
    "rename": _rename,
    "add": _add,
    "remove": _remove,
    "appoint": _appoint,
    "dismiss": _appoint,
}
