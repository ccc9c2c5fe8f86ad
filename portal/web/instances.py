"""Instances: the list, one instance with its tabs, and what people do to it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.paginator import Paginator
from django.http import HttpResponse, HttpResponseRedirect, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from portal.billing import prices
from portal.billing import usage as bills
from portal.errors import DomainError
from portal.instances import actions, lifecycle, reasons
from portal.instances.models import Instance, State
from portal.money import Money
from portal.web import answers, charts
from portal.web.access import MemberRequest, member_page
from scheduler import words

_PAGE = 50
_LOG_LINES = 500
# What `start`, `stop` and `terminate` may be asked for in; the domain checks again.
_STARTABLE = {state for state, moves in lifecycle.MOVES.items() if State.QUEUED in moves}


@member_page("instances.view")
@require_GET
def index(request: MemberRequest) -> HttpResponse:
    """List the instances that the member may see; the ended ones on request."""
    rows = actions.visible(actor=request.actor)
    shows_all = request.GET.get("all") == "1"
    if not shows_all:
        rows = rows.exclude(state=State.TERMINATED)
    now = datetime.now(UTC)
    page = Paginator(rows, _PAGE).get_page(request.GET.get("page"))
    per_hour = _list_prices(request, now)
    return answers.page(
        request,
        "instances/list.html",
        {
            "rows": [_row(instance, per_hour) for instance in page],
            "page": page,
            "query": "all=1&" if shows_all else "",
            "shows_all": shows_all,
            "may_launch": request.actor.may_somewhere("instances.launch"),
        },
        parts=_parts("instances/list.html", "instance-rows"),
    )


def _list_prices(request: MemberRequest, now: datetime) -> dict[str, Money]:
    currency = request.actor.organization.currency
    return {
        price.sku: Money(price.per_hour, price.currency)
        for price in prices.list_prices(at=now)
        if price.currency == currency
    }


def _parts(template: str, *names: str) -> dict[str, str]:
    shared = {
        "instance-acts": "instances/acts.html",
        "instance-state": "instances/state.html",
    }
    return shared | {name: f"{template}#{name}" for name in names}


def _row(instance: Instance, per_hour: dict[str, Money]) -> dict[str, Any]:
    is_billed = lifecycle.STATES[State(instance.state)].billed
    return {
        "instance": instance,
        "why": why(instance),
        "is_billed": is_billed,
        "per_hour": per_hour.get(instance.flavor.code) if is_billed else None,
    }


def why(instance: Instance) -> str:
    """Say why an instance is where it is; one that waits says what it waits for."""
    if instance.state == State.QUEUED and instance.request is not None:
        return words.words(instance.request)
    return reasons.words(instance)


@member_page("instances.view")
@require_GET
def show(request: MemberRequest, instance_id: UUID) -> HttpResponse:
    """Show one instance: state, cost so far, live figures."""
    instance = actions.get(actor=request.actor, instance_id=instance_id)
    now = datetime.now(UTC)
    context = _frame(request, instance, "overview")
    context |= _cost(instance, now)
    context["per_hour"] = _list_prices(request, now).get(instance.flavor.code)
    context["gpus"] = " ".join(gpu.uuid for gpu in charts.gpus_of(instance))
    context["is_share"] = instance.flavor.units_per_gpu < 1000
    return answers.page(
        request,
        "instances/show.html",
        context,
        parts=_parts("instances/show.html", "instance-cost", "instance-figures"),
    )


def _cost(instance: Instance, now: datetime) -> dict[str, Any]:
    cost = bills.cost_of(subject=instance.id, now=now)
    return {"cost": cost, "proved_until": cost.segments[-1].end if cost.segments else None}


def _frame(request: MemberRequest, instance: Instance, tab: str) -> dict[str, Any]:
    """Return what every tab of an instance shows: its head, and what may be done to it."""
    actor, state = request.actor, State(instance.state)
    may_manage = actor.may(
        "instances.manage", team_id=instance.team_id, owner_id=instance.member_id
    )
    return {
        "instance": instance,
        "tab": tab,
        "why": why(instance),
        "rule": lifecycle.STATES[state],
        "is_settling": state in {State.PLACING, State.STARTING, State.STOPPING},
        "may_manage": may_manage,
        "can_start": may_manage and state in _STARTABLE,
        "can_stop": may_manage and state in lifecycle.LIVE and instance.wanted == "RUN",
        "can_terminate": may_manage
        and state != State.TERMINATED
        and instance.wanted != "TERMINATE",
        **_queue_facts(instance),
    }


def _queue_facts(instance: Instance) -> dict[str, Any]:
    request = instance.request
    if instance.state != State.QUEUED or request is None:
        return {}
    return {
        "position": request.position,
        "estimate": words.estimate(request.estimate),
        "basis": words.basis(request.estimate),
        "sooner": words.sooner(request),
    }


@member_page("instances.view")
@require_GET
def logs(request: MemberRequest, instance_id: UUID) -> HttpResponse:
    """Show the last lines that it wrote, asked from its machine now."""
    instance = actions.get(actor=request.actor, instance_id=instance_id)
    context = _frame(request, instance, "logs")
    try:
        context["text"] = actions.logs(
            actor=request.actor, instance_id=instance_id, tail=_LOG_LINES
        )
    except DomainError as refusal:
        context["refusal"] = refusal
    context |= {"now": datetime.now(UTC), "lines": _LOG_LINES}
    return answers.page(
        request, "instances/logs.html", context, parts=_parts("instances/logs.html", "instance-log")
    )


@member_page("instances.view")
@require_GET
def story(request: MemberRequest, instance_id: UUID) -> HttpResponse:
    """Show every move it made, when, why and by whom."""
    instance = actions.get(actor=request.actor, instance_id=instance_id)
    moves = instance.moves.select_related("by__user").order_by("-at", "-id")
    context = _frame(request, instance, "events")
    context["moves"] = [{"move": move, "why": reasons.words(move)} for move in moves]
    return answers.page(
        request,
        "instances/events.html",
        context,
        parts=_parts("instances/events.html", "instance-story"),
    )


@member_page("instances.view")
@require_GET
def bill(request: MemberRequest, instance_id: UUID) -> HttpResponse:
    """Show what it cost, interval by interval, with the cause of each begin and end."""
    instance = actions.get(actor=request.actor, instance_id=instance_id)
    context = _frame(request, instance, "bill")
    context |= _cost(instance, datetime.now(UTC))
    return answers.page(
        request,
        "instances/bill.html",
        context,
        parts=_parts("instances/bill.html", "instance-bill"),
    )


@member_page("instances.view")
@require_GET
def series(request: MemberRequest, instance_id: UUID) -> JsonResponse:
    """Return the history of its GPUs for the charts, no further back than it has held them."""
    instance = actions.get(actor=request.actor, instance_id=instance_id)
    return JsonResponse(charts.of_instance(instance, now=datetime.now(UTC)))


@member_page("instances.view")
@require_POST
def start(request: MemberRequest, instance_id: UUID) -> HttpResponseRedirect:
    """Queue it again."""
    return _act(request, instance_id, actions.start, _("It is in the queue."))


@member_page("instances.view")
@require_POST
def stop(request: MemberRequest, instance_id: UUID) -> HttpResponseRedirect:
    """Stop it."""
    return _act(request, instance_id, actions.stop, _("Stopping. Billing has ended."))


@member_page("instances.view")
@require_POST
def terminate(request: MemberRequest, instance_id: UUID) -> HttpResponseRedirect:
    """End it for good."""
    return _act(request, instance_id, actions.terminate, _("Being terminated."))


def _act(
    request: MemberRequest, instance_id: UUID, act: Callable[..., object], done: str
) -> HttpResponseRedirect:
    """Do what was asked of an instance and go back to its page, which says how it went."""
    back = ("instance", request.actor.organization.slug, instance_id)
    try:
        act(actor=request.actor, instance_id=instance_id, now=datetime.now(UTC))
    except DomainError as refusal:
        return _not_done(request, refusal, *back)
    return answers.done(request, done, *back)


@member_page("instances.view")
@require_POST
def stop_at(request: MemberRequest, instance_id: UUID) -> HttpResponseRedirect:
    """Set when it stops by itself, in hours from now; empty takes the time away."""
    back = ("instance", request.actor.organization.slug, instance_id)
    now = datetime.now(UTC)
    hours = request.POST.get("hours", "")
    until = now + timedelta(hours=int(hours)) if hours.isdecimal() and len(hours) < 5 else None
    try:
        actions.set_stop_at(actor=request.actor, instance_id=instance_id, stop_at=until, now=now)
    except DomainError as refusal:
        return _not_done(request, refusal, *back)
    sentence = _("It will stop by itself.") if until else _("It will not stop by itself.")
    return answers.done(request, sentence, *back)


def _not_done(
    request: MemberRequest,
    refusal: DomainError,
    *back: Any,
) -> HttpResponseRedirect:
    if refusal.status in {403, 404}:
        raise refusal  # its own page; there may be no page to go back to
    return answers.refused(request, refusal, *back)
