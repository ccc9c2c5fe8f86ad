"""`manage.py up` in odd places: it starts there, or says in one sentence why it can't."""

import socket
import subprocess
import sys
from pathlib import Path

from portal.operate.embedded import Valkey, stop

ROOT = Path(__file__).resolve().parents[2]


def up(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it where it must end by itself."""
    return subprocess.run(
        [sys.executable, "manage.py", "up", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_valkey_starts_in_a_folder_with_any_name(tmp_path: Path) -> None:
    folder = tmp_path / 'a "quoted" folder\\ with spaces'
    folder.mkdir()
    valkey = Valkey(folder / "valkey")

    child = valkey.start()
    try:
        assert valkey.answers()
        assert any((folder / "valkey").iterdir())  # it keeps its data there
    finally:
        stop(child)


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        done = up("--port", str(port), "--data-dir", str(tmp_path / "data"))

    assert done.returncode == 1
    assert f"Port {port} on 127.0.0.1 can't be had" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "data" / "postgres").exists()


def test_a_folder_that_can_keep_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    done = up("--data-dir", str(tmp_path / "file"))

    assert done.returncode == 1
    assert f"Nothing can be kept in {tmp_path / 'file'}" in done.stderr
    assert "Traceback" not in done.stderr
