"""People at their browsers: what they see, click and type, and what their browser complains of."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Locator, Page

from tests.stack import Corral

PASSWORD = "corral-demo-2026"  # printed at every start of the demo
MEADOW = "/o/meadow-labs"
WIDE = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
# A machine that does everything at once is slow; waits end as soon as they can.
PATIENCE_MS = 60_000
# What a browser says of a dead line; a page that heals cannot keep it from saying so.
BROKEN_LINE = r"WebSocket connection to|ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE"
# What htmx says of a fragment that was on its way while its page was left.
LEFT_PAGE = r"^htmx:(afterRequest|sendError|sendAbort)\b"
_TELL_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""


class Person:
    """One person with a browser profile of his own; `complaints` is empty if all is well."""

    def __init__(self, browser: Browser, corral: Corral, email: str = "", **options: Any) -> None:
        self.corral = corral
        self.email = email
        self.complaints: list[str] = []
        self._expected = [LEFT_PAGE]
        options = {"viewport": WIDE, "locale": "en-US", "base_url": corral.url} | options
        self.context: BrowserContext = browser.new_context(**options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.context.add_init_script(_TELL_VIOLATIONS)
        self.context.on("weberror", lambda error: self._complain(str(error.error)))
        self.context.on(
            "console",
            lambda message: (
                self._complain(f"{message.text} ({message.location.get('url', '')})")
                if message.type == "error"
                else None
            ),
        )
        self.page: Page = self.context.new_page()
        if email:
            self.sign_in()

    def sign_in(self) -> None:
        """Fill in the sign-in form and press its button."""
        self.go("/account/login/")
        self.page.get_by_label("Email").fill(self.email)
        self.page.get_by_label("Password", exact=True).fill(PASSWORD)
        self.press("Sign in")
        self.page.wait_for_selector("nav.side")

    def go(self, path: str) -> None:
        """Open a page by its address."""
        self.page.goto(path)

    def press(self, name: str) -> None:
        """Press a button by what is written on it."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def follow(self, name: str) -> None:
        """Follow a link by what is written on it."""
        self.page.get_by_role("link", name=name, exact=True).first.click()

    def sees(self, text: str, *, inside: str = "body") -> Locator:
        """Wait until a text is to be seen."""
        found = self.page.locator(inside).get_by_text(text).first
        found.wait_for()
        return found

    def until(self, question: Callable[[], object]) -> None:
        """Wait until something is so; asked from here, as the pages allow no scripts of others."""
        self.corral.wait(question, patience_s=PATIENCE_MS / 1000, what="the page")

    def reads(self, selector: str) -> str:
        """Return what an element says, in one line."""
        return " ".join(self.page.locator(selector).first.inner_text().split())

    def expects(self, pattern: str) -> None:
        """Let the browser complain of this from now on: it is what the test provokes."""
        self._expected.append(pattern)

    def picture(self, folder: Path, name: str) -> None:
        """Keep a picture of the whole page."""
        folder.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=folder / f"{name}.png", full_page=True)

    def _complain(self, sentence: str) -> None:
        if not any(re.search(pattern, sentence) for pattern in self._expected):
            self.complaints.append(sentence)
