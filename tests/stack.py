"""A whole Corral on loopback: every process as `manage.py up` runs it, in a folder of its own."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
_T = TypeVar("_T")
# What the test session set up for itself; this Corral has servers of its own.
_FOREIGN = ("CORRAL_TEST_SERVERS", "DATABASE_URL", "REDIS_URL", "SECRET_KEY", "PUBLIC_URL")


class Corral:
    """A running installation. Use it as a context manager."""

    def __init__(self, *, nodes: int = 2, runtime: str = "process", **environ: str) -> None:
        from portal.operate.embedded import free_port

        self.folder = tempfile.TemporaryDirectory(prefix="corral-stack-")
        self.data = Path(self.folder.name) / "data"
        self.port = free_port()
        self.url = f"http://localhost:{self.port}"
        kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        self.environ = kept | {"CORRAL_RUNTIME": runtime, "STATIC_HASHED": "1"} | environ
        self.command = [
            sys.executable,
            "manage.py",
            "up",
            "--port",
            str(self.port),
            "--data-dir",
            str(self.data),
            "--nodes",
            str(nodes),
        ]
        self.output = ""
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Corral":
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.folder.cleanup()

    def start(self, *, patience_s: float = 300) -> None:
        """Start it and wait for the greeting, or raise AssertionError with what it said."""
        log = Path(self.folder.name) / "up.log"
        with log.open("w") as sink:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=self.environ,
                stdout=sink,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.wait(
            lambda: "Ctrl-C stops everything" in log.read_text() or self.process.poll() is not None,  # type: ignore[union-attr]
            patience_s=patience_s,
            what="the greeting",
        )
        self.output = log.read_text()
        if self.process.poll() is not None:
            raise AssertionError(f"`manage.py up` ended:\n{self.output}\n{self.logs()}")

    def said(self) -> str:
        """Return what `manage.py up` printed so far."""
        return (Path(self.folder.name) / "up.log").read_text()

    def stop(self) -> int:
        """Press Ctrl-C and return the exit status."""
        if self.process is None or self.process.poll() is not None:
            return 0
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(90)

    def logs(self) -> str:
        """Return the end of every process's log."""
        parts = [
            f"--- {path.name}\n{path.read_text()[-3000:]}"
            for path in (self.data / "logs").glob("*")
        ]
        return "\n".join(parts)

    def manage(self, *arguments: str) -> str:
        """Run a management command against it."""
        environ = self.environ | self.stores()
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"manage.py {arguments[0]}: {done.stdout}{done.stderr}")
        return done.stdout

    def stores(self) -> dict[str, str]:
        """Return the variables that reach its database and Valkey, as its scheduler has them."""
        environ = Path(f"/proc/{self.pid('run_scheduler')}/environ").read_bytes().decode()
        pairs = dict(pair.split("=", 1) for pair in environ.split("\0") if "=" in pair)
        names = ("DATABASE_URL", "REDIS_URL", "DATA_DIR", "SECRET_KEY", "PUBLIC_URL")
        return {name: pairs[name] for name in names}

    def pids(self, word: str) -> list[int]:
        """Return the ids of its own processes whose command line contains `word`."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if self.process is not None and parent == self.process.pid and word in line:
                found.append(int(entry.name))
        return found

    def pid(self, word: str) -> int:
        """Return the one process id for `word`."""
        (found,) = self.pids(word)
        return found

    def token(self, email: str, *, organization: str = "meadow-labs") -> str:
        """Make an API token of full scope for a person of the demo."""
        program = (
            "import datetime as d; from portal.tenants import access, tokens\n"
            "from portal.tenants.models import User; from portal.tenants.scope import scope\n"
            f"a = access.actor_for(user=User.objects.get(email='{email}'), slug='{organization}')\n"
            "with scope(organization=a.organization):\n"
            "    print(tokens.issue(actor=a, name='test', scopes=['full'], expires_at=None,"
            " now=d.datetime.now(d.UTC))[1])\n"
        )
        return self.manage("shell", "--no-imports", "-c", program).strip().splitlines()[-1]

    def api(self, method: str, path: str, token: str, body: Any = None, **headers: str) -> Any:
        """Call the API; return the decoded answer. Raises ApiError for a refusal."""
        request = urllib.request.Request(
            f"{self.url}/api/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            | headers,
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                raw = reply.read()
                return json.loads(raw) if raw else None
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, error.read().decode()) from error

    @staticmethod
    def wait(
        question: Callable[[], _T],
        *,
        patience_s: float = 30,
        what: str = "it",
        pause_s: float = 0.1,
    ) -> _T:
        """Ask until the answer is true; a refused connection and a 503 count as not yet."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                answer = question()
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                answer = None
            except ApiError as error:
                if error.status != 503:
                    raise
                answer = None
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {patience_s:.0f} s for {what}")
            time.sleep(pause_s)


class ApiError(Exception):
    """The API refused."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:500]}")
        self.status = status
        self.body = body

    @property
    def code(self) -> str:
        """The refusal's code."""
        return str(json.loads(self.body)["error"]["code"])
