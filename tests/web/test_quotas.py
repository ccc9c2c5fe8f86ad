"""Quotas: what is used of them, and who may set which."""

import pytest
from django.urls import reverse

from portal.tenants import access
from portal.tenants.scope import scope
from scheduler import quotas
from tests import factories as make
from tests.web.place import Place


def limit(place: Place, key: str) -> int | None:
    with scope(organization=place.organization):
        for line in quotas.standing(organization=place.organization):
            found = line.team or line.member
            if key == (f"{line.level}:{found.id}" if found else "organization"):
                return line.limit
    raise AssertionError(key)


def setting(place: Place, who: str, key: str, gpus: str):
    url = reverse("quotas", args=[place.slug])
    return place.client(who).post(url, {"key": key, "gpus": gpus}, follow=True)


@pytest.mark.parametrize(
    ("typed", "stored"), [("4", 4000), ("0.25", 250), ("2,5", 2500), ("0", 0), ("", None)]
)
def test_an_admin_sets_limits_in_gpus(place: Place, typed: str, stored: int | None) -> None:
    key = f"team:{place.team.id}"
    setting(place, "admin", key, "9")

    response = setting(place, "admin", key, typed)

    assert response.status_code == 200
    assert limit(place, key) == stored


@pytest.mark.parametrize("typed", ["four", "0.0001", "-1", "1e9", "NaN", "9" * 40])
def test_a_limit_that_makes_no_sense_is_refused_beside_it_and_stays_typed(
    place: Place, typed: str
) -> None:
    key = f"team:{place.team.id}"
    setting(place, "admin", key, "9")

    response = setting(place, "admin", key, typed)

    html = response.content.decode()
    assert response.status_code == 400
    assert 'id="quota-wrong"' in html
    assert f'value="{typed[:20]}"' in html
    assert limit(place, key) == 9000


def test_the_admin_of_a_team_sets_that_team_s_limit_and_no_other(place: Place) -> None:
    other = make.team(place.organization)
    place.leader = make.member(place.organization, admin_of=(place.team,))  # type: ignore[attr-defined]

    assert setting(place, "leader", f"team:{place.team.id}", "2").status_code == 200
    assert setting(place, "leader", f"team:{other.id}", "2").status_code == 403
    assert setting(place, "leader", "organization", "2").status_code == 403
    assert setting(place, "leader", f"member:{place.member.id}", "2").status_code == 403
    assert limit(place, f"team:{place.team.id}") == 2000
    assert limit(place, f"team:{other.id}") is None


@pytest.mark.parametrize("who", ["member", "viewer", "finance"])
def test_who_may_only_look_has_no_form_and_no_way(place: Place, who: str) -> None:
    html = place.client(who).get(reverse("quotas", args=[place.slug])).content.decode()

    assert 'name="gpus"' not in html
    assert setting(place, who, "organization", "2").status_code == 403
    assert limit(place, "organization") is None


def test_a_team_of_another_organization_is_as_missing_as_none(place: Place) -> None:
    foreign = make.team(place.stranger.organization)

    assert setting(place, "owner", f"team:{foreign.id}", "2").status_code == 404


def test_the_bar_is_red_at_the_limit_and_yellow_from_80_percent(place: Place) -> None:
    setting(place, "owner", "organization", "1")  # one GPU is asked for by the place's instance
    setting(place, "owner", f"team:{place.team.id}", "1.25")

    html = place.client("owner").get(reverse("quotas", args=[place.slug])).content.decode()

    whole = html.split('id="quota-organization"')[1].split("</tr>")[0]
    team = html.split(f'id="quota-team{place.team.id}"')[1].split("</tr>")[0]
    assert "tone-bad" in whole
    assert "1 of 1 used" in whole
    assert "(at the limit)" in whole
    assert "tone-warn" in team
    assert "1 of 1.25 used" in team


def test_a_limit_that_was_set_binds_at_once(place: Place) -> None:
    setting(place, "owner", "organization", "1")
    with scope(organization=place.organization):
        actor = access.actor_for(user=place.member.user, slug=place.slug)
        refusal = quotas.preview(
            organization_id=place.organization.id,
            team_id=place.team.id,
            member_id=actor.member.id,
            milli_gpus=1000,
        )

    assert refusal is not None
    assert refusal.details["level"] == "organization"
