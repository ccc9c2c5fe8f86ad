"""Instances as real processes: start, stop, the words for every end, and what outlives what."""

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agents import wire
from agents.runtimes import Observed, UnableToStart
from agents.runtimes.process import ProcessRuntime
from agents.runtimes.shim import starttime


class Rack:
    """A process runtime, and the few words that the tests need."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.runtime = ProcessRuntime(state_dir, has_real_gpus=False)

    def start(self, *command: str, **fields: Any) -> None:
        plain: dict[str, Any] = {
            "id": "i",
            "run": 1,
            "name": "demo",
            "image": "corral/demo:1",
            "command": list(command) or None,
            "gpus": [wire.GpuShare(uuid="GPU-1"), wire.GpuShare(uuid="GPU-2")],
            "cpu_milli": 1000,
            "memory_bytes": 2**30,
            "disk_bytes": 0,
        }
        spec = wire.InstanceSpec(**{**plain, **fields})
        self.runtime.start(spec, progress=lambda _: None, cancelled=threading.Event())

    def one(self) -> Observed:
        (found,) = self.runtime.runs()
        return found

    def end(self, seconds: float = 10) -> Observed:
        return self.wait(lambda: not self.one().is_live, seconds) or self.one()

    def wait(self, test: Any, seconds: float = 10) -> None:
        deadline = time.monotonic() + seconds
        while not test():
            assert time.monotonic() < deadline, "it took too long"
            time.sleep(0.02)

    def logs(self, tail: int = 100, max_bytes: int = 65536) -> str:
        return self.runtime.logs("i", 1, tail=tail, max_bytes=max_bytes)


@pytest.fixture
def rack(state_dir: Path) -> Rack:
    return Rack(state_dir)


def test_an_instance_runs_and_shows_its_evidence(rack: Rack) -> None:
    before = time.time_ns() // 1_000_000

    rack.start("sleep", "60")

    one = rack.one()
    assert one.is_live
    assert one.started_at_ms is not None
    assert before - 1000 <= one.started_at_ms <= time.time_ns() // 1_000_000
    assert one.pid is not None
    assert starttime(one.pid) is not None


def test_a_start_is_idempotent(rack: Rack) -> None:
    rack.start("sleep", "60")
    first = rack.one()

    rack.start("sleep", "60")

    assert rack.one() == first


def test_the_demo_image_trains_without_a_command(rack: Rack) -> None:
    rack.start()

    rack.wait(lambda: "training for i on GPUs GPU-1,GPU-2" in rack.logs())
    rack.runtime.stop("i", 1, grace_s=10)

    end = rack.end()
    assert end.outcome is not None
    assert end.outcome.exit_code == 0
    assert "good-bye" in rack.logs()


def test_an_instance_sees_its_own_environment_and_nothing_of_the_agents(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "x")

    rack.start("env", env={"MINE": "1", "CORRAL_GPUS": "GPU-9"}, ports=[8888])

    rack.end()
    lines = set(rack.logs().splitlines())
    assert {"CORRAL_INSTANCE=i", "CORRAL_GPUS=GPU-1,GPU-2", "MINE=1"} <= lines
    assert not any("SECRET_OF_THE_AGENT" in line for line in lines)
    assert f"CORRAL_PORT_8888={rack.one().ports[8888]}" in lines


def test_real_gpus_are_named_to_cuda(state_dir: Path) -> None:
    rack = Rack(state_dir)
    rack.runtime = ProcessRuntime(state_dir, has_real_gpus=True)

    rack.start("env")

    rack.end()
    lines = set(rack.logs().splitlines())
    assert {"NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-2", "CUDA_DEVICE_ORDER=PCI_BUS_ID"} <= lines


def test_a_port_of_an_instance_is_reached_on_loopback(rack: Rack) -> None:
    program = (
        "import os,socket;s=socket.create_server(('127.0.0.1',int(os.environ['CORRAL_PORT_80'])));"
        "print('ready',flush=True);s.accept()[0].sendall(b'hi')"
    )
    rack.start("python3", "-c", program, ports=[80])
    rack.wait(lambda: "ready" in rack.logs())

    with socket.create_connection(("127.0.0.1", rack.one().ports[80]), 5) as client:
        answer = client.recv(10)

    assert answer == b"hi"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["sh", "-c", "exit 0"], 0, "It finished."),
        (["sh", "-c", "exit 3"], 3, "It ended with exit code 3."),
        (["sh", "-c", "kill -SEGV $$"], 139, "memory access error (SIGSEGV)"),
        (["sh", "-c", "kill -KILL $$"], 137, "killed from outside (SIGKILL, exit code 137)"),
    ],
)
def test_an_end_is_told_in_words(rack: Rack, command: list[str], code: int, words: str) -> None:
    rack.start(*command)

    outcome = rack.end().outcome

    assert outcome is not None
    assert outcome.exit_code == code
    assert words in outcome.sentence


def test_too_much_memory_ends_the_instance_and_says_so(rack: Rack) -> None:
    program = "x = bytearray(b'x') * (200 << 20)\nimport time; time.sleep(60)"

    rack.start("python3", "-c", program, memory_bytes=50 * 2**20)

    outcome = rack.end().outcome
    assert outcome is not None
    assert outcome.code == "oom"
    assert "out of memory" in outcome.sentence
    assert "50 MiB" in outcome.sentence


@pytest.mark.parametrize(
    ("fields", "command", "code", "words"),
    [
        ({"image": "missing/image:1"}, ["sleep", "1"], "image_missing", "missing/image:1"),
        ({"image": "pytorch:2"}, [], "no_command", "names no command"),
        ({}, ["/no/such/program"], "command_missing", "/no/such/program"),
        ({"id": "../../etc"}, ["sleep", "1"], "bad_id", "not allowed"),
    ],
)
def test_what_can_not_start_says_why(
    rack: Rack, fields: dict[str, Any], command: list[str], code: str, words: str
) -> None:
    with pytest.raises(UnableToStart) as refusal:
        rack.start(*command, **fields)

    assert refusal.value.code == code
    assert words in refusal.value.sentence
    assert rack.runtime.runs() == []


def test_a_program_that_is_none_says_why(rack: Rack, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF-but-no-more")
    program.chmod(0o755)

    with pytest.raises(UnableToStart) as refusal:
        rack.start(str(program))

    assert refusal.value.code == "command_failed"
    assert "format" in refusal.value.sentence.lower()


def test_a_cancelled_start_leaves_nothing(rack: Rack) -> None:
    cancelled = threading.Event()
    cancelled.set()
    spec = wire.InstanceSpec(
        id="i",
        run=1,
        name="demo",
        image="corral/demo:1",
        cpu_milli=1000,
        memory_bytes=2**30,
        disk_bytes=0,
    )

    with pytest.raises(UnableToStart):
        rack.runtime.start(spec, progress=lambda _: None, cancelled=cancelled)

    assert rack.runtime.runs() == []


def test_a_stop_ends_the_whole_group_even_those_that_left_it(rack: Rack) -> None:
    rack.start("sh", "-c", "sleep 61 & setsid sleep 62 & echo $! ; wait")
    rack.wait(lambda: rack.logs().strip() != "")
    strays = [int(rack.logs())]

    rack.runtime.stop("i", 1, grace_s=5)

    rack.end()
    assert [pid for pid in strays if starttime(pid) is not None] == []


def test_a_stop_kills_what_ignores_it_after_the_grace(rack: Rack) -> None:
    rack.start("sh", "-c", "trap '' TERM; echo ready; while true; do sleep 0.1; done")
    rack.wait(lambda: "ready" in rack.logs())
    began = time.monotonic()

    rack.runtime.stop("i", 1, grace_s=1)

    outcome = rack.end().outcome
    assert outcome is not None
    assert outcome.exit_code == 137
    assert 0.9 < time.monotonic() - began < 4


def test_a_stop_without_grace_kills_at_once(rack: Rack) -> None:
    rack.start("sh", "-c", "trap '' TERM; echo ready; while true; do sleep 0.1; done")
    rack.wait(lambda: "ready" in rack.logs())

    rack.runtime.stop("i", 1, grace_s=0)

    assert rack.end(3).outcome is not None


def test_an_instance_outlives_its_supervisor_and_can_still_be_stopped(rack: Rack) -> None:
    rack.start("sleep", "60")
    state = rack.state_dir / "instances" / "i-1" / "shim.json"
    os.kill(json.loads(state.read_text())["shim_pid"], signal.SIGKILL)
    time.sleep(0.1)
    alive = rack.one().is_live

    rack.runtime.stop("i", 1, grace_s=2)

    assert alive
    outcome = rack.end().outcome
    assert outcome is not None
    assert outcome.code == "exit_unknown"


def test_a_reused_process_id_is_not_the_instance(rack: Rack) -> None:
    rack.start("sh", "-c", "exit 0")
    rack.end()
    directory = rack.state_dir / "instances" / "i-1"
    (directory / "exit.json").unlink()
    state = json.loads((directory / "shim.json").read_text())
    state |= {"pid": os.getpid(), "shim_pid": os.getppid()}
    (directory / "shim.json").write_text(json.dumps(state))

    assert not rack.one().is_live
    rack.runtime.stop("i", 1, grace_s=0)
    assert starttime(os.getpid()) is not None


def test_removing_takes_the_dead_and_leaves_the_living(rack: Rack) -> None:
    rack.start("sleep", "60")
    rack.runtime.remove("i", 1)
    still_there = rack.one().is_live
    rack.runtime.stop("i", 1, grace_s=0)
    rack.end()

    rack.runtime.remove("i", 1)

    assert still_there
    assert rack.runtime.runs() == []


def test_logs_are_bounded_in_lines_and_bytes(rack: Rack) -> None:
    rack.start("sh", "-c", "seq 1 5000")
    rack.end()

    assert rack.logs(tail=3) == "4998\n4999\n5000\n"
    assert len(rack.logs(tail=5000, max_bytes=100)) <= 100
    with pytest.raises(KeyError):
        rack.runtime.logs("nobody", 1, tail=3, max_bytes=100)


def test_the_log_of_a_talkative_instance_is_bounded_on_disk(rack: Rack) -> None:
    rack.start("sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' 'x' | fold -w 99; echo last")
    rack.end(30)

    directory = rack.state_dir / "instances" / "i-1"
    assert sum((directory / name).stat().st_size for name in ("log", "log.1")) < 9 * 2**20
    assert rack.logs(tail=1).endswith("last\n")


def test_the_disk_limit_bounds_a_file(rack: Rack) -> None:
    rack.start("sh", "-c", "head -c 3000000 /dev/zero > big", disk_bytes=1_000_000)
    rack.end()

    assert (rack.state_dir / "instances" / "i-1" / "work" / "big").stat().st_size <= 1_000_000
