"""What the portal no longer wants, and what an agent out of reach does by itself."""

from typing import Any

import pytest

from agents import events
from tests.agents.stage import Stage, ended, spec


def test_an_orphan_is_stopped_after_two_complete_lists_a_minute_apart() -> None:
    stage = Stage()
    stage.running(spec())
    stage.later(300)

    first = stage.want()
    stage.time += 59
    early = stage.want()
    stage.time += 1
    due = stage.want()

    assert (first, early) == ([], [])
    assert due == [events.Stop(("i", 1), 10.0)]
    assert stage.status().reason_code == "orphan"


def test_a_young_instance_is_no_orphan() -> None:
    stage = Stage()
    stage.running(spec())

    stage.want()
    stage.time += 60

    assert stage.want() == []
    assert stage.status().phase == "running"
    assert stage.later(300) == [events.Stop(("i", 1), 10.0)]


@pytest.mark.parametrize("fields", [{"complete": False}, {"count": 5}])
def test_a_list_that_is_not_whole_makes_no_orphans(fields: dict[str, Any]) -> None:
    stage = Stage()
    stage.running(spec())
    stage.later(300)

    for _ in range(5):
        stage.time += 60
        assert stage.want(**fields) == []

    assert stage.status().phase == "running"


def test_absence_does_not_count_across_sessions() -> None:
    stage = Stage()
    stage.running(spec())
    stage.later(300)
    stage.want()

    stage.tell(events.SessionClosed())
    stage.time += 3600
    stage.open()

    assert stage.want() == []
    assert stage.later(3600) == []


def test_an_instance_that_is_listed_again_is_no_orphan() -> None:
    stage = Stage()
    stage.running(spec())
    stage.later(300)

    stage.want()
    stage.time += 30
    stage.want(spec())
    stage.time += 30

    assert stage.want() == []


def test_silence_of_the_portal_stops_nothing() -> None:
    stage = Stage()
    stage.running(spec())

    stage.tell(events.SessionClosed())

    assert stage.later(30 * 24 * 3600) == []
    assert stage.status().phase == "running"


def test_stop_on_disconnect_is_the_customers_choice() -> None:
    wish = spec(stop_on_disconnect_after_s=600)
    stage = Stage()
    stage.running(wish)

    stage.tell(events.SessionClosed())
    early = stage.later(599)
    stage.tell(events.SessionClosed())
    due = stage.later(1)

    assert early == []
    assert due == [events.Stop(("i", 1), 10.0)]
    stage.see(ended(wish, 143))
    assert stage.status().reason_code == "disconnected"
    stage.open()
    assert stage.want(wish) == []


def test_a_reconnect_in_time_resets_the_clock_of_disconnection() -> None:
    stage = Stage()
    stage.running(spec(stop_on_disconnect_after_s=600))

    stage.tell(events.SessionClosed())
    stage.later(500)
    stage.open()
    stage.later(500)
    stage.tell(events.SessionClosed())

    assert stage.later(500) == []


def test_an_ended_orphan_is_told_no_more_and_its_remains_go_later() -> None:
    stage = Stage()
    stage.running(spec())
    stage.see(ended(spec()))

    stage.want()
    stage.time += 60
    told = stage.agent.statuses()
    first = stage.want()
    untold = stage.agent.statuses()
    removed = stage.later(3600)
    patient = stage.later(29)
    again = stage.later(1)
    stage.time += 1
    stage.see()

    assert len(told) == 1
    assert (first, untold) == ([], [])
    assert removed == again == [events.Remove(("i", 1))]
    assert patient == []
    assert stage.later(3600) == []


def test_a_run_is_known_to_be_over_long_after_its_remains_are_gone() -> None:
    stage = Stage()
    stage.running(spec())
    stage.see(ended(spec()))
    stage.want()
    stage.time += 3700
    stage.want()
    stage.time += 1
    stage.see()

    successor = stage.restarted()
    successor.see()
    untold = successor.agent.statuses()

    assert untold == []
    assert successor.want(spec()) == []
    assert successor.status().phase == "exited"
    successor.want()
    assert successor.later(8 * 24 * 3600) == []
    assert successor.stored == []


def test_an_ended_run_that_is_asked_for_again_is_told_again() -> None:
    stage = Stage()
    stage.running(spec())
    stage.see(ended(spec()))
    stage.want()
    stage.time += 60
    stage.want()

    assert stage.want(spec()) == []
    assert stage.status().phase == "exited"
