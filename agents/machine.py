"""What the machine has to give, apart from its GPUs."""

import os
import shutil
from pathlib import Path

from agents import wire
from agents.config import Config

# A simulated rack gives each GPU what a rack of its kind has, not what a laptop has.
SIMULATED_CPU_MILLI_PER_GPU = 16_000
SIMULATED_MEMORY_PER_GPU = 192 * 2**30
SIMULATED_DISK_PER_GPU = 1000 * 2**30


def inventory(
    config: Config, gpus: list[wire.GpuInfo], driver: tuple[str | None, str | None]
) -> wire.Inventory:
    """Describe the machine; what the settings say goes before what is found."""
    cpu_milli, memory, disk = (
        _found(config.state_dir) if config.has_real_gpus else _simulated(len(gpus))
    )
    return wire.Inventory(
        hostname=config.hostname,
        cpu_milli=config.cpu_milli or cpu_milli,
        memory_bytes=config.memory_bytes or memory,
        disk_bytes=config.disk_bytes or disk,
        driver_version=driver[0],
        cuda_version=driver[1],
        gpus=gpus,
    )


def _found(state_dir: Path) -> tuple[int, int, int]:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cpus = len(os.sched_getaffinity(0))
    return cpus * 1000, memory, shutil.disk_usage(state_dir).total


def _simulated(gpus: int) -> tuple[int, int, int]:
    count = max(1, gpus)
    return (
        count * SIMULATED_CPU_MILLI_PER_GPU,
        count * SIMULATED_MEMORY_PER_GPU,
        count * SIMULATED_DISK_PER_GPU,
    )
