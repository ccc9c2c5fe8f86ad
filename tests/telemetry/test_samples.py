import itertools
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents import wire
from portal.fleet.models import Gpu, Node
from portal.telemetry import partitions, samples, tasks
from portal.telemetry.models import Sample
from tests.factories import node

pytestmark = pytest.mark.django_db

NOW = datetime.now(UTC).replace(microsecond=0)


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def sample(gpu: str, at: datetime, util: int | None = 50, **fields: Any) -> wire.Sample:
    return wire.Sample(gpu=gpu, at_ms=ms(at), mono_ms=0, util=util, **fields)


@pytest.fixture
def host() -> Node:
    return node(gpus=2)


def uuids(host: Node) -> list[str]:
    return list(host.gpus.values_list("uuid", flat=True))


def stored(host: Node) -> list[Sample]:
    return list(Sample.objects.filter(gpu__node=host).order_by("gpu__index", "at"))


def test_what_was_measured_is_stored_in_the_units_of_the_table(host: Node) -> None:
    first, _ = uuids(host)
    values = {"mem_used": 5 * 2**30, "power_mw": 612_500, "temp_c": 61, "sm_mhz": 1980}
    one = sample(first, NOW, 93, energy_mj=1_500, **values)

    assert samples.record(node_id=host.pk, samples=[one], now=NOW) == 1

    (row,) = stored(host)
    assert (row.at, row.util, row.mem_used, row.power, row.temp, row.sm_clock, row.energy) == (
        NOW, 93, 5 * 2**30, 612.5, 61, 1980, 1.5,
    )  # fmt: skip


def test_what_was_not_measured_is_null_and_not_zero(host: Node) -> None:
    samples.record(node_id=host.pk, samples=[sample(uuids(host)[0], NOW, None)], now=NOW)

    (row,) = stored(host)
    assert (row.util, row.mem_used, row.power, row.temp) == (None, None, None, None)


