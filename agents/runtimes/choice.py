"""Which runtime this node uses: the one asked for, the one used before, or the first to answer."""

import logging
import time
from typing import get_args

from agents import durable, wire
from agents.config import Config
from agents.runtimes import Runtime, RuntimeSilent, UnableToChoose
from agents.runtimes.docker import DockerRuntime
from agents.runtimes.process import ProcessRuntime

log = logging.getLogger("corral.agent")

RETRY_SECONDS = 5.0


def open_runtime(config: Config, *, node_id: str) -> Runtime:
    """Open the runtime, waiting for one that was used before; blocks.

    Raises `UnableToChoose` if one that was never used here was asked for and does not answer.
    """
    used = _used(config)
    wanted = config.runtime or used
    while True:
        try:
            runtime = _first(config, wanted, node_id)
        except RuntimeSilent as error:
            if wanted != used:
                raise UnableToChoose(str(error)) from error
            # Another runtime would see none of the instances and take them for lost.
            log.warning("waiting: %s", error)
            time.sleep(RETRY_SECONDS)
            continue
        durable.write(config.state_dir / "runtime", runtime.name.encode())
        return runtime


def _first(config: Config, wanted: wire.RuntimeName | None, node_id: str) -> Runtime:
    real = config.has_real_gpus
    if wanted == "docker" or wanted == "podman":
        return DockerRuntime(wanted, node_id=node_id, has_real_gpus=real)
    if wanted is None:
        for name in ("docker", "podman"):
            try:
                return _first(config, name, node_id)
            except RuntimeSilent as error:
                log.info("%s", error)
    return ProcessRuntime(config.state_dir, has_real_gpus=real)


def _used(config: Config) -> wire.RuntimeName | None:
    try:
        text = (config.state_dir / "runtime").read_text()
    except OSError:
        return None
    return next((name for name in get_args(wire.RuntimeName) if name == text), None)
