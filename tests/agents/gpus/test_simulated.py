"""Simulated GPUs behave like GPUs: within limits, by cause and effect, the same each time."""

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.gpus import UnableToOpenGpusError, open_source
from agents.gpus.profiles import MODELS, Model, boards
from agents.gpus.simulated import THERMAL, SimulatedSource
from agents.wire import Sample

MIB = 1024 * 1024
# Moments of sampling as steps in milliseconds, each with how busy the instance is (None: none).
STEPS = st.lists(
    st.tuples(st.integers(0, 20_000), st.none() | st.floats(0, 1)), min_size=2, max_size=60
)
PROFILES = st.sampled_from([f"{model}x1" for model in MODELS])
# The state directory is shared by the examples on purpose: it holds nothing but the seed.
SHARED_DIR = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def play(profile: str, folder: Path, steps: list[tuple[int, float | None]]) -> list[list[Sample]]:
    """Run a source through the steps and return its samples, step by step."""
    busy: dict[str, float] = {}
    source = SimulatedSource(profile, state_dir=folder, activity=lambda: busy)
    units = [info.uuid for info in source.inventory()]
    moment, rounds = 1_000_000, []
    for step, activity in steps:
        moment += step
        busy = {} if activity is None else dict.fromkeys(units, activity)
        rounds.append(source.sample(1_700_000_000_000 + moment, moment))
    return rounds


def seconds(count: int, activity: float | None) -> list[tuple[int, float | None]]:
    return [(1000, activity)] * count


@SHARED_DIR
@given(profile=PROFILES, steps=STEPS)
def test_every_figure_stays_within_what_the_board_can_do(
    profile: str, steps: list[tuple[int, float | None]], tmp_path: Path
) -> None:
    model = boards(profile)[0]

    for sample in itertools.chain.from_iterable(play(profile, tmp_path, steps)):
        assert sample.mem_used is not None
        assert sample.mem_total is not None
        assert sample.temp_c is not None
        assert sample.sm_mhz is not None
        assert 0 <= sample.mem_used <= sample.mem_total
        assert model.idle_celsius <= sample.temp_c < model.slowdown_celsius
        assert model.idle_clock <= sample.sm_mhz <= model.top_clock
        assert sample.fan is None or 0 <= sample.fan <= 100
        assert (sample.fan is None) == (model.fan is None or bool(model.slices))
        if model.slices:
            assert (sample.util, sample.mem_util) == (None, None)
            assert (sample.power_mw, sample.energy_mj) == (None, None)
        else:
            assert sample.util is not None
            assert sample.mem_util is not None
            assert sample.power_mw is not None
            assert 0 <= sample.mem_util <= sample.util <= 100
            assert 0.98 * model.idle_watts <= sample.power_mw / 1000 <= model.limit_watts


@SHARED_DIR
@given(steps=STEPS)
def test_energy_is_the_integral_of_power(
    steps: list[tuple[int, float | None]], tmp_path: Path
) -> None:
    rounds = play("a100x1", tmp_path, steps)

    total = 0
    for (before,), (after,) in itertools.pairwise(rounds):
        assert before.power_mw is not None
        assert after.power_mw is not None
        assert before.energy_mj is not None
        assert after.energy_mj is not None
        total += (before.power_mw + after.power_mw) * (after.mono_ms - before.mono_ms)
        assert after.energy_mj == total // 2000
        assert after.energy_mj >= before.energy_mj


@SHARED_DIR
@given(profile=PROFILES, steps=STEPS)
def test_the_same_node_at_the_same_moments_reads_the_same(
    profile: str, steps: list[tuple[int, float | None]], tmp_path: Path
) -> None:
    assert play(profile, tmp_path, steps) == play(profile, tmp_path, steps)


@SHARED_DIR
@given(activity=st.floats(0.1, 1))
def test_utilisation_follows_what_the_instances_do(activity: float, tmp_path: Path) -> None:
    rounds = play("h100x8", tmp_path, seconds(60, activity))

    levels = [sample.util or 0 for samples in rounds for sample in samples]
    assert max(levels) <= 100 * activity + 1
    assert 0.8 * activity <= sum(levels) / len(levels) / 100 <= activity + 0.01


def test_a_gpu_that_nobody_holds_is_idle(tmp_path: Path) -> None:
    last = play("h100x1", tmp_path, seconds(120, 1.0) + seconds(600, None))[-1][0]

    assert last.util == 0
    assert last.mem_used == 0
    assert last.sm_mhz == 345
    assert last.throttle == 0x1
    assert last.power_mw is not None
    assert 69_000 <= last.power_mw <= 71_000
    assert last.temp_c is not None
    assert last.temp_c <= MODELS["h100"].idle_celsius + 3


def test_an_idle_instance_keeps_its_memory_and_an_ended_one_does_not(tmp_path: Path) -> None:
    rounds = play("h100x1", tmp_path, seconds(60, 0.8) + seconds(30, 0.0) + seconds(1, None))

    used = [samples[0].mem_used or 0 for samples in rounds]
    assert used[59] > 30_000 * MIB
    assert used[89] == used[59]
    assert used[90] == 0


