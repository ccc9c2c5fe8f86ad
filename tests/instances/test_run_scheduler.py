"""The scheduler as a process: woken at once, alone in the lead, and not to be killed by trouble."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection

from portal.instances import placement
from portal.instances.management.commands import run_scheduler
from portal.instances.models import State
from scheduler.queue import CHANNEL
from tests.conftest import database_url
from tests.instances.conftest import House, new_house

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


class Scheduler:
    """A real `manage.py run_scheduler`, whose tick is so long that only news can wake it."""

    def __init__(self, name: str = "scheduler-test") -> None:
        self.name = name
        self.log = Path(tempfile.mkstemp(prefix="corral-scheduler-")[1])
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "run_scheduler", "--tick", "3600"],
                cwd=ROOT,
                env=os.environ | {"DATABASE_URL": database_url(), "CORRAL_PROCESS": name},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def says(self, words: str) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return words in self.log.read_text()

    def wait_to(self, words: str) -> None:
        wait(lambda: self.says(words))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.unlink(missing_ok=True)


def wait(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.fixture
def start(transactional_db: None) -> Iterator[Callable[..., Scheduler]]:
    """Start schedulers that end with the test."""
    started: list[Scheduler] = []

    def one(*args: Any) -> Scheduler:
        started.append(Scheduler(*args))
        return started[-1]

    yield one
    for scheduler in started:
        scheduler.close()


@pytest.fixture
def house(transactional_db: None) -> House:
    """Return a house whose rows are committed."""
    return new_house()


def is_placed(house: House, instance: Any) -> Callable[[], bool]:
    return lambda: house.again(instance).state == State.PLACING


@pytest.mark.slow
def test_news_wakes_the_scheduler(house: House, start: Callable[..., Scheduler]) -> None:
    waiting = house.launch()
    scheduler = start()
    # What was asked for before it started is not forgotten.
    wait(is_placed(house, waiting))
    scheduler.wait_to("leading")

    instances = [house.launch() for _ in range(3)]

    for instance in instances:
        wait(is_placed(house, instance))


@pytest.mark.slow
def test_a_standby_takes_over_from_a_dead_leader(
    house: House, start: Callable[..., Scheduler]
) -> None:
    leader = start("first")
    leader.wait_to("leading")
    standby = start("second")
    standby.wait_to("standing by")
    first = house.launch()
    wait(is_placed(house, first))
    assert not standby.says("placed")

    leader.close()
    standby.wait_to("leading")
    second = house.launch()

    wait(is_placed(house, second))


@pytest.mark.slow
def test_the_scheduler_survives_the_loss_of_its_connections_and_ends_when_told(
    house: House, start: Callable[..., Scheduler]
) -> None:
    scheduler = start()
    scheduler.wait_to("leading")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
            [scheduler.name],
        )
        assert cursor.fetchall()
    scheduler.wait_to("no connection to PostgreSQL")
    wait(lambda: scheduler.log.read_text().count("leading") == 2)

    instance = house.launch()
    wait(is_placed(house, instance))

    scheduler.process.terminate()
    assert scheduler.process.wait(timeout=PATIENCE_S) == 0


def test_an_error_costs_one_cycle_only(
    db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    command = run_scheduler.Command()
    command.ended.set()  # so that it does not wait
    outcomes: list[Any] = [ZeroDivisionError("oh"), []]

    def cycle(**_: Any) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(placement, "cycle", cycle)
    monkeypatch.setattr(connection, "close", lambda: None)

    command.plan_once()
    command.plan_once()

    assert outcomes == []
    assert "this planning cycle failed" in caplog.text


def test_a_launch_and_an_end_notify_only_once_committed(
    house: House, transactional_db: None
) -> None:
    parameters = connection.get_connection_params()
    parameters.pop("cursor_factory")
    parameters.pop("context")
    with psycopg.connect(**parameters, autocommit=True) as listener:
        listener.execute(f"LISTEN {CHANNEL}")

        def heard() -> int:
            return len(list(listener.notifies(timeout=0.2)))

        assert heard() == 0
        instance = house.launch()
        assert heard() == 1
        house.terminate(instance)
        assert heard() == 1
        with pytest.raises(Exception, match="has passed"):
            house.launch(stop_at=house.now)
        assert heard() == 0
