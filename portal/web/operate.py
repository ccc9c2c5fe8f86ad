"""The operator's pages: the machines, their GPUs and links, and what is on offer.

Operators see how much of a GPU is held, and never whose it is or what it does.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.db.models import Prefetch, QuerySet
from django.http import Http404, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from portal.billing import prices
from portal.errors import DomainError
from portal.fleet import nodes
from portal.fleet.models import Gpu, Link, Node
from portal.instances.models import Flavor, Image
from portal.tenants.scope import every_tenant
from portal.web import answers, charts
from portal.web.access import SignedRequest, operator_page
from portal.web.forms import CordonForm, PriceForm
from scheduler.models import Lease

_EVENTS = 30


@operator_page
@require_GET
def index(request: SignedRequest) -> HttpResponse:
    """List the nodes in service, with their GPUs as a heat map."""
    rows = _with_gpus(Node.objects.filter(retired_at=None)).order_by("name", "id")
    held = _held(rows)
    shown = [_shown(node, held) for node in rows]
    return answers.page(
        request,
        "operate/nodes.html",
        {
            "rows": shown,
            "online": sum(row["node"].link == Link.ONLINE for row in shown),
            "gpus": sum(len(row["gpus"]) for row in shown),
            "held": sum(held.values()),
        },
        parts={"node-rows": "operate/nodes.html#node-rows"},
    )


def _with_gpus(rows: QuerySet[Node]) -> QuerySet[Node]:
    return rows.prefetch_related(Prefetch("gpus", Gpu.objects.exclude(state="ABSENT")))


def _held(rows: QuerySet[Node]) -> dict[UUID, int]:
    """Return how many thousandths of each GPU are held now."""
    held: dict[UUID, int] = {}
    with every_tenant("operators see how full their machines are, not who fills them"):
        leases = Lease.objects.filter(gpu__node__in=rows, during__contains=datetime.now(UTC))
        for gpu_id, units in leases.values_list("gpu_id", "units"):
            held[gpu_id] = held.get(gpu_id, 0) + sum(high - low for low, high in units)
    return held


def _shown(node: Node, held: dict[UUID, int]) -> dict[str, Any]:
    gpus = list(node.gpus.all())
    for gpu in gpus:
        # For the heat map's tooltip: how much of it is leased.
        cast(Any, gpu).held = held.get(gpu.id, 0)
    return {
        "node": node,
        "gpus": gpus,
        "held": sum(held.get(gpu.id, 0) for gpu in gpus),
        "models": sorted({gpu.model for gpu in gpus}),
    }


@operator_page
@require_GET
def show(request: SignedRequest, node_id: UUID) -> HttpResponse:
    """Show one node: its link, GPUs, live figures and events."""
    rows = _with_gpus(Node.objects.filter(pk=node_id))
    node = get_object_or_404(rows)
    shown = _shown(node, _held(rows))
    return answers.page(
        request,
        "operate/node.html",
        {
            **shown,
            "uuids": " ".join(gpu.uuid for gpu in shown["gpus"]),
            "events": node.events.order_by("-at", "-id")[:_EVENTS],
            "form": CordonForm(),
        },
        parts={
            name: f"operate/node.html#{name}" for name in ("node-state", "node-gpus", "node-events")
        },
    )


@operator_page
@require_GET
def series(request: SignedRequest, node_id: UUID) -> JsonResponse:
    """Return the history of a node's GPUs for the charts."""
    node = get_object_or_404(Node, pk=node_id)
    return JsonResponse(charts.of_node(node, now=datetime.now(UTC)))


@operator_page
@require_http_methods(["GET", "HEAD", "POST"])
def join(request: SignedRequest) -> HttpResponse:
    """Show how a machine joins; a POST makes a token for one machine and shows the command."""
    command = ""
    if request.method == "POST":
        pool = request.POST.get("pool", "").strip()[:40] or "default"
        _token, secret = nodes.issue_join_token(pool=pool, now=datetime.now(UTC))
        command = (
            f"corral-agent --portal {settings.PUBLIC_URL} --join {secret} "
            "--state-dir /var/lib/corral-agent --gpus nvml --runtime docker"
        )
    response = answers.page(request, "operate/join.html", {"command": command})
    if command:
        response["Cache-Control"] = "no-store"
    return response


def _cordon(request: SignedRequest, node_id: UUID, now: datetime) -> str:
    reason = request.POST.get("reason", "")
    nodes.cordon(actor=request.user, node_id=node_id, reason=reason, now=now)
    return _("Cordoned: nothing new is placed there. What runs goes on.")


def _uncordon(request: SignedRequest, node_id: UUID, now: datetime) -> str:
    nodes.uncordon(actor=request.user, node_id=node_id, now=now)
    return _("It takes new instances again.")


def _retire(request: SignedRequest, node_id: UUID, now: datetime) -> str:
    reason = request.POST.get("reason", "")
    nodes.retire(actor=request.user, node_id=node_id, now=now, reason=reason)
    return _("Retired: its credential is worth nothing any more.")


def _settle(request: SignedRequest, node_id: UUID, now: datetime) -> str:
    nodes.settle_conflict(actor=request.user, node_id=node_id, now=now)
    return _("Settled: the next machine to sign in with this identity is the node.")


_ACTS: dict[str, Callable[[SignedRequest, UUID, datetime], str]] = {
    "cordon": _cordon,
    "uncordon": _uncordon,
    "retire": _retire,
    "settle": _settle,
}


@operator_page
@require_POST
def change(request: SignedRequest, node_id: UUID, act: str) -> HttpResponseRedirect:
    """Cordon, uncordon, retire, or settle an identity conflict."""
    if act not in _ACTS:
        raise Http404
    try:
        sentence = _ACTS[act](request, node_id, datetime.now(UTC))
    except DomainError as refusal:
        if refusal.status == 404:
            raise
        return answers.refused(request, refusal, "node", node_id)
    return answers.done(request, sentence, "node", node_id)


@operator_page
@require_http_methods(["GET", "HEAD", "POST"])
def catalogue(request: SignedRequest) -> HttpResponse:
    """Show flavors, images and prices; a POST sets a price from a moment on."""
    now = datetime.now(UTC)
    flavors = Flavor.objects.all()
    form = PriceForm(request.POST or None, initial={"currency": settings.DEFAULT_CURRENCY})
    form.offer(skus=[(flavor.code, flavor.name) for flavor in flavors])
    refusal: DomainError | None = None
    if request.method == "POST" and form.is_valid():
        try:
            prices.set_price(user=request.user, now=now, **_price(form, now))
        except DomainError as error:
            refusal = error
        else:
            return answers.done(request, _("The price is set."), "catalogue")
    current: dict[str, list[Any]] = {}
    for price in prices.list_prices(at=now):
        current.setdefault(price.sku, []).append(price)
    return answers.page(
        request,
        "operate/catalogue.html",
        {
            "rows": [
                {"flavor": flavor, "prices": current.get(flavor.code, [])} for flavor in flavors
            ],
            "images": Image.objects.all(),
            "form": form,
            "refusal": refusal,
        },
        status=422 if request.method == "POST" else 200,
    )


def _price(form: PriceForm, now: datetime) -> dict[str, Any]:
    values = form.cleaned_data
    return {
        "sku": values["sku"],
        "currency": values["currency"],
        "per_hour": values["per_hour"],
        "from_at": values["from_at"] or now,
    }
