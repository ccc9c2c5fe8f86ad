"""`manage.py rate` as a process, as design.md part 6 says."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRICES = [
    {"sku": "h100", "amount": "2.49", "per": "hour", "from": "2020-01-01T00:00:00Z", "to": None}
]


def rate(
    tmp_path: Path, usage: Any, prices: Any = PRICES, *, zone: str = "UTC", stdin: bool = False
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "usage.json").write_text(json.dumps(usage))
    (tmp_path / "prices.json").write_text(json.dumps(prices))
    return subprocess.run(
        [
            sys.executable,
            "manage.py",
            "rate",
            "--prices",
            str(tmp_path / "prices.json"),
            "--usage",
            "-" if stdin else str(tmp_path / "usage.json"),
            "--zone",
            zone,
            "--currency",
            "USD",
            "--json",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        input=json.dumps(usage),
    )


def row(start: str, end: str, ident: str = "a") -> dict[str, str]:
    return {"id": ident, "sku": "h100", "start": start, "end": end}


def test_the_command_prints_periods_and_lines(tmp_path: Path) -> None:
    done = rate(tmp_path, [row("2026-01-31T23:59:30.250Z", "2026-02-01T00:00:30.750Z")])

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert list(answer) == ["currency", "zone", "periods"]
    lines = [period["lines"][0] for period in answer["periods"]]
    assert [period["period"] for period in answer["periods"]] == ["2026-01", "2026-02"]
    assert [line["milliseconds"] for line in lines] == [29_750, 30_750]
    assert [line["exact"] for line in lines] == ["0.020577083333333333", "0.021268750000000000"]


@pytest.mark.parametrize(
    ("zone", "start", "end", "total"),
    [
        ("Europe/Berlin", "2026-03-01T00:00:00+01:00", "2026-04-01T00:00:00+02:00", "1850.07"),
        ("America/New_York", "2026-11-01T00:00:00-04:00", "2026-12-01T00:00:00-05:00", "1795.29"),
    ],
)
def test_the_command_reads_standard_input(
    tmp_path: Path, zone: str, start: str, end: str, total: str
) -> None:
    done = rate(tmp_path, [row(start, end)], zone=zone, stdin=True)

    (period,) = json.loads(done.stdout)["periods"]
    assert period["total"] == total


def test_heartbeats_of_an_hour_cost_the_hour(tmp_path: Path) -> None:
    beats = [
        row(
            f"2026-03-02T10:{n // 60:02}:{n % 60:02}Z",
            f"2026-03-02T10:{n // 60:02}:{n % 60:02}.5Z",
            f"a{n}",
        )
        for n in range(3600)
    ] + [
        row(
            f"2026-03-02T12:{n // 60:02}:{n % 60:02}Z",
            f"2026-03-02T12:{n // 60:02}:{n % 60:02}.5Z",
            f"b{n}",
        )
        for n in range(3600)
    ]

    done = rate(tmp_path, beats)

    (period,) = json.loads(done.stdout)["periods"]
    assert period["total"] == "2.49"
    assert period["lines"][0]["milliseconds"] == 3_600_000


def test_a_missing_price_is_an_error_that_names_the_row(tmp_path: Path) -> None:
    done = rate(tmp_path, [row("2019-03-02T10:00:00Z", "2019-03-02T11:00:00Z", "early")])

    assert done.returncode == 1
    assert "usage row 1 (id 'early'): no price for 'h100'" in done.stderr
    assert done.stdout == ""
