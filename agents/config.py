"""What the agent is told at its start: flags first, then environment variables, then defaults."""

import argparse
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

from agents import wire

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of one agent; sizes are in bytes, None where the machine's own count."""

    portal: str
    state_dir: Path
    join: str | None = None
    gpus: str = "nvml"
    runtime: wire.RuntimeName | None = None
    hostname: str = ""
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    stop_instances_on_exit: bool = False

    @property
    def has_real_gpus(self) -> bool:
        """Tell whether GPUs are hardware that a runtime must hand into an instance."""
        return not self.gpus.startswith("simulated")


def read(arguments: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Read the settings, or end the program with a usage message."""
    parser = _parser(environ)
    options = parser.parse_args(arguments)
    if not options.portal or urlsplit(options.portal).scheme not in ("http", "https"):
        parser.error("--portal must be the portal's address, such as https://gpu.example.org")
    if not re.fullmatch(r"nvml|amdsmi|simulated(:.+)?", options.gpus):
        parser.error("--gpus must be nvml, amdsmi, simulated or simulated:PROFILE")
    return Config(
        portal=options.portal.rstrip("/"),
        state_dir=Path(options.state_dir).absolute(),
        join=options.join or None,
        gpus=options.gpus,
        runtime=options.runtime or None,
        hostname=options.hostname or socket.gethostname(),
        cpu_milli=None if options.cpus is None else round(options.cpus * 1000),
        memory_bytes=None if options.memory_gib is None else round(options.memory_gib * GIB),
        disk_bytes=None if options.disk_gib is None else round(options.disk_gib * GIB),
        stop_instances_on_exit=options.stop_instances_on_exit,
    )


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="corral-agent", description="Run on a GPU node: take instances, send telemetry."
    )
    add = parser.add_argument
    add("--portal", metavar="URL", default=environ.get("CORRAL_PORTAL", ""))
    add("--join", metavar="TOKEN", help="one-time token", default=environ.get("CORRAL_JOIN"))
    add("--state-dir", metavar="DIR", default=environ.get("CORRAL_STATE_DIR") or _state_dir())
    add(
        "--gpus",
        metavar="KIND",
        help="nvml, amdsmi, simulated or simulated:PROFILE",
        default=environ.get("CORRAL_GPUS_FROM", "nvml"),
    )
    add(
        "--runtime",
        choices=get_args(wire.RuntimeName),
        help="the first of docker, podman and process that answers, if not given",
        default=environ.get("CORRAL_RUNTIME"),
    )
    add("--hostname", help="name to show", default=environ.get("CORRAL_HOSTNAME"))
    for name in ("cpus", "memory-gib", "disk-gib"):
        variable = f"CORRAL_{name.replace('-', '_').upper()}"
        text = "what the node offers, if less or other than all"
        add(f"--{name}", type=float, help=text, default=environ.get(variable))
    add(
        "--stop-instances-on-exit",
        action="store_true",
        help="on SIGTERM stop what runs here, too; otherwise instances outlive the agent",
    )
    return parser


def _state_dir() -> str:
    if os.geteuid() == 0:
        return "/var/lib/corral-agent"
    return str(Path.home() / ".local" / "state" / "corral-agent")
