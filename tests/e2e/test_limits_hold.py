"""Twenty launches at once at a limit of three, by form, API and command: three are accepted."""

import http.cookiejar
import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.stack import ApiError, Corral

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "corral-demo-2026"  # printed at every start of the demo
LIMIT, LAUNCHES = 3, 20
FLAVOR, IMAGE = "h100-1", "demo"
TEAM = "Research"
# What a refusal says: it names the limit, and how far one is from it.
SENTENCES = {
    "organization": "Your organization's GPU limit is 3: this needs 1, 0 left.",
    "team": "This team's GPU limit is 3: this needs 1, 0 left.",
    "member": "Your own GPU limit is 3: this needs 1, 0 left.",
}
# level of the limit -> who launches
LEVELS = {
    "organization": ("owner@meadow.test", "admin@meadow.test", "user@meadow.test"),
    "team": ("admin@meadow.test", "user@meadow.test"),
    "member": ("user@meadow.test",),
}


@dataclass(frozen=True)
class Answer:
    """What one launch was told: accepted, or a sentence."""

    accepted: bool
    sentence: str


class Visitor:
    """A signed-in browser without a screen: cookies, CSRF tokens and forms."""

    def __init__(self, corral: Corral, email: str) -> None:
        self.url = corral.url
        jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self.opener = urllib.request.build_opener(jar)
        self.post("/account/login/", login=email, password=PASSWORD)

    def get(self, path: str) -> str:
        """Return a page."""
        with self.opener.open(self.url + path, timeout=60) as reply:
            return str(reply.read().decode())

    def post(self, path: str, **fields: str) -> tuple[str, str]:
        """Send the page's form; return where that led, and what the page says."""
        (token, *_) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', self.get(path))
        data = urllib.parse.urlencode(fields | {"csrfmiddlewaretoken": token}).encode()
        request = urllib.request.Request(self.url + path, data, {"Origin": self.url})
        try:
            with self.opener.open(request, timeout=60) as reply:
                return reply.url, reply.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.url, refused.read().decode()


@pytest.fixture(scope="module")
def corral() -> Iterator[Corral]:
    with Corral(nodes=1, STATIC_HASHED="0") as running:  # nobody looks: starts sooner
        yield running


@pytest.fixture(scope="module")
def tokens(corral: Corral) -> dict[str, str]:
    """Give each person an API token."""
    return {email: corral.token(email) for email in LEVELS["organization"]}


@pytest.fixture(autouse=True)
def nothing_left(corral: Corral, tokens: dict[str, str]) -> Iterator[None]:
    """End what runs, and lift every limit."""
    yield
    owner = tokens["owner@meadow.test"]
    for one in _instances(corral, owner):
        with suppress(ApiError):
            corral.api("POST", f"instances/{one['id']}/terminate", owner, {})
    for line in _quotas(corral, owner):
        _limit(corral, owner, line, None)


@pytest.mark.parametrize("level", LEVELS)
def test_exactly_three_of_twenty_simultaneous_launches_are_accepted(
    corral: Corral, tokens: dict[str, str], tmp_path: Path, level: str
) -> None:
    owner = tokens["owner@meadow.test"]
    (limited,) = (line for line in _quotas(corral, owner) if _is_about(line, level))
    _limit(corral, owner, limited, LIMIT * 1000)
    with Watched(corral, owner, limited) as seen:
        answers = _launch_at_once(corral, tokens, LEVELS[level], tmp_path)

    accepted = [answer for answer in answers if answer.accepted]
    refused = [answer.sentence for answer in answers if not answer.accepted]
    assert (len(accepted), len(refused)) == (LIMIT, LAUNCHES - LIMIT)
    assert len(_instances(corral, owner)) == LIMIT
    assert [sentence for sentence in refused if SENTENCES[level] not in sentence] == []
    assert max(seen) == LIMIT * 1000


class Watched:
    """Looks again and again, in a thread, at how much of a limit is used."""

    def __init__(self, corral: Corral, token: str, line: dict[str, Any]) -> None:
        self.look = lambda: _same_line(_quotas(corral, token), line)["used_milli_gpus"]
        self.over = threading.Event()
        self.seen: list[int] = []
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> list[int]:
        self.thread.start()
        return self.seen

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join(60)
        self.seen.append(self.look())

    def _watch(self) -> None:
        while not self.over.wait(0.05):
            self.seen.append(self.look())


