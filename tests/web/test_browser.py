"""In a real browser: WCAG by axe in light and dark, nothing that the policy refuses, live pages."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from tests.web.place import Place

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# What is shown -> who looks at it
SEEN = {
    "home": "",
    "account_login": "",
    "account_signup": "",
    "styleguide": "operator",
    "dashboard": "member",
    "instances": "member",
    "launch": "member",
    "instance": "member",
    "instance-events": "member",
    "instance-bill": "member",
    "usage": "finance",
    "quotas": "owner",
    "prices": "member",
    "teams": "owner",
    "team": "owner",
    "members": "owner",
    "tokens": "owner",
    "audit": "owner",
    "organization": "owner",
    "nodes": "operator",
    "node": "operator",
    "catalogue": "operator",
    "profile": "member",
}


@pytest.fixture
def built(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The same small organization, committed, so that a server of its own can see it."""
    from tests.web.place import build

    return build(monkeypatch)


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # Playwright's own loop runs in this thread, and the tests still talk to the database in it.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    if not (ROOT / "static" / "vendor" / "tabler.css").exists():
        pytest.skip("the front-end files were not fetched")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


def address(place: Place, name: str) -> str:
    given: dict[str, list[Any]] = {
        "instance": [place.slug, place.instance.id],
        "instance-events": [place.slug, place.instance.id],
        "instance-bill": [place.slug, place.instance.id],
        "team": [place.slug, place.team.id],
        "node": [place.node.id],
    }
    if name in given:
        return reverse(name, args=given[name])
    try:
        return reverse(name)
    except Exception:  # noqa: BLE001 - those that need an organization
        return reverse(name, args=[place.slug])


def open_as(browser: Any, place: Place, url: str, who: str, **options: Any) -> Any:
    """Return a page of a browser in which this person is signed in; its complaints are kept."""
    context = browser.new_context(**options)
    if who:
        cookie = place.client(who).cookies["sessionid"].value
        context.add_cookies([{"name": "sessionid", "value": cookie, "url": url}])
    page = context.new_page()
    page.complaints = []
    page.on(
        "console",
        lambda message: message.type == "error" and page.complaints.append(message.text),
    )
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    return page


def faults(page: Any) -> list[str]:
    """Return what axe finds wrong by WCAG 2.2 AA, as rule and element."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    found = page.evaluate(
        "tags => axe.run(document, {runOnly: tags}).then(r => JSON.stringify(r.violations))", tags
    )
    return [
        f"{rule['id']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for rule in json.loads(found)
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_passes_axe_and_obeys_the_policy(
    built: Place, web: Any, browser: Any, scheme: str
) -> None:
    if not AXE.exists():
        pytest.skip("axe-core was not fetched")
    wrong: dict[str, list[str]] = {}
    pages: dict[str, Any] = {}
    for name, who in SEEN.items():
        page = pages.get(who) or open_as(browser, built, web.url, who, color_scheme=scheme)
        pages[who] = page
        page.goto(f"{web.url}{address(built, name)}")
        page.wait_for_timeout(150)
        if found := faults(page) + page.complaints:
            wrong[name] = found
        page.complaints.clear()

    assert wrong == {}


def test_no_page_is_wider_than_a_phone(built: Place, web: Any, browser: Any) -> None:
    wide = {}
    pages: dict[str, Any] = {}
    for name, who in SEEN.items():
        page = pages.get(who) or open_as(
            browser, built, web.url, who, viewport={"width": 390, "height": 844}
        )
        pages[who] = page
        page.goto(f"{web.url}{address(built, name)}")
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            wide[name] = width

    assert wide == {}


def test_an_instance_that_is_stopped_elsewhere_changes_without_a_reload(
    built: Place, web: Any, browser: Any
) -> None:
    page = open_as(browser, built, web.url, "member")
    page.goto(f"{web.url}{address(built, 'instance')}")
    page.wait_for_selector("#instance-state >> text=Queued")
    page.evaluate("window.isTheSamePage = true")
    page.wait_for_timeout(1000)  # the socket is open

    built.client("owner").post(reverse("instance-stop", args=[built.slug, built.instance.id]))

    page.wait_for_selector("#instance-state >> text=Stopped", timeout=10_000)
    assert page.evaluate("window.isTheSamePage")
    assert page.locator("#instance-acts button:has-text('Start')").is_enabled()
    assert "Stopped" in page.locator("#announcer").inner_text()


def test_a_dialog_stops_an_instance_and_a_toast_says_so(
    built: Place, web: Any, browser: Any
) -> None:
    page = open_as(browser, built, web.url, "member")
    page.goto(f"{web.url}{address(built, 'instance')}")

    page.click("#instance-acts button:has-text('Stop')")
    page.click("dialog#stop [type=submit]")

    page.wait_for_selector(".toast-note >> text=Stopping")
    page.wait_for_selector("#instance-state >> text=Stopped")


def test_the_launch_page_shows_the_price_of_what_is_chosen(
    built: Place, web: Any, browser: Any
) -> None:
    from tests import factories as make

    make.flavor(code="tiny", name="Tiny", per_hour="0.125")
    page = open_as(browser, built, web.url, "member")
    page.goto(f"{web.url}{address(built, 'launch')}")

    page.check("input[value=tiny]")

    page.wait_for_selector("#launch-summary >> text=$0.125")


def test_a_portal_that_goes_away_is_said_and_forgotten_when_it_is_back(
    built: Place, web: Any, browser: Any
) -> None:
    page = open_as(browser, built, web.url, "member")
    page.goto(f"{web.url}{address(built, 'instances')}")
    page.wait_for_timeout(1000)

    web.process.terminate()

    page.wait_for_selector("#connection >> text=Reconnecting", timeout=15_000)
