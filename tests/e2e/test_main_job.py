"""The main job as people do it: set a limit, launch, watch, stop, read the bill, export it."""

import csv
import io
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from tests.stack import Corral

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import Locator

from tests.e2e.people import BROKEN_LINE, MEADOW, PHONE, Person

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
H100_PER_HOUR = Decimal("2.49")
TWELVE = Decimal("1e-12")
Seat = Callable[..., Person]


@dataclass(frozen=True)
class Bill:
    """What the bill's only row says."""

    lasted_ms: int
    shown_ms: int
    amount: Decimal


def test_a_gpu_is_asked_for_watched_paid_by_the_millisecond_and_exported(
    corral: Corral, person: Seat, pictures: Path
) -> None:
    admin = person("admin@meadow.test")
    _limit_the_team(admin, gpus="1")
    user = person("user@meadow.test")

    _launch(user, "train-1", pictures)
    _watch(user, pictures)
    _is_refused_a_second(user, pictures)
    instance = user.page.url.rstrip("/").rsplit("/", 1)[-1]
    bill = _stop_and_read_the_bill(user, pictures)
    intervals = _export(person("finance@meadow.test"), pictures)

    assert bill.lasted_ms == bill.shown_ms == _told_by_the_api(corral, instance)
    assert bill.amount == (H100_PER_HOUR * bill.lasted_ms / 3_600_000).quantize(TWELVE)
    (exported,) = (row for row in intervals if row["instance_id"] == instance)
    assert int(exported["duration_ms"]) == bill.lasted_ms
    assert Decimal(exported["cost_USD"]) == bill.amount


def test_a_stranger_sees_no_more_than_that_there_is_nothing(corral: Corral, person: Seat) -> None:
    token = corral.token("user@meadow.test")
    team = _team(corral, token)
    body = {"team": team, "name": "secret", "flavor": "l40s-quarter", "image": "demo"}
    instance = corral.api("POST", "instances", token, body)["id"]
    stranger = person("owner@harbor.test")
    stranger.expects("404")

    there = stranger.page.request.get(f"{MEADOW}/instances/{instance}/")
    nowhere = stranger.page.request.get(f"{MEADOW}/instances/{'0' * 8}-0000-4000-8000-{'0' * 12}/")
    stranger.go(f"{MEADOW}/instances/{instance}/")

    corral.api("POST", f"instances/{instance}/terminate", token, {})
    assert there.status == nowhere.status == 404
    assert "secret" not in there.text()
    assert "secret" not in stranger.page.content()


def test_the_operator_sees_the_machines_and_their_gpus_live(person: Seat, pictures: Path) -> None:
    operator = person("operator@corral.test")

    operator.go("/operate/nodes/")
    operator.sees("rack-2")
    operator.follow("rack-1")

    values = operator.page.locator("[data-gpu] [data-gpu-value]")
    values.first.wait_for()
    percent = re.compile(r"^\d+%$")
    operator.until(lambda: all(map(percent.match, values.all_inner_texts())))
    _moves(operator, "power")
    operator.picture(pictures, "node-wide")
    assert values.count() == 8


def test_a_web_process_that_is_killed_is_said_and_the_page_heals_by_itself(
    corral: Corral, person: Seat
) -> None:
    user = person("user@meadow.test")
    user.expects(BROKEN_LINE)
    user.expects("50[23]")
    user.go(f"{MEADOW}/instances/")
    user.page.evaluate("window.isTheSamePage = true")
    banner = user.page.locator("#connection")

    user.until(lambda: _stays_down(corral, banner))

    assert "Reconnecting" in banner.inner_text()
    user.page.wait_for_selector("#connection", state="hidden")
    token = corral.token("user@meadow.test")
    body = {"name": "after", "team": _team(corral, token), "flavor": "l40s-1", "image": "demo"}
    after = corral.api("POST", "instances", token, body)["id"]
    user.sees("after", inside="#instance-rows")
    corral.api("POST", f"instances/{after}/terminate", token, {})
    assert user.page.evaluate("window.isTheSamePage")


# --- the parts of the story ---


def _limit_the_team(admin: Person, *, gpus: str) -> None:
    admin.follow("Quotas")
    row = admin.page.locator("tr", has_text="Research")
    row.get_by_role("textbox").fill(gpus)
    row.get_by_role("button", name="Set").click()
    admin.sees(f"The GPU limit of Research is {gpus} now.")


def _launch(user: Person, name: str, pictures: Path) -> None:
    user.follow("Launch instance")
    user.page.get_by_label("Name", exact=True).fill(name)
    user.page.locator("input[name=image][value=demo]").check()
    user.page.locator("input[name=flavor][value=h100-1]").check()
    summary = "#launch-summary"
    user.sees("$2.49", inside=summary)
    user.sees("$59.76", inside=summary)
    assert "While stopped $0.00 per hour" in user.reads(summary)
    user.picture(pictures, "launch-wide")

    user.press("Launch")

    user.page.wait_for_selector("#instance-state")
    user.page.evaluate("window.isTheSamePage = true")
    user.page.wait_for_selector("#instance-state >> text=Running")
    assert user.page.evaluate("window.isTheSamePage"), "the state changed only by a reload"


