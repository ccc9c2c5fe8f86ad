"""What is on offer, prices, usage, the ledger and the machines through the API."""

import csv
from datetime import timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from portal.api.fields import amount
from portal.billing import ledger, meters
from portal.billing.models import AccountKind
from portal.fleet.models import JoinToken
from portal.tenants.scope import scope
from tests import factories as make
from tests.api.conftest import Acme, text


@pytest.mark.parametrize(
    ("value", "currency", "text"),
    [
        ("2.490000000000", "USD", "2.49"),
        ("100", "USD", "100.00"),
        ("0.000012000000", "USD", "0.000012"),
        ("-1.500", "USD", "-1.50"),
        ("250.000000000000", "JPY", "250"),
        ("0", "BHD", "0.000"),
    ],
)
def test_amounts_are_exact_and_have_no_needless_zeros(value: str, currency: str, text: str):
    assert amount(Decimal(value), currency) == text


def test_flavors_and_images_on_offer(acme: Acme):
    make.flavor(is_offered=False)
    program = acme.program("finance")

    flavors = program.get("flavors").json()
    images = program.get("images").json()

    assert [row["code"] for row in flavors["results"]] == [acme.flavor.code]
    assert flavors["results"][0]["price_per_hour"] == {"amount": "2.49", "currency": "USD"}
    assert (flavors["results"][0]["free_now"], flavors["results"][0]["total"]) == (8, 8)
    assert [row["code"] for row in images["results"]] == [acme.image.code]
    for path, row in (("flavors", acme.flavor), ("images", acme.image)):
        assert program.get(f"{path}/{row.code}").json()["id"] == str(row.id)
        assert program.get(f"{path}/{row.id}").json()["code"] == row.code
        assert program.get(f"{path}/none").status_code == 404


def test_operators_set_prices_and_everybody_reads_them(acme: Acme):
    body = {"sku": acme.flavor.code, "currency": "USD", "per_hour": "3.125"}
    soon = (make.datetime.now(make.UTC) + timedelta(days=1)).isoformat()

    operator = acme.program("operator")
    now = operator.post("prices", body)
    later = operator.post("prices", body | {"per_hour": "4", "starts_at": soon})
    past = operator.post("prices", body | {"starts_at": "2021-01-01T00:00:00Z"})
    wrong = operator.post("prices", body | {"per_hour": "free"})
    unknown = operator.post("prices", body | {"sku": "no-such-size"})

    assert now.status_code == 201, now.content
    assert now.json()["per_hour"] == {"amount": "3.125", "currency": "USD"}
    assert later.json()["ends_at"] is None
    assert (past.status_code, wrong.status_code) == (409, 400)
    assert unknown.status_code == 400
    assert list(unknown.json()["error"]["details"]) == ["sku"]
    member = acme.program("member")
    assert [row["per_hour"]["amount"] for row in member.get("prices").json()["results"]] == [
        "3.125"
    ]
    old = member.get("prices?at=2022-01-01T00:00:00Z").json()["results"]
    assert [row["per_hour"]["amount"] for row in old] == ["2.49"]
    assert member.get("prices?at=then").status_code == 400
    assert member.post("prices", body).status_code == 403


def test_usage_is_reported_as_far_as_one_may_see_it(acme: Acme):
    report = acme.program("finance").get("usage?group_by=team,day")

    assert report.status_code == 200, report.content
    body = report.json()
    assert body["results"] == []
    assert body["total"] == {"amount": "0.00", "currency": "USD"}
    assert body["start"].endswith("01T00:00:00Z")
    assert acme.program("member").get("usage").status_code == 200
    backwards = "start=2026-01-02T00:00:00Z&end=2026-01-01T00:00:00Z"
    for query in ("group_by=moon", "start=then", backwards, "member=me"):
        assert acme.program("finance").get(f"usage?{query}").status_code == 400, query
    assert "/api/v1/usage.csv?start=" in body["csv"]
    foreign = make.team(acme.stranger.organization)
    assert acme.program("finance").get(f"usage?team={foreign.id}").status_code == 404


