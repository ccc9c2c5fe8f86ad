"""Whatever kills the supervisor, no server stays behind, and the next start is a clean one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from portal.operate.embedded import Postgres, stop
from portal.operate.supervisor import is_alive

STARTS_BOTH = """
import sys, time
from pathlib import Path
from portal.operate.embedded import Postgres, Valkey
folder = Path(sys.argv[1])
servers = [Postgres(folder / "postgres", durable=False).start(), Valkey(folder / "valkey").start()]
print(*[server.pid for server in servers], flush=True)
time.sleep(600)
"""


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    made = Postgres(tmp_path / "postgres", durable=False)
    yield made
    made.sockets.rmdir()


def gone(pid: int) -> bool:
    """Whether a process ends within some seconds."""
    deadline = time.monotonic() + 15
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


def test_servers_end_with_whoever_started_them(postgres: Postgres) -> None:
    command = [sys.executable, "-c", STARTS_BOTH, str(postgres.data.parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()

    assert len(pids) == 2
    assert [gone(pid) for pid in pids] == [True, True]


def test_an_older_server_on_the_same_folder_gives_way(postgres: Postgres) -> None:
    older = postgres.start()
    try:
        newer = Postgres(postgres.data, durable=False).start()
        try:
            assert older.wait(15) == 0
            first_line = (postgres.data / "postmaster.pid").read_text().split("\n", 1)[0]
            assert int(first_line) == newer.pid
            assert postgres.answers()
        finally:
            stop(newer, sign=signal.SIGINT)
    finally:
        stop(older, sign=signal.SIGINT)


def test_a_number_that_now_belongs_to_another_process_is_left_alone(postgres: Postgres) -> None:
    postgres.prepare()
    (postgres.data / "postmaster.pid").write_text(f"{os.getpid()}\n{postgres.data}\n")

    server = postgres.start()

    try:
        assert postgres.answers()
    finally:
        stop(server, sign=signal.SIGINT)
