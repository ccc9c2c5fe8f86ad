"""All components in all states on one page, for those who build and test pages."""

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.billing.costs import InstanceCost, Stretch
from portal.errors import DomainError
from portal.fleet.models import GpuState, Link
from portal.money import Money
from portal.web import answers, looks
from portal.web.forms import CordonForm, TokenForm
from portal.web.usage_table import Bar, Chart

_POINTS = 300
_GPUS = [SimpleNamespace(uuid=f"GPU-sample-{i}", index=i, model="H100 SXM 80GB") for i in range(8)]


def show(request: HttpRequest) -> HttpResponse:
    """Show the style guide; with `?series=1`, the made-up history of its charts."""
    if "series" in request.GET:
        return _series()
    now = datetime.now(UTC)
    form = TokenForm({"scopes": [], "days": "30"})
    form.offer(scopes=[("read", _("Read")), ("full", _("Full"))])
    return answers.page(
        request,
        "styleguide/index.html",
        {
            "words": _words(),
            "amounts": {
                "cost": Money(Decimal("1284.5071"), "USD"),
                "tiny": Money(Decimal("0.000123456789"), "USD"),
                "yen": Money(Decimal(123456), "JPY"),
                "none": None,
            },
            "times": {"ago": now - timedelta(minutes=192), "ahead": now + timedelta(hours=3)},
            "milliseconds": 11_525_000,
            "states": list(looks.STATES.items()),
            "links": list(Link),
            "gpu_states": list(GpuState),
            "tones": ["ok", "busy", "wait", "warn", "bad", "off"],
            "meters": _meters(),
            "gpus": [_gpu(gpu) for gpu in _GPUS],
            "uuids": " ".join(gpu.uuid for gpu in _GPUS),
            "first": _GPUS[0].uuid,
            "source": f"{reverse('styleguide')}?series=1",
            "form": form,
            "more": CordonForm(),
            "refusal": DomainError(
                "quota_exceeded",
                _("Your team's GPU limit is 4: this needs 2, 1 left."),
                help=_("Stop an instance, or ask the team's admin."),
            ),
            "page": Paginator(range(200), 50).get_page(2),
            "chart": _chart(now),
            "bill": _bill(now),
        },
    )


def _words() -> dict[str, str]:
    return {
        "act": _("Launch"),
        "cost": _("Cost so far"),
        "note": _("Proved up to 3 seconds ago"),
        "gpus": _("GPUs in use"),
        "nothing": _("Nothing yet"),
        "unknown": _("what can't be measured is --, never 0"),
        "sentence": _("The limit of this team is reached."),
        "help": _("Stop an instance, or ask the team's admin for more."),
    }


def _meters() -> list[dict[str, Any]]:
    rows = [(30, "10"), (85, "10"), (100, "10"), (0, None)]
    return [
        {
            "label": _("Team %(number)s") % {"number": number},
            "percent": percent,
            "limit": limit,
            "limit_text": limit,
            "used": f"{percent / 10:g}",
        }
        for number, (percent, limit) in enumerate(rows, 1)
    ]


def _chart(now: datetime) -> Chart:
    heights = [round(50 + 50 * math.sin(day / 3), 1) for day in range(30)]
    bars = tuple(Bar(day, 100 - high, high, f"{high} %") for day, high in enumerate(heights))
    last = now.date()
    return Chart(bars, last - timedelta(days=29), last, Money(Decimal("371.40"), "USD"))


def _bill(now: datetime) -> InstanceCost:
    price, hour = Money(Decimal("2.49"), "USD"), 3_600_000
    begun, lost = now - timedelta(hours=2), now - timedelta(hours=1)
    words = (_("It is ready to use."), _("Its machine does not answer."))
    stretches = (
        Stretch(1, begun, lost, hour, price, True, price, *words),
        Stretch(1, lost, now, hour, price, False, Money(Decimal(0), "USD"), words[1], words[1]),
    )
    return InstanceCost(price, hour, 0, hour, stretches)


def _gpu(gpu: SimpleNamespace) -> dict[str, Any]:
    state = GpuState.LOST if gpu.index == 7 else GpuState.OK
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "state": state,
        "held": 1000 if gpu.index % 2 else 0,
        "get_state_display": state.label,
    }


def _series() -> JsonResponse:
    end = int(datetime.now(UTC).timestamp()) * 1000
    at = [end - (_POINTS - i) * 3000 for i in range(_POINTS)]

    def wave(phase: int, low: float, high: float) -> list[float | None]:
        # With a gap, so that it can be seen to be one.
        return [
            None
            if 140 < i < 160
            else low + (high - low) * (0.5 + 0.5 * math.sin(i / (9 + phase) + phase))
            for i in range(_POINTS)
        ]

    return JsonResponse(
        {
            "seconds": 900,
            "at": at,
            "gpus": {
                gpu.uuid: {
                    "util": wave(gpu.index, 40, 98),
                    "mem": wave(gpu.index, 50, 70),
                    "power": wave(gpu.index, 300, 690),
                    "temp": wave(gpu.index, 50, 75),
                }
                for gpu in _GPUS
            },
        }
    )
