"""A whole running Corral per module, and people with real browsers in front of it."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.stack import Corral

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def corral() -> Iterator[Corral]:
    """One Corral for the module, of two simulated nodes; the first has eight H100."""
    with Corral(nodes=2) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium. It ends with the module: a running playwright keeps asyncio tests from running."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    if not (ROOT / "static" / "vendor" / "tabler.css").exists():
        pytest.skip("the front-end files were not fetched")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def person(browser: Any, corral: Corral) -> Iterator[Callable[..., Any]]:
    """Seat somebody at a browser: `person("user@meadow.test")`; nobody's browser may complain."""
    from tests.e2e.people import Person

    seated: list[Person] = []

    def seat(email: str = "", **options: Any) -> Person:
        seated.append(Person(browser, corral, email, **options))
        return seated[-1]

    yield seat
    complaints = []
    for one in seated:
        with suppress(Exception):
            one.context.close()
        complaints += [f"{one.email or 'a visitor'}: {sentence}" for sentence in one.complaints]
    assert not complaints, "\n".join(complaints)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Return where pictures go: CORRAL_PICTURES keeps them, else they go with the test."""
    return Path(os.environ.get("CORRAL_PICTURES", tmp_path))
