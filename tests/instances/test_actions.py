"""What may be asked, by whom, and what is answered."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from portal.billing.prices import UnableToPrice
from portal.errors import DomainError, NotFound
from portal.instances import actions, catalogue, limits
from portal.instances.models import State
from portal.tenants.access import actor_for_member
from portal.tenants.models import AuditEvent, Role, TeamMember
from portal.tenants.roles import Actor, UnableToAct
from portal.tenants.scope import every_tenant, scope
from scheduler import quotas
from scheduler.models import Request
from tests import factories as make
from tests.instances.conftest import House


def actor_of(house: House, role: str, **fields: Any) -> Actor:
    return actor_for_member(member=make.member(house.organization, role, **fields))


VERBS: dict[str, Callable[..., Any]] = {
    "get": lambda **who: actions.get(actor=who["actor"], instance_id=who["instance_id"]),
    "stop": actions.stop,
    "start": actions.start,
    "terminate": actions.terminate,
    "set_stop_at": lambda **who: actions.set_stop_at(stop_at=None, **who),
    "logs": lambda **who: actions.logs(actor=who["actor"], instance_id=who["instance_id"]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_foreign_instance_answers_like_a_missing_one(house: House, verb: str) -> None:
    instance = house.run()
    other = make.organization()
    stranger = actor_for_member(member=make.member(other, Role.OWNER, teams=(make.team(other),)))
    said = []
    for instance_id in (instance.id, uuid.uuid4()):
        with pytest.raises(NotFound) as refusal:
            VERBS[verb](actor=stranger, instance_id=instance_id, now=house.now)
        said.append((refusal.value.code, refusal.value.message, refusal.value.details))

    assert said[0] == said[1]
    assert house.again(instance).state == State.RUNNING


@pytest.mark.parametrize("verb", ["stop", "start", "terminate", "set_stop_at"])
def test_who_may_look_may_not_touch(house: House, verb: str) -> None:
    instance = house.run()
    for looker in (
        actor_of(house, Role.VIEWER, teams=(house.team,)),
        actor_of(house, Role.MEMBER, teams=(house.team,)),
    ):
        assert actions.get(actor=looker, instance_id=instance.id) == instance
        with pytest.raises(UnableToAct):
            VERBS[verb](actor=looker, instance_id=instance.id, now=house.now)
    assert house.again(instance).state == State.RUNNING


def test_who_left_the_team_may_end_his_instance_there_and_not_start_it_again(
    house: House,
) -> None:
    instance = house.run()
    with every_tenant("tests"):
        TeamMember.objects.filter(member=house.actor.member).delete()
    house.actor = actor_for_member(member=house.actor.member)

    house.stop(instance)
    house.rack.obey(house.now)
    assert house.again(instance).state == State.STOPPED
    with pytest.raises(UnableToAct):
        house.start(instance)


def test_finance_and_members_of_other_teams_see_no_machine(house: House) -> None:
    instance = house.run()
    other_team = make.team(house.organization)
    for blind in (
        actor_of(house, Role.FINANCE),
        actor_of(house, Role.MEMBER, teams=(other_team,)),
    ):
        with scope(organization=house.organization):
            assert list(actions.visible(actor=blind)) == []
        with pytest.raises(NotFound):
            actions.get(actor=blind, instance_id=instance.id)


def test_own_instances_stay_visible_outside_their_team_and_to_admins(house: House) -> None:
    instance = house.run()
    for seer in (
        actor_for_member(member=house.actor.member),
        actor_of(house, Role.ADMIN),
        actor_of(house, Role.MEMBER, admin_of=(house.team,)),
    ):
        with scope(organization=house.organization):
            assert list(actions.visible(actor=seer)) == [instance]


def test_nobody_launches_in_a_team_he_is_not_in(house: House) -> None:
    outsider = actor_of(house, Role.MEMBER, teams=(make.team(house.organization),))
    with pytest.raises(UnableToAct):
        house.launch(actor=outsider)
    with pytest.raises(NotFound):
        house.launch(team_id=make.team(make.organization()).id)
    assert house.counted() == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "-a"),
        ("name", "Ünicode"),
        ("name", "a" * 64),
        ("name", "a\n"),
        ("command", ["x" * 3000]),
        ("command", "sleep 60"),
        ("env", {"1A": "x"}),
        ("env", {"A": "nul\0"}),
        ("env", {"A": 5}),
        ("priority", 101),
        ("stop_at", make.NOW),
        ("stop_at", make.NOW - timedelta(hours=1)),
        ("stop_at", make.NOW.replace(tzinfo=None) + timedelta(hours=1)),
        ("stop_at", make.NOW + timedelta(days=400)),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(
    house: House, field: str, value: object
) -> None:
    with pytest.raises(actions.UnableToWish) as refusal:
        house.launch(**{field: value})

    assert list(refusal.value.details) == [field]
    assert house.counted() == 0


def test_a_name_is_taken_once_per_team_until_it_is_terminated(house: House) -> None:
    first = house.launch(name="box")
    with pytest.raises(actions.UnableToLaunch) as refusal:
        house.launch(name="box")
    assert refusal.value.code == "name_taken"
    assert house.counted() == 1

    house.terminate(first)
    assert house.launch(name="box").state == State.QUEUED


def test_what_is_not_on_offer_or_has_no_price_is_refused(house: House) -> None:
    hidden = make.flavor(is_offered=False)
    euros = make.flavor(currency="EUR")
    for fields, code in (
        ({"flavor": hidden.code}, "flavor_not_offered"),
        ({"flavor": "nothing"}, "flavor_not_offered"),
        ({"image": make.image(is_offered=False).code}, "image_not_offered"),
    ):
        with pytest.raises(actions.UnableToLaunch) as refusal:
            house.launch(**fields)
        assert refusal.value.code == code
    with pytest.raises(UnableToPrice):
        house.launch(flavor=euros.code)
    assert house.counted() == 0


def test_a_flavor_may_be_named_by_its_id(house: House) -> None:
    assert house.launch(flavor=str(house.flavor.id)).flavor == house.flavor


def test_preview_says_price_and_the_refusals_of_a_launch(house: House) -> None:
    admin = actor_of(house, Role.ADMIN)
    quotas.set_limit(actor=admin, team=house.team, milli_gpus=1000, now=house.now)
    ask: dict[str, Any] = {
        "actor": house.actor, "team_id": house.team.id, "flavor": house.flavor.code,
        "image": house.image.code, "now": house.now,
    }  # fmt: skip

    before = actions.preview(**ask)
    assert before.refusals == []
    assert before.free_now == 8
    assert before.estimate
    assert before.per_hour is not None
    assert before.per_day is not None
    assert before.per_day.amount == before.per_hour.amount * 24
    assert before.while_stopped.amount == 0

    house.launch()
    after = actions.preview(**ask)
    with pytest.raises(DomainError) as refusal:
        house.launch()
    assert [one.code for one in after.refusals] == [refusal.value.code] == ["quota_exceeded"]
    assert after.refusals[0].details == refusal.value.details
    with every_tenant("tests"):
        assert Request.objects.count() == 1


def test_preview_says_why_one_would_wait(house: House) -> None:
    for _ in range(8):
        house.launch()
    house.plan()

    foreseen = actions.preview(
        actor=house.actor, team_id=house.team.id, flavor=house.flavor.code, now=house.now
    )

    assert foreseen.free_now == 0
    assert "free at best" in foreseen.why_waiting


def test_a_second_start_is_refused_and_counts_nothing(house: House) -> None:
    instance = house.run()
    house.stop(instance)
    with pytest.raises(actions.UnableToStart) as refusal:
        house.start(instance)
    assert refusal.value.code == "not_ended_yet"
    house.rack.obey(house.now)

    house.start(instance)
    with pytest.raises(actions.UnableToStart) as refusal:
        house.start(instance)

    assert refusal.value.code == "already_started"
    assert house.counted() == 1
    assert house.again(instance).run == 2


def set_limit(house: House, gpus: float) -> None:
    quotas.set_limit(
        actor=actor_of(house, Role.ADMIN), milli_gpus=round(gpus * 1000), now=house.now
    )


def test_a_stop_gives_the_limit_back_and_a_start_needs_it_again(house: House) -> None:
    set_limit(house, 1)
    first = house.run()
    house.stop(first)
    house.rack.obey(house.now)

    second = house.run()

    assert house.again(second).state == State.RUNNING
    with pytest.raises(quotas.UnableToReserve):
        house.start(first)
    assert house.again(first).state == State.STOPPED
    assert house.again(first).run == 1


def test_instances_on_a_silent_machine_still_count(house: House) -> None:
    set_limit(house, 1)
    house.run()
    house.rack.go_silent()
    limits.lose_silent(now=house.now)

    with pytest.raises(quotas.UnableToReserve):
        house.launch()


def test_a_failed_start_gives_the_limit_back(house: House) -> None:
    set_limit(house, 1)
    instance = house.launch()
    house.plan()
    house.rack.listen()
    house.rack.say(instance, "failed", house.now, reason_code="image_not_found", reason="No.")
    house.rack.report(house.now)

    assert house.launch().state == State.QUEUED


def test_every_act_is_written_down(house: House) -> None:
    instance = house.run()
    house.stop(instance)
    house.rack.obey(house.now)
    house.start(instance)
    house.terminate(instance)

    with every_tenant("tests"):
        verbs = AuditEvent.objects.filter(target_id=str(instance.id)).order_by("id")
        assert [event.verb for event in verbs] == [
            "instance.launch",
            "instance.stop",
            "instance.start",
            "instance.terminate",
        ]
        assert {event.user for event in verbs} == {house.actor.user}


def test_the_catalogue_counts_what_is_free_now(house: House) -> None:
    quarter = make.flavor(units_per_gpu=250, gpu_memory_bytes=20 * make.GIB, cpu_milli=1000,
                          memory_bytes=make.GIB, disk_bytes=make.GIB)  # fmt: skip
    house.launch()
    house.launch(flavor=quarter.code)
    house.plan()

    free = {
        offer.flavor.code: (offer.free_now, offer.total)
        for offer in catalogue.flavors(currency="USD", now=house.now)
    }

    assert free[house.flavor.code] == (6, 8)
    assert free[quarter.code] == (27, 32)