def test_memory_fills_up_to_a_working_set_and_stays(tmp_path: Path) -> None:
    used = [samples[0].mem_used or 0 for samples in play("h100x1", tmp_path, seconds(60, 0.9))]

    assert used[:30] == sorted(used[:30])
    assert used[3] < used[15]
    assert len(set(used[30:])) == 1


def test_power_lags_behind_utilisation_and_heat_behind_power(tmp_path: Path) -> None:
    rounds = play("h100x1", tmp_path, seconds(2, None) + seconds(180, 1.0))

    watts = [(samples[0].power_mw or 0) / 1000 for samples in rounds]
    celsius = [samples[0].temp_c or 0 for samples in rounds]
    assert watts[1] < 100 < watts[2] < watts[6]
    assert max(watts) > 580
    assert celsius[6] - celsius[1] < 6  # five seconds in, the power is there and the heat is not
    assert celsius[-1] - celsius[1] > 20


def test_the_clock_falls_when_a_board_is_hot(tmp_path: Path) -> None:
    hot = MODELS["h100"].__dict__ | {"load_celsius": 100.0}
    source = SimulatedSource("h100x1", state_dir=tmp_path, activity=dict)
    board = source._boards[0]
    board.model = Model(**hot)
    for second in range(400):
        board.advance(second * 1000, 1.0)

    clock, bits = board.clock()

    assert bits & THERMAL
    assert clock < 0.9 * MODELS["h100"].top_clock
    assert board.celsius < 100  # the lower clock takes power away


def test_programs_wait_for_data_now_and_then(tmp_path: Path) -> None:
    levels = [samples[0].util or 0 for samples in play("h100x1", tmp_path, seconds(300, 1.0))]

    dips = sum(level < 80 for level in levels)
    assert 2 <= dips <= 40


def test_gpus_of_one_node_do_not_move_in_step(tmp_path: Path) -> None:
    last = play("h100x8", tmp_path, seconds(60, 0.9))[-1]

    assert len({sample.mem_used for sample in last}) == 8
    assert len({sample.power_mw for sample in last}) == 8


def test_a_node_keeps_its_gpus_over_restarts_and_shares_them_with_no_other(tmp_path: Path) -> None:
    def uuids(folder: str) -> list[str]:
        source = open_source("simulated", state_dir=tmp_path / folder, activity=dict)
        return [info.uuid for info in source.inventory()]

    assert uuids("one") == uuids("one")
    assert len(set(uuids("one"))) == 8
    assert not set(uuids("one")) & set(uuids("two"))
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["simulated-gpus.seed"]


def test_slices_have_memory_of_their_own(tmp_path: Path) -> None:
    busy: dict[str, float] = {}
    source = SimulatedSource("h100migx1", state_dir=tmp_path, activity=lambda: busy)
    first, *others = source.inventory()
    busy[first.uuid] = 1.0
    for second in range(60):
        samples = {one.gpu: one for one in source.sample(0, second * 1000)}

    assert first.mig
    assert samples[first.uuid].mem_total == first.memory_bytes == 40448 * MIB
    assert (samples[first.uuid].mem_used or 0) > 10_000 * MIB
    assert all((samples[other.uuid].mem_used or 0) < 100 * MIB for other in others)


@pytest.mark.parametrize(
    ("profile", "names"),
    [
        ("a100x8", ["NVIDIA A100-SXM4-80GB"] * 8),
        ("l40sx4", ["NVIDIA L40S"] * 4),
        ("rtx4090x2", ["NVIDIA GeForce RTX 4090"] * 2),
        ("h200x1+rtx2080sx1", ["NVIDIA H200", "NVIDIA GeForce RTX 2080 SUPER"]),
    ],
)
def test_a_profile_names_models_and_counts(profile: str, names: list[str], tmp_path: Path) -> None:
    source = open_source(f"simulated:{profile}", state_dir=tmp_path, activity=dict)

    assert [info.model for info in source.inventory()] == names
    assert [info.index for info in source.inventory()] == list(range(len(names)))
    assert {one.state for one in source.health()} == {"ok"}
    assert source.driver()[1] == "13.1"
    source.close()


def test_the_mixed_profile_has_several_models(tmp_path: Path) -> None:
    source = open_source("simulated:mixed", state_dir=tmp_path, activity=dict)

    assert len({info.model for info in source.inventory()}) == 4


@pytest.mark.parametrize(
    "kind",
    ["simulated:h100", "simulated:h100x0", "simulated:h100x65", "simulated:z9x1", "cuda", "nvml:1"],
)
def test_what_is_not_a_kind_is_refused_with_what_there_is(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UnableToOpenGpusError, match=r"MODELxCOUNT|1 to 64|choose nvml"):
        open_source(kind, state_dir=tmp_path, activity=dict)
