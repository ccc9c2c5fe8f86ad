"""The story of an instance, through the API."""

import re
from datetime import timedelta
from unittest.mock import patch

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.instances.models import Instance
from portal.tenants.models import AuditEvent
from portal.tenants.scope import every_tenant
from tests import factories as make
from tests.api.conftest import Acme

TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")


def test_a_launch_answers_at_once_with_where_it_stands(acme: Acme):
    response = acme.launch(command=["python", "train.py"], env={"SECRET": "s3cr3t"}, priority=5)

    assert response.status_code == 201, response.content
    made = response.json()
    assert made["state"] == "QUEUED"
    assert made["state_words"] == "Queued"
    assert made["queue_position"] == 1
    assert made["reason"]
    assert made["price_per_hour"] == {"amount": "2.49", "currency": "USD"}
    assert made["cost"] == {"amount": "0.00", "currency": "USD"}
    assert TIME.match(made["since"])
    assert TIME.match(made["created_at"])
    assert (made["team"], made["team_name"]) == (str(acme.team.id), "Vision")
    assert (made["flavor"], made["image"]) == (acme.flavor.code, acme.image.code)
    assert (made["command"], made["env_names"]) == (["python", "train.py"], ["SECRET"])
    assert "s3cr3t" not in response.content.decode()
    assert {"estimate", "sooner", "stop_at", "progress", "node_name", "run"} <= set(made)
    assert acme.program("member").get(response["Location"]).json()["id"] == made["id"]


def test_team_flavor_and_image_may_be_named_by_id_or_by_name(acme: Acme):
    program = acme.program("member")

    by_slug = program.post("instances", acme.wish("one", team=acme.team.slug))
    by_id = program.post(
        "instances", acme.wish("two", flavor=str(acme.flavor.id), image=str(acme.image.id))
    )

    assert (by_slug.status_code, by_id.status_code) == (201, 201)
    assert by_slug.json()["flavor"] == by_id.json()["flavor"] == acme.flavor.code


