"""The agent's only loop: it brings events to the pure `Agent` and carries out what that orders."""

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from agents import __version__, durable, events, machine, wire
from agents.activity import Activity
from agents.agent import Agent
from agents.backoff import Backoff
from agents.collector import Collector, Seen
from agents.config import Config
from agents.gpus import GpuSource, open_source
from agents.identity import Identity
from agents.link import Link, Timing
from agents.runs import Run
from agents.runtimes import Key, Observed, Runtime, RuntimeSilent, UnableToStart
from agents.runtimes.shim import boot_id
from agents.spool import Spool
from agents.threads import in_thread

log = logging.getLogger("corral.agent")

LIST_SECONDS = 1.0
TICK_SECONDS = 1.0
LIST_DEADLINE_SECONDS = 30.0
FIRST_LOOK_SECONDS = 10.0
STARTS_AT_ONCE = 8
LOG_BYTES = 65536


class Daemon:
    """One running agent."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        runtime: Runtime,
        *,
        backoff: Backoff | None = None,
        timing: Timing | None = None,
        source: Callable[[], GpuSource] | None = None,
    ) -> None:
        self._config = config
        self._identity = identity
        self._runtime = runtime
        self._run_id = uuid.uuid4().hex
        self._boot_id = boot_id()
        self._activity = Activity()
        self._spool = Spool(self._run_id)
        self._events: asyncio.Queue[events.Event] = asyncio.Queue()
        self._list_now = asyncio.Event()
        self._looked = asyncio.Event()
        self._listed = asyncio.Event()
        self._starts: dict[Key, threading.Event] = {}
        self._start_slots = asyncio.Semaphore(STARTS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._agent = Agent(
            remembered=_recall(config.state_dir / "runs.json"), gpus=frozenset(), now=_now()
        )
        self._link = Link(
            portal=config.portal,
            identity=identity,
            node=self,
            spool=self._spool,
            backoff=backoff,
            timing=timing,
        )
        self._collector = Collector(
            source or self._open_source,
            on_samples=lambda samples: self._from_thread(lambda: self._keep(samples)),
            on_seen=lambda seen: self._from_thread(lambda: self._look(seen)),
        )
        self._told_inventory: wire.Inventory | None = None

    async def run(self) -> None:
        """Run until cancelled; instances go on without the agent."""
        self._loop = asyncio.get_running_loop()
        self._collector.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._work())
                group.create_task(self._list())
                group.create_task(self._tick())
                group.create_task(self._talk())
        finally:
            self._collector.stop()
            for task in self._tasks:
                task.cancel()

    # -- what the link asks ----------------------------------------------------------------------

    def hello(self) -> wire.Hello:
        """Say who this is, what it has and what it runs."""
        self._told_inventory = self._inventory()
        return wire.Hello(
            proto_min=wire.MIN_VERSION,
            proto_max=wire.VERSION,
            agent_version=__version__,
            node_id=self._identity.node_id,
            boot_id=self._boot_id,
            agent_run_id=self._run_id,
            generation=self._identity.generation,
            wall_time=_now().wall_ms,
            runtime=self._runtime.name,
            isolation=self._runtime.isolation,
            inventory=self._told_inventory,
            looked_at_ms=self._agent.looked_at_ms,
            instances=self._agent.statuses(),
        )

    def report(self, seq: int) -> wire.Report:
        """Tell the whole observed state."""
        now = _now()
        return wire.Report(
            seq=seq,
            wall_time=now.wall_ms,
            mono_ms=int(now.mono * 1000),
            observed_generation=self._agent.observed_generation,
            looked_at_ms=self._agent.looked_at_ms,
            instances=self._agent.statuses(),
            gpu_health=self._collector.seen().health,
        )

    def opened(self, welcome: wire.Welcome) -> None:
        """Begin a session with the portal's intervals."""
        self._collector.interval_s = max(0.1, welcome.sample_s)
        self._events.put_nowait(events.SessionOpened())

    def closed(self) -> None:
        """End a session."""
        self._events.put_nowait(events.SessionClosed())

    def received(self, message: wire.Desired | wire.Command) -> None:
        """Take in what the portal wants."""
        if isinstance(message, wire.Desired):
            self._events.put_nowait(events.DesiredArrived(message))
        else:
            self._spawn(self._command(message))

    # -- the loops -------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            event = await self._events.get()
            for instruction in self._agent.handle(event, _now()):
                await self._perform(instruction)
            if isinstance(event, events.Listed):
                self._listed.set()

    async def _list(self) -> None:
        while True:
            asked_at = time.monotonic()
            self._list_now.clear()
            try:
                observed = await asyncio.wait_for(
                    in_thread(self._runtime.runs), LIST_DEADLINE_SECONDS
                )
            except (RuntimeSilent, TimeoutError) as error:
                log.warning("the runtime does not answer: %s", str(error) or "it hangs")
            else:
                self._observe(observed, asked_at)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._list_now.wait(), LIST_SECONDS)

    def _observe(self, observed: list[Observed], asked_at: float) -> None:
        self._activity.watch(observed)
        self._events.put_nowait(events.Listed(observed, asked_at))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._events.put_nowait(events.Ticked())
            self._see(self._collector.seen())

    async def _talk(self) -> None:
        # A hello without GPUs or instances would look like a node that lost them all.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self._looked.wait()
                await self._listed.wait()
        await self._link.run()

    # -- carrying out ----------------------------------------------------------------------------

    async def _perform(self, instruction: events.Instruction) -> None:
        match instruction:
            case events.Persist(runs=runs):
                path = self._config.state_dir / "runs.json"
                await in_thread(lambda: durable.write(path, msgspec.json.encode(runs)))
            case events.Start(spec=spec):
                self._starts[(spec.id, spec.run)] = cancelled = threading.Event()
                self._spawn(self._start(spec, cancelled))
            case events.CancelStart(key=key):
                if key in self._starts:
                    self._starts[key].set()
            case events.Stop(key=key, grace_s=grace_s):
                self._spawn(self._stop(key, grace_s))
            case events.Remove(key=key):
                self._spawn(self._remove(key))
            case events.SendReport():
                self._link.report_now()

    async def _start(self, spec: wire.InstanceSpec, cancelled: threading.Event) -> None:
        key = (spec.id, spec.run)

        def progress(percent: int) -> None:
            self._from_thread(lambda: self._events.put_nowait(events.Pulled(key, percent)))

        try:
            async with self._start_slots:
                await in_thread(
                    lambda: self._runtime.start(spec, progress=progress, cancelled=cancelled)
                )
            ended = events.StartEnded(key)
        except UnableToStart as error:
            ended = events.StartEnded(key, error.code, error.sentence)
        except Exception as error:
            log.exception("starting %s failed", spec.id)
            ended = events.StartEnded(key, "start_failed", f"It could not be started: {error}")
        self._starts.pop(key, None)
        self._events.put_nowait(ended)
        self._list_now.set()

    async def _stop(self, key: Key, grace_s: float) -> None:
        sentence = None
        try:
            await in_thread(lambda: self._runtime.stop(*key, grace_s=grace_s))
        except Exception as error:
            log.exception("stopping %s failed", key[0])
            sentence = f"It could not be stopped yet: {error}"
        self._events.put_nowait(events.StopEnded(key, sentence))
        self._list_now.set()

    async def _remove(self, key: Key) -> None:
        try:
            await in_thread(lambda: self._runtime.remove(*key))
        except Exception:
            # It will be listed again and removed again.
            log.exception("removing %s failed", key[0])
        self._list_now.set()

    async def _command(self, command: wire.Command) -> None:
        if command.kind != "logs":
            error = f'This agent knows no command "{command.kind}".'
            self._link.answer(wire.CommandResult(id=command.id, ok=False, error=error))
            return
        try:
            instance, run = str(command.args["instance"]), int(command.args["run"])
            tail = min(5000, max(1, int(command.args.get("tail", 200))))
            text = await asyncio.wait_for(
                in_thread(
                    lambda: self._runtime.logs(instance, run, tail=tail, max_bytes=LOG_BYTES)
                ),
                command.deadline_s,
            )
            result = wire.CommandResult(id=command.id, ok=True, data=text)
        except TimeoutError:
            error = f"The node could not read the output within {command.deadline_s:g} s."
            result = wire.CommandResult(id=command.id, ok=False, error=error)
        except (KeyError, ValueError):
            error = "There is no output of this instance on the node."
            result = wire.CommandResult(id=command.id, ok=False, error=error)
        except Exception as problem:
            log.exception("reading the output failed")
            error = f"The output could not be read: {problem}"
            result = wire.CommandResult(id=command.id, ok=False, error=error)
        self._link.answer(result)

    # -- the GPUs --------------------------------------------------------------------------------

    def _open_source(self) -> GpuSource:
        config = self._config
        return open_source(config.gpus, state_dir=config.state_dir, activity=self._activity)

    def _keep(self, samples: list[wire.Sample]) -> None:
        self._spool.add(samples)
        self._link.samples_added()

    def _look(self, seen: Seen) -> None:
        self._looked.set()
        self._see(seen)
        told = self._told_inventory
        if told is not None and told != self._inventory():
            self._told_inventory = None
            self._spawn(self._link.renew())

    def _see(self, seen: Seen) -> None:
        uuids = frozenset(gpu.uuid for gpu in seen.gpus)
        self._events.put_nowait(events.GpusSeen(uuids, seen.health))

    def _inventory(self) -> wire.Inventory:
        seen = self._collector.seen()
        return machine.inventory(self._config, seen.gpus, seen.driver)

    # -- between threads and tasks ---------------------------------------------------------------

    def _from_thread(self, call: Callable[[], None]) -> None:
        # The loop may be gone already when a late thread reports.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _recall(path: Path) -> list[Run]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Run])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError):
        log.exception("%s can't be read; what the runtime lists is all that is known", path)
        return []


def _now() -> events.Moment:
    return events.Moment(mono=time.monotonic(), wall_ms=time.time_ns() // 1_000_000)