def test_usage_that_was_metered_is_reported_and_exported(acme: Acme):
    made = acme.launch().json()
    start = make.datetime(2026, 3, 2, 9, tzinfo=make.UTC)
    meter = {"subject": UUID(made["id"]), "run": 1}
    with scope(organization=acme.organization):
        meters.open(
            organization_id=acme.organization.id, team_id=acme.team.id, member_id=acme.member.id,
            subject_name="train", sku=acme.flavor.code, currency="USD", at=start, cause="ready",
            **meter,
        )  # fmt: skip
        meters.close(**meter, at=start + timedelta(minutes=30), cause="stopped")
    span = "start=2026-03-01T00:00:00Z&end=2026-04-01T00:00:00Z"

    report = acme.program("member").get(f"usage?{span}&group_by=instance").json()
    file = acme.program("member").get(report["csv"])

    assert report["total"] == {"amount": "1.25", "currency": "USD"}
    assert report["results"][0]["instance"] == {"id": made["id"], "name": "train"}
    assert report["results"][0]["cost"]["amount"] == "1.245"
    assert report["milliseconds"] == 1_800_000
    assert file["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(text(file).splitlines()))
    assert sum(Decimal(row["cost_USD"]) for row in rows) == Decimal("1.25")
    assert acme.program("member").get(f"instances/{made['id']}").json()["cost"]["amount"] == "1.245"
    other = acme.program("stranger").get(f"usage.csv?{span}&instance={made['id']}")
    assert len(text(other).splitlines()) == 1
    assert (
        acme.program("leader").get(f"usage?{span}&team={acme.team.slug}").json()["total"]["amount"]
        == "1.25"
    )


def test_the_ledger_is_for_those_who_may_see_money(acme: Acme):
    owed = Decimal("12.34")
    ledger.post(
        organization=acme.organization, idempotency_key="test", kind="usage", currency="USD",
        lines=[(AccountKind.RECEIVABLE, owed), (AccountKind.REVENUE, -owed)],
        memo="March", effective_at=make.NOW, now=make.NOW,
    )  # fmt: skip

    finance = acme.program("finance")
    posted = finance.get("ledger").json()["results"]
    balances = {
        row["account"]: row["balance"] for row in finance.get("ledger/balances").json()["results"]
    }

    assert len(posted) == 1
    assert {row["account"]: row["amount"]["amount"] for row in posted[0]["entries"]} == {
        "RECEIVABLE": "12.34",
        "REVENUE": "-12.34",
    }
    assert balances["RECEIVABLE"] == {"amount": "12.34", "currency": "USD"}
    assert acme.program("member").get("ledger").status_code == 403
    assert acme.program("stranger").get("ledger").json()["results"] == []


def test_operators_see_and_cordon_machines(acme: Acme):
    operator = acme.program("operator", "operator")
    node = operator.get("nodes").json()["results"][0]
    path = f"nodes/{node['id']}"

    gpus = operator.get("gpus?limit=3").json()
    rest = operator.get(gpus["next"]).json()["results"]
    cordoned = operator.post(f"{path}/cordon", {"reason": "new fans"})
    silent = operator.post(f"{path}/cordon", {})
    back = operator.post(f"{path}/uncordon")
    in_use = operator.post(f"{path}/retire")
    operator.post(f"{path}/cordon", {"reason": "old"})
    retired = operator.post(f"{path}/retire")

    assert node["gpu_count"] == 8
    assert (len(gpus["results"]), gpus["results"][0]["node"]) == (3, node["id"])
    assert [row["index"] for row in rest] == [3, 4, 5]
    assert cordoned.json()["cordon_reason"] == "new fans"
    assert silent.status_code == 400
    assert back.json()["cordoned_at"] is None
    assert (in_use.status_code, in_use.json()["error"]["code"]) == (409, "node_in_use")
    assert retired.json()["retired_at"]
    assert operator.get("gpus").json()["results"] == []
    assert operator.get(f"nodes/{acme.team.id}").status_code == 404


def test_operators_make_join_tokens(acme: Acme):
    operator = acme.program("operator")

    made = operator.post("join-tokens", {"pool": "h100"})

    assert made.status_code == 201
    assert made.json()["pool"] == "h100"
    assert len(made.json()["secret"]) > 30
    assert JoinToken.objects.count() == 1
    assert acme.program("owner").post("join-tokens", {}).status_code == 403
