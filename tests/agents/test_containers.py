"""Instances as real containers, where Docker or Podman answers or Podman can be started."""

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import wire
from agents.runtimes import Observed, RuntimeSilent, UnableToStart, pulling
from agents.runtimes.docker import DockerRuntime

pytestmark = [pytest.mark.container, pytest.mark.slow]


@pytest.fixture(scope="module")
def engine() -> Iterator[tuple[str, str | None]]:
    """Name an engine and its address; start a Podman of our own if none answers."""
    for name in ("docker", "podman"):
        try:
            DockerRuntime(name, node_id="probe", has_real_gpus=False).close()
        except RuntimeSilent:
            continue
        yield name, None
        return
    podman = shutil.which("podman")
    if podman is None or os.geteuid() != 0:
        pytest.skip("neither Docker nor Podman answers, and Podman can't be started here")
    with tempfile.TemporaryDirectory(prefix="corral-podman-") as folder:
        address = f"unix://{folder}/podman.sock"
        runtime = ["--runtime", "runc"] if shutil.which("runc") else []
        service = subprocess.Popen(
            [podman, *runtime, "system", "service", "--time=0", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _await(lambda: Path(folder, "podman.sock").exists(), "Podman's socket")
            yield "podman", address
        finally:
            service.terminate()
            service.wait(10)


def _await(test: Any, what: str, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline, f"{what} took too long"
        time.sleep(0.05)


class Rack:
    """A container runtime for a node that nobody else uses."""

    def __init__(self, name: Any, address: str | None, node_id: str | None = None) -> None:
        self.name, self.address = name, address
        self.node_id = node_id or f"test-{uuid.uuid4().hex[:8]}"
        self.opened: list[DockerRuntime] = []
        self.runtime = self.another()
        self.instance = f"i-{uuid.uuid4().hex[:8]}"

    def another(self, **fields: Any) -> DockerRuntime:
        plain = {"node_id": self.node_id, "has_real_gpus": False, "address": self.address}
        self.opened.append(DockerRuntime(self.name, **{**plain, **fields}))
        return self.opened[-1]

    def spec(self, *command: str, **fields: Any) -> wire.InstanceSpec:
        plain: dict[str, Any] = {
            "id": self.instance,
            "run": 1,
            "name": "demo",
            "image": "corral/demo:1",
            "command": list(command) or None,
            "cpu_milli": 500,
            "memory_bytes": 64 * 2**20,
            "disk_bytes": 0,
            "gpus": [wire.GpuShare(uuid="GPU-1")],
        }
        return wire.InstanceSpec(**{**plain, **fields})

    def start(self, *command: str, **fields: Any) -> None:
        spec = self.spec(*command, **fields)
        self.runtime.start(spec, progress=lambda _: None, cancelled=threading.Event())

    def one(self) -> Observed:
        (found,) = self.runtime.runs()
        return found

    def end(self) -> Observed:
        _await(lambda: not self.one().is_live, "the end")
        return self.one()

    def logs(self) -> str:
        return self.runtime.logs(self.instance, 1, tail=100, max_bytes=65536)


@pytest.fixture
def rack(engine: tuple[str, str | None]) -> Iterator[Rack]:
    rack = Rack(*engine)
    yield rack
    for one in rack.runtime.runs():
        rack.runtime.remove(*one.key)
    for runtime in rack.opened:
        runtime.close()


def test_the_demo_image_is_made_here_and_runs(rack: Rack) -> None:
    rack.start()

    _await(lambda: "computing for" in rack.logs(), "the first line")
    one = rack.one()
    assert one.is_live
    assert one.container_id
    assert abs((one.started_at_ms or 0) - time.time_ns() // 1_000_000) < 60_000
    assert f"computing for {rack.instance} on GPUs GPU-1" in rack.logs()


def test_a_stop_ends_it_cleanly_within_the_grace(rack: Rack) -> None:
    rack.start()
    _await(lambda: "computing for" in rack.logs(), "the first line")

    rack.runtime.stop(rack.instance, 1, grace_s=10)

    outcome = rack.end().outcome
    assert outcome is not None
    assert outcome.exit_code == 0
    assert "good-bye" in rack.logs()


def test_what_ignores_the_stop_is_killed(rack: Rack) -> None:
    rack.start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
    _await(lambda: "ready" in rack.logs(), "the first line")

    rack.runtime.stop(rack.instance, 1, grace_s=1)

    outcome = rack.end().outcome
    assert outcome is not None
    assert outcome.exit_code == 137


def test_an_exit_code_is_told(rack: Rack) -> None:
    rack.start("sh", "-c", "exit 7")

    outcome = rack.end().outcome
    assert outcome is not None
    assert (outcome.exit_code, outcome.sentence) == (7, "It ended with exit code 7.")


def test_a_new_agent_finds_what_an_old_one_started(rack: Rack) -> None:
    rack.start("sleep", "60", ports=[8888])
    before = rack.one()

    (after,) = rack.another().runs()

    assert after == before
    assert after.spec == rack.spec("sleep", "60", ports=[8888])
    assert after.ports[8888] > 0


def test_a_start_is_idempotent(rack: Rack) -> None:
    rack.start("sleep", "60")
    before = rack.one()

    rack.start("sleep", "60")

    assert rack.one().container_id == before.container_id


def test_another_nodes_containers_are_not_touched(rack: Rack) -> None:
    rack.start("sleep", "60")
    stranger = rack.another(node_id="somebody-else")

    stranger.stop(rack.instance, 1, grace_s=0)
    stranger.remove(rack.instance, 1)

    assert stranger.runs() == []
    assert rack.one().is_live


def test_a_container_is_hardened(rack: Rack) -> None:
    rack.start("sh", "-c", "cat /proc/self/status; echo pid1 $(cat /proc/1/comm)", cpu_milli=500)
    rack.end()

    status = dict(line.split(":", 1) for line in rack.logs().splitlines() if line.count(":") == 1)
    container = rack.runtime._find(rack.instance, 1)
    assert container is not None
    limits = container.attrs["HostConfig"]
    assert status["NoNewPrivs"].strip() == "1"
    # Neither SYS_ADMIN (21), NET_ADMIN (12), SYS_PTRACE (19) nor MKNOD (27).
    effective = int(status["CapEff"], 16)
    assert not effective & (1 << 21 | 1 << 12 | 1 << 19 | 1 << 27)
    assert not limits["Privileged"]
    assert limits["NetworkMode"] != "host"
    assert limits["PidsLimit"] == 4096
    assert limits["Memory"] == limits["MemorySwap"] == 64 * 2**20
    assert limits["NanoCpus"] == 500_000_000
    assert "pid1 sh" not in rack.logs()


def test_a_port_is_published_on_loopback_only(rack: Rack) -> None:
    rack.start("sleep", "60", ports=[80])

    port = rack.one().ports[80]

    container = rack.runtime._find(rack.instance, 1)
    assert container is not None
    (binding,) = container.attrs["NetworkSettings"]["Ports"]["80/tcp"]
    assert binding["HostIp"] == "127.0.0.1"
    with socket.socket() as taken, pytest.raises(OSError, match="in use"):
        taken.bind(("127.0.0.1", port))


def test_too_much_memory_is_told_as_such(rack: Rack) -> None:
    rack.start("sh", "-c", "x=x; while :; do x=$x$x; done")

    outcome = rack.end().outcome

    assert outcome is not None
    # Not every engine tells the kernel's out-of-memory killer from any other.
    assert outcome.code in {"oom", "killed"}
    assert "memory" in outcome.sentence
    assert "64 MiB" in outcome.sentence


@pytest.mark.parametrize(
    ("fields", "command", "code"),
    [
        ({"image": "corral-no-such-image:9"}, ["sh"], "image_missing"),
        ({}, ["/no/such/program"], "command_failed"),
    ],
)
def test_what_can_not_start_says_why_and_leaves_nothing(
    rack: Rack, fields: dict[str, Any], command: list[str], code: str
) -> None:
    with pytest.raises(UnableToStart) as refusal:
        rack.start(*command, **fields)

    assert refusal.value.code in {code, "start_failed"}
    assert len(refusal.value.sentence) > 20
    assert rack.runtime.runs() == []


def test_a_cancelled_start_leaves_nothing(rack: Rack) -> None:
    cancelled = threading.Event()
    cancelled.set()

    with pytest.raises(UnableToStart) as refusal:
        rack.runtime.start(rack.spec(), progress=lambda _: None, cancelled=cancelled)

    assert refusal.value.code == "cancelled"
    assert rack.runtime.runs() == []


def test_without_its_real_gpus_a_container_fails_rather_than_runs(rack: Rack) -> None:
    runtime = rack.another(has_real_gpus=True)

    with pytest.raises(UnableToStart) as refusal:
        runtime.start(
            rack.spec("sleep", "60"), progress=lambda _: None, cancelled=threading.Event()
        )

    assert refusal.value.code in {"gpu_not_visible", "create_failed", "start_failed"}
    assert rack.runtime.runs() == []


def test_an_engine_that_is_away_is_silent_not_empty(tmp_path: Path) -> None:
    with pytest.raises(RuntimeSilent):
        Rack("docker", f"unix://{tmp_path}/nothing.sock")


def test_a_pull_counts_its_layers_and_never_goes_back() -> None:
    pull = pulling.Pull("image:1")
    lines = [
        {"status": "Pulling from image", "id": "1"},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 50, "total": 100}},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 0, "total": 900}},
        {"status": "Download complete", "id": "a"},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 890, "total": 900}},
        {"status": "Pull complete", "id": "b"},
    ]

    assert [pull.take(line) for line in lines] == [None, 50, None, None, 99, None]


def test_a_full_disk_is_told_in_words() -> None:
    with pytest.raises(UnableToStart) as refusal:
        pulling.Pull("image:1").take({"error": "write /x: no space left on device"})

    assert refusal.value.code == "disk_full"
