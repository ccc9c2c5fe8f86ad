"""The command line against a server on loopback, as a separate program would run it."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from portal.cli.__main__ import main

NOT_FOUND = {
    "error": {"code": "not_found", "message": "Nothing.", "help": "Look again.", "details": {}}
}


class Api(ThreadingHTTPServer):
    """A scripted API: answers by method and path, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def will(self, method: str, path: str, *answers: tuple[int, Any]) -> None:
        """Answer one after the other, the last for ever; None hangs up without an answer."""
        self.answers[method, path] = list(answers)


class Handler(BaseHTTPRequestHandler):
    server: Api

    def handle_one(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.asked.append((self.command, self.path, dict(self.headers), body))
        path = self.path.partition("?")[0].removeprefix("/api/v1/")
        answers = self.server.answers.get((self.command, path)) or [(404, NOT_FOUND)]
        status, content = answers.pop(0) if len(answers) > 1 else answers[0]
        if content is None and status == 0:
            self.close_connection = True
            self.connection.close()
            return
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = handle_one  # noqa: N815

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def api() -> Iterator[Api]:
    """Serve the scripted API."""
    server = Api()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the command line a home of its own, without a language or proxies."""
    for name in ("CORRAL_URL", "CORRAL_TOKEN", "LC_ALL", "LC_MESSAGES", "LANG", "HTTP_PROXY",
                 "http_proxy", "ALL_PROXY", "all_proxy"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("portal.cli.client._WAITS", (0.01, 0.01, 0.01))
    monkeypatch.setattr("portal.cli.commands._EVERY_S", 0.01)
    return tmp_path


@pytest.fixture
def corral(
    api: Api, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run one command, signed in by the environment; return exit code, output and complaints."""
    monkeypatch.setenv("CORRAL_URL", api.url)
    monkeypatch.setenv("CORRAL_TOKEN", "corral_12345678_secret")

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(arguments)
        except SystemExit as leaving:
            code = int(str(leaving.code))
        out, err = capsys.readouterr()
        return code, out, err

    return run
