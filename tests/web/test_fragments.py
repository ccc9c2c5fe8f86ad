"""What a live page fetches anew is a part of the same page, and acts work without scripts."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.urls import reverse

from portal.instances.models import Instance, State
from portal.tenants.scope import scope
from tests.web.place import Place

PARTS = [
    ("dashboard", False, "dashboard-body"),
    ("instances", False, "instance-rows"),
    ("instance", True, "instance-acts"),
    ("instance", True, "instance-state"),
    ("instance", True, "instance-cost"),
    ("instance", True, "instance-figures"),
    ("instance-events", True, "instance-story"),
    ("instance-bill", True, "instance-bill"),
    ("instance-logs", True, "instance-log"),
]


def still(html: str) -> str:
    """Leave out what differs from one second to the next, and one form to the next."""
    html = re.sub(r"<time[^>]*>[^<]*</time>", "<time>", html)
    html = re.sub(r'(csrfmiddlewaretoken" value=")[^"]*', r"\1", html)
    return re.sub(r"\s+", " ", html).strip()


@pytest.mark.parametrize(("name", "of_instance", "part"), PARTS)
def test_a_fragment_equals_the_same_part_of_the_page(
    place: Place, name: str, of_instance: bool, part: str
) -> None:
    client = place.client("member")
    url = reverse(name, args=[place.slug, *([place.instance.id] if of_instance else [])])

    page = still(client.get(url).content.decode())
    fragment = still(
        client.get(url, headers={"HX-Request": "true", "HX-Target": part}).content.decode()
    )

    assert f'id="{part}"' in fragment
    assert "<html" not in fragment
    assert fragment in page


@pytest.mark.parametrize("part", ["node-state", "node-gpus", "node-events"])
def test_a_fragment_of_a_node_equals_its_part_of_the_page(place: Place, part: str) -> None:
    client = place.client("operator")
    url = reverse("node", args=[place.node.id])

    page = still(client.get(url).content.decode())
    fragment = still(
        client.get(url, headers={"HX-Request": "true", "HX-Target": part}).content.decode()
    )

    assert fragment in page


def test_a_target_that_is_no_part_gets_the_page(place: Place) -> None:
    url = reverse("instances", args=[place.slug])

    response = place.client("member").get(
        url, headers={"HX-Request": "true", "HX-Target": "../../etc/passwd"}
    )

    assert "<html" in response.content.decode()
    assert "HX-Target" in response["Vary"]


def test_a_fragment_asked_for_after_signing_out_reloads_the_page(place: Place, client: Any) -> None:
    url = reverse("instances", args=[place.slug])

    response = client.get(url, headers={"HX-Request": "true", "HX-Target": "instance-rows"})

    assert response["HX-Refresh"] == "true"
    assert response.content == b""


def state_of(place: Place) -> Any:
    with scope(organization=place.organization):
        return Instance.objects.get(id=place.instance.id).state


def test_an_instance_on_a_silent_machine_says_so_and_what_it_costs(place: Place) -> None:
    from portal.fleet.models import Link, Node

    Node.objects.filter(id=place.node.id).update(link=Link.OFFLINE)
    with scope(organization=place.organization):
        Instance.objects.filter(id=place.instance.id).update(state="RUNNING", node=place.node)

    url = reverse("instance", args=[place.slug, place.instance.id])
    html = place.client("member").get(url).content.decode()

    assert "Its machine does not answer." in html
    assert "Nothing is billed unless the machine proves later" in html


def test_stop_is_a_form_that_comes_back_to_the_instance(place: Place) -> None:
    url = reverse("instance-stop", args=[place.slug, place.instance.id])

    response = place.client("member").post(url)

    assert response["Location"] == reverse("instance", args=[place.slug, place.instance.id])
    assert state_of(place) == State.STOPPED


def test_a_second_stop_changes_nothing(place: Place) -> None:
    client = place.client("member")
    url = reverse("instance-stop", args=[place.slug, place.instance.id])

    client.post(url)
    response = client.post(url)

    assert response.status_code == 302
    assert state_of(place) == State.STOPPED


def test_a_start_that_is_refused_says_why_on_the_page_of_the_instance(place: Place) -> None:
    url = reverse("instance-start", args=[place.slug, place.instance.id])

    html = place.client("member").post(url, follow=True).content.decode()

    assert "started already" in html


def test_a_viewer_sees_an_instance_and_cannot_stop_it(place: Place) -> None:
    client = place.client("viewer")

    html = client.get(reverse("instance", args=[place.slug, place.instance.id])).content.decode()
    response = client.post(reverse("instance-stop", args=[place.slug, place.instance.id]))

    assert 'id="stop"' not in html
    assert response.status_code == 403
    assert state_of(place) == State.QUEUED


def test_an_instance_is_not_stopped_by_a_link(place: Place) -> None:
    url = reverse("instance-stop", args=[place.slug, place.instance.id])

    assert place.client("member").get(url).status_code == 405
    assert state_of(place) == State.QUEUED


def test_a_stop_time_is_set_and_taken_away(place: Place) -> None:
    client = place.client("member")
    url = reverse("instance-stop-at", args=[place.slug, place.instance.id])

    client.post(url, {"hours": "4"})
    with scope(organization=place.organization):
        until = Instance.objects.get(id=place.instance.id).stop_at
    client.post(url, {"hours": ""})

    assert until is not None
    assert 3.9 < (until - datetime.now(UTC)).total_seconds() / 3600 < 4.1
    with scope(organization=place.organization):
        assert Instance.objects.get(id=place.instance.id).stop_at is None


def test_the_history_of_an_instance_without_gpus_is_empty(place: Place) -> None:
    url = reverse("instance-series", args=[place.slug, place.instance.id])

    assert place.client("member").get(url).json() == {"seconds": 900, "at": [], "gpus": {}}


def test_an_operator_cordons_with_a_reason_and_uncordons(place: Place) -> None:
    client = place.client("operator")
    cordon = reverse("node-change", args=[place.node.id, "cordon"])

    refused = client.post(cordon, {"reason": " "}, follow=True).content.decode()
    done = client.post(cordon, {"reason": "New fans"}, follow=True).content.decode()
    client.post(reverse("node-change", args=[place.node.id, "uncordon"]))

    place.node.refresh_from_db()
    assert "Say why the node is cordoned." in refused
    assert "Nothing new is placed here: New fans" in done
    assert place.node.cordoned_at is None


def test_a_join_command_is_shown_once_and_never_kept(place: Place) -> None:
    client = place.client("operator")

    made = client.post(reverse("nodes-join"), {"pool": "a100"})

    assert "corral-agent --portal" in made.content.decode()
    assert made["Cache-Control"] == "no-store"
    assert "--join" not in client.get(reverse("nodes-join")).content.decode()
