"""What all tests stand on: a real PostgreSQL and a real Valkey, started once, on loopback only."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True, scope="session")
def _loopback_only() -> Iterator[None]:
    """Refuse connections to anything but this machine."""
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in {"127.0.0.1", "::1", "localhost"}:
            raise AssertionError(f"a test tried to reach {address[0]}")
        real(self, address)

    socket.socket.connect = connect  # type: ignore[method-assign]
    yield
    socket.socket.connect = real  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """Leave the database behind: its server ends with the session, and late threads may hold it."""
    return True


@pytest.fixture(autouse=True)
def _english() -> Iterator[None]:
    """Speak English in every test, whatever the one before it spoke."""
    from django.utils import translation

    with translation.override("en"):
        yield


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """Let a flush empty the append-only tables: in tests alone, they do not refuse TRUNCATE."""
    from django.db import connection

    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT tgname, tgrelid::regclass::text FROM pg_trigger"
            " WHERE NOT tgisinternal AND tgtype & 32 <> 0"  # 32: fires on TRUNCATE
        )
        for name, table in cursor.fetchall():
            cursor.execute(f'DROP TRIGGER "{name}" ON {table}')


@pytest.fixture(autouse=True)
def _plain_settings(settings: Any) -> None:
    """Run tasks inline and keep mail in memory."""
    settings.CELERY_TASK_ALWAYS_EAGER = True
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    import portal.celery

    portal.celery.app.conf.task_always_eager = True


class Web:
    """A real uvicorn serving the portal on loopback, against the test database."""

    def __init__(self, environ: dict[str, str]) -> None:
        from portal.operate.embedded import free_port

        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        descriptor, name = tempfile.mkstemp(prefix="corral-web-")
        self.log = Path(name)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "uvicorn",
                "portal.asgi:application",
                "--host",
                "127.0.0.1",
                "--port",
                str(self.port),
                "--ws",
                "websockets-sansio",
                "--ws-per-message-deflate",
                "false",
                "--log-level",
                "warning",
            ],
            cwd=ROOT,
            env=os.environ | environ | {"PUBLIC_URL": self.url},
            stdout=descriptor,
            stderr=subprocess.STDOUT,
        )
        os.close(descriptor)
        deadline = time.monotonic() + 60
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"uvicorn did not start:\n{self.log.read_text()}")
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)

    def close(self) -> None:
        """Stop it."""
        from portal.operate.embedded import stop

        stop(self.process)
        self.log.unlink(missing_ok=True)


def database_url() -> str:
    """Return the URL of the database that this test worker uses, for child processes."""
    from django.db import connection

    base = os.environ["DATABASE_URL"]
    return base.replace("/corral?", f"/{connection.settings_dict['NAME']}?")


@pytest.fixture
def web(transactional_db: None) -> Iterator[Web]:
    """Serve the portal with a real uvicorn for one test; the rows are committed."""
    server = Web({"DATABASE_URL": database_url()})
    yield server
    server.close()


@pytest.fixture
def live_server_url(web: Web) -> str:
    """Return the address of a real uvicorn for one test."""
    return web.url
