"""Limits on three levels: counted from the request on, once, and never passed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from portal.errors import NotFound
from portal.tenants.access import actor_for_member
from portal.tenants.models import AuditEvent, Member, Organization, Role, Team
from portal.tenants.roles import UnableToAct
from portal.tenants.scope import every_tenant, scope
from scheduler import queue, quotas
from scheduler.models import Request
from tests import factories as make


@dataclass
class House:
    organization: Organization
    team: Team
    member: Member

    def reserve(self, milli_gpus: int, **who: Any) -> Request:
        """Do what a launch does: reserve, and submit."""
        count, units = divmod(milli_gpus, 1000)
        names = {
            "organization_id": self.organization.id,
            "team_id": self.team.id,
            "member_id": self.member.id,
        } | who
        quotas.reserve(**names, milli_gpus=milli_gpus)
        assert not (count and units)
        return queue.submit(
            **names,
            subject=uuid4(),
            gpu_count=count or 1,
            units_per_gpu=units or 1000,
            now=make.NOW,
        )

    def limit(self, milli_gpus: int | None, **level: Any) -> None:
        owner = actor_for_member(member=make.member(self.organization, Role.OWNER))
        quotas.set_limit(actor=owner, milli_gpus=milli_gpus, now=make.NOW, **level)


@pytest.fixture
def house(db: None) -> Iterator[House]:
    organization = make.organization()
    team = make.team(organization)
    house = House(organization, team, make.member(organization, teams=(team,)))
    with scope(organization=organization):
        yield house


LEVELS = ["organization", "team", "member"]


def level_of(house: House, level: str) -> dict[str, Any]:
    return {
        "organization": {},
        "team": {"team": house.team},
        "member": {"member": house.member},
    }[level]


@pytest.mark.parametrize("level", LEVELS)
def test_a_limit_refuses_what_passes_it_and_says_all_that_is_needed(
    house: House, level: str
) -> None:
    house.limit(4000, **level_of(house, level))
    house.reserve(3000)

    with pytest.raises(quotas.UnableToReserve) as refusal:
        house.reserve(2000)

    assert refusal.value.code == "quota_exceeded"
    assert refusal.value.details == {
        "level": level, "limit": 4000, "used": 3000, "needed": 2000, "left": 1000,
    }  # fmt: skip
    assert "limit is 4" in refusal.value.message
    assert "needs 2, 1 left" in refusal.value.message
    assert refusal.value.help
    house.reserve(1000)


def test_limits_of_others_do_not_count(house: House) -> None:
    other = make.member(house.organization, teams=(house.team,))
    house.limit(1000, member=other)
    house.limit(1000, team=make.team(house.organization))

    house.reserve(3000)
    with pytest.raises(quotas.UnableToReserve):
        house.reserve(2000, member_id=other.id)


def test_fractions_are_summed(house: House) -> None:
    house.limit(1000)
    house.reserve(600)

    with pytest.raises(quotas.UnableToReserve) as refusal:
        house.reserve(600)

    assert "needs 0.6, 0.4 left" in refusal.value.message
    house.reserve(400)


def test_what_ended_is_free_at_once_and_only_once(house: House) -> None:
    house.limit(1000)
    request = house.reserve(1000)

    assert queue.end(request_id=request.id, now=make.NOW) is True
    assert queue.end(request_id=request.id, now=make.NOW) is False

    house.reserve(1000)
    with pytest.raises(quotas.UnableToReserve):
        house.reserve(1)


def test_a_limit_of_nothing_lets_nothing_in_and_no_limit_lets_all_in(house: House) -> None:
    house.limit(0)
    with pytest.raises(quotas.UnableToReserve):
        house.reserve(1)
    house.limit(None)
    house.reserve(64_000)


def test_a_limit_below_what_is_used_stops_only_what_is_new(house: House) -> None:
    house.reserve(4000)
    house.limit(1000)

    [line, *_] = quotas.standing(organization=house.organization)
    assert (line.limit, line.used, line.left, line.percent) == (1000, 4000, 0, 400)
    with pytest.raises(quotas.UnableToReserve):
        house.reserve(1000)


def test_standing_shows_every_level(house: House) -> None:
    house.limit(8000)
    house.limit(4000, team=house.team)
    house.limit(2000, member=house.member)
    house.reserve(1000)
    house.reserve(250)

    lines = quotas.standing(organization=house.organization)

    shown = {
        (line.level, line.team or line.member): (line.limit, line.used, line.left) for line in lines
    }
    assert shown["organization", None] == (8000, 1250, 6750)
    assert shown["team", house.team] == (4000, 1250, 2750)
    assert shown["member", house.member] == (2000, 1250, 750)


def test_a_member_sees_the_lines_of_the_organization_his_teams_and_himself(house: House) -> None:
    make.team(house.organization)
    make.member(house.organization)

    seen = list(quotas.visible(actor=actor_for_member(member=house.member)))

    assert [line.level for line in seen] == ["organization", "team", "member"]
    assert (seen[1].team, seen[2].member) == (house.team, house.member)


def test_a_team_admin_sets_his_teams_limit_and_no_other(house: House) -> None:
    admin = actor_for_member(member=make.member(house.organization, admin_of=(house.team,)))
    quotas.set_limit(actor=admin, team=house.team, milli_gpus=2000, now=make.NOW)

    for level in ({}, {"team": make.team(house.organization)}, {"member": house.member}):
        with pytest.raises(UnableToAct):
            quotas.set_limit(actor=admin, milli_gpus=2000, now=make.NOW, **level)


def test_a_foreign_team_or_member_is_not_found(house: House) -> None:
    elsewhere = make.organization()
    owner = actor_for_member(member=make.member(house.organization, Role.OWNER))
    for level in ({"team": make.team(elsewhere)}, {"member": make.member(elsewhere)}):
        with pytest.raises(NotFound):
            quotas.set_limit(actor=owner, milli_gpus=1, now=make.NOW, **level)


@pytest.mark.parametrize("milli_gpus", [-1, 3_000_000_000])
def test_an_absurd_limit_is_refused(house: House, milli_gpus: int) -> None:
    with pytest.raises(quotas.UnableToSetLimit):
        house.limit(milli_gpus)


def test_setting_a_limit_is_written_down(house: House) -> None:
    house.limit(2000, team=house.team)
    house.limit(3000, team=house.team)

    with every_tenant("tests"):
        event = AuditEvent.objects.filter(verb="quota.set").latest("id")
    assert event.details == {"level": "team", "from": 2000, "to": 3000}


def test_preview_gives_the_same_refusal_without_a_lock(house: House) -> None:
    house.limit(1000)
    names: dict[str, Any] = {
        "organization_id": house.organization.id, "team_id": house.team.id,
        "member_id": house.member.id,
    }  # fmt: skip
    assert quotas.preview(**names, milli_gpus=1000) is None
    house.reserve(1000)

    foreseen = quotas.preview(**names, milli_gpus=250)

    assert foreseen is not None
    with pytest.raises(quotas.UnableToReserve) as refusal:
        house.reserve(250)
    assert foreseen.details == refusal.value.details
