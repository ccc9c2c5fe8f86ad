"""The socket against a real server on loopback: reconnects, refusals, silence, live data first."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agents import wire
from agents.backoff import Backoff
from agents.identity import Identity
from agents.link import Link, Timing
from agents.spool import Spool
from tests.agents.portal import Portal, running_portal, verifies

KEY = Ed25519PrivateKey.generate()


class Talker:
    """A node with nothing on it, which keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[wire.Desired | wire.Command] = []
        self.opened_times = 0
        self.is_open = False

    def hello(self) -> wire.Hello:
        return wire.Hello(
            proto_min=1,
            proto_max=1,
            agent_version="0",
            node_id="n-1",
            boot_id="b",
            agent_run_id="r",
            generation=1,
            wall_time=0,
            runtime="process",
            isolation=False,
            inventory=wire.Inventory(hostname="h", cpu_milli=1, memory_bytes=1, disk_bytes=1),
        )

    def report(self, seq: int) -> wire.Report:
        return wire.Report(seq=seq, wall_time=0, mono_ms=0, observed_generation=0)

    def opened(self, welcome: wire.Welcome) -> None:
        self.opened_times += 1
        self.is_open = True

    def closed(self) -> None:
        self.is_open = False

    def received(self, message: wire.Desired | wire.Command) -> None:
        self.heard.append(message)


@asynccontextmanager
async def linked(
    portal: Portal, *, silence_s: float = 5, handshake_s: float = 5, slow_s: float = 300
) -> AsyncIterator[tuple[Link, Talker, Spool]]:
    talker, spool = Talker(), Spool("r")
    link = Link(
        portal=portal.url,
        identity=Identity(node_id="n-1", generation=1, key=KEY),
        node=talker,
        spool=spool,
        backoff=Backoff(first_s=0.01, cap_s=0.05, slow_s=slow_s),
        timing=Timing(silence_s=silence_s, handshake_s=handshake_s, close_s=0.2, replay_s=0.005),
    )
    task = asyncio.create_task(link.run())
    try:
        yield link, talker, spool
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def reading(number: int) -> list[wire.Sample]:
    return [wire.Sample(gpu="GPU-1", at_ms=number, mono_ms=number, util=50)]


async def until(test, timeout: float = 10) -> None:
    async with asyncio.timeout(timeout):
        while not test():
            await asyncio.sleep(0.01)


async def test_a_session_begins_with_a_signed_request_and_a_hello() -> None:
    async with running_portal() as portal, linked(portal):
        session = await portal.session()

        assert isinstance(session.frames[0], wire.Hello)
        assert verifies(portal.headers[0], KEY.public_key())


async def test_heartbeats_and_reports_flow_by_themselves() -> None:
    async with running_portal() as portal, linked(portal):
        session = await portal.session()

        await session.wait_for(wire.Heartbeat, lambda beat: beat.seq >= 4)
        await session.wait_for(wire.Report, lambda report: report.seq >= 2)


async def test_a_report_on_change_does_not_wait_for_its_interval() -> None:
    async with running_portal() as portal:
        portal.welcome = wire.Welcome(
            proto=1, session_epoch=1, server_time_ms=0, heartbeat_s=1, report_s=3600
        )
        async with linked(portal) as (link, _, _):
            session = await portal.session()
            await session.wait_for(wire.Report, lambda report: report.seq == 1)

            link.report_now()

            await session.wait_for(wire.Report, lambda report: report.seq == 2, timeout=2)


async def test_a_closed_session_is_opened_again() -> None:
    async with running_portal() as portal, linked(portal) as (_, talker, _):
        first = await portal.session()
        await first.socket.close(1012, "service restart")

        await portal.session()

        await until(lambda: talker.opened_times == 2)


async def test_a_portal_that_comes_back_is_found() -> None:
    async with running_portal() as portal:
        port = portal.port
        keeping = linked(portal)
        _, talker, _ = await keeping.__aenter__()
        await portal.session()
    await until(lambda: not talker.is_open)

    async with running_portal(port) as portal:
        await portal.session()

        await until(lambda: talker.is_open)
        await keeping.__aexit__(None, None, None)


@pytest.mark.parametrize(
    "code",
    [
        wire.CLOSE_BAD_CREDENTIAL,
        wire.CLOSE_NO_COMMON_VERSION,
        wire.CLOSE_TAKEN_OVER,
        wire.CLOSE_IDENTITY_CONFLICT,
    ],
)
async def test_a_refusal_is_tried_again_slowly_and_never_in_a_loop(code: int) -> None:
    async with running_portal() as portal:
        portal.close_with = code
        async with linked(portal):
            await portal.session()

            with pytest.raises(TimeoutError):
                await portal.session(timeout=0.5)


async def test_a_taken_over_session_is_not_fought_for() -> None:
    async with running_portal() as portal, linked(portal) as (_, talker, _):
        session = await portal.session()

        await session.socket.close(wire.CLOSE_TAKEN_OVER, "another agent")

        await until(lambda: not talker.is_open)
        with pytest.raises(TimeoutError):
            await portal.session(timeout=0.5)


