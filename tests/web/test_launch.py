"""The launch page: the price before the button, refusals in words, and nothing typed is lost."""

from datetime import UTC, datetime
from typing import Any

from django.urls import reverse

from portal.instances.models import Instance
from portal.tenants import access
from portal.tenants.scope import scope
from scheduler import quotas
from tests.web.place import Place


def typed(place: Place, **changes: Any) -> dict[str, Any]:
    return {
        "name": "second-run",
        "team_id": str(place.team.id),
        "image": place.image.code,
        "flavor": place.flavor.code,
        "command": "python train.py --lr 3e-4",
        "env": "SEED=7",
        "priority": "5",
        "stop_after": "4",
        **changes,
    }


def limit(place: Place, milli_gpus: int) -> None:
    with scope(organization=place.organization):
        quotas.set_limit(
            actor=access.actor_for(user=place.owner.user, slug=place.slug),
            milli_gpus=milli_gpus,
            now=datetime.now(UTC),
        )


def names(place: Place) -> set[str]:
    with scope(organization=place.organization):
        return set(Instance.objects.values_list("name", flat=True))


def test_the_page_shows_the_price_per_hour_per_day_and_while_stopped(place: Place) -> None:
    html = place.client("member").get(reverse("launch", args=[place.slug])).content.decode()

    assert "$2.49" in html
    assert "$59.76" in html
    assert "While stopped" in html
    assert "free now" in html


def test_a_launch_takes_what_was_typed_and_shows_the_instance(place: Place) -> None:
    client = place.client("member")

    response = client.post(reverse("launch", args=[place.slug]), typed(place))

    assert response.status_code == 302
    with scope(organization=place.organization):
        made = Instance.objects.get(name="second-run")
    assert response["Location"] == reverse("instance", args=[place.slug, made.id])
    assert made.command == ["python", "train.py", "--lr", "3e-4"]
    assert made.env == {"SEED": "7"}
    assert made.priority == 5
    assert made.stop_at is not None


def test_a_refusal_keeps_every_field_and_says_what_to_do(place: Place) -> None:
    limit(place, 1000)

    response = place.client("member").post(reverse("launch", args=[place.slug]), typed(place))

    html = response.content.decode()
    assert response.status_code == 422
    assert "this needs 1, 0 left" in html
    assert 'value="second-run"' in html
    assert "python train.py --lr 3e-4" in html
    assert "SEED=7" in html
    assert '<option value="4" selected' in html
    assert names(place) == {"first-run"}


def test_the_refusal_stands_on_the_page_before_anything_is_sent(place: Place) -> None:
    limit(place, 1000)

    html = place.client("member").get(reverse("launch", args=[place.slug])).content.decode()

    assert "this needs 1, 0 left" in html


def test_a_name_that_is_taken_is_refused_beside_its_field(place: Place) -> None:
    response = place.client("member").post(
        reverse("launch", args=[place.slug]), typed(place, name="first-run")
    )

    assert response.status_code == 422
    assert 'id="id_name_error"' in response.content.decode()


def test_a_command_without_its_closing_quote_is_refused(place: Place) -> None:
    response = place.client("member").post(
        reverse("launch", args=[place.slug]), typed(place, command="echo 'oops")
    )

    assert response.status_code == 422
    assert "A quotation mark is missing." in response.content.decode()
    assert names(place) == {"first-run"}


def test_the_summary_follows_the_choice(place: Place) -> None:
    from tests import factories as make

    other = make.flavor(per_hour="0.123456789012", name="Tiny")
    url = reverse("launch-preview", args=[place.slug])

    html = place.client("member").get(url, typed(place, flavor=other.code)).content.decode()

    assert "$0.123456789012" in html
    assert 'id="launch-summary"' in html


def test_a_team_of_others_cannot_be_launched_for(place: Place) -> None:
    from tests import factories as make

    other = make.team(place.organization, "Others")

    response = place.client("member").post(
        reverse("launch", args=[place.slug]), typed(place, team_id=str(other.id))
    )

    assert response.status_code == 422
    assert names(place) == {"first-run"}


def test_a_link_may_choose_the_size_beforehand(place: Place) -> None:
    from tests import factories as make

    other = make.flavor(name="Other")
    url = reverse("launch", args=[place.slug])

    html = place.client("member").get(url, {"flavor": other.code}).content.decode()

    assert f'value="{other.code}" required checked' in html
