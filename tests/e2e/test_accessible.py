"""Everybody can use it: axe finds nothing wrong while a Corral works; the keyboard is enough."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stack import Corral

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from tests.e2e.people import MEADOW, Person

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
AXE = Path(__file__).resolve().parents[2] / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
# who looks -> at what; "{instance}" runs
PAGES = {
    "": ["/", "/account/login/", "/account/signup/"],
    "user@meadow.test": [
        f"{MEADOW}/",
        f"{MEADOW}/instances/",
        f"{MEADOW}/instances/new/",
        f"{MEADOW}/instances/{{instance}}/",
        f"{MEADOW}/instances/{{instance}}/logs/",
        f"{MEADOW}/instances/{{instance}}/bill/",
        "/profile/",
    ],
    "owner@meadow.test": [f"{MEADOW}/quotas/", f"{MEADOW}/members/", f"{MEADOW}/audit/"],
    "finance@meadow.test": [f"{MEADOW}/usage/?by=day"],
    "operator@corral.test": ["/operate/nodes/", "/operate/nodes/{node}/", "/styleguide/"],
}
Seat = Callable[..., Person]


@pytest.fixture(scope="module")
def at_work(corral: Corral) -> Iterator[dict[str, str]]:
    """Have something run, so that pages have something to show."""
    user, operator = corral.token("user@meadow.test"), _operator(corral)
    team = next(
        row["id"]
        for row in corral.api("GET", "teams", user)["results"]
        if row["name"] == "Research"
    )
    body = {"team": team, "name": "at-work", "flavor": "h100-2", "image": "demo"}
    instance = corral.api("POST", "instances", user, body)["id"]
    corral.wait(
        lambda: corral.api("GET", f"instances/{instance}", user)["state"] == "RUNNING",
        patience_s=90,
        what="the instance to run",
    )
    node = corral.api("GET", "nodes", operator)["results"][0]["id"]
    yield {"instance": instance, "node": node}
    corral.api("POST", f"instances/{instance}/terminate", user, {})


def test_axe_finds_nothing_wrong_on_pages_at_work_in_light_and_dark(
    at_work: dict[str, str], person: Seat
) -> None:
    if not AXE.exists():
        pytest.skip("axe-core was not fetched (npm install)")
    wrong = {}
    for email, paths in PAGES.items():
        someone = person(email)
        for scheme in ("light", "dark"):
            someone.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            for path in paths:
                someone.go(path.format(**at_work))
                if "{" in path:
                    someone.page.wait_for_selector(".log, #instance-bill, canvas")
                if found := _faults(someone):
                    wrong[f"{path} {scheme}"] = found

    assert wrong == {}


def test_dialogs_and_the_menu_of_a_phone_pass_axe_too(
    at_work: dict[str, str], person: Seat
) -> None:
    if not AXE.exists():
        pytest.skip("axe-core was not fetched (npm install)")
    user = person("user@meadow.test")
    user.go(f"{MEADOW}/instances/{at_work['instance']}/")

    user.press("Terminate")
    user.page.locator("dialog#terminate").wait_for()
    assert _faults(user) == []

    user.page.set_viewport_size({"width": 390, "height": 844})
    user.go(f"{MEADOW}/")
    user.press("Menu")
    user.page.locator("nav.side").wait_for()
    assert _faults(user) == []


def test_an_instance_is_launched_and_stopped_by_the_keyboard_alone(
    corral: Corral, person: Seat
) -> None:
    user = person("user@meadow.test")
    user.go(f"{MEADOW}/instances/new/")

    _tab_to(user, "input[name=image]:checked")
    _tab_to(user, "input[name=name]")
    user.page.keyboard.press("Control+A")
    user.page.keyboard.type("by-keyboard")
    _tab_to(user, "input[name=flavor]:checked")
    user.page.keyboard.press("ArrowDown")
    user.sees("2 × H100", inside="#launch-summary")
    _tab_to(user, "#launch-summary button[type=submit]")
    user.page.keyboard.press("Enter")

    user.page.wait_for_selector("#instance-state >> text=Running")
    assert user.reads("h1") == "by-keyboard"
    _tab_to(user, "#instance-acts button[commandfor=stop]")
    user.page.keyboard.press("Enter")
    _tab_to(user, "dialog#stop [type=submit]")
    user.page.keyboard.press("Enter")
    user.page.wait_for_selector("#instance-state >> text=Stopped")


def _tab_to(user: Person, selector: str) -> None:
    """Press Tab until this element has the focus, and that can be seen."""
    for _ in range(60):
        user.page.keyboard.press("Tab")
        if user.page.evaluate("s => document.activeElement.matches(s)", selector):
            break
    else:
        raise AssertionError(f"the Tab key never comes to {selector}")
    assert user.page.evaluate("document.activeElement.matches(':focus-visible')")


def _faults(someone: Person) -> list[str]:
    """Return what axe finds wrong by WCAG 2.2 AA, as rule and element."""
    someone.page.evaluate(AXE.read_text(encoding="utf-8"))
    found = someone.page.evaluate(
        "tags => axe.run(document, {runOnly: tags}).then(r => JSON.stringify(r.violations))", RULES
    )
    return [
        f"{rule['id']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for rule in json.loads(found)
        for node in rule["nodes"]
    ]


def _operator(corral: Corral) -> str:
    return corral.token("operator@corral.test", organization="corral-operations")
