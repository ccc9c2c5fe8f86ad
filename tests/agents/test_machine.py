"""Settings, inventory, activity, the GPU thread and the demo workload."""

import asyncio
import io
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agents import config, machine, wire, workload
from agents.activity import Activity
from agents.backoff import Backoff
from agents.collector import Collector, Seen
from agents.daemon import Daemon
from agents.identity import Identity
from agents.runtimes import Observed, UnableToChoose, choice, tiny_image
from agents.runtimes.process import ProcessRuntime
from tests.agents.portal import running_portal

GPU = wire.GpuInfo(uuid="GPU-1", index=0, model="Test", memory_bytes=2**30)


class Source:
    """A GPU that can be made to hang or to fail."""

    def __init__(self) -> None:
        self.gpus = [GPU]
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.fails = False
        self.closed = False

    def inventory(self) -> list[wire.GpuInfo]:
        return self.gpus

    def sample(self, at_ms: int, mono_ms: int) -> list[wire.Sample]:
        self.may_go_on.wait()
        if self.fails:
            raise RuntimeError("the driver stumbled")
        return [wire.Sample(gpu=gpu.uuid, at_ms=at_ms, mono_ms=mono_ms) for gpu in self.gpus]

    def health(self) -> list[wire.GpuHealth]:
        return [wire.GpuHealth(uuid=gpu.uuid, state="ok") for gpu in self.gpus]

    def reason(self) -> str:
        return ""

    def driver(self) -> tuple[str | None, str | None]:
        return ("550.1", "12.4")

    def close(self) -> None:
        self.closed = True


def _await(test: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)


