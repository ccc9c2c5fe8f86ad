"""Ends what the tests of the agent left running."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.runtimes.shim import descendants, starttime


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """An agent's state directory, whose supervised processes are ended after the test."""
    yield tmp_path
    for path in tmp_path.rglob("shim.json"):
        state = json.loads(path.read_text())
        for pid, began in (("shim_pid", "shim_starttime"), ("pid", "starttime")):
            if starttime(state[pid]) != state[began]:
                continue
            for member in [*descendants(state[pid]), state[pid]]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
