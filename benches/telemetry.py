"""How much a sample costs the portal: the real ingest path against a bare echo of the same frames.

Both are uvicorn processes with the same options. Agents of 20 nodes send frames of 8 GPUs, 64 in a
burst, as many as an agent may have under way; the portal decodes them, hands them to one open
dashboard, stores them in PostgreSQL and acks them, the echo sends them back. Counted is the CPU
time of the server (not of PostgreSQL, Valkey or the client), so that other load on the machine
matters little. The ratio is what to compare between machines and versions.

    python benches/telemetry.py [--rounds N] [--json]
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

NODES = 20
GPUS = 8
BURST = 64
LIMIT_S = 55.0
OPTIONS = ["--ws", "websockets-sansio", "--ws-per-message-deflate", "false", "--ws-max-size",
           "262144", "--log-level", "warning", "--no-access-log"]  # fmt: skip


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Send back whatever comes: the least that a socket can cost."""
    if scope["type"] != "websocket":
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": event["text"]})


@contextmanager
def stores(folder: Path) -> Iterator[None]:
    """Run PostgreSQL and Valkey for this measurement, migrated and empty."""
    from portal.operate.embedded import Postgres, Valkey, stop

    postgres, valkey = Postgres(folder / "postgres", durable=False), Valkey(folder / "valkey")
    running = [postgres.start()]
    try:
        running.append(valkey.start())
        os.environ |= {
            "DATABASE_URL": postgres.url,
            "REDIS_URL": valkey.url,
            "DATA_DIR": str(folder),
            "SECRET_KEY": "only-for-this-measurement",
            "DJANGO_SETTINGS_MODULE": "portal.settings",
            "STATIC_HASHED": "0",
        }
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0, interactive=False)
        yield
    finally:
        for child in reversed(running):
            stop(child, sign=2)