def _watch(user: Person, pictures: Path) -> None:
    _moves(user, "util")
    user.page.wait_for_selector("[data-chart=util] canvas")
    before = _cost_so_far(user)
    user.until(lambda: _cost_so_far(user) != before)
    assert _amount(_cost_so_far(user)) > _amount(before)
    user.picture(pictures, "instance-wide")
    user.page.set_viewport_size(PHONE)
    user.until(lambda: user.page.evaluate("document.querySelector('canvas').clientWidth < 390"))
    assert user.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    user.picture(pictures, "instance-phone")
    user.page.set_viewport_size({"width": 1440, "height": 900})
    user.follow("Logs")
    user.sees("loss", inside=".log")
    user.picture(pictures, "logs-wide")
    user.follow("Overview")


def _is_refused_a_second(user: Person, pictures: Path) -> None:
    instance = user.page.url
    user.go(f"{MEADOW}/instances/new/")
    user.page.locator("input[name=flavor][value=h100-1]").check()
    user.sees(
        "This team's GPU limit is 1: this needs 1, 0 left.", inside="#launch-summary [role=alert]"
    )
    user.picture(pictures, "refused-wide")
    user.go(instance)


def _stop_and_read_the_bill(user: Person, pictures: Path) -> Bill:
    user.page.locator("#instance-acts").get_by_role("button", name="Stop").click()
    user.page.locator("dialog#stop").get_by_role("button", name="Stop").click()
    user.page.wait_for_selector("#instance-state >> text=Stopped")
    user.follow("Bill")
    user.page.wait_for_selector("#instance-bill tbody tr")
    user.picture(pictures, "bill-wide")
    cells = user.page.locator("#instance-bill tbody td").all_inner_texts()
    begin, end, _why, time, price, cost = cells
    foot = user.page.locator("#instance-bill tfoot td").all_inner_texts()
    assert (_amount(price), foot[1], foot[-1]) == (H100_PER_HOUR, time, cost)
    return Bill(
        lasted_ms=(_moment(end) - _moment(begin)) // timedelta(milliseconds=1),
        shown_ms=_milliseconds(time),
        amount=_amount(cost),
    )


def _export(finance: Person, pictures: Path) -> list[dict[str, str]]:
    """Read the month, take its files, and return the rows of every interval."""
    finance.follow("Usage")
    finance.follow("By instance")
    finance.sees("train-1", inside="#usage-table")
    shown = Decimal(str(finance.page.locator("#usage-total").get_attribute("value")))
    finance.picture(pictures, "usage-wide")
    rows: list[dict[str, str]] = []
    for name in ("This table as CSV", "Every interval as CSV"):
        with finance.page.expect_download() as download:
            finance.follow(name)
        file = download.value.path().read_text("utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(file)))
        assert sum(Decimal(row["cost_USD"]) for row in rows) == shown
    return rows


# --- what the parts need ---


def _team(corral: Corral, token: str) -> str:
    teams = corral.api("GET", "teams", token)["results"]
    return next(str(team["id"]) for team in teams if team["name"] == "Research")


def _told_by_the_api(corral: Corral, instance: str) -> int:
    token = corral.token("user@meadow.test")
    (row,) = corral.api("GET", f"usage?group_by=instance&instance={instance}", token)["results"]
    return int(row["milliseconds"])


def _moves(someone: Person, metric: str) -> None:
    """Wait until a live figure is there, and then until it is another."""
    figure = someone.page.locator(f"[data-figure={metric}] [data-value]").first
    someone.until(lambda: re.search(r"\d", figure.inner_text()))
    first = figure.inner_text()
    someone.until(lambda: figure.inner_text() not in {first, "--"})


def _stays_down(corral: Corral, banner: Locator) -> bool:
    """Kill the web process that came back, unless the page has said that it is away."""
    if banner.is_visible():
        return True
    for pid in corral.pids("uvicorn"):
        os.kill(pid, signal.SIGKILL)
    return False


def _cost_so_far(user: Person) -> str:
    return user.page.locator("#instance-cost .value").text_content() or ""


def _moment(text: str) -> datetime:
    return datetime.strptime(text.removesuffix(" UTC"), "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)


def _milliseconds(text: str) -> int:
    """Read "1 min 05.250 s"."""
    minutes = re.search(r"(\d+) min", text)
    seconds = re.search(r"([\d.]+) s$", text)
    assert seconds is not None, text
    return int(Decimal(seconds[1]) * 1000) + (int(minutes[1]) * 60_000 if minutes else 0)


def _amount(text: str) -> Decimal:
    return Decimal(re.sub(r"[^\d.]", "", text))
