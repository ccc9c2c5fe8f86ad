"""Teams, members, invitations and settings, as people use them."""

import re
from typing import Any

import pytest
from django.core import mail
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from portal.tenants.models import ApiToken, Invitation, Member, Role, Team, TeamMember
from portal.tenants.scope import every_tenant
from tests import factories as make
from tests.web.place import Place


def post(place: Place, who: str, page: str, /, *args: Any, **values: Any):
    url = reverse(page, args=[place.slug, *args])
    return place.client(who).post(url, values, follow=True)


def in_team(place: Place, member: Member) -> TeamMember | None:
    with every_tenant("tests"):
        return TeamMember.objects.filter(team=place.team, member=member).first()


def test_an_admin_makes_a_team_and_fills_it(place: Place) -> None:
    assert post(place, "admin", "teams", name="Audio").status_code == 200
    with every_tenant("tests"):
        team = Team.objects.get(name="Audio")

    html = post(place, "admin", "team", team.id, act="add", member=place.member.id).content.decode()

    assert "Added to the team." in html
    assert str(place.member) in html


def test_a_name_that_is_taken_is_refused_beside_the_form_and_stays_typed(place: Place) -> None:
    response = post(place, "admin", "teams", name="vision")

    html = response.content.decode()
    assert response.status_code == 422
    assert "There is already a team with this name." in html
    assert 'value="vision"' in html


def test_making_somebody_admin_of_a_team_and_taking_it_back(place: Place) -> None:
    post(place, "owner", "team", place.team.id, act="appoint", member=place.member.id)
    assert in_team(place, place.member).is_admin  # type: ignore[union-attr]

    post(place, "owner", "team", place.team.id, act="dismiss", member=place.member.id)
    assert not in_team(place, place.member).is_admin  # type: ignore[union-attr]


def test_who_may_not_manage_a_team_sees_no_way_and_finds_none(place: Place) -> None:
    url = reverse("team", args=[place.slug, place.team.id])

    html = place.client("viewer").get(url).content.decode()
    answer = post(place, "viewer", "team", place.team.id, act="remove", member=place.member.id)

    assert 'value="appoint"' not in html
    assert answer.status_code == 403
    assert in_team(place, place.member) is not None


def test_anybody_may_leave_a_team(place: Place) -> None:
    answer = post(place, "member", "team", place.team.id, act="remove", member=place.member.id)

    assert "You have left the team." in answer.content.decode()
    assert in_team(place, place.member) is None


def test_a_team_of_others_is_not_found(place: Place) -> None:
    foreign = make.team(place.stranger.organization)

    assert post(place, "owner", "team", foreign.id, act="rename", name="x").status_code == 404


def test_an_owner_changes_a_role(place: Place) -> None:
    post(place, "owner", "member-change", place.member.id, role="FINANCE")

    place.member.refresh_from_db()
    assert place.member.role == Role.FINANCE


def test_the_last_owner_stays_and_is_told_why_in_his_row(place: Place) -> None:
    answer = post(place, "owner", "member-change", place.owner.id, role="VIEWER")

    html = answer.content.decode()
    assert answer.status_code == 409
    assert 'class="wrong-line"' in html
    assert "Make another member an owner first." in html
    place.owner.refresh_from_db()
    assert place.owner.role == Role.OWNER


def test_only_owners_are_offered_owners(place: Place) -> None:
    url = reverse("members", args=[place.slug])

    html = place.client("admin").get(url).content.decode()

    assert '<option value="OWNER"' not in html
    assert post(place, "admin", "member-change", place.owner.id, role="VIEWER").status_code == 403


def test_removing_a_member_ends_his_access_at_once(place: Place) -> None:
    client = place.client("member")
    home = reverse("dashboard", args=[place.slug])
    assert client.get(home).status_code == 200

    post(place, "admin", "member-change", place.member.id, act="remove")

    assert client.get(home).status_code == 404


