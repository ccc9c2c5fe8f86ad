"""NVIDIA GPUs and drivers in trouble: lost, hanging, mismatched, crashed, or not free."""

import os
import time
from collections.abc import Callable

import pytest

from agents.gpus.device import IDLE_MEMORY_BYTES
from agents.gpus.nvml import LOST_RENEWAL_SECONDS, XID_HOLD_SECONDS, NvmlSource
from tests.agents.gpus.conftest import FakeNvml, by_gpu, states, until

MIB = 1024 * 1024
Open = Callable[..., NvmlSource]


def test_a_lost_gpu_leaves_the_others_alone_and_stays_listed(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    source = open_nvml()
    source.inventory()
    nvml.also("lost 1")

    samples = by_gpu(source.sample(0, 0))

    assert list(samples) == [nvml.uuid(0)]
    assert states(source.health()) == {nvml.uuid(0): "ok", nvml.uuid(1): "lost"}
    assert [info.uuid for info in source.inventory()] == [nvml.uuid(0), nvml.uuid(1)]
    assert "GPU 1" in source.reason()


def test_a_lost_gpu_is_itself_again_when_it_answers(nvml: FakeNvml, open_nvml: Open) -> None:
    nvml.also("lost 1")
    source = open_nvml()
    assert len(source.sample(0, 0)) == 1
    nvml.no_more("lost 1")

    samples = by_gpu(source.sample(1, 1))

    assert set(samples) == {nvml.uuid(0), nvml.uuid(1)}
    assert set(states(source.health()).values()) == {"ok"}


def test_the_driver_is_opened_anew_to_look_for_a_lost_gpu(nvml: FakeNvml, open_nvml: Open) -> None:
    now = [1000.0]
    source = open_nvml(clock=lambda: now[0])
    source.inventory()
    nvml.says("count 1")  # as if the driver had been reloaded without the second
    now[0] += 1
    source.inventory()
    # The session still counts two, as a real one does.
    assert states(source.health())[nvml.uuid(1)] == "ok"
    nvml.says("count 2", "lost 1")
    source.sample(0, 0)
    assert states(source.health())[nvml.uuid(1)] == "lost"

    nvml.says("count 1")
    now[0] += LOST_RENEWAL_SECONDS
    source.sample(1, 1)

    assert states(source.health()) == {nvml.uuid(0): "ok", nvml.uuid(1): "lost"}
    detail = next(one.detail for one in source.health() if one.uuid == nvml.uuid(1))
    assert detail == "The driver does not list this GPU any more."


def test_a_hanging_gpu_delays_one_round_and_then_nobody(nvml: FakeNvml, open_nvml: Open) -> None:
    source = open_nvml()
    source.inventory()
    nvml.also("hang 1")

    began = time.monotonic()
    first = source.sample(0, 0)
    first_took = time.monotonic() - began
    began = time.monotonic()
    rounds = [source.sample(n, n) for n in range(5)]
    health = {one.uuid: one for one in source.health()}
    later_took = time.monotonic() - began

    assert [sample.gpu for sample in first] == [nvml.uuid(0)]
    assert all([sample.gpu for sample in one] == [nvml.uuid(0)] for one in rounds)
    assert first_took < 1.0
    assert later_took < 0.3  # less than the deadline of a single round
    assert health[nvml.uuid(0)].state == "ok"
    assert health[nvml.uuid(1)].state == "not_answering"
    assert "has not answered for" in str(health[nvml.uuid(1)].detail)


def test_a_hanging_gpu_recovers_when_its_call_returns(nvml: FakeNvml, open_nvml: Open) -> None:
    source = open_nvml()
    source.inventory()
    nvml.also("hang 1")
    assert len(source.sample(0, 0)) == 1

    nvml.no_more("hang 1")

    assert until(lambda: len(source.sample(1, 1)) == 2)
    assert set(states(source.health()).values()) == {"ok"}


def test_a_gpu_that_hangs_from_the_start_is_met_when_it_answers(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    nvml.also("hang 1")
    source = open_nvml()
    assert [info.uuid for info in source.inventory()] == [nvml.uuid(0)]
    assert source.reason() == "GPU 1: it does not answer."

    nvml.no_more("hang 1")

    assert until(lambda: len(source.sample(0, 0)) == 2)
    assert len(source.inventory()) == 2
    assert source.reason() == ""


def test_closing_does_not_wait_for_a_hanging_gpu(nvml: FakeNvml, open_nvml: Open) -> None:
    source = open_nvml()
    source.inventory()
    nvml.also("hang 0")
    source.sample(0, 0)

    began = time.monotonic()
    source.close()

    assert time.monotonic() - began < 0.3


def test_a_driver_of_another_version_is_said_and_recovered_from(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    source = open_nvml()
    source.sample(0, 0)
    nvml.also("error * all 18", "init 18")

    assert source.sample(1, 1) == []
    broken = source.health()
    nvml.no_more("error * all 18", "init 18")

    assert states(broken) == {nvml.uuid(0): "not_answering", nvml.uuid(1): "not_answering"}
    assert all("different versions" in str(one.detail) for one in broken)
    assert all("restart the machine" in str(one.detail) for one in broken)
    assert until(lambda: len(source.sample(2, 2)) == 2)
    assert source.reason() == ""


def test_a_driver_that_answers_nothing_but_errors_is_opened_anew(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    source = open_nvml()
    source.inventory()
    nvml.also("error * all 999")
    assert source.sample(0, 0) == []
    assert set(states(source.health()).values()) == {"not_answering"}

    nvml.no_more("error * all 999")

    assert until(lambda: len(source.sample(1, 1)) == 2)


def test_a_machine_whose_driver_is_not_loaded_says_so_and_looks_again(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    nvml.says("init 9")
    source = open_nvml()
    assert source.inventory() == []
    assert source.sample(0, 0) == []
    assert source.health() == []
    assert "not loaded" in source.reason()
    assert source.driver() == (None, None)

    nvml.says("count 1")

    assert until(lambda: len(source.inventory()) == 1)
    assert source.reason() == ""


def test_a_driver_without_gpus_is_told_from_no_driver(nvml: FakeNvml, open_nvml: Open) -> None:
    nvml.says("count 0")
    source = open_nvml()

    assert source.inventory() == []
    assert source.reason() == "The NVIDIA driver works but lists no GPU."


def test_an_xid_of_a_program_is_shown_and_changes_nothing(nvml: FakeNvml, open_nvml: Open) -> None:
    source = open_nvml()
    source.inventory()
    nvml.also("xid 0 31", "xid 0 31")

    source.sample(0, 0)
    health = {one.uuid: one for one in source.health()}

    assert health[nvml.uuid(0)].state == "ok"
    assert str(health[nvml.uuid(0)].detail).startswith("XID 31, 2 times: the program on the GPU")
    assert health[nvml.uuid(1)].detail is None


@pytest.mark.parametrize(
    ("xid", "state", "words"),
    [(79, "lost", "fallen off the bus"), (119, "not_answering", "drained and reset")],
)
def test_an_xid_of_the_gpu_marks_it_and_the_mark_passes(
    nvml: FakeNvml, open_nvml: Open, xid: int, state: str, words: str
) -> None:
    now = [1000.0]
    source = open_nvml(clock=lambda: now[0])
    source.inventory()
    nvml.also(f"xid 1 {xid}")

    source.sample(0, 0)
    marked = {one.uuid: one for one in source.health()}[nvml.uuid(1)]
    now[0] += XID_HOLD_SECONDS
    source.sample(1, 1)
    later = {one.uuid: one for one in source.health()}[nvml.uuid(1)]

    assert marked.state == state
    assert f"XID {xid}: " in str(marked.detail)
    assert words in str(marked.detail)
    assert later.state == "ok"
    assert f"XID {xid}" in str(later.detail)  # the history stays


def test_what_the_driver_asks_for_outlasts_any_table(nvml: FakeNvml, open_nvml: Open) -> None:
    nvml.also("recovery 0 1", "recovery 1 99")
    source = open_nvml()
    source.sample(0, 0)

    health = {one.uuid: one for one in source.health()}

    assert health[nvml.uuid(0)].state == "not_answering"
    assert health[nvml.uuid(0)].detail == "The driver asks to reset the GPU."
    assert health[nvml.uuid(1)].detail == "The driver asks to take recovery action 99."


def test_made_up_processes_are_dropped(nvml: FakeNvml, open_nvml: Open) -> None:
    alive = os.getpid()
    nvml.also(
        "proc 0 0 10",
        "proc 0 -1 10",
        "proc 0 4194304999 10",
        f"proc 0 {alive} 512",
        f"proc 0 {alive} 999999999",
        f"proc 0 {alive} -1",
    )
    source = open_nvml()
    source.inventory()

    found = source.processes(nvml.uuid(0))

    assert [(one.pid, one.memory_bytes) for one in found] == [(alive, 512 * MIB), (alive, None)]
    assert all(one.name for one in found)


def test_a_gpu_that_nobody_holds_is_busy_while_a_process_lives_on_it(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    alive = os.getpid()
    nvml.also(f"proc 0 {alive} 512", f"proc 1 {alive} 512", "mem * 100 81559")
    source = open_nvml({nvml.uuid(1): 0.0})
    source.sample(0, 0)

    busy = {one.uuid: one for one in source.health()}
    nvml.no_more(f"proc 0 {alive} 512")
    free = states(source.health())

    assert busy[nvml.uuid(0)].state == "busy"
    assert str(alive) in str(busy[nvml.uuid(0)].detail)
    assert busy[nvml.uuid(1)].state == "ok"  # an instance holds it, and rightly
    assert free[nvml.uuid(0)] == "ok"


def test_memory_that_no_living_process_holds_keeps_a_gpu_busy(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    nvml.also(f"mem 0 {IDLE_MEMORY_BYTES // MIB + 1} 81559", "mem 1 599 81559", "proc 0 -1 5")
    source = open_nvml({})
    source.sample(0, 0)

    health = {one.uuid: one for one in source.health()}

    assert health[nvml.uuid(0)].state == "busy"
    assert "no living process" in str(health[nvml.uuid(0)].detail)
    assert health[nvml.uuid(1)].state == "ok"


def test_a_gpu_is_not_free_because_nothing_can_be_learnt_of_it(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    nvml.also("na 0 procs", "na 0 mem", "na 1 procs", "mem 1 20 81559")
    source = open_nvml({})
    source.sample(0, 0)

    assert states(source.health()) == {nvml.uuid(0): "busy", nvml.uuid(1): "ok"}
    with pytest.raises(LookupError, match="does not say"):
        source.processes(nvml.uuid(0))
    with pytest.raises(LookupError, match="no GPU GPU-unknown"):
        source.processes("GPU-unknown")


def test_a_gpu_that_hangs_while_it_is_asked_for_processes_is_not_called_free(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    source = open_nvml({})
    source.sample(0, 0)
    nvml.also("hang 0")

    health = states(source.health())

    assert health[nvml.uuid(0)] == "not_answering"
    with pytest.raises(LookupError, match="does not answer"):
        source.processes(nvml.uuid(0))
