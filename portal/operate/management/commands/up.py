"""`manage.py up`: every process of Corral on this machine, with embedded servers."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import urllib.request
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from portal.operate.embedded import Postgres, UnableToStart, Valkey
from portal.operate.supervisor import Child, Output, Program, Supervisor, spawn

ROOT = Path(__file__).resolve().parents[4]
# What the simulated rack is made of, node by node, round and round.
RACK = tuple(os.environ.get("CORRAL_RACK", "h100x8,a100x4+l40sx2+rtx4090x2").split(","))


class Command(BaseCommand):
    """Start, watch and stop everything."""

    help = "Start every process of Corral on this machine; Ctrl-C stops them all."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (loopback)")
        parser.add_argument("--data-dir", type=Path, default=Path(".corral"))
        parser.add_argument("--nodes", type=int, default=2, help="simulated nodes to run")
        parser.add_argument("--no-demo", action="store_true", help="no demo data and no nodes")

    def handle(self, *args: Any, **options: Any) -> None:
        stack = Stack(
            data=options["data_dir"].resolve(),
            host=options["host"],
            port=options["port"],
            nodes=0 if options["no_demo"] else options["nodes"],
            demo=not options["no_demo"],
        )
        try:
            stack.run()
        except KeyboardInterrupt:
            pass
        except (UnableToStart, RuntimeError) as error:
            raise CommandError(f"{error}\n  The logs are in {stack.logs}") from error
        finally:
            stack.supervisor.stop()
            if stack.supervisor.programs:
                stack.output.line("✓", "all stopped; the data stays")


class Stack:
    """The processes, in the order in which they need each other."""

    def __init__(self, *, data: Path, host: str, port: int, nodes: int, demo: bool) -> None:
        self.data, self.host, self.port, self.nodes, self.demo = data, host, port, nodes, demo
        self.logs = data / "logs"
        self.output = Output()
        self.supervisor = Supervisor(self.output)
        self.url = f"http://{'localhost' if host == '127.0.0.1' else host}:{port}"
        self.environ = dict(os.environ)

    def run(self) -> None:
        """Start all, tell the address, watch until asked to stop."""
        self._one_at_a_time()
        self._port_is_free()
        self.supervisor.catch_signals()
        self.environ |= {
            "DATA_DIR": str(self.data),
            "SECRET_KEY": self._secret(),
            "PYTHONUNBUFFERED": "1",
            "PUBLIC_URL": os.environ.get("PUBLIC_URL", self.url),
            "CORRAL_DEMO": str(int(self.demo)),
        }
        self._stores()
        self._manage("migrate", "--verbosity", "0", step="database")
        self._static()
        signs = json.loads(self._manage("demo", "--json", step="demo data")) if self.demo else None
        self._processes()
        self._rack()
        self._greet(signs)
        self.supervisor.watch()

    # --- steps, in order ---

    def _one_at_a_time(self) -> None:
        import fcntl

        try:
            self.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.lock = (self.data / "lock").open("w")
        except OSError as error:
            raise UnableToStart(f"Nothing can be kept in {self.data}: {error.strerror}.") from error
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UnableToStart(f"Corral already runs on {self.data}; stop it first.") from error

    def _port_is_free(self) -> None:
        """Refuse a taken port now: another Corral there would answer in place of ours."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except (OSError, OverflowError) as error:
                raise UnableToStart(
                    f"Port {self.port} on {self.host} can't be had ({error}); choose another one."
                ) from error

    def _secret(self) -> str:
        path = self.data / "secret-key"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(48))
        return os.environ.get("SECRET_KEY") or path.read_text()

    def _stores(self) -> None:
        if "DATABASE_URL" not in os.environ:
            postgres = Postgres(self.data / "postgres")
            self.environ["DATABASE_URL"] = postgres.url
            self.supervisor.add(
                Program("postgres", postgres.start, postgres.answers, stop_signal=signal.SIGINT)
            )
        if "REDIS_URL" not in os.environ:
            valkey = Valkey(self.data / "valkey")
            self.environ["REDIS_URL"] = valkey.url
            self.supervisor.add(Program("valkey", valkey.start, valkey.answers))

    def _static(self) -> None:
        # The browsable API is not served, so its files are left out.
        if self.environ.get("STATIC_HASHED") != "0":
            self._manage(
                "collectstatic",
                "--noinput",
                "--verbosity",
                "0",
                "--ignore",
                "rest_framework",
                step="static files",
            )

    def _processes(self) -> None:
        python = sys.executable
        web = [
            python,
            "-m",
            "uvicorn",
            "portal.asgi:application",
            "--host",
            self.host,
            "--port",
            str(self.port),
            "--ws",
            "websockets-sansio",
            "--ws-per-message-deflate",
            "false",
            "--log-level",
            "warning",
            "--no-access-log",
            "--timeout-graceful-shutdown",
            "5",
        ]
        celery = [python, "-m", "celery", "-A", "portal.celery"]
        self._add("web", web, ready=self._web_answers)
        self._add("scheduler", [python, "manage.py", "run_scheduler"])
        self._add("worker", [*celery, "worker", "--concurrency", "2", "--loglevel", "warning"])
        self._add("beat", [*celery, "beat", "--loglevel", "warning"])

    def _rack(self) -> None:
        for number in range(1, self.nodes + 1):
            state = self.data / "nodes" / f"rack-{number}"
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            command = [
                sys.executable,
                "-m",
                "agents",
                "--portal",
                f"http://{self.host}:{self.port}",
                "--state-dir",
                str(state),
                "--gpus",
                f"simulated:{RACK[(number - 1) % len(RACK)]}",
                "--hostname",
                f"rack-{number}",
                "--stop-instances-on-exit",
            ]
            if not (state / "identity.json").exists():
                token = json.loads(self._manage("join_token", "--json"))["token"]
                command += ["--join", token]
            runtime = os.environ.get("CORRAL_RUNTIME")
            command += ["--runtime", runtime] if runtime else []
            self._add(f"node {number}", command)

    def _greet(self, signs: dict[str, Any] | None) -> None:
        lines = ["", f"  Corral is at  {self.url}", ""]
        lines += [
            f"    {sign['role']:<11} {sign['email']:<26} {sign['password']}"
            for sign in (signs or {}).get("sign_ins", [])
        ]
        lines += ["", "  Ctrl-C stops everything and keeps the data.", ""]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()

    # --- how a step is done ---

    def _add(self, name: str, command: list[str], ready: Any = None) -> None:
        log = self.logs / f"{name.replace(' ', '-')}.log"
        environ = self.environ | {"CORRAL_PROCESS": name}

        def start() -> Child:
            return spawn(command, environ=environ, log=log, cwd=ROOT)

        self.supervisor.add(Program(name, start, ready or (lambda: True)))

    def _manage(self, *arguments: str, step: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if self.supervisor.stopping:
            raise KeyboardInterrupt
        if done.returncode != 0:
            raise UnableToStart(f"{step or arguments[0]} failed:\n{done.stderr[-2000:]}")
        if step:
            self.output.line("✓", step)
        return done.stdout

    def _web_answers(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://{self.host}:{self.port}/readyz", timeout=2
            ) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False