@pytest.mark.parametrize("who", ["member", "viewer", "finance"])
def test_who_may_not_manage_members_only_looks(place: Place, who: str) -> None:
    html = place.client(who).get(reverse("members", args=[place.slug])).content.decode()

    assert "<select" not in html
    assert "new@example.com" not in html
    assert post(place, who, "members", email="x@example.com", role="MEMBER").status_code == 403
    assert post(place, who, "member-change", place.owner.id, act="remove").status_code == 403


def test_the_roles_are_explained_to_everybody(place: Place) -> None:
    html = place.client("viewer").get(reverse("members", args=[place.slug])).content.decode()

    table = html.split('class="table matrix"')[1].split("</table>")[0]
    rows = dict(re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', table, re.DOTALL))
    cells = re.findall(r"<td>(.*?)</td>", rows["Launch instances"], re.DOTALL)
    assert [re.sub("<[^>]*>", "", cell) for cell in cells] == ["all", "all", "–", "own teams", "–"]


def test_an_invitation_goes_out_by_mail_and_its_link_is_shown_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    monkeypatch.setattr("portal.tenants.invitations.secrets.token_urlsafe", lambda size: "t" * 43)
    client, url = place.client("owner"), reverse("members", args=[place.slug])

    with django_capture_on_commit_callbacks(execute=True):
        response = client.post(url, {"email": "ada@example.com", "role": "MEMBER"})
    shown, again = client.get(url), client.get(url)

    link = f"/invitations/{'t' * 43}/"
    assert response.status_code == 302
    assert link in shown.content.decode()
    assert shown["Cache-Control"] == "no-store"
    assert link not in again.content.decode()
    assert "ada@example.com" in again.content.decode()
    assert [letter.to for letter in mail.outbox] == [["ada@example.com"]]
    assert link in mail.outbox[0].body


def test_an_invitation_of_a_member_is_refused_beside_the_form(place: Place) -> None:
    response = post(place, "owner", "members", email=place.member.user.email, role="MEMBER")

    html = response.content.decode()
    assert response.status_code == 422
    assert "is already a member of this organization" in html
    assert f'value="{place.member.user.email}"' in html


def test_a_closed_invitation_opens_nothing(place: Place, client: Client) -> None:
    with every_tenant("tests"):
        invitation = Invitation.objects.get(email="new@example.com")

    post(place, "admin", "invitation-revoke", invitation.id)
    response = client.get(reverse("invitation", args=[place.invitation_secret]))

    assert response.status_code == 409
    assert "This invitation was closed." in response.content.decode()


def test_an_invitation_that_never_was_says_so(client: Client, db: None) -> None:
    response = client.get(reverse("invitation", args=["nothing"]))

    assert response.status_code == 404
    assert "There is no such invitation." in response.content.decode()


def test_the_invited_accepts_and_is_in(place: Place, client: Client) -> None:
    url = reverse("invitation", args=[place.invitation_secret])
    client.force_login(make.user("new@example.com"))

    assert "Accept" in client.get(url).content.decode()
    response = client.post(url, follow=True)

    assert response.redirect_chain[0][0] == reverse("dashboard", args=[place.slug])
    assert "Welcome to Meadow." in response.content.decode()
    assert client.post(url).status_code == 409


def test_another_person_can_not_accept_it(place: Place) -> None:
    url = reverse("invitation", args=[place.invitation_secret])
    client = place.client("stranger")

    assert "signed in with another address" in client.get(url).content.decode()
    response = client.post(url)

    assert response.status_code == 403
    assert client.get(reverse("dashboard", args=[place.slug])).status_code == 404


def test_signed_out_readers_are_led_to_sign_in_and_back(place: Place, client: Client) -> None:
    url = reverse("invitation", args=[place.invitation_secret])
    make.user("new@example.com")

    html = client.get(url).content.decode()
    assert f"{reverse('account_login')}?next={url}" in html
    assert f"{reverse('account_signup')}?next={url}" in html
    response = client.post(
        f"{reverse('account_login')}?next={url}",
        {"login": "new@example.com", "password": make.PASSWORD, "next": url},
    )

    assert response["Location"] == url


def test_who_signs_up_by_an_invitation_comes_back_to_it(place: Place, client: Client) -> None:
    cache.clear()  # of the limits on how many may sign up in a minute
    url = reverse("invitation", args=[place.invitation_secret])

    client.post(
        f"{reverse('account_signup')}?next={url}",
        {"email": "new@example.com", "password1": make.PASSWORD, "next": url},
    )
    link = re.search(r"/account/confirm-email/\S+", mail.outbox[-1].body)
    assert link
    response = client.post(link[0], follow=True)

    assert response.redirect_chain[-1][0] == url
    assert "Accept" in response.content.decode()


def test_the_settings_say_what_is_fixed_and_why(place: Place) -> None:
    html = place.client("viewer").get(reverse("organization", args=[place.slug])).content.decode()

    assert "US Dollar" in html
    assert "rate of exchange" in html
    assert 'name="name"' not in html
    assert post(place, "viewer", "organization", name="Mine").status_code == 403


def test_an_owner_renames_the_organization_and_its_address_stays(place: Place) -> None:
    answer = post(place, "owner", "organization", name="Meadow Two")

    assert "Meadow Two" in answer.content.decode()
    place.organization.refresh_from_db()
    assert (place.organization.name, place.organization.slug) == ("Meadow Two", place.slug)


def test_a_member_leaves_and_the_last_owner_can_not(place: Place) -> None:
    client = place.client("member")

    client.post(reverse("members-leave", args=[place.slug]))
    kept = post(place, "owner", "members-leave")

    assert client.get(reverse("dashboard", args=[place.slug])).status_code == 404
    assert "this is the last one" in kept.content.decode()


def test_a_token_is_shown_once_and_works_until_it_is_revoked(place: Place) -> None:
    client, url = place.client("member"), reverse("tokens", args=[place.slug])

    made = client.post(url, {"name": "ci", "scopes": ["read", "instances"], "days": "30"})
    first, second = client.get(url), client.get(url)

    secret = re.search(r'data-copy="(corral_[^"]+)"', first.content.decode())
    assert made.status_code == 302
    assert secret
    assert first["Cache-Control"] == "no-store"
    assert secret[1] not in second.content.decode()
    with every_tenant("tests"):
        token = ApiToken.objects.get(name="ci")
    assert token.scopes == ["read", "instances"]
    assert token.expires_at is not None
    api = {"Authorization": f"Bearer {secret[1]}"}
    assert Client().get("/api/v1/instances", headers=api).status_code == 200
    client.post(reverse("token-revoke", args=[place.slug, token.id]))
    assert Client().get("/api/v1/instances", headers=api).status_code == 401
    assert "ci" not in client.get(url).content.decode().split("New token")[0].split("<table")[-1]
    assert "Revoked" in client.get(url, {"all": "1"}).content.decode()


def test_a_token_without_scopes_is_refused_and_its_name_stays(place: Place) -> None:
    response = post(place, "member", "tokens", name="ci")

    assert response.status_code == 422
    assert 'value="ci"' in response.content.decode()


def test_only_operators_are_offered_the_operator_s_scope(place: Place) -> None:
    answer = post(place, "owner", "tokens", name="x", scopes=["operator"], days="7")

    assert 'value="operator"' not in answer.content.decode()
    assert answer.status_code == 422


def test_a_member_neither_sees_nor_revokes_the_tokens_of_others(place: Place) -> None:
    post(place, "owner", "tokens", name="of-the-owner", scopes=["full"], days="7")
    with every_tenant("tests"):
        token = ApiToken.objects.get(name="of-the-owner")

    html = place.client("member").get(reverse("tokens", args=[place.slug])).content.decode()

    assert "of-the-owner" not in html
    assert post(place, "member", "token-revoke", token.id).status_code == 404
    token.refresh_from_db()
    assert token.revoked_at is None