def test_the_same_samples_twice_are_stored_once(host: Node) -> None:
    said = [sample(uuid, NOW + timedelta(seconds=n)) for uuid in uuids(host) for n in range(5)]

    assert samples.record(node_id=host.pk, samples=said, now=NOW) == 10
    assert samples.record(node_id=host.pk, samples=said[::-1], now=NOW) == 0
    assert len(stored(host)) == 10


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(order=st.lists(st.integers(0, 9), max_size=40))
def test_in_whatever_order_and_how_often_the_same_is_stored(host: Node, order: list[int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM telemetry_sample")
    first = uuids(host)[0]
    for n in order:
        said = sample(first, NOW - timedelta(seconds=n), n)
        samples.record(node_id=host.pk, samples=[said], now=NOW)

    expected = sorted(set(order), reverse=True)
    assert [row.util for row in stored(host)] == expected


def test_gpus_of_another_node_and_unknown_ones_are_passed_over(host: Node) -> None:
    other = node(gpus=1)
    said = [sample(uuids(other)[0], NOW), sample("GPU-unknown", NOW), sample(uuids(host)[0], NOW)]
    said += [
        sample(strange, NOW) for strange in ("", "\\N", "a\tb", "\n\\.\n", "\0", "好", "x" * 999)
    ]

    assert samples.record(node_id=host.pk, samples=said, now=NOW) == 1
    assert not stored(other)


@pytest.mark.parametrize(
    ("fields", "column"),
    [
        ({"util": 101}, "util"),
        ({"util": -1}, "util"),
        ({"mem_used": 2**70}, "mem_used"),
        ({"mem_used": -4}, "mem_used"),
        ({"power_mw": -1}, "power"),
        ({"temp_c": 5000}, "temp"),
        ({"sm_mhz": 2**64}, "sm_clock"),
    ],
)
def test_a_value_that_cannot_be_is_dropped_and_the_others_stay(
    host: Node, fields: dict[str, int], column: str
) -> None:
    good = {"util": 7, "mem_used": 8, "power_mw": 9000, "temp_c": 10, "sm_mhz": 11}
    one = sample(uuids(host)[0], NOW, **(good | fields))

    samples.record(node_id=host.pk, samples=[one], now=NOW)

    (row,) = stored(host)
    kept = {"util": 7, "mem_used": 8, "power": 9, "temp": 10, "sm_clock": 11} | {column: None}
    assert {name: getattr(row, name) for name in kept} == kept


def test_times_are_moved_by_the_clocks_offset(host: Node) -> None:
    behind = NOW - timedelta(hours=3)

    samples.record(
        node_id=host.pk, samples=[sample(uuids(host)[0], behind)], now=NOW, offset_ms=3 * 3_600_000
    )

    assert stored(host)[0].at == NOW


def test_a_sample_from_the_future_gets_the_portals_time(host: Node) -> None:
    said = [sample(uuids(host)[0], NOW + timedelta(days=400))]

    samples.record(node_id=host.pk, samples=said, now=NOW)

    assert stored(host)[0].at == NOW


@pytest.mark.parametrize("at_ms", [0, -(2**62), 2**62])
def test_no_time_is_too_strange(host: Node, at_ms: int) -> None:
    said = [wire.Sample(gpu=uuids(host)[0], at_ms=at_ms, mono_ms=0, util=1)]

    samples.record(node_id=host.pk, samples=said, now=NOW)

    assert len(stored(host)) == (1 if at_ms > 0 else 0)


def test_nothing_is_no_error(host: Node) -> None:
    assert samples.record(node_id=host.pk, samples=[], now=NOW) == 0


def test_a_series_has_means_bands_counts_and_gaps(host: Node) -> None:
    gpu = host.gpus.first()
    assert gpu
    start = NOW - timedelta(seconds=60)
    said = [sample(gpu.uuid, start + timedelta(seconds=n), n) for n in (0, 1, 9, 40)]
    samples.record(node_id=host.pk, samples=said, now=NOW)

    answer = samples.series(gpu_ids=[gpu.pk], start=start, end=NOW, points=6)

    assert answer["at"] == [ms(start) + 10_000 * n for n in range(6)]
    util = answer["gpus"][gpu.pk]["util"]
    assert util["count"] == [3, 0, 0, 0, 1, 0]
    assert util["mean"] == [pytest.approx(10 / 3), None, None, None, 40, None]
    assert util["min"] == [0, None, None, None, 40, None]
    assert util["max"] == [9, None, None, None, 40, None]
    assert answer["gpus"][gpu.pk]["power"]["mean"] == [None] * 6


def test_a_series_never_has_more_points_than_asked_for_nor_finer_than_seconds(host: Node) -> None:
    ids = [gpu.pk for gpu in host.gpus.all()]
    for seconds, points in ((3600, 450), (7, 100), (1, 1), (100_000, 1)):
        start = NOW - timedelta(seconds=seconds)
        at = samples.series(gpu_ids=ids, start=start, end=NOW, points=points)["at"]
        assert 1 <= len(at) <= points
        assert all(b - a >= 1000 for a, b in itertools.pairwise(at))


def test_a_series_of_nothing_is_empty(host: Node) -> None:
    gpu = host.gpus.first()
    assert gpu

    assert samples.series(gpu_ids=[], start=NOW, end=NOW, points=5) == {"at": [], "gpus": {}}
    answer = samples.series(gpu_ids=[gpu.pk], start=NOW, end=NOW, points=5)
    assert answer["gpus"][gpu.pk]["util"]["mean"] == []


def test_the_end_of_a_series_is_not_part_of_it(host: Node) -> None:
    gpu = host.gpus.first()
    assert gpu
    start = NOW - timedelta(seconds=10)
    said = [sample(gpu.uuid, start, 1), sample(gpu.uuid, NOW, 2)]
    samples.record(node_id=host.pk, samples=said, now=NOW)

    counts = samples.series(gpu_ids=[gpu.pk], start=start, end=NOW, points=10)
    assert sum(counts["gpus"][gpu.pk]["util"]["count"]) == 1


def tables() -> set[str]:
    with connection.cursor() as cursor:
        return set(partitions._existing(cursor))


def put(gpu_id: UUID, at: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO telemetry_sample (gpu_id, at) VALUES (%s, %s)", [gpu_id, at])


def name(day: datetime) -> str:
    return f"telemetry_sample_{day:%Y%m%d}"


def test_days_are_made_ahead_and_dropped_when_they_are_over() -> None:
    partitions.keep(now=NOW)
    assert {name(NOW + timedelta(days=n)) for n in range(-1, 3)} <= tables()

    later = NOW + timedelta(days=5)
    partitions.keep(now=later)
    assert tables() == {name(later + timedelta(days=n)) for n in (-2, -1, 0, 1, 2)} & tables()
    assert name(later + timedelta(days=2)) in tables()
    assert name(NOW) not in tables()


def test_keeping_twice_changes_nothing() -> None:
    tasks.keep_partitions()
    before = tables()
    tasks.keep_partitions()
    assert tables() == before


def test_a_sample_of_a_day_without_a_partition_is_not_lost() -> None:
    gpu_id, far = uuid.uuid4(), NOW + timedelta(days=20)
    put(gpu_id, far)

    partitions.keep(now=far)

    assert Sample.objects.filter(gpu_id=gpu_id, at=far).exists()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM telemetry_sample_default")
        assert cursor.fetchone() == (0,)


def test_what_is_older_than_is_kept_is_not_taken(host: Node) -> None:
    said = [sample(uuids(host)[0], NOW - timedelta(days=3))]

    assert samples.record(node_id=host.pk, samples=said, now=NOW) == 0
    assert Gpu.objects.count() == 2
