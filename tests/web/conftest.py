"""What the tests of the pages stand on."""

from typing import Any

import pytest


@pytest.fixture
def place(db: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small organization with an instance, and people of every role."""
    from tests.web.place import build  # after the servers are up and Django is set up

    return build(monkeypatch)