async def test_a_refused_agent_comes_back_after_the_slow_wait() -> None:
    async with running_portal() as portal:
        portal.close_with = wire.CLOSE_IDENTITY_CONFLICT
        async with linked(portal, slow_s=0.2) as (_, talker, _):
            await portal.session()
            portal.close_with = None

            await until(lambda: talker.is_open)


async def test_a_silent_portal_is_left_though_the_socket_lives() -> None:
    async with running_portal() as portal:
        portal.echoes = False
        async with linked(portal, silence_s=0.3):
            await portal.session()

            await portal.session(timeout=5)


async def test_a_handshake_that_never_ends_is_given_up() -> None:
    stuck: list[asyncio.StreamWriter] = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stuck.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    portal = Portal()
    portal.port = server.sockets[0].getsockname()[1]
    async with server, linked(portal, handshake_s=0.2):
        await until(lambda: len(stuck) >= 2)
    for writer in stuck:
        writer.close()


async def test_a_portal_that_says_no_welcome_is_given_up() -> None:
    async with running_portal() as portal:
        portal.is_mute = True
        async with linked(portal, handshake_s=0.2):
            await until(lambda: len(portal.headers) >= 2)


async def test_garbage_and_unknown_frames_do_not_end_a_session() -> None:
    async with running_portal() as portal, linked(portal) as (link, talker, _):
        session = await portal.session()

        await session.socket.send("{not json")
        await session.socket.send('{"type":"from_the_future","x":1}')
        await session.send(wire.Desired(generation=1, complete=True, count=0))

        await until(lambda: talker.heard != [])
        assert (link.bad_frames, link.unknown_frames) == (1, 1)
        assert talker.opened_times == 1


async def test_acked_samples_leave_the_spool() -> None:
    async with running_portal() as portal, linked(portal) as (link, _, spool):
        session = await portal.session()

        for number in range(5):
            spool.add(reading(number))
            link.samples_added()

        await session.wait_for(wire.Samples, lambda batch: batch.seq == 5)
        await until(lambda: len(spool) == 0)


async def test_after_a_reconnect_live_goes_first_and_the_backlog_follows() -> None:
    async with running_portal() as portal, linked(portal) as (link, _, spool):
        portal.acks = False
        first = await portal.session()
        for number in range(10):
            spool.add(reading(number))
        link.samples_added()
        await first.wait_for(wire.Samples, lambda batch: batch.seq == 10)

        portal.acks = True
        await first.socket.close(1012)
        second = await portal.session()
        spool.add(reading(11))
        link.samples_added()
        await second.wait_for(wire.Samples, lambda batch: batch.seq == 10)
        await until(lambda: len(spool) == 0)

        batches = second.all(wire.Samples)
        live = next(batch for batch in batches if batch.seq == 11)
        assert not live.replay
        assert [batch.seq for batch in batches if batch.replay] == list(range(1, 11))
        assert batches.index(live) < 8


async def test_what_the_portal_has_already_is_not_sent_again() -> None:
    async with running_portal() as portal, linked(portal) as (link, _, spool):
        portal.acks = False
        first = await portal.session()
        for number in range(10):
            spool.add(reading(number))
        link.samples_added()
        await first.wait_for(wire.Samples, lambda batch: batch.seq == 10)

        portal.welcome = wire.Welcome(
            proto=1, session_epoch=2, server_time_ms=0, heartbeat_s=0.2, ack_seq=7
        )
        await first.socket.close(1012)
        second = await portal.session()
        await second.wait_for(wire.Samples, lambda batch: batch.seq == 10)

        assert [batch.seq for batch in second.all(wire.Samples)] == [8, 9, 10]


async def test_a_batch_too_large_for_the_portal_is_skipped_and_counted() -> None:
    async with running_portal() as portal:
        portal.welcome = wire.Welcome(
            proto=1, session_epoch=1, server_time_ms=0, heartbeat_s=0.2, max_frame_bytes=1000
        )
        async with linked(portal) as (link, _, spool):
            session = await portal.session()

            spool.add(list(itertools.chain(*map(reading, range(20)))))
            spool.add(reading(21))
            link.samples_added()

            small = await session.wait_for(wire.Samples)
            assert (small.seq, small.dropped_total) == (2, 1)


async def test_a_batch_that_ended_the_session_is_not_sent_for_ever() -> None:
    async with running_portal() as portal, linked(portal) as (link, _, spool):
        portal.acks = False
        session = await portal.session()
        spool.add(reading(1))
        link.samples_added()
        await session.wait_for(wire.Samples)

        await session.socket.close(1009, "too big")
        await portal.session()

        await until(lambda: spool.dropped_total == 1)
        assert len(spool) == 0


async def test_answers_reach_the_portal() -> None:
    async with running_portal() as portal, linked(portal) as (link, _, _):
        session = await portal.session()

        link.answer(wire.CommandResult(id="c-1", ok=True, data="hello"))

        result = await session.wait_for(wire.CommandResult)
        assert result.data == "hello"


async def test_the_end_of_the_agent_closes_the_session_cleanly() -> None:
    async with running_portal() as portal:
        async with linked(portal):
            session = await portal.session()
        await asyncio.wait_for(session.socket.wait_closed(), 5)

        assert session.socket.close_code == 1001
