"""Every page, as each role: it opens or says no, has one heading, and nothing inline."""

import re
from html.parser import HTMLParser

import pytest
from django.urls import reverse

from tests.web.place import Place

# name of the page -> who it opens for, of owner, admin, finance, member and viewer
EVERYBODY = {"owner", "admin", "finance", "member", "viewer"}
WORKERS = EVERYBODY - {"finance"}
PAGES = {
    "dashboard": EVERYBODY,
    "instances": WORKERS,
    "launch": {"owner", "admin", "member"},
    "launch-preview": {"owner", "admin", "member"},
    "usage": EVERYBODY,
    "quotas": EVERYBODY,
    "prices": EVERYBODY,
    "teams": EVERYBODY,
    "members": EVERYBODY,
    "tokens": EVERYBODY,
    "audit": {"owner", "admin"},
    "organization": EVERYBODY,
}
OF_AN_INSTANCE = ["instance", "instance-logs", "instance-events", "instance-bill"]


class Outline(HTMLParser):
    """Counts headings and notes what a strict policy would refuse."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings = 0
        self.inline: list[str] = []
        self.ids: list[str] = []
        self.labels: set[str] = set()
        self.unnamed: list[str] = []
        self._in_label = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.headings += tag == "h1"
        if tag == "script" and "src" not in values:
            self.inline.append(f"<script> {values}")
        if tag == "style" or "style" in values:
            self.inline.append(f"<{tag}> style")
        self.inline += [f"<{tag} {name}>" for name in values if name.startswith("on")]
        if values.get("id"):
            self.ids.append(str(values["id"]))
        if tag == "label":
            self._in_label += 1
            self.labels.add(str(values.get("for")))

    def handle_endtag(self, tag: str) -> None:
        if tag == "label":
            self._in_label -= 1


def check(html: str) -> None:
    outline = Outline(html)
    assert outline.headings == 1
    assert outline.inline == []
    assert len(outline.ids) == len(set(outline.ids)), "an id stands twice"
    assert "{%" not in html
    assert "{{" not in html
    assert re.search(r"<title>\s*\S", html)


@pytest.mark.parametrize("who", sorted(EVERYBODY))
@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_for_the_roles_that_may_and_for_no_other(
    place: Place, who: str, name: str
) -> None:
    response = place.client(who).get(reverse(name, args=[place.slug]))

    assert response.status_code == (200 if who in PAGES[name] else 403)
    if name != "launch-preview":
        check(response.content.decode())


@pytest.mark.parametrize("name", OF_AN_INSTANCE)
def test_an_instance_opens_on_every_tab(place: Place, name: str) -> None:
    url = reverse(name, args=[place.slug, place.instance.id])

    for who in WORKERS:
        if who != "finance":
            response = place.client(who).get(url)
            assert response.status_code == 200
            check(response.content.decode())
            assert "first-run" in response.content.decode()


@pytest.mark.parametrize("name", ["nodes", "nodes-join", "catalogue", "profile", "styleguide"])
def test_the_operators_pages_open_for_operators(place: Place, name: str) -> None:
    response = place.client("operator").get(reverse(name))

    assert response.status_code == 200
    check(response.content.decode())


def test_a_node_shows_its_link_and_gpus(place: Place) -> None:
    html = place.client("operator").get(reverse("node", args=[place.node.id])).content.decode()

    check(html)
    assert "Online" in html
    assert html.count("data-gpu=") == 8


@pytest.mark.parametrize(
    "name", ["home", "account_login", "account_signup", "account_reset_password"]
)
def test_the_pages_for_strangers_open_signed_out(place: Place, client, name: str) -> None:
    response = client.get(reverse(name))

    assert response.status_code == 200
    check(response.content.decode())


def test_an_invitation_opens_for_its_reader_and_lets_him_in_once_signed_in(
    place: Place, client
) -> None:
    url = reverse("invitation", args=[place.invitation_secret])

    html = client.get(url).content.decode()

    check(html)
    assert "Join Meadow" in html


def test_a_page_that_never_was_says_so_in_the_frame(place: Place) -> None:
    response = place.client("member").get("/nowhere/")

    assert response.status_code == 404
    check(response.content.decode())


def test_every_answer_forbids_inline_script_and_style(client, db: None) -> None:
    policy = client.get("/")["Content-Security-Policy"]

    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert "unsafe" not in policy


def test_pages_speak_the_language_of_the_account(place: Place) -> None:
    place.member.user.language = "zh-hans"
    place.member.user.save()

    html = place.client("member").get(reverse("prices", args=[place.slug])).content.decode()

    assert '<html lang="zh-Hans"' in html


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example/", "//evil.example", "/\\evil.example", "9999-12-31", "1"]
)
def test_the_theme_and_language_are_remembered_and_never_lead_elsewhere(
    place: Place, elsewhere: str
) -> None:
    client = place.client("member")

    response = client.post(reverse("appearance"), {"theme": "dark", "next": elsewhere})

    assert response["Location"] == "/"
    place.member.user.refresh_from_db()
    assert place.member.user.theme == "dark"
    assert 'data-bs-theme="dark"' in client.get("/profile/").content.decode()


def test_a_nul_character_is_refused_wherever_it_is_typed(place: Place) -> None:
    client = place.client("owner")
    team = reverse("team", args=[place.slug, place.team.id])

    answers = [
        client.get(reverse("usage", args=[place.slug]), {"flavor": "a\0"}),
        client.get(reverse("usage-csv", args=[place.slug]), {"flavor": "a\0"}),
        client.post(team, {"act": "rename", "name": "a\0"}),
    ]

    assert [answer.status_code for answer in answers] == [400, 400, 400]
    assert "The request makes no sense." in answers[0].content.decode()
