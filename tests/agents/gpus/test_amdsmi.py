"""AMD GPUs through a stand-in for AMD's binding, which needs its library even to be imported."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agents.gpus import UnableToOpenGpusError, open_source
from agents.gpus.amdsmi import AmdSource

MIB = 1024 * 1024
METRICS: dict[str, Any] = {
    "average_gfx_activity": 87,
    "average_umc_activity": 31,
    "temperature_hotspot": 64,
    "current_gfxclk": 2100,
    "average_socket_power": "N/A",
    "current_socket_power": 512,
    "energy_accumulator": 1_000_000,
}


class AmdSmiException(Exception):
    """What the binding raises."""


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A binding with two MI300X."""
    module: Any = ModuleType("amdsmi")
    module.AmdSmiException = AmdSmiException
    module.metrics = {"a": dict(METRICS), "b": dict(METRICS)}
    module.asic = {
        "market_name": "AMD Instinct MI300X",
        "vendor_id": "0x1002",
        "device_id": "0x74a1",
    }
    module.amdsmi_init = lambda: None
    module.amdsmi_shut_down = lambda: None
    module.amdsmi_get_processor_handles = lambda: ["a", "b"]
    module.amdsmi_get_gpu_asic_info = lambda handle: module.asic
    module.amdsmi_get_gpu_vram_usage = lambda handle: {"vram_total": 196_592, "vram_used": 1_024}
    module.amdsmi_get_gpu_device_bdf = lambda handle: f"0000:0{handle}:00.0"
    module.amdsmi_get_gpu_device_uuid = lambda handle: (
        f"{handle}4ff74a1-0000-1000-8000-000000000000"
    )
    module.amdsmi_get_gpu_driver_info = lambda handle: {"driver_version": "6.14.14"}

    def metrics(handle: str) -> dict[str, Any]:
        if module.metrics[handle] is None:
            raise AmdSmiException("busy")
        return module.metrics[handle]

    module.amdsmi_get_gpu_metrics_info = metrics
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    return module


def test_gpus_are_listed_and_read_in_the_units_of_the_wire(smi: Any) -> None:
    source = AmdSource()

    first, second = source.inventory()
    sample = source.sample(5, 6)[0]

    assert first.model == "AMD Instinct MI300X"
    assert first.memory_bytes == 196_592 * MIB
    assert first.pci_bus_id == "0000:0a:00.0"
    assert first.uuid != second.uuid
    assert (sample.gpu, sample.at_ms, sample.mono_ms) == (first.uuid, 5, 6)
    assert (sample.util, sample.mem_util, sample.temp_c, sample.sm_mhz) == (87, 31, 64, 2100)
    assert sample.power_mw == 512_000
    assert sample.energy_mj == 15_259
    assert (sample.mem_used, sample.mem_total) == (1_024 * MIB, 196_592 * MIB)
    assert sample.fan is None
    assert source.driver() == ("6.14.14", None)
    source.close()


@pytest.mark.parametrize("nothing", ["N/A", 0xFFFF, 0xFFFFFFFFFFFFFFFF, None, True, -1])
def test_what_amd_marks_as_not_available_is_none(smi: Any, nothing: Any) -> None:
    smi.metrics["a"] = dict.fromkeys(METRICS, nothing)
    source = AmdSource()
    source.inventory()

    troubled, healthy = source.sample(0, 0)

    assert (troubled.util, troubled.mem_util, troubled.temp_c, troubled.sm_mhz) == (None,) * 4
    assert (troubled.power_mw, troubled.energy_mj) == (None, None)
    assert troubled.mem_used == 1_024 * MIB
    assert healthy.util == 87


def test_a_gpu_that_cannot_be_read_leaves_the_other_alone(smi: Any) -> None:
    source = AmdSource()
    first, second = source.inventory()
    smi.metrics["a"] = None

    samples = source.sample(0, 0)
    health = {one.uuid: one.state for one in source.health()}

    assert [sample.gpu for sample in samples] == [second.uuid]
    assert health == {first.uuid: "not_answering", second.uuid: "ok"}


def test_a_model_without_a_name_is_called_by_its_number(smi: Any) -> None:
    smi.asic = {"market_name": "N/A", "vendor_id": "0x1002", "device_id": "0x74a1"}

    assert AmdSource().inventory()[0].model == "AMD GPU 0x1002:0x74a1"


def test_a_driver_without_gpus_says_so(smi: Any) -> None:
    smi.amdsmi_get_processor_handles = list
    source = AmdSource()

    assert source.inventory() == []
    assert "lists no GPU" in source.reason()


def test_a_machine_without_the_library_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)  # as if it were not installed

    with pytest.raises(UnableToOpenGpusError, match="install ROCm"):
        open_source("amdsmi", state_dir=tmp_path, activity=dict)
    assert capsys.readouterr().out == ""


def test_the_binding_is_not_loaded_for_other_gpus() -> None:
    code = (
        "import sys, agents.gpus, agents.gpus.amdsmi, agents.gpus.nvml; "
        "print(sorted({'amdsmi', 'pynvml'} & set(sys.modules)))"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30
    )

    assert loaded.stdout.strip() == "[]"