@contextmanager
def server(application: str, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Serve an application with uvicorn; yield its socket address and its process."""
    import socket

    from portal.operate.embedded import free_port, stop

    port = free_port()
    with (folder / f"server-{port}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", application, "--port", str(port), *OPTIONS],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 40
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((folder / f"server-{port}.log").read_text())
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"ws://127.0.0.1:{port}", process
    finally:
        stop(process)


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Return the CPU time that a process has used so far, with all its threads."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Node:
    """A node with 8 GPUs, joined, and the frames that it sends."""

    def __init__(self) -> None:
        from datetime import UTC, datetime

        from tests.fleet.agents import Machine, gpu, inventory

        self.machine = Machine()
        self.node_id = self.machine.join(datetime.now(UTC))
        self.uuids = [f"GPU-{self.node_id}-{n}" for n in range(GPUS)]
        self.inventory = inventory(*(gpu(uuid, n) for n, uuid in enumerate(self.uuids)))
        self.seq = 0

    def frame(self) -> str:
        """Write the next batch of samples, each of a moment of its own."""
        from agents import wire
        from tests.live.clients import sample

        self.seq += 1
        at_ms = self._began_ms + self.seq
        return wire.encode(
            wire.Samples(
                agent_run_id=self.machine.run_id,
                seq=self.seq,
                samples=[sample(uuid, self.seq % 100, at_ms) for uuid in self.uuids],
            )
        ).decode()

    _began_ms = time.time_ns() // 1_000_000 - 3_600_000


async def to_portal(url: str, nodes: list[Node], rounds: int, cookie: str) -> Callable[[], Any]:
    """Open all sockets and one dashboard; return what sends the frames."""
    from datetime import UTC, datetime

    from websockets.asyncio.client import connect

    from agents import wire

    sockets = []
    for node in nodes:
        headers = wire.sign_request(
            node.machine.key,
            node_id=str(node.node_id),
            generation=1,
            time_ms=time.time_ns() // 1_000_000,
        )
        socket = await connect(
            url + wire.SOCKET_PATH, additional_headers=headers, compression=None, proxy=None
        )
        hello = node.machine.hello(datetime.now(UTC), inventory=node.inventory)
        await socket.send(wire.encode(hello), text=True)
        await socket.recv()
        sockets.append(socket)
    page = await connect(
        url + "/live/ws",
        additional_headers={"Origin": url.replace("ws", "http"), "Cookie": f"sessionid={cookie}"},
        compression=None,
        proxy=None,
    )
    await page.send(json.dumps({"subscribe": [f"gpus:node:{nodes[0].node_id}"]}))
    shown = [0]

    async def watch() -> None:
        async for message in page:
            shown[0] += '"t":"samples"' in message

    watcher = asyncio.create_task(watch())

    async def burst(node: Node, socket: Any, frames: list[str]) -> None:
        for frame in frames:
            await socket.send(frame)
        while True:
            message = wire.decode(await socket.recv())
            if isinstance(message, wire.Ack) and message.seq == node.seq:
                return

    async def send() -> int:
        for _ in range(rounds):
            work = [
                burst(node, socket, [node.frame() for _ in range(BURST)])
                for node, socket in zip(nodes, sockets, strict=True)
            ]
            await asyncio.gather(*work)
        watcher.cancel()
        for socket in [*sockets, page]:
            await socket.close()
        return shown[0]

    return send


async def to_echo(url: str, nodes: list[Node], rounds: int) -> Callable[[], Awaitable[int]]:
    """Open all sockets to the echo; return what sends the frames."""
    from websockets.asyncio.client import connect

    sockets = [await connect(url, compression=None, proxy=None) for _ in nodes]

    async def burst(socket: Any, frames: list[str]) -> None:
        for frame in frames:
            await socket.send(frame)
        for _ in frames:
            await socket.recv()

    async def send() -> int:
        for _ in range(rounds):
            work = [
                burst(socket, [node.frame() for _ in range(BURST)])
                for node, socket in zip(nodes, sockets, strict=True)
            ]
            await asyncio.gather(*work)
        for socket in sockets:
            await socket.close()
        return 0

    return send


def measure(process: subprocess.Popen[bytes], prepared: Any) -> tuple[float, int]:
    """Run what was prepared; return the server's CPU time for it and what it returned."""

    async def run() -> tuple[float, int]:
        send = await prepared
        before = cpu_seconds(process)
        async with asyncio.timeout(LIMIT_S):
            shown = await send()
        return cpu_seconds(process) - before, shown

    return asyncio.run(run())


def main() -> None:
    """Measure both and print a table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="bursts per node (default 10)")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="corral-bench-"))
    try:
        with stores(folder):
            result = compare(folder, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not options.json:
        print(f"{'':<12}{'samples':>10}{'CPU s':>9}{'samples per CPU s':>20}")
        for name in ("portal", "echo"):
            row = result[name]
            print(f"{name:<12}{row['samples']:>10}{row['cpu_s']:>9.2f}{row['per_cpu_s']:>20,.0f}")
        print(f"The portal does {result['ratio']:.3f} of what a bare echo does with its CPU time;")
        print(
            f"{result['stored']} samples stored, {result['shown']} frames shown on the dashboard."
        )
    print(json.dumps(result))


def compare(folder: Path, rounds: int) -> dict[str, Any]:
    """Measure the portal, then the echo, with the same nodes and frames of the same size."""
    from portal.telemetry.models import Sample
    from portal.tenants.models import User
    from tests.live.clients import signed_in

    nodes = [Node() for _ in range(NODES)]
    operator = User.objects.create_user("operator@example.com", None, is_operator=True)
    cookie = signed_in(operator)
    samples = NODES * BURST * rounds * GPUS
    with server("portal.asgi:application", folder) as (url, process):
        portal_s, shown = measure(process, to_portal(url, nodes, rounds, cookie))
    stored = Sample.objects.count()
    if stored != samples or not shown:
        raise SystemExit(f"{stored} of {samples} samples stored, {shown} frames shown")
    with server("benches.telemetry:echo", folder) as (url, process):
        echo_s, _ = measure(process, to_echo(url, nodes, rounds))
    return {
        "portal": {"samples": samples, "cpu_s": portal_s, "per_cpu_s": samples / portal_s},
        "echo": {"samples": samples, "cpu_s": echo_s, "per_cpu_s": samples / echo_s},
        "ratio": echo_s / portal_s,
        "stored": stored,
        "shown": shown,
    }


if __name__ == "__main__":
    main()
