"""Plans become leases; the database is the referee."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import IntegrityError, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from portal.instances import placement
from portal.tenants.scope import every_tenant
from scheduler import place, queue, words
from scheduler.engine.plan import Code
from scheduler.models import Decision, Lease, Request, Standing
from tests import factories as make


@pytest.fixture(autouse=True)
def _everybody(db: None) -> Any:
    with every_tenant("tests"):
        yield


def ask(gpus: int = 1, **fields: Any) -> Request:
    organization = fields.pop("organization", None) or make.organization()
    team = make.team(organization)
    return queue.submit(
        organization_id=organization.id,
        team_id=team.id,
        member_id=make.member(organization, teams=(team,)).id,
        subject=fields.pop("subject", uuid4()),
        gpu_count=gpus,
        now=fields.pop("now", make.NOW),
        **fields,
    )


def plan(now: Any = make.NOW, **fields: Any) -> list[place.Placed]:
    supply = fields.pop("supply", None) or placement.supply(now=now)
    return place.cycle(supply=supply, now=now, **fields)


def held(request: Request) -> list[tuple[UUID, tuple[tuple[int, int], ...]]]:
    return list(request.leases.order_by("gpu_id").values_list("gpu_id", "units"))


def test_a_plan_is_written_as_leases_a_place_and_a_decision() -> None:
    node = make.node(gpus=4)
    request = ask(gpus=2)

    [placed] = plan()

    assert (placed.request.id, placed.node_id) == (request.id, node.id)
    request.refresh_from_db()
    assert (request.standing, request.node, request.placed_at) == (
        Standing.PLACED,
        node,
        make.NOW,
    )
    assert [units for _gpu, units in held(request)] == [((0, 1000),)] * 2
    assert words.words(request) == f"Placed on {node.name}: 2 × {make.H100}."
    assert Decision.objects.get(request=request).code == Code.PLACED


def test_two_plans_from_one_picture_never_promise_a_gpu_twice() -> None:
    make.node(gpus=2)
    first = ask(gpus=2)
    stale = placement.supply(now=make.NOW)
    assert len(plan(supply=stale)) == 1
    second = ask(gpus=2)

    assert plan(supply=stale) == []

    second.refresh_from_db()
    assert (second.standing, held(second)) == (Standing.PENDING, [])
    assert len(held(first)) == 2
    assert not Decision.objects.filter(request=second).exists()


def test_a_refused_placement_loses_itself_and_no_other() -> None:
    make.node(gpus=1, name="a")
    make.node(gpus=1, name="b")
    stale = placement.supply(now=make.NOW)
    ask()
    [taken] = plan()
    late = [ask(), ask()]

    placed = plan(supply=stale)

    assert len(placed) == 1
    assert placed[0].node_id != taken.node_id
    standings = sorted(Request.objects.get(id=one.id).standing for one in late)
    assert standings == [Standing.PENDING, Standing.PLACED]


def test_the_database_refuses_overlapping_units_and_takes_disjoint_ones() -> None:
    gpu = make.node(gpus=1).gpus.get()
    request = ask()

    def lease(low: int, high: int) -> None:
        with transaction.atomic():
            Lease.objects.create(
                organization_id=request.organization_id,
                request=request,
                gpu=gpu,
                units=((low, high),),
                during=DateTimeTZRange(make.NOW, None),
            )

    lease(0, 250)
    lease(750, 1000)
    lease(250, 500)
    for low, high in ((0, 1000), (249, 251), (700, 751), (999, 1001), (-1, 0)):
        with pytest.raises(IntegrityError):
            lease(low, high)
    lease(500, 750)


def test_a_share_takes_units_and_the_rest_stays_free() -> None:
    node = make.node(gpus=1)
    quarters = [ask(units_per_gpu=250, gpu_memory_bytes=20 * make.GIB) for _ in range(5)]

    assert len(plan()) == 4

    units = sorted(held(request)[0][1] for request in quarters if held(request))
    assert units == [((0, 250),), ((250, 500),), ((500, 750),), ((750, 1000),)]
    [machine] = placement.supply(now=make.NOW)
    assert machine.id == str(node.id)
    assert machine.gpus[0].free == ()


def test_who_waits_is_told_place_reason_and_estimate() -> None:
    make.node(gpus=1)
    ask(ends_by=make.NOW + timedelta(minutes=10))
    plan()
    waiting = [ask(now=make.NOW + timedelta(seconds=n)) for n in range(2)]

    plan(now=make.NOW + timedelta(seconds=5))

    for position, request in enumerate(waiting, start=1):
        request.refresh_from_db()
        assert (request.position, request.reason_code) == (position, Code.GPUS_BUSY)
        assert "1 needed together, 0 free at best" in words.words(request)
    first = waiting[0]
    assert first.estimate is not None
    assert first.estimate["basis"] == "limits"
    assert words.estimate(first.estimate)
    assert words.basis(first.estimate) == "from the time limits of what runs now"


def test_past_runs_give_estimates_where_nobody_set_a_limit() -> None:
    make.node(gpus=1)
    organization = make.organization()
    now = make.NOW
    for _ in range(3):
        request = ask(organization=organization, now=now)
        plan(now=now)
        now += timedelta(minutes=20)
        queue.end(request_id=request.id, now=now)
    ask(organization=organization, now=now)
    plan(now=now)
    waiting = ask(organization=organization, now=now)

    plan(now=now + timedelta(minutes=5))

    waiting.refresh_from_db()
    assert waiting.estimate is not None
    assert waiting.estimate["basis"] == "past_runs"
    assert waiting.estimate["low_s"] == pytest.approx(15 * 60)


def test_decisions_are_kept_only_when_the_answer_changes() -> None:
    make.node(gpus=1)
    ask()
    waiting = ask(now=make.NOW + timedelta(seconds=1))
    for seconds in range(2, 40, 3):
        plan(now=make.NOW + timedelta(seconds=seconds))

    assert Decision.objects.filter(request=waiting).count() == 1
    waiting.refresh_from_db()
    assert waiting.decided_at is not None
    assert waiting.decided_at > make.NOW + timedelta(seconds=20)


def test_an_impossible_request_says_so_and_lets_others_pass() -> None:
    make.node(gpus=2)
    impossible = ask(gpus=4)
    ask(gpus=1, now=make.NOW + timedelta(seconds=1))

    assert len(plan()) == 1

    impossible.refresh_from_db()
    assert (impossible.reason_code, impossible.position) == (Code.NEVER_FITS, None)
    assert "the largest has 2" in words.words(impossible)


def test_silent_and_drained_machines_are_named_as_the_reason() -> None:
    make.node(gpus=1, online=False)
    request = ask()

    assert plan() == []

    request.refresh_from_db()
    assert request.reason_code == Code.NODES_UNAVAILABLE
    assert "not answering" in words.words(request)


def test_subjects_that_the_caller_does_not_claim_are_not_placed() -> None:
    make.node(gpus=2)
    wanted, withdrawn = ask(), ask()

    placed = plan(claim=lambda subjects: {one for one in subjects if one == wanted.subject})

    assert [one.request.id for one in placed] == [wanted.id]
    withdrawn.refresh_from_db()
    assert withdrawn.standing == Standing.PENDING


def test_a_request_that_ends_while_the_plan_is_made_is_not_placed() -> None:
    make.node(gpus=1)
    request = ask()

    def withdraw(subjects: Any) -> Any:
        queue.end(request_id=request.id, now=make.NOW)
        return subjects

    assert plan(claim=withdraw) == []
    assert held(request) == []


def test_one_subject_never_has_two_places_in_the_queue() -> None:
    request = ask()
    with pytest.raises(IntegrityError), transaction.atomic():
        ask(subject=request.subject)


def test_leases_end_with_their_request_and_the_next_one_fits_at_that_instant() -> None:
    make.node(gpus=1)
    request = ask()
    plan()
    end = make.NOW + timedelta(minutes=1)
    queue.end(request_id=request.id, now=end)
    ask(now=end)

    assert len(plan(now=end)) == 1

    lease = request.leases.get()
    assert (lease.during.lower, lease.during.upper) == (make.NOW, end)


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_words_and_missing_arguments_never_break_them(code: Code) -> None:
    assert words.sentence(code, {})
    assert words.sentence("something new", {}) == "Waiting to be planned."
