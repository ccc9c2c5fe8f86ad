"""What the tests of the pages stand on."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _default_language() -> Iterator[None]:
    """Take back the language that the last answer was given in: it stays with the thread."""
    from django.utils import translation

    yield
    translation.deactivate()


@pytest.fixture
def place(db: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small organization with an instance, and people of every role."""
    from tests.web.place import build  # after the servers are up and Django is set up

    return build(monkeypatch)
