"""Many at once, with real connections: limits hold, GPUs have one owner, nobody gets an error."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from portal.errors import DomainError
from portal.instances import actions, placement
from portal.instances.models import State
from portal.tenants.access import actor_for_member
from portal.tenants.models import Role
from scheduler import quotas
from tests import factories as make
from tests.instances.conftest import House, new_house

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def house(transactional_db: None) -> House:
    """Return a house whose rows are committed, for other connections to see."""
    return new_house()


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run calls on threads of their own, let go together; return answers, or refusals' codes."""
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        try:
            gate.wait(timeout=30)
            return call()
        except DomainError as refusal:
            return refusal.code
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@pytest.mark.parametrize("level", ["organization", "team", "member"])
def test_twenty_launches_at_once_at_a_limit_of_three_give_three(house: House, level: str) -> None:
    owner = actor_for_member(member=make.member(house.organization, Role.OWNER))
    quotas.set_limit(
        actor=owner,
        milli_gpus=3000,
        now=house.now,
        team=house.team if level == "team" else None,
        member=house.actor.member if level == "member" else None,
    )
    # Five clients; on the two upper levels they are five people.
    actors = [house.actor]
    if level != "member":
        actors += [
            actor_for_member(member=make.member(house.organization, teams=(house.team,)))
            for _ in range(4)
        ]

    answers = at_once(
        [
            lambda number=number: (
                house.launch(actor=actors[number % len(actors)], name=f"box-{number}").state
            )
            for number in range(20)
        ]
    )

    assert Counter(answers) == {State.QUEUED: 3, "quota_exceeded": 17}
    assert house.counted() == 3
    [line, *_] = quotas.standing(organization=house.organization)
    assert line.used == 3000


def test_one_form_sent_ten_times_at_once_is_one_instance(house: House) -> None:
    answers = at_once([lambda: house.launch(name="box").state for _ in range(10)])

    assert Counter(answers) == {State.QUEUED: 1, "name_taken": 9}
    assert house.counted() == 1


def test_one_start_pressed_ten_times_at_once_is_one_run(house: House) -> None:
    instance = house.run()
    house.stop(instance)
    house.rack.obey(house.now)

    answers = at_once([lambda: house.start(instance).state for _ in range(10)])

    assert Counter(answers) == {State.QUEUED: 1, "already_started": 9}
    assert house.counted() == 1
    assert house.again(instance).run == 2


def test_many_planners_at_once_place_everybody_once(house: House) -> None:
    instances = [house.launch() for _ in range(10)]

    answers = at_once([lambda: len(placement.cycle(now=house.now)) for _ in range(10)])

    assert sum(answers) == 8
    states = Counter(house.again(instance).state for instance in instances)
    assert states == {State.PLACING: 8, State.QUEUED: 2}
    assert house.busy_gpus() == 8


def test_cancelling_while_planning_leaves_no_gpu_with_the_cancelled(house: House) -> None:
    instances = [house.launch() for _ in range(8)]
    calls: list[Callable[[], Any]] = []
    for instance in instances:
        calls += [
            lambda instance=instance: house.stop(instance).state,
            lambda: len(placement.cycle(now=house.now)),
        ]

    answers = at_once(calls)

    assert not [answer for answer in answers if answer not in {"STOPPED", "STOPPING", *range(9)}]
    house.rack.obey(house.now)
    assert {house.again(instance).state for instance in instances} == {State.STOPPED}
    assert (house.busy_gpus(), house.counted()) == (0, 0)


def test_reports_stops_and_plans_at_once_never_fail_one_another(house: House) -> None:
    running = [house.run() for _ in range(4)]
    house.pass_time(seconds=10)
    house.rack.listen()
    calls: list[Callable[[], Any]] = []
    for instance in running:
        calls += [
            lambda: house.rack.report(house.now),
            lambda instance=instance: (
                actions.terminate(actor=house.actor, instance_id=instance.id, now=house.now).state
            ),
            house.plan,
            lambda: house.rack.report(house.now),
            lambda: house.launch().state,
        ]

    at_once(calls)
    house.rack.obey(house.now)

    assert {house.again(instance).state for instance in running} == {State.TERMINATED}
    for instance in running:
        assert house.billed_ms(instance) == 10_000


def test_two_instances_that_end_at_the_same_moment_both_give_back(house: House) -> None:
    first, second = house.run(), house.run()
    house.rack.listen()

    at_once([lambda: house.terminate(first), lambda: house.terminate(second)])
    at_once([lambda: house.rack.obey(house.now), lambda: house.rack.report(house.now)])
    house.rack.obey(house.now)

    assert (house.busy_gpus(), house.counted()) == (0, 0)
