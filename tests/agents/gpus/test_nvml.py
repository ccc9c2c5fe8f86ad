"""What is read of NVIDIA GPUs, through the real binding and a fake driver library."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from agents.gpus.nvml import NvmlSource
from agents.wire import Sample
from tests.agents.gpus.conftest import FakeNvml, by_gpu

MIB = 1024 * 1024
Open = Callable[..., NvmlSource]


def test_a_gpu_is_known_by_its_uuid_and_described(nvml: FakeNvml, open_nvml: Open) -> None:
    source = open_nvml()

    first, second = source.inventory()

    assert (first.uuid, second.uuid) == (nvml.uuid(0), nvml.uuid(1))
    assert first.model == "NVIDIA H100 80GB HBM3"
    assert first.memory_bytes == 81559 * MIB
    assert first.pci_bus_id == "00000000:09:00.0"
    assert not first.mig
    assert source.driver() == ("590.48.01", "13.1")
    assert source.reason() == ""


def test_every_field_is_read_in_the_units_of_the_wire(nvml: FakeNvml, open_nvml: Open) -> None:
    nvml.also("temp 0 59", "clock 0 1980", "fan 0 38", "energy 0 5000", "throttle 0 0x4")
    source = open_nvml()

    sample = by_gpu(source.sample(1_000, 50))[nvml.uuid(0)]

    assert sample == Sample(
        gpu=nvml.uuid(0),
        at_ms=1_000,
        mono_ms=50,
        util=93,
        mem_used=1024 * MIB,
        mem_total=81559 * MIB,
        power_mw=69_850,
        temp_c=59,
        sm_mhz=1980,
        mem_util=40,
        fan=38,
        throttle=0x4,
        energy_mj=5_000,
    )


def test_an_unavailable_field_is_none_and_the_others_are_delivered(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    nvml.also("na 0 fan", "na 0 power", "error 0 temp 999", "error 0 energy 4")
    source = open_nvml()

    samples = by_gpu(source.sample(0, 0))

    troubled, healthy = samples[nvml.uuid(0)], samples[nvml.uuid(1)]
    missing = {troubled.fan, troubled.power_mw, troubled.temp_c, troubled.energy_mj}
    assert missing == {None}
    assert (troubled.util, troubled.sm_mhz, troubled.mem_total) == (93, 1980, 81559 * MIB)
    assert (healthy.fan, healthy.power_mw) == (38, 69_850)
    assert {one.state for one in source.health()} == {"ok"}


def test_what_a_gpu_does_not_support_is_not_asked_again_until_it_is_met_anew(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    nvml.also("na 0 fan")
    source = open_nvml()
    source.sample(0, 0)
    nvml.no_more("na 0 fan")

    remembered = by_gpu(source.sample(1, 1))[nvml.uuid(0)].fan
    source.inventory()
    met_anew = by_gpu(source.sample(2, 2))[nvml.uuid(0)].fan

    assert (remembered, met_anew) == (None, 38)


def test_a_passing_failure_of_a_field_is_over_with_the_next_sample(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    nvml.also("error 0 power 999")
    source = open_nvml()

    failing = by_gpu(source.sample(0, 0))[nvml.uuid(0)].power_mw
    nvml.no_more("error 0 power 999")
    working = by_gpu(source.sample(1, 1))[nvml.uuid(0)].power_mw

    assert (failing, working) == (None, 69_850)


@pytest.mark.parametrize(
    ("order", "field"),
    [
        ("util 0 250 3", "util"),
        ("mem 0 99999999 81559", "mem_used"),
        ("temp 0 4294967295", "temp_c"),
        ("power 0 4294967295", "power_mw"),
        ("clock 0 4294967295", "sm_mhz"),
        ("throttle 0 0xffffffffffffffff", "throttle"),
    ],
)
def test_a_reading_that_cannot_be_is_none(
    nvml: FakeNvml, open_nvml: Open, order: str, field: str
) -> None:
    nvml.also(order)

    sample = by_gpu(open_nvml().sample(0, 0))[nvml.uuid(0)]

    assert getattr(sample, field) is None
    assert sample.fan == 38


def test_bits_and_modes_that_nobody_knows_are_kept_as_they_are(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    nvml.also("throttle 0 0x40000000", "migmode 0 7")
    source = open_nvml()

    assert not source.inventory()[0].mig
    assert by_gpu(source.sample(0, 0))[nvml.uuid(0)].throttle == 0x40000000


def test_a_sliced_gpu_is_given_as_its_slices_and_has_no_utilisation(
    nvml: FakeNvml, open_nvml: Open
) -> None:
    nvml.also("mig 0", "temp 0 52")
    source = open_nvml()

    inventory = source.inventory()
    samples = by_gpu(source.sample(0, 0))

    slices = [info for info in inventory if info.mig]
    assert nvml.uuid(0) not in {info.uuid for info in inventory}
    assert [info.memory_bytes // MIB for info in slices] == [40448, 20096, 9984, 9984]
    assert len({info.uuid for info in slices}) == 4
    assert slices[0].model == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    for part in slices:
        sample = samples[part.uuid]
        assert (sample.mem_used, sample.mem_total) == (17 * MIB, part.memory_bytes)
        assert (sample.util, sample.mem_util, sample.power_mw, sample.energy_mj) == (None,) * 4
        assert sample.temp_c == 52
    assert samples[nvml.uuid(0)].util is None
    assert samples[nvml.uuid(0)].power_mw == 69_850


PROGRAM = """
from pathlib import Path
from agents.gpus import open_source
source = open_source("nvml", state_dir=Path("."), activity=dict)
print(len(source.inventory()), len(source.sample(0, 0)), len(source.health()), source.reason())
source.close()
"""


def run_program(environment: dict[str, str]) -> str:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout.strip()


def test_an_agent_started_beside_the_library_finds_its_gpus(nvml: FakeNvml) -> None:
    environment = {
        "LD_LIBRARY_PATH": str(nvml.library.parent),
        "FAKE_NVML_CTL": str(nvml.control),
    }

    assert run_program(environment) == "2 2 2"


def test_a_machine_without_the_library_has_no_gpus_and_says_why() -> None:
    said = run_program({})

    if not said.startswith("0 0 0"):
        pytest.skip("this machine has an NVIDIA driver of its own")
    assert "install the driver" in said
