from scheduler.engine import Policy, plan
from scheduler.engine.queue_order import ORDERS, by_priority
from tests.scheduler.engine.site import node, request, run, site


def _line(snapshot):
    return [waiting.id for waiting in ORDERS[snapshot.policy.order](snapshot)]


def test_inside_an_organization_the_urgent_go_first_then_the_old_then_the_smaller_id():
    waiting = [
        request("d", at=2),
        request("c", at=1),
        request("b", at=1),
        request("a", at=9, priority=5),
    ]

    assert _line(site([node("n1")], waiting)) == ["a", "b", "c", "d"]


def test_priority_does_not_cross_organizations():
    waiting = [
        request("urgent", organization="loud", at=2, priority=100),
        request("calm", organization="quiet", at=1, priority=0),
    ]

    assert _line(site([node("n1")], waiting)) == ["calm", "urgent"]


def test_a_flood_of_one_organization_delays_another_by_one_request_at_most():
    flood = [request(f"f{i:04d}", organization="flood", at=i, priority=9) for i in range(1000)]
    waiting = [*flood, request("mine", organization="small", at=5000)]

    assert _line(site([node("n1")], waiting)).index("mine") == 1


def test_a_flood_gets_nothing_more_while_another_organization_holds_less():
    flood = [request(f"f{i:04d}", organization="flood", at=i) for i in range(1000)]
    snapshot = site(
        [node("n1", busy=7)],
        [*flood, request("mine", organization="small", at=5000)],
        [run("old", [f"n1/{i}" for i in range(7)], organization="flood")],
    )

    assert [placement.request_id for placement in plan(snapshot).placements] == ["mine"]


def test_a_flood_of_requests_without_gpus_counts_by_its_cpu():
    flood = [request(f"f{i}", gpus=0, cores=8, organization="flood", at=i) for i in range(100)]
    snapshot = site(
        [node("n1", cores=64)],
        [*flood, request("mine", organization="small", at=500)],
        [run("old", node_id="n1", organization="flood", cores=16)],
    )

    assert by_priority(snapshot)[0].id == "mine"


def test_first_come_first_served_knows_neither_priority_nor_organization():
    waiting = [
        request("late", organization="a", at=3, priority=9),
        request("early", organization="b", at=1),
        request("middle", organization="a", at=2),
    ]

    assert _line(site([node("n1")], waiting, policy=Policy(order="fcfs"))) == [
        "early",
        "middle",
        "late",
    ]
