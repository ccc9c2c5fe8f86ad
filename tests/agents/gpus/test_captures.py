"""The simulator and the agent report what real machines reported, and nothing where they did not.

The captures are real `nvidia-smi` output; they lie beside the project, not in it.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.gpus.nvml import NvmlSource
from agents.gpus.profiles import MODELS
from agents.gpus.simulated import SimulatedSource
from agents.wire import Sample
from tests.agents.gpus.conftest import FakeNvml

CAPTURES = Path(__file__).resolve().parents[4] / "shared" / "data" / "nvml"

# Our field, and nvidia-smi's name for it. (The energy counter has none.)
FIELDS = {
    "util": "utilization.gpu",
    "mem_util": "utilization.memory",
    "mem_used": "memory.used",
    "mem_total": "memory.total",
    "power_mw": "power.draw",
    "temp_c": "temperature.gpu",
    "sm_mhz": "clocks.current.sm",
    "fan": "fan.speed",
    "throttle": "clocks_event_reasons.active",
}
MODEL_OF = {
    "h100": "h100-80gb",
    "h100mig": "h100-mig",
    "h200": "h200",
    "rtx2080s": "2080-super",
}
Row = dict[str, str]


def capture(model: str) -> tuple[Row, Row]:
    """Read the idle and the loaded row of a model's capture."""
    found = sorted(CAPTURES.glob(f"*{MODEL_OF[model]}*.txt")) if CAPTURES.is_dir() else []
    if not found:
        pytest.skip(f"needs the captures of real GPUs in {CAPTURES}")
    lines = found[0].read_text().splitlines()
    rows = []
    for number, line in enumerate(lines):
        if line.startswith("timestamp, driver_version"):
            names = [name.strip().split(" [")[0] for name in line.split(",")]
            rows.append(dict(zip(names, map(str.strip, lines[number + 1].split(",")), strict=True)))
    idle, loaded = rows
    return idle, loaded


def number(row: Row, name: str) -> float:
    return float(re.sub(r"[^\d.]", "", row[name]))


def absent(row: Row) -> set[str]:
    return {ours for ours, theirs in FIELDS.items() if row[theirs] in ("[N/A]", "N/A")}


def nothing(sample: Sample) -> set[str]:
    return {name for name in FIELDS if getattr(sample, name) is None}


@pytest.mark.parametrize("model", MODEL_OF)
def test_a_simulated_board_is_silent_where_the_real_one_is(model: str, tmp_path: Path) -> None:
    idle, loaded = capture(model)
    source = SimulatedSource(f"{model}x1", state_dir=tmp_path, activity=dict)

    sample = source.sample(0, 0)[0]

    # A slice leaves out the board's power, too: four slices would draw it four times.
    of_a_slice = {"power_mw"} if MODELS[model].slices else set()
    assert nothing(sample) - of_a_slice == absent(idle) == absent(loaded)


@pytest.mark.parametrize("model", MODEL_OF)
def test_a_profile_has_the_figures_of_the_real_board(model: str) -> None:
    idle, loaded = capture(model)
    board = MODELS[model]

    assert board.name == idle["name"]
    assert board.driver == idle["driver_version"]
    assert board.memory == number(idle, "memory.total")
    assert board.idle_memory == number(idle, "memory.used")
    assert board.limit_watts == number(idle, "power.limit")
    assert board.idle_watts == pytest.approx(number(idle, "power.draw"), rel=0.1)
    assert board.idle_clock == number(idle, "clocks.current.sm")
    assert board.top_clock == number(loaded, "clocks.current.sm")
    if "[N/A]" not in loaded["utilization.gpu"] and number(loaded, "utilization.gpu") == 100:
        assert board.load_watts == pytest.approx(number(loaded, "power.draw"), rel=0.02)


@pytest.mark.parametrize("model", MODEL_OF)
def test_the_agent_reads_a_driver_that_answers_like_the_real_one(
    model: str, nvml: FakeNvml, open_nvml: Callable[..., NvmlSource]
) -> None:
    _, row = capture(model)
    orders = [f"na 0 {name}" for name in ("util", "fan") if name in absent(row)]
    if "util" not in absent(row):
        busy, traffic = number(row, "utilization.gpu"), number(row, "utilization.memory")
        orders.append(f"util 0 {busy:.0f} {traffic:.0f}")
    if "fan" not in absent(row):
        orders.append(f"fan 0 {number(row, 'fan.speed'):.0f}")
    used, total = number(row, "memory.used"), number(row, "memory.total")
    nvml.says(
        "count 1",
        f"name 0 {row['name']}",
        f"mem 0 {used:.0f} {total:.0f}",
        f"power 0 {number(row, 'power.draw') * 1000:.0f}",
        f"temp 0 {number(row, 'temperature.gpu'):.0f}",
        f"clock 0 {number(row, 'clocks.current.sm'):.0f}",
        f"throttle 0 {row['clocks_event_reasons.active']}",
        *orders,
    )
    source = open_nvml()

    (sample,) = source.sample(0, 0)

    assert source.inventory()[0].model == row["name"]
    assert nothing(sample) == absent(row)
    assert sample.mem_used == used * 2**20
    assert sample.power_mw == pytest.approx(number(row, "power.draw") * 1000)
    assert sample.throttle == int(row["clocks_event_reasons.active"], 16)
