from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.fleet import liveness, nodes
from portal.fleet.models import Gpu, Link, Node, Watch
from tests.factories import NOW, node

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


def run(until: timedelta, *, start: datetime = NOW, heard: list[Node] | None = None) -> list[str]:
    """Let the watch run every 5 s from `start`, with `heard` nodes sending heartbeats."""
    words = []
    for n in range(int(until.total_seconds()) // 5 + 1):
        now = start + 5 * n * SECOND
        for one in heard or []:
            nodes.seen(node_id=one.pk, epoch=1, now=now)
        words += [f"{5 * n}:{change.after}" for change in nodes.watch(now=now)]
    return words


def test_a_silent_node_turns_stale_offline_and_lost_by_the_portals_clock() -> None:
    node(gpus=0)

    assert run(timedelta(minutes=16)) == ["20:STALE", "65:OFFLINE", "905:LOST"]
    assert list(Node.objects.get().events.order_by("at").values_list("kind", flat=True)) == [
        "stale",
        "offline",
        "lost",
    ]


def test_a_node_that_is_heard_stays_online() -> None:
    assert run(timedelta(minutes=2), heard=[node(gpus=0)]) == []


@pytest.mark.parametrize("link", [Link.STALE, Link.OFFLINE, Link.LOST])
def test_a_node_that_is_heard_again_is_online_at_once(link: Link) -> None:
    silent = node(gpus=0, link=link)

    assert nodes.seen(node_id=silent.pk, epoch=1, now=NOW + SECOND)

    silent.refresh_from_db()
    assert (silent.link, silent.link_since) == (Link.ONLINE, NOW + SECOND)
    assert silent.events.get().kind == "online"


def test_a_node_that_never_was_there_does_not_get_lost() -> None:
    node(gpus=0, online=False, last_seen_at=None)

    assert run(timedelta(minutes=16)) == []


def test_nobody_is_blamed_for_the_portals_own_silence() -> None:
    node(gpus=0)
    nodes.watch(now=NOW)

    woken = NOW + timedelta(hours=2)
    assert nodes.watch(now=woken) == []
    assert run(timedelta(seconds=30), start=woken + 5 * SECOND) == ["15:STALE"]


def test_the_first_watch_of_all_changes_nothing() -> None:
    node(gpus=0)

    assert nodes.watch(now=NOW + timedelta(days=3)) == []


def test_when_most_of_the_fleet_falls_silent_at_once_nothing_goes_beyond_stale() -> None:
    fleet = [node(gpus=0) for _ in range(5)]

    words = run(timedelta(minutes=10), heard=fleet[:2])

    assert words == ["20:STALE"] * 3
    assert nodes.frozen_since() == NOW + 20 * SECOND
    assert fleet[4].events.filter(kind="frozen").exists()


def test_after_a_freeze_the_silent_get_their_whole_time_again() -> None:
    fleet = [node(gpus=0) for _ in range(5)]
    run(timedelta(minutes=10), heard=fleet[:2])

    words = run(timedelta(minutes=2), start=NOW + timedelta(minutes=10, seconds=5), heard=fleet[:4])

    assert nodes.frozen_since() is None
    assert words == ["65:OFFLINE"]


def test_a_freeze_does_not_last_for_ever() -> None:
    for _ in range(4):
        node(gpus=0)

    words = run(timedelta(minutes=40))

    # 20 s until stale, 15 min frozen, and from then on the usual times.
    assert words == ["20:STALE"] * 4 + ["990:OFFLINE"] * 4 + ["1830:LOST"] * 4


def test_nodes_that_fall_silent_one_by_one_are_not_a_mass() -> None:
    fleet = [node(gpus=0) for _ in range(5)]
    for n in range(1, 5):
        start = NOW + (n - 1) * timedelta(minutes=3)
        run(timedelta(seconds=175), start=start, heard=fleet[n:])

    assert nodes.frozen_since() is None
    assert Node.objects.get(pk=fleet[0].pk).link == Link.OFFLINE


def test_half_of_a_small_fleet_is_not_a_mass() -> None:
    fleet = [node(gpus=0) for _ in range(2)]

    assert run(timedelta(seconds=65), heard=fleet[:1]) == ["20:STALE", "65:OFFLINE"]


def test_a_retired_node_and_one_in_conflict_are_left_alone() -> None:
    node(gpus=0, retired_at=NOW)
    node(gpus=0, link=Link.CONFLICT)

    assert run(timedelta(minutes=16)) == []


def test_a_heartbeat_that_arrives_during_the_watch_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = node(gpus=0)
    nodes.watch(now=NOW)
    real = liveness._freeze_or_thaw

    def heard_meanwhile(*args: object) -> None:
        Node.objects.filter(pk=silent.pk).update(last_seen_at=NOW + 25 * SECOND)
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(liveness, "_freeze_or_thaw", heard_meanwhile)

    assert nodes.watch(now=NOW + 25 * SECOND) == []
    silent.refresh_from_db()
    assert silent.link == Link.ONLINE


@settings(deadline=None, max_examples=30)
@given(pauses=st.lists(st.integers(1, 29), min_size=1, max_size=12))
def test_links_only_ever_get_worse_in_silence(pauses: list[int]) -> None:
    Gpu.objects.all().delete()
    Node.objects.all().delete()
    Watch.objects.all().delete()
    node(gpus=0)
    order = [Link.ONLINE, Link.STALE, Link.OFFLINE, Link.LOST]
    now, before = NOW, Link.ONLINE
    for pause in pauses:
        now += pause * SECOND
        nodes.watch(now=now)
        after = Link(Node.objects.get().link)
        assert order.index(after) >= order.index(before)
        before = after
