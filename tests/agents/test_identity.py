"""Joining: a token once, a key for ever, and nothing lost when an answer is lost."""

import base64
import json
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agents import identity, wire


class Office:
    """A portal's join address, answering as the test wants."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.status = 200
        self.body: dict[str, Any] = {"node_id": "n-7", "generation": 1}
        office = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                office.requests.append(json.loads(self.rfile.read(length)) | {"path": self.path})
                self.send_response(office.status)
                self.end_headers()
                self.wfile.write(json.dumps(office.body).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def join(self, state_dir: Path, token: str = "t-1") -> identity.Identity:
        return identity.join(state_dir, portal=self.url, token=token, hostname="node-a")


@pytest.fixture
def office() -> Iterator[Office]:
    office = Office()
    thread = threading.Thread(target=office.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield office
    office.server.shutdown()
    office.server.server_close()
    thread.join()


def test_a_token_becomes_an_identity_that_stays(office: Office, tmp_path: Path) -> None:
    joined = office.join(tmp_path)

    again = identity.load(tmp_path, token=None)

    assert again is not None
    assert (again.node_id, again.generation) == ("n-7", 1)
    assert again.key.private_bytes_raw() == joined.key.private_bytes_raw()
    assert identity.load(tmp_path, token="t-1") is not None


def test_the_portal_is_sent_the_public_key_and_never_the_private(
    office: Office, tmp_path: Path
) -> None:
    joined = office.join(tmp_path)

    (request,) = office.requests
    assert request["path"] == wire.JOIN_PATH
    assert base64.b64decode(request["public_key"]) == joined.key.public_key().public_bytes_raw()
    assert set(request) == {"path", "token", "public_key", "hostname", "agent_version"}


def test_the_identity_can_be_read_by_its_owner_only(office: Office, tmp_path: Path) -> None:
    office.join(tmp_path)

    assert stat.S_IMODE((tmp_path / "identity.json").stat().st_mode) == 0o600
    assert not (tmp_path / "joining.json").exists()


def test_another_token_joins_anew_with_another_key(office: Office, tmp_path: Path) -> None:
    first = office.join(tmp_path)

    assert identity.load(tmp_path, token="t-2") is None
    second = office.join(tmp_path, "t-2")
    assert first.key.private_bytes_raw() != second.key.private_bytes_raw()


def test_a_lost_answer_is_asked_for_again_with_the_same_key(office: Office, tmp_path: Path) -> None:
    office.status = 503
    with pytest.raises(identity.PortalSilent):
        office.join(tmp_path)

    office.status = 200
    office.join(tmp_path)

    first, second = office.requests
    assert first["public_key"] == second["public_key"]


def test_a_refusal_is_told_in_the_portals_words(office: Office, tmp_path: Path) -> None:
    office.status = 403
    office.body = {"error": {"code": "token_used", "message": "Used.", "help": "Make another."}}

    with pytest.raises(identity.UnableToJoin, match=r"Used\. Make another\."):
        office.join(tmp_path)

    assert identity.load(tmp_path, token=None) is None


def test_something_that_is_no_portal_is_refused(office: Office, tmp_path: Path) -> None:
    office.body = {"hello": "world"}

    with pytest.raises(identity.UnableToJoin):
        office.join(tmp_path)


def test_a_portal_that_is_away_can_be_asked_again(tmp_path: Path, office: Office) -> None:
    with pytest.raises(identity.PortalSilent):
        identity.join(tmp_path, portal="http://127.0.0.1:1", token="t", hostname="h")


def test_a_broken_identity_file_is_no_identity(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text('{"node_id": 5')

    assert identity.load(tmp_path, token=None) is None
