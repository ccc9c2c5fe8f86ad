"""What charts may show: whole GPUs, in their own units, for the time that an instance held them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.urls import reverse

from portal.fleet.models import Gpu
from portal.instances.models import Instance
from portal.tenants.scope import every_tenant, scope
from portal.web import charts, operate
from scheduler.models import Lease, Request
from tests import factories as make
from tests.web.place import Place

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Note what is asked of the samples, and answer with two seconds."""
    calls: list[dict[str, Any]] = []

    def series(**given: Any) -> dict[str, Any]:
        calls.append(given)
        column = {"mean": [2.0**31, None]}
        return {
            "at": [1000, 2000],
            "gpus": {
                key: {"mem_used": column, "util": {"mean": [50.0, 0.0]}} for key in given["gpu_ids"]
            },
        }

    monkeypatch.setattr(charts.samples, "series", series)
    return calls


def hold(place: Place, since: datetime, units: tuple[int, int] = (0, 1000)) -> Instance:
    """Give the instance the first GPU of the node."""
    gpu = Gpu.objects.filter(node=place.node).order_by("index").first()
    with scope(organization=place.organization):
        instance = Instance.objects.select_related("request", "flavor").get(id=place.instance.id)
        assert instance.request is not None
        Request.objects.filter(id=instance.request_id).update(
            standing="PLACED", placed_at=since, node=place.node
        )
        Lease.objects.create(
            organization=place.organization,
            request=instance.request,
            gpu=gpu,
            units=[units],
            during=(since, None),
        )
        instance.request.refresh_from_db()
    return instance


def test_history_begins_when_the_instance_got_its_gpus(
    place: Place, asked: list[dict[str, Any]]
) -> None:
    instance = hold(place, NOW - timedelta(minutes=3))

    with scope(organization=place.organization):
        charts.of_instance(instance, now=NOW)

    assert asked[0]["start"] == NOW - timedelta(minutes=3)
    assert asked[0]["end"] == NOW


def test_history_ends_when_the_instance_gave_them_back(
    place: Place, asked: list[dict[str, Any]]
) -> None:
    instance = hold(place, NOW - timedelta(hours=2))
    assert instance.request is not None
    instance.request.ended_at = NOW - timedelta(hours=1)

    with scope(organization=place.organization):
        charts.of_instance(instance, now=NOW)

    assert asked[0]["end"] == NOW - timedelta(hours=1)
    assert asked[0]["start"] == NOW - timedelta(hours=1) - charts.WINDOW


def test_null_stays_null_and_zero_stays_zero(place: Place, asked: list[dict[str, Any]]) -> None:
    instance = hold(place, NOW - timedelta(minutes=3))

    with scope(organization=place.organization):
        history = charts.of_instance(instance, now=NOW)

    (gpu,) = history["gpus"].values()
    assert gpu["mem"] == [2.0, None]
    assert gpu["util"] == [50.0, 0.0]
    assert gpu["power"] == []


def test_a_share_of_a_gpu_has_no_charts(place: Place, asked: list[dict[str, Any]]) -> None:
    instance = hold(place, NOW - timedelta(minutes=3), units=(0, 250))
    instance.flavor.units_per_gpu = 250

    with scope(organization=place.organization):
        history = charts.of_instance(instance, now=NOW)

    assert history["gpus"] == {}
    assert asked == []


def test_an_operator_sees_how_much_is_held_and_not_by_whom(place: Place) -> None:
    hold(place, datetime.now(UTC) - timedelta(minutes=3), units=(0, 250))

    html = place.client("operator").get(reverse("nodes")).content.decode()

    assert '0.25 <span class="soft">/ 8</span>' in html
    assert "first-run" not in html
    assert place.organization.name not in html


def test_held_units_add_up_over_leases(place: Place) -> None:
    hold(place, datetime.now(UTC) - timedelta(minutes=3), units=(0, 250))
    gpu = Gpu.objects.filter(node=place.node).order_by("index").first()
    with every_tenant("a second lease of the same GPU"):
        request = Request.objects.get(subject=place.instance.id)
        Lease.objects.create(
            organization=place.organization,
            request=request,
            gpu=gpu,
            units=[(250, 400), (600, 700)],
            during=(datetime.now(UTC) - timedelta(minutes=1), None),
        )

    held = operate._held(make.Node.objects.filter(pk=place.node.pk))

    assert held == {gpu.id: 500}