def test_flags_go_before_variables() -> None:
    environ = {"CORRAL_PORTAL": "https://a.example", "CORRAL_CPUS": "8", "CORRAL_RUNTIME": "podman"}

    found = config.read(["--portal", "https://b.example/", "--gpus", "simulated:x"], environ)

    assert found.portal == "https://b.example"
    assert (found.cpu_milli, found.runtime, found.gpus) == (8000, "podman", "simulated:x")
    assert not found.has_real_gpus


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--portal", "gpu.example"],
        ["--portal", "https://gpu.example", "--gpus", "voodoo"],
        ["--portal", "https://gpu.example", "--runtime", "magic"],
    ],
)
def test_wrong_settings_end_with_a_usage_message(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        config.read(arguments, {})

    assert end.value.code == 2
    assert "usage: corral-agent" in capsys.readouterr().err


def settings(state_dir: Path, **fields: object) -> config.Config:
    plain = {"portal": "http://127.0.0.1:1", "state_dir": state_dir, "gpus": "simulated"}
    return config.Config(**{**plain, **fields})  # type: ignore[arg-type]


def test_a_real_node_offers_what_the_machine_has(tmp_path: Path) -> None:
    found = machine.inventory(settings(tmp_path, gpus="nvml"), [], ("550.1", None))

    assert found.cpu_milli == len(os.sched_getaffinity(0)) * 1000
    assert found.memory_bytes > 2**28
    assert (found.driver_version, found.cuda_version) == ("550.1", None)


def test_a_simulated_node_offers_what_its_rack_would_have(tmp_path: Path) -> None:
    found = machine.inventory(settings(tmp_path, cpu_milli=4000), [GPU, GPU], (None, None))

    assert found.cpu_milli == 4000
    assert found.memory_bytes == 2 * machine.SIMULATED_MEMORY_PER_GPU


def test_a_runtime_that_was_asked_for_and_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")

    with pytest.raises(UnableToChoose, match="docker does not answer"):
        choice.open_runtime(settings(tmp_path, runtime="docker"), node_id="n")


def test_without_an_engine_instances_are_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    monkeypatch.setenv("CONTAINER_HOST", f"unix://{tmp_path}/nothing.sock")

    runtime = choice.open_runtime(settings(tmp_path), node_id="n")

    assert runtime.name == "process"
    assert not runtime.isolation


def test_a_runtime_used_before_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    (tmp_path / "runtime").write_text("docker")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            (tmp_path / "runtime").write_text("docker")
            raise InterruptedError

    monkeypatch.setattr(choice.time, "sleep", wait)
    with pytest.raises(InterruptedError):
        choice.open_runtime(settings(tmp_path), node_id="n")

    assert waits == [choice.RETRY_SECONDS] * 3


def test_activity_follows_the_processor_time_of_the_holder() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    idle = subprocess.Popen(["sleep", "60"])
    activity = Activity()
    plain = {
        "name": "x",
        "image": "x",
        "cpu_milli": 1,
        "memory_bytes": 1,
        "disk_bytes": 0,
        "run": 1,
    }
    try:
        activity.watch(
            [
                Observed(
                    spec=wire.InstanceSpec(id=uuid, gpus=[wire.GpuShare(uuid=uuid)], **plain),
                    is_live=True,
                    pid=process.pid,
                )
                for uuid, process in (("GPU-1", busy), ("GPU-2", idle))
            ]
        )
        activity()
        time.sleep(0.5)
        levels = activity()
    finally:
        busy.kill()
        idle.kill()
        busy.wait()
        idle.wait()

    assert set(levels) == {"GPU-1", "GPU-2"}
    assert levels["GPU-1"] > 0.3
    assert levels["GPU-2"] < 0.05


def test_the_gpu_thread_reads_until_it_is_stopped() -> None:
    source, batches, seen = Source(), [], []
    collector = Collector(lambda: source, on_samples=batches.append, on_seen=seen.append)
    collector.interval_s = 0.02

    collector.start()
    _await(lambda: len(batches) >= 3)
    collector.stop()
    _await(lambda: source.closed)

    assert seen[0] == Seen(gpus=[GPU], health=source.health(), driver=("550.1", "12.4"))


def test_one_bad_reading_does_not_end_all_later_ones() -> None:
    source, batches = Source(), []
    source.fails = True
    collector = Collector(lambda: source, on_samples=batches.append, on_seen=lambda _: None)
    collector.interval_s = 0.02
    collector.start()
    time.sleep(0.1)

    source.fails = False

    _await(lambda: len(batches) >= 2)
    collector.stop()
    _await(lambda: source.closed)


async def test_a_hung_driver_stops_neither_heartbeats_nor_instances(state_dir: Path) -> None:
    source = Source()
    async with running_portal() as portal:
        daemon = Daemon(
            settings(state_dir, portal=portal.url),
            Identity(node_id="n", generation=1, key=Ed25519PrivateKey.generate()),
            ProcessRuntime(state_dir, has_real_gpus=False),
            backoff=Backoff(first_s=0.01),
            source=lambda: source,
        )
        daemon._collector._deadline_s = 0.5
        task = asyncio.create_task(daemon.run())
        session = await portal.session()
        await session.wait_for(wire.Samples)

        source.may_go_on.clear()
        hung = await session.wait_for(
            wire.Report,
            lambda report: report.gpu_health and report.gpu_health[0].state == "not_answering",
        )
        beat = len(session.all(wire.Heartbeat))
        await session.wait_for(wire.Heartbeat, lambda heartbeat: heartbeat.seq > beat + 2)
        source.may_go_on.set()
        await session.wait_for(
            wire.Report,
            lambda report: report.seq > hung.seq and report.gpu_health[0].state == "ok",
        )

        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_changed_inventory_is_told_in_a_new_hello(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.collector.INVENTORY_SECONDS", 0.1)
    monkeypatch.setattr("agents.collector.HEALTH_SECONDS", 0.1)
    source = Source()
    async with running_portal() as portal:
        daemon = Daemon(
            settings(state_dir, portal=portal.url),
            Identity(node_id="n", generation=1, key=Ed25519PrivateKey.generate()),
            ProcessRuntime(state_dir, has_real_gpus=False),
            backoff=Backoff(first_s=0.01, cap_s=0.05),
            source=lambda: source,
        )
        task = asyncio.create_task(daemon.run())
        await portal.session()

        source.gpus = [GPU, wire.GpuInfo(uuid="GPU-2", index=1, model="Test", memory_bytes=1)]
        session = await portal.session()

        hello = session.frames[0]
        assert isinstance(hello, wire.Hello)
        assert [gpu.uuid for gpu in hello.inventory.gpus] == ["GPU-1", "GPU-2"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_workload_really_learns() -> None:
    rng = random.Random(7)
    network = workload.Network(rng)
    points = [rng.uniform(-3, 3) for _ in range(8000)]

    errors = [network.learn(x, x / 3) for x in points]

    assert sum(errors[-500:]) < sum(errors[:500]) / 10


@pytest.mark.parametrize("profile", ["walk", "steady", "wave", "epochs"])
def test_every_profile_stays_within_its_bounds(profile: str) -> None:
    levels = list(islice(workload.intensities(profile, random.Random(1)), 2000))

    assert 0 < min(levels) <= max(levels) <= 1


def test_the_workload_says_good_bye_on_sigterm() -> None:
    process = subprocess.Popen(
        [sys.executable, workload.__file__, "--report-seconds", "0.2", "--seed", "1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first, second = process.stdout.readline(), process.stdout.readline()

    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=10)

    assert "training for" in first
    assert "loss" in second
    assert "good-bye" in rest
    assert process.returncode == 0


def test_the_tiny_image_holds_a_shell_its_libraries_and_the_demo() -> None:
    with tarfile.open(fileobj=io.BytesIO(tiny_image.archive())) as tar:
        names = tar.getnames()

    assert {"bin/sh", "bin/sleep", "demo.sh", "tmp"} <= set(names)
    assert len(names) == len(set(names))
