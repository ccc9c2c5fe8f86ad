"""The whole agent as its own process, with real instances, against a real socket."""

import asyncio
import base64
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agents import wire
from tests.agents.portal import Portal, Session, running_portal, verifies

pytestmark = pytest.mark.slow

KEY = Ed25519PrivateKey.generate()
ROOT = Path(__file__).resolve().parents[2]


class Machine:
    """A joined node: its state directory and the agent processes on it."""

    def __init__(self, state_dir: Path, portal: Portal) -> None:
        self.state_dir = state_dir
        self.portal = portal
        self.generation = 0
        self.agent: asyncio.subprocess.Process | None = None
        (state_dir / "identity.json").write_text(
            json.dumps(
                {
                    "node_id": "n-1",
                    "generation": 1,
                    "private_key": base64.b64encode(KEY.private_bytes_raw()).decode(),
                    "token_hash": "",
                }
            )
        )

    async def boot(self, *more: str) -> Session:
        arguments = ["--portal", self.portal.url, "--state-dir", str(self.state_dir)]
        arguments += ["--gpus", "simulated", "--runtime", "process", *more]
        self.agent = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "agents", *arguments, cwd=ROOT, env={**os.environ}
        )
        return await self.portal.session(timeout=30)

    async def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.agent is not None
        self.agent.send_signal(number)
        return await asyncio.wait_for(self.agent.wait(), 10)

    async def want(self, session: Session, *specs: wire.InstanceSpec) -> None:
        self.generation += 1
        await session.send(
            wire.Desired(
                generation=self.generation, complete=True, count=len(specs), instances=list(specs)
            )
        )


@pytest.fixture
async def machine(state_dir: Path) -> AsyncIterator[Machine]:
    async with running(state_dir) as found:
        yield found


@asynccontextmanager
async def running(state_dir: Path) -> AsyncIterator[Machine]:
    async with running_portal() as portal:
        machine = Machine(state_dir, portal)
        try:
            yield machine
        finally:
            if machine.agent is not None and machine.agent.returncode is None:
                await machine.kill()


def spec(gpu: str | None = None, instance: str = "i", **fields: Any) -> wire.InstanceSpec:
    plain = {
        "run": 1,
        "name": "demo",
        "image": "corral/demo:1",
        "cpu_milli": 1000,
        "memory_bytes": 2**30,
        "disk_bytes": 0,
        "gpus": [wire.GpuShare(uuid=gpu)] if gpu else [],
        "stop_grace_s": 3,
    }
    return wire.InstanceSpec(id=instance, **{**plain, **fields})


def gpus(session: Session) -> list[wire.GpuInfo]:
    hello = session.frames[0]
    assert isinstance(hello, wire.Hello)
    return hello.inventory.gpus


def is_running(status: wire.InstanceStatus) -> bool:
    return status.phase == "running"


async def test_a_node_says_who_it_is_and_what_it_has(machine: Machine) -> None:
    session = await machine.boot("--hostname", "rack-7", "--cpus", "64")

    hello = session.frames[0]
    assert isinstance(hello, wire.Hello)
    assert verifies(machine.portal.headers[0], KEY.public_key())
    assert (hello.node_id, hello.inventory.hostname) == ("n-1", "rack-7")
    assert hello.inventory.cpu_milli == 64_000
    assert len({gpu.uuid for gpu in hello.inventory.gpus}) == 8
    assert (hello.runtime, hello.isolation) == ("process", False)


async def test_an_instance_goes_from_wanted_to_running_to_stopped(machine: Machine) -> None:
    session = await machine.boot()
    wish = spec(gpus(session)[0].uuid)

    await machine.want(session, wish)
    running = await session.status(is_running)
    await machine.want(session, spec(gpus(session)[0].uuid, wanted="stop"))
    stopped = await session.status(lambda status: status.phase == "exited")

    assert running.started_at_ms is not None
    assert running.gpus == [gpus(session)[0].uuid]
    assert stopped.reason_code == "stopped"
    # The stop may come before the program has its handler for SIGTERM.
    assert stopped.exit_code in (0, 143)
    assert stopped.started_at_ms == running.started_at_ms


async def test_an_image_that_is_not_there_fails_with_the_reason(machine: Machine) -> None:
    session = await machine.boot()

    await machine.want(session, spec(image="missing/image:2"))

    failed = await session.status(lambda status: status.phase == "failed")
    assert failed.reason_code == "image_missing"
    assert failed.reason == 'The image "missing/image:2" does not exist.'


