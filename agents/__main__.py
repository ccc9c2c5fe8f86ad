"""Run the agent: `corral-agent`, or `python -m agents`."""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agents import config as configuration
from agents import identity, runtimes
from agents.backoff import Backoff
from agents.config import Config
from agents.daemon import Daemon
from agents.runtimes import Runtime, choice
from agents.threads import in_thread

log = logging.getLogger("corral.agent")

EXIT_GRACE_S = 2.0


def main() -> None:
    """Read the settings, join if need be, and run until SIGTERM."""
    config = configuration.read(sys.argv[1:], os.environ)
    logging.basicConfig(
        level=os.environ.get("CORRAL_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        with _alone(config.state_dir):
            asyncio.run(_until_told(config))
    except (identity.UnableToJoin, runtimes.UnableToChoose, Occupied) as error:
        sys.exit(f"corral-agent: {error}")


class Occupied(Exception):
    """Another agent uses the state directory."""


@contextlib.contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (state_dir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Occupied(f"another agent already uses {state_dir}") from error
        yield


async def _until_told(config: Config) -> None:
    """Run the daemon until SIGTERM or SIGINT; instances go on."""
    running = asyncio.create_task(_run(config))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
        return
    log.info("stopped%s", "" if config.stop_instances_on_exit else "; instances go on")


async def _run(config: Config) -> None:
    me = identity.load(config.state_dir, token=config.join) or await _join(config)
    runtime = await in_thread(lambda: choice.open_runtime(config, node_id=me.node_id))
    log.info("node %s with the %s runtime", me.node_id, runtime.name)
    try:
        await Daemon(config, me, runtime).run()
    finally:
        if config.stop_instances_on_exit:
            await asyncio.shield(asyncio.to_thread(_stop_all, runtime))
        runtime.close()


def _stop_all(runtime: Runtime) -> None:
    """End what runs here: for a demo whose Ctrl-C should leave nothing behind."""
    patience = time.monotonic() + EXIT_GRACE_S + 3
    while time.monotonic() < patience and (live := [o for o in runtime.runs() if o.is_live]):
        with ThreadPoolExecutor(8) as pool:
            for one in live:
                pool.submit(runtime.stop, *one.key, grace_s=EXIT_GRACE_S)
        time.sleep(0.2)


async def _join(config: Config) -> identity.Identity:
    """Join with the token, asking again for as long as the portal is silent."""
    token = config.join
    if token is None:
        raise identity.UnableToJoin("this node has not joined yet; give it a token with --join")
    backoff = Backoff()
    while True:
        try:
            return await in_thread(
                lambda: identity.join(
                    config.state_dir, portal=config.portal, token=token, hostname=config.hostname
                )
            )
        except identity.PortalSilent as error:
            wait = backoff.after(lasted_s=0)
            log.warning("%s Trying again in %.1f s.", error, wait)
            await asyncio.sleep(wait)


if __name__ == "__main__":
    main()