def test_those_who_wait_are_counted(acme: Acme):
    positions = [acme.launch(name=f"job-{n}").json()["queue_position"] for n in range(3)]

    assert positions == [1, 2, 3]


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"name": "Not A Name"}, 400, "name"),
        ({"name": None}, 400, "name"),
        ({"flavor": "none"}, 409, "flavor"),
        ({"image": "none"}, 409, "image"),
        ({"priority": 101}, 400, "priority"),
        ({"priority": "high"}, 400, "priority"),
        ({"command": "sleep 5"}, 400, "command"),
        ({"env": {"1A": "x"}}, 400, "env"),
        ({"stop_at": "2001-01-01T00:00:00Z"}, 400, "stop_at"),
        ({"stop_at": "tomorrow"}, 400, "stop_at"),
        ({"command": ["a\0b"]}, 400, "command"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_by_field(
    acme: Acme, change: dict[str, object], status: int, field: str
):
    response = acme.launch(**change)

    error = response.json()["error"]
    assert response.status_code == status, error
    assert field in error["details"], error
    assert error["message"]


def test_a_body_that_is_no_json_is_400(acme: Acme):
    program = acme.program("member")

    broken = program.client.post(
        "/api/v1/instances", "{", "application/json",
        headers={"Authorization": f"Bearer {program.secret}"},
    )  # fmt: skip
    form = program.client.post(
        "/api/v1/instances", {"name": "x"}, headers={"Authorization": f"Bearer {program.secret}"}
    )
    listed = program.post("instances", ["x"])

    assert [r.status_code for r in (broken, form, listed)] == [400, 415, 400]
    assert all(r.json()["error"]["code"] for r in (broken, form, listed))


def test_a_limit_is_said_with_its_amounts(acme: Acme):
    admin = acme.program("admin")
    set_ = admin.ask("PUT", "quotas", {"team": acme.team.slug, "limit_milli_gpus": 1000})
    assert set_.json()["left_milli_gpus"] == 1000
    acme.launch(name="first")

    response = acme.launch(name="second")

    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (409, "quota_exceeded")
    assert (error["details"]["level"], error["details"]["left"]) == ("team", 0)
    assert error["help"]


def test_others_teams_are_missing_and_others_rights_too_small(acme: Acme):
    elsewhere = make.team(acme.stranger.organization)
    own_but_not_in = make.team(acme.organization)

    assert acme.launch(team=str(elsewhere.id)).status_code == 404
    assert acme.launch(team=elsewhere.slug).status_code == 404
    assert acme.launch(team=str(own_but_not_in.id)).status_code == 403
    assert acme.launch("viewer").status_code == 403
    assert acme.launch("finance").status_code == 403


def test_stop_start_and_terminate(acme: Acme):
    member, made = acme.program("member"), acme.launch().json()
    path = f"instances/{made['id']}"

    stopped = member.post(f"{path}/stop")
    again = member.post(f"{path}/stop")
    started = member.post(f"{path}/start")
    gone = member.post(f"{path}/terminate")
    late = member.post(f"{path}/start")

    assert [r.status_code for r in (stopped, again, started, gone, late)] == [
        200,
        200,
        200,
        200,
        409,
    ]
    assert [r.json()["state"] for r in (stopped, started, gone)] == [
        "STOPPED",
        "QUEUED",
        "TERMINATED",
    ]
    assert stopped.json()["queue_position"] is None
    assert started.json()["run"] == 2
    assert late.json()["error"]["code"] == "terminated"


def test_a_colleague_sees_but_does_not_stop_and_a_leader_does(acme: Acme):
    made = acme.launch("leader", "theirs").json()
    path = f"instances/{made['id']}"

    assert acme.program("member").get(path).status_code == 200
    assert acme.program("member").get(path).json()["cost"] is None
    assert acme.program("member").post(f"{path}/stop").status_code == 403
    assert acme.program("finance").get(path).status_code == 403
    assert acme.program("viewer").get(path).json()["cost"] is not None
    own = acme.launch("member", "own").json()
    assert acme.program("leader").post(f"instances/{own['id']}/terminate").status_code == 200


def test_a_stop_time_is_set_and_lifted(acme: Acme):
    member, made = acme.program("member"), acme.launch().json()
    path = f"instances/{made['id']}"

    later = (make.datetime.now(make.UTC) + timedelta(hours=2)).isoformat()
    set_ = member.ask("PATCH", path, {"stop_at": later})
    lifted = member.ask("PATCH", path, {"stop_at": None})
    past = member.ask("PATCH", path, {"stop_at": "2001-01-01T00:00:00Z"})

    assert TIME.match(set_.json()["stop_at"])
    assert lifted.json()["stop_at"] is None
    assert past.status_code == 400


def test_the_list_is_filtered_and_cut_into_pages(acme: Acme):
    member = acme.program("member")
    names = [acme.launch(name=f"job-{n}").json()["name"] for n in range(5)]
    member.post(f"instances/{member.get('instances?name=job-0').json()['results'][0]['id']}/stop")

    seen, url = [], "instances?limit=2"
    while url:
        page = member.get(url).json()
        assert set(page) == {"results", "next"}
        assert len(page["results"]) <= 2
        seen += [row["name"] for row in page["results"]]
        url = page["next"]

    assert seen == list(reversed(names))
    queued = member.get("instances?state=QUEUED").json()["results"]
    assert {row["name"] for row in queued} == set(names[1:])
    assert len(member.get("instances?state=QUEUED&state=STOPPED").json()["results"]) == 5
    assert len(member.get(f"instances?team={acme.team.slug}").json()["results"]) == 5
    assert member.get("instances?state=FLYING").status_code == 400
    assert member.get("instances?cursor=nonsense").status_code == 404


def test_a_list_takes_the_same_number_of_queries_however_long_it_is(acme: Acme):
    member = acme.program("member")
    counts = []
    for n in range(4):
        acme.launch(name=f"job-{n}")
        with every_tenant("arrange"):
            for row in Instance.objects.select_related("request"):
                row.request.position, row.request.decided_at = 1, make.NOW
                row.request.save()
        member.get("instances")
        with CaptureQueriesContext(connection) as queries:
            member.get("instances")
        counts.append(len(queries))

    assert len(set(counts)) == 1, counts


def test_logs_come_from_the_node(acme: Acme):
    member, made = acme.program("member"), acme.launch().json()
    path = f"instances/{made['id']}/logs"
    never = member.get(path)
    with every_tenant("arrange"):
        Instance.objects.filter(id=made["id"]).update(node=make.node())

    with patch("portal.fleet.commands.ask", return_value={"ok": True, "data": "epoch 1\n"}) as ask:
        read = member.get(f"{path}?tail=10")

    assert never.status_code == 409
    assert read.json() == {"text": "epoch 1\n"}
    assert ask.call_args.kwargs["args"]["tail"] == 10
    assert member.get(f"{path}?tail=all").status_code == 400


def test_what_a_program_did_is_in_the_audit_trail_with_its_token(acme: Acme):
    acme.launch()

    events = acme.program("admin").get("audit-events?verb=instance.launch").json()["results"]

    assert [event["target_name"] for event in events] == ["train"]
    assert events[0]["email"] == acme.member.user.email
    with every_tenant("look"):
        assert str(AuditEvent.objects.get(id=events[0]["id"]).token_id) == events[0]["token"]