async def test_a_killed_agent_is_followed_by_one_that_adopts(machine: Machine) -> None:
    session = await machine.boot()
    wish = spec(gpus(session)[0].uuid)
    await machine.want(session, wish)
    before = await session.status(is_running)

    await machine.kill(signal.SIGKILL)
    successor = await machine.boot()
    await machine.want(successor, wish)
    await successor.wait_for(wire.Report, lambda report: report.observed_generation == 2)

    hello = successor.frames[0]
    assert isinstance(hello, wire.Hello)
    assert hello.instances == [before]
    reports = successor.all(wire.Report)
    assert all(report.instances == [before] for report in reports)


async def test_a_run_that_ended_while_the_agent_was_dead_is_told_and_not_repeated(
    machine: Machine,
) -> None:
    session = await machine.boot()
    wish = spec(command=["sh", "-c", "while [ ! -e end ]; do sleep 0.05; done; exit 5"])
    await machine.want(session, wish)
    before = await session.status(is_running)

    await machine.kill(signal.SIGKILL)
    (machine.state_dir / "instances" / "i-1" / "work" / "end").touch()
    await asyncio.sleep(0.3)
    successor = await machine.boot()
    await machine.want(successor, wish)

    ended = await successor.status(lambda status: status.phase == "exited")
    assert (ended.exit_code, ended.started_at_ms) == (5, before.started_at_ms)
    await asyncio.sleep(1.5)
    assert successor.all(wire.Report)[-1].instances == [ended]


async def test_sigterm_leaves_instances_running_and_closes_cleanly(machine: Machine) -> None:
    session = await machine.boot()
    await machine.want(session, spec())
    before = await session.status(is_running)

    code = await machine.kill(signal.SIGTERM)
    await asyncio.wait_for(session.socket.wait_closed(), 5)
    successor = await machine.boot()

    assert code == 0
    assert session.socket.close_code == 1001
    hello = successor.frames[0]
    assert isinstance(hello, wire.Hello)
    assert hello.instances == [before]


async def test_samples_flow_for_every_gpu(machine: Machine) -> None:
    session = await machine.boot()

    batch = await session.wait_for(wire.Samples, lambda batch: batch.seq >= 3)

    assert {sample.gpu for sample in batch.samples} == {gpu.uuid for gpu in gpus(session)}
    assert batch.agent_run_id == session.frames[0].agent_run_id


async def test_a_gpu_works_only_while_its_instance_does(machine: Machine) -> None:
    session = await machine.boot()
    busy, idle = (gpu.uuid for gpu in gpus(session)[:2])
    await machine.want(session, spec(busy))
    await session.status(is_running)

    def has_work(batch: wire.Samples) -> bool:
        used = {sample.gpu: sample.util for sample in batch.samples}
        return (used[busy] or 0) > 30 and (used[idle] or 0) < 10

    await session.wait_for(wire.Samples, has_work, timeout=20)


async def test_logs_come_back_bounded(machine: Machine) -> None:
    session = await machine.boot()
    await machine.want(session, spec(command=["sh", "-c", "seq 1 100; sleep 60"]))
    await session.status(is_running)
    await asyncio.sleep(0.2)

    await session.send(
        wire.Command(id="c-1", kind="logs", args={"instance": "i", "run": 1, "tail": 2})
    )
    await session.send(wire.Command(id="c-2", kind="logs", args={"instance": "x", "run": 1}))
    await session.send(wire.Command(id="c-3", kind="dance"))

    found = await session.wait_for(wire.CommandResult, lambda result: result.id == "c-1")
    missing = await session.wait_for(wire.CommandResult, lambda result: result.id == "c-2")
    unknown = await session.wait_for(wire.CommandResult, lambda result: result.id == "c-3")
    assert (found.ok, found.data) == (True, "99\n100\n")
    assert (missing.ok, unknown.ok) == (False, False)


async def test_two_agents_never_share_a_state_directory(machine: Machine) -> None:
    await machine.boot()

    second = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "agents",
        *("--portal", machine.portal.url, "--state-dir", str(machine.state_dir)),
        *("--gpus", "simulated", "--runtime", "process"),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    _, words = await asyncio.wait_for(second.communicate(), 20)

    assert second.returncode == 1
    assert b"another agent already uses" in words


async def test_a_node_that_never_joined_says_what_it_needs(state_dir: Path) -> None:
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "agents",
        *("--portal", "http://127.0.0.1:1", "--state-dir", str(state_dir), "--gpus", "simulated"),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    _, words = await asyncio.wait_for(agent.communicate(), 20)

    assert agent.returncode == 1
    assert b"--join" in words