def _launch_at_once(
    corral: Corral, tokens: dict[str, str], people: tuple[str, ...], folder: Path
) -> list[Answer]:
    """Launch by form, API and command line in turn; all wait at a gate and start together."""
    (team,) = (
        row["id"]
        for row in corral.api("GET", "teams", tokens["owner@meadow.test"])["results"]
        if row["name"] == TEAM
    )
    gate = threading.Barrier(LAUNCHES)
    doors: list[Callable[[], Answer]] = []
    for number in range(LAUNCHES):
        email = people[number // 3 % len(people)]
        name = f"at-once-{number}"
        if number % 3 == 0:
            doors.append(_form(Visitor(corral, email), team, name, gate))
        elif number % 3 == 1:
            doors.append(_api(corral, tokens[email], team, name, gate))
        else:
            doors.append(_command(corral, tokens[email], name, folder, gate))
    with ThreadPoolExecutor(LAUNCHES) as pool:
        return [future.result() for future in [pool.submit(door) for door in doors]]


def _form(visitor: Visitor, team: str, name: str, gate: threading.Barrier) -> Callable[[], Answer]:
    def launch() -> Answer:
        gate.wait(120)
        led_to, page = visitor.post(
            "/o/meadow-labs/instances/new/",
            name=name,
            team_id=team,
            image=IMAGE,
            flavor=FLAVOR,
            stop_after="",
            priority="0",
        )
        said = re.search(r'<main.*?role="alert"[^>]*>(.*?)</div>\s*</div>', page, re.DOTALL)
        sentence = unescape(re.sub(r"<[^>]+>", " ", said[1])) if said else page
        return Answer(re.search(r"/instances/[0-9a-f-]{36}/$", led_to) is not None, sentence)

    return launch


def _api(
    corral: Corral, token: str, team: str, name: str, gate: threading.Barrier
) -> Callable[[], Answer]:
    def launch() -> Answer:
        gate.wait(120)
        body = {"team": team, "name": name, "flavor": FLAVOR, "image": IMAGE}
        try:
            corral.api("POST", "instances", token, body)
        except ApiError as refusal:
            return Answer(accepted=False, sentence=json.loads(refusal.body)["error"]["message"])
        return Answer(accepted=True, sentence="")

    return launch


def _command(
    corral: Corral, token: str, name: str, folder: Path, gate: threading.Barrier
) -> Callable[[], Answer]:
    environ = {
        "PATH": os.environ["PATH"],
        "XDG_CONFIG_HOME": str(folder),
        "LANG": "C",
        "CORRAL_URL": corral.url,
        "CORRAL_TOKEN": token,
    }
    line = ["launch", name, "--flavor", FLAVOR, "--image", IMAGE, "--team", "research"]

    def launch() -> Answer:
        gate.wait(120)
        done = subprocess.run(
            [sys.executable, "-m", "portal.cli", *line],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in {0, 1}, done.stderr
        return Answer(accepted=done.returncode == 0, sentence=done.stderr)

    return launch


def _instances(corral: Corral, token: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = corral.api("GET", "instances", token)["results"]
    return [row for row in rows if row["state"] != "TERMINATED"]


def _quotas(corral: Corral, token: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = corral.api("GET", "quotas", token)["results"]
    return rows


def _same_line(lines: list[dict[str, Any]], line: dict[str, Any]) -> dict[str, Any]:
    names = ("level", "team", "member")
    return next(one for one in lines if all(one[name] == line[name] for name in names))


def _is_about(line: dict[str, Any], level: str) -> bool:
    return line["level"] == level and (
        line["team_name"] in {TEAM, None} and line["member_name"] in {"Uli User", None}
    )


def _limit(corral: Corral, token: str, line: dict[str, Any], milli_gpus: int | None) -> None:
    body = {"team": line["team"], "member": line["member"], "limit_milli_gpus": milli_gpus}
    corral.api("PUT", "quotas", token, body)
