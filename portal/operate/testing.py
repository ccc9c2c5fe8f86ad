"""A pytest plugin: a real PostgreSQL and a real Valkey for the session, from wheels.

Named in `pyproject.toml` with `-p`, because pytest-django reads the settings before any conftest
is imported. Workers of xdist inherit what the first process started.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from portal.operate.embedded import Postgres, Valkey, stop

_servers: list["subprocess.Popen[bytes]"] = []
_folder: str | None = None


def start() -> None:
    """Start both, unless a process above did, and tell Django's settings by the environment."""
    global _folder
    if "CORRAL_TEST_SERVERS" in os.environ:
        return
    _folder = tempfile.mkdtemp(prefix="corral-tests-")
    postgres = Postgres(Path(_folder) / "postgres", durable=False)
    valkey = Valkey(Path(_folder) / "valkey", durable=False)
    _servers.extend([postgres.start(), valkey.start()])
    os.environ |= {
        "CORRAL_TEST_SERVERS": "1",
        "DATABASE_URL": postgres.url,
        "REDIS_URL": valkey.url,
        "DATA_DIR": _folder,
        "SECRET_KEY": "only-for-tests-and-never-anywhere-else",
        "STATIC_HASHED": "0",
    }


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what this process started."""
    while _servers:
        stop(_servers.pop(), sign=signal.SIGINT)  # for PostgreSQL: a fast shutdown
    if _folder:
        shutil.rmtree(_folder, ignore_errors=True)


start()
