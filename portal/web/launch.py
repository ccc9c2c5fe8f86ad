"""The launch page: what to run, where, and what it would cost and wait for, before the button."""

import secrets
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from portal.errors import DomainError
from portal.instances import actions, catalogue
from portal.tenants.models import Team
from portal.web import answers
from portal.web.access import MemberRequest, member_page
from portal.web.forms import LaunchForm

_FIELDS = frozenset(LaunchForm.base_fields)


@member_page("instances.launch")
@require_http_methods(["GET", "HEAD", "POST"])
def form(request: MemberRequest) -> HttpResponse:
    """Show the page; a POST launches, and what was typed stays when that is refused."""
    teams = _teams(request)
    shown = LaunchForm(request.POST or None, teams=teams, initial=_initial(request, teams))
    refusal: DomainError | None = None
    if request.method == "POST" and shown.is_valid():
        try:
            instance = _launch(request, shown.cleaned_data)
        except DomainError as error:
            refusal = error
            _spread(shown, error)
        else:
            return redirect("instance", request.actor.organization.slug, instance.id)
    context = _context(request, shown) | {"refusal": refusal}
    status = 422 if request.method == "POST" else 200
    return answers.page(request, "instances/launch.html", context, status=status)


@member_page("instances.launch")
@require_GET
def preview(request: MemberRequest) -> HttpResponse:
    """Return the summary for what is chosen so far: the page's own part, fetched at each choice."""
    teams = _teams(request)
    shown = LaunchForm(request.GET, teams=teams)
    context = {"form": shown} | _summary(request, _values(shown))
    return answers.page(request, "instances/launch_summary.html", context)


def _teams(request: MemberRequest) -> list[tuple[str, str]]:
    actor = request.actor
    rows = Team.objects.filter(organization=actor.organization).order_by("name")
    return [
        (str(team.id), team.name) for team in rows if actor.may("instances.launch", team_id=team.id)
    ]


def _initial(request: MemberRequest, teams: list[tuple[str, str]]) -> dict[str, Any]:
    image = catalogue.images().first()
    initial: dict[str, Any] = {
        "name": _fresh_name(),
        "team_id": teams[0][0] if teams else "",
        "image": image.code if image else "",
        "priority": 0,
    }
    # A link may choose beforehand: "launch with this flavor".
    return initial | {key: value for key, value in request.GET.items() if key in _FIELDS}


def _fresh_name() -> str:
    return f"run-{secrets.token_hex(3)}"


def _launch(request: MemberRequest, values: dict[str, Any]) -> Any:
    now = datetime.now(UTC)
    hours = values.pop("stop_after")
    return actions.launch(
        actor=request.actor,
        stop_at=now + timedelta(hours=int(hours)) if hours else None,
        now=now,
        **{**values, "team_id": UUID(values["team_id"])},
    )


def _spread(shown: LaunchForm, refusal: DomainError) -> None:
    """Put the sentences that name a field beside that field."""
    for name, sentences in refusal.details.items():
        if name in shown.fields and isinstance(sentences, list):
            for sentence in sentences:
                shown.add_error(name, str(sentence))


def _values(shown: LaunchForm) -> dict[str, Any]:
    """Return what is chosen, typed or set beforehand, valid or not."""
    return {name: shown[name].value() for name in ("team_id", "image", "flavor", "name")}


def _context(request: MemberRequest, shown: LaunchForm) -> dict[str, Any]:
    now = datetime.now(UTC)
    offers = catalogue.flavors(currency=request.actor.organization.currency, now=now)
    values = _values(shown)
    if not values["flavor"]:
        # The first that starts at once, else the first that can be had at all.
        sellable = [offer for offer in offers if offer.per_hour is not None]
        free = [offer for offer in sellable if offer.free_now]
        chosen = next(iter(free or sellable), None)
        values["flavor"] = chosen.flavor.code if chosen else ""
    return {
        "form": shown,
        "chosen": values,
        "offers": offers,
        "images": catalogue.images(),
        **_summary(request, values, offers),
    }


def _summary(
    request: MemberRequest,
    values: dict[str, Any],
    offers: list[catalogue.Offer] | None = None,
) -> dict[str, Any]:
    now = datetime.now(UTC)
    if offers is None:
        offers = catalogue.flavors(currency=request.actor.organization.currency, now=now)
    offer = next((o for o in offers if o.flavor.code == values["flavor"]), None)
    image = next((i for i in catalogue.images() if i.code == values["image"]), None)
    found: dict[str, Any] = {"offer": offer, "image": image, "preview": None}
    try:
        team_id = UUID(str(values["team_id"]))
    except ValueError:
        found["missing"] = _("Choose a team.")
        return found
    if offer is None or image is None:
        found["missing"] = _("Choose an image and a size.")
        return found
    found["preview"] = actions.preview(
        actor=request.actor,
        team_id=team_id,
        flavor=offer.flavor.code,
        image=image.code,
        now=now,
    )
    return found
