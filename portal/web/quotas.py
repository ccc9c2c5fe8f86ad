"""Limits and how much of them is used; those who may, change them here."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from portal.errors import DomainError, Invalid
from portal.tenants import members, teams
from portal.tenants.models import Member, Team
from portal.web import answers
from portal.web.access import MemberRequest, member_page
from scheduler import quotas

_PART = "quota-lines"
_MOST_TYPED = 20


class UnableToRead(Invalid):
    """The number typed is none."""


@dataclass(frozen=True, slots=True)
class Row:
    """A limit as the page shows it; after a refusal with what was typed, and why not."""

    line: quotas.QuotaLine
    may_set: bool
    typed: str
    refusal: DomainError | None

    @property
    def key(self) -> str:
        """What tells this row's form from the others."""
        return _key(self.line.team, self.line.member)


@member_page("quotas.view")
@require_http_methods(["GET", "HEAD", "POST"])
def show(request: MemberRequest) -> HttpResponse:
    """Show every limit that the member may see; a POST sets one."""
    refusal: DomainError | None = None
    if request.method == "POST":
        try:
            sentence = _set(request)
        except DomainError as error:
            if error.status in {403, 404}:
                raise
            refusal = error
        else:
            return answers.done(request, sentence, "quotas", request.actor.organization.slug)
    return answers.page(
        request,
        "quotas/index.html",
        {"groups": _groups(request, refusal)},
        parts={_PART: f"quotas/index.html#{_PART}"},
        status=refusal.status if refusal else 200,
    )


def _groups(request: MemberRequest, refusal: DomainError | None) -> list[dict[str, Any]]:
    """Return the levels that there is something to see of, the widest first."""
    rows = [_row(request, line, refusal) for line in quotas.visible(actor=request.actor)]
    headings = {"organization": _("Organization"), "team": _("Teams"), "member": _("Members")}
    groups = [
        {"level": level, "heading": heading, "rows": [r for r in rows if r.line.level == level]}
        for level, heading in headings.items()
    ]
    return [group for group in groups if group["rows"]]


def _row(request: MemberRequest, line: quotas.QuotaLine, refusal: DomainError | None) -> Row:
    team_id = line.team.id if line.team else None
    may_set = request.actor.may("quotas.manage", team_id=team_id)
    row = Row(line, may_set, "" if line.limit is None else quotas.gpus(line.limit), None)
    if refusal is None or request.POST.get("key", "") != row.key:
        return row
    return Row(line, may_set, request.POST.get("gpus", "")[:_MOST_TYPED], refusal)


def _key(team: Team | None, member: Member | None) -> str:
    if team is not None:
        return f"team:{team.id}"
    return "organization" if member is None else f"member:{member.id}"


def _set(request: MemberRequest) -> str:
    """Set the limit that the form is about; return the sentence that says so."""
    actor = request.actor
    level, _colon, thing = request.POST.get("key", "").partition(":")
    team = teams.get_team(actor=actor, team_id=_uuid(thing)) if level == "team" else None
    member = members.get_member(actor=actor, member_id=_uuid(thing)) if level == "member" else None
    milli_gpus = _milli(request.POST.get("gpus", ""))
    quotas.set_limit(
        actor=actor, team=team, member=member, milli_gpus=milli_gpus, now=datetime.now(UTC)
    )
    names = {"name": team or member or actor.organization}
    if milli_gpus is None:
        return _("%(name)s has no limit of its own now.") % names
    return _("The GPU limit of %(name)s is %(gpus)s now.") % {
        **names,
        "gpus": quotas.gpus(milli_gpus),
    }


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        return UUID(int=0)  # nobody's


def _milli(text: str) -> int | None:
    """Read GPUs as people type them ("4", "0.5"); empty is no limit."""
    text = text.strip().replace(",", ".")
    if not text:
        return None
    try:
        milli = Decimal(text) * 1000
        if len(text) <= _MOST_TYPED and milli == int(milli):
            return int(milli)
    except (InvalidOperation, ValueError, OverflowError):
        pass
    raise UnableToRead(
        "not_a_number",
        _("“%(text)s” is not a number of GPUs.") % {"text": text[:_MOST_TYPED]},
        help=_("Write a number with up to three decimals, or nothing for no limit."),
    )
