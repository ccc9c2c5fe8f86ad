"""The AMD GPUs of this machine, through AMD SMI.

The binding loads its library when it is imported, and prints and raises what it likes where that
fails; so it is imported only when AMD GPUs are asked for.
"""

import contextlib
import io
import threading
from importlib import import_module
from typing import Any

from agents.gpus import UnableToOpenGpusError
from agents.wire import GpuHealth, GpuInfo, Sample

MIB = 1024 * 1024
NOT_AVAILABLE = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
MICROJOULES_PER_TICK = 15.259

ADVICE = (
    "The AMD SMI library can't be loaded: install ROCm with its amd-smi-lib package, and the "
    "Python package amdsmi of the same version (pip install amdsmi). {why}"
)


class AmdSource:
    """AMD GPUs; a `GpuSource`. Raises UnableToOpenGpusError where AMD's library is missing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._smi = _load()
        self._handles: dict[str, Any] = {}
        self._health: dict[str, GpuHealth] = {}
        self._reason = ""

    def inventory(self) -> list[GpuInfo]:
        """List the GPUs; empty where the driver lists none, for which see `reason`."""
        smi = self._smi
        with self._lock:
            try:
                handles = smi.amdsmi_get_processor_handles()
            except smi.AmdSmiException as error:
                self._reason = f"The AMD driver does not list its GPUs: {error}"
                return []
            found = [self._identify(index, handle) for index, handle in enumerate(handles)]
            self._reason = "" if found else "The AMD driver works but lists no GPU."
        return found

    def sample(self, at_ms: int, mono_ms: int) -> list[Sample]:
        """Read all GPUs; one that can't be read has no sample."""
        samples = []
        with self._lock:
            for uuid, handle in self._handles.items():
                try:
                    metrics = self._smi.amdsmi_get_gpu_metrics_info(handle)
                except self._smi.AmdSmiException as error:
                    told = f"The AMD driver can't read this GPU: {error}"
                    self._health[uuid] = GpuHealth(uuid=uuid, state="not_answering", detail=told)
                    continue
                self._health[uuid] = GpuHealth(uuid=uuid, state="ok")
                memory = self._ask("amdsmi_get_gpu_vram_usage", handle) or {}
                figures = readings(metrics) | memory_of(memory)
                samples.append(Sample(gpu=uuid, at_ms=at_ms, mono_ms=mono_ms, **figures))
        return samples

    def health(self) -> list[GpuHealth]:
        """Say of each GPU whether its last reading worked."""
        with self._lock:
            return list(self._health.values())

    def reason(self) -> str:
        """Say why the inventory is empty; an empty text when it is not."""
        return self._reason

    def driver(self) -> tuple[str | None, str | None]:
        """Return the versions of the driver and of ROCm, None where unknown."""
        with self._lock:
            handle = next(iter(self._handles.values()), None)
            told = self._ask("amdsmi_get_gpu_driver_info", handle) if handle is not None else None
        version = str(told["driver_version"]) if told and told.get("driver_version") else None
        return version, None

    def close(self) -> None:
        """Let go of the driver."""
        with self._lock, contextlib.suppress(self._smi.AmdSmiException):
            self._smi.amdsmi_shut_down()

    def _identify(self, index: int, handle: Any) -> GpuInfo:
        asic = self._ask("amdsmi_get_gpu_asic_info", handle) or {}
        memory = self._ask("amdsmi_get_gpu_vram_usage", handle) or {}
        bus_id = self._ask("amdsmi_get_gpu_device_bdf", handle)
        uuid = str(self._ask("amdsmi_get_gpu_device_uuid", handle) or f"AMD-{bus_id}")
        name = str(asic.get("market_name") or "")
        if name in ("", "N/A"):
            name = f"AMD GPU {asic.get('vendor_id', '1002')}:{asic.get('device_id', '?')}"
        self._handles[uuid] = handle
        self._health.setdefault(uuid, GpuHealth(uuid=uuid, state="ok"))
        return GpuInfo(
            uuid=uuid,
            index=index,
            model=name,
            memory_bytes=memory_of(memory)["mem_total"] or 0,
            pci_bus_id=str(bus_id) if bus_id else None,
        )

    def _ask(self, name: str, handle: Any) -> Any:
        try:
            return getattr(self._smi, name)(handle)
        except (AttributeError, self._smi.AmdSmiException):
            return None


def readings(metrics: dict[str, Any]) -> dict[str, int | None]:
    """Translate AMD's table of metrics; what it marks as not available is None."""
    watts = _number(metrics.get("current_socket_power"))
    if watts is None:
        watts = _number(metrics.get("average_socket_power"))
    clock = _number(metrics.get("current_gfxclk"))
    ticks = _number(metrics.get("energy_accumulator"))
    return {
        "util": _number(metrics.get("average_gfx_activity"), most=100),
        "mem_util": _number(metrics.get("average_umc_activity"), most=100),
        "temp_c": _number(metrics.get("temperature_hotspot"), most=200),
        "sm_mhz": clock,
        "power_mw": None if watts is None else watts * 1000,
        "energy_mj": None if ticks is None else round(ticks * MICROJOULES_PER_TICK / 1000),
    }


def memory_of(usage: dict[str, Any]) -> dict[str, int | None]:
    """Translate AMD's memory figures, which are in MiB, into bytes."""
    total, used = _number(usage.get("vram_total")), _number(usage.get("vram_used"))
    if not total or used is None or used > total:
        return {"mem_total": total * MIB if total else None, "mem_used": None}
    return {"mem_total": total * MIB, "mem_used": used * MIB}


def _number(value: Any, most: int | None = None) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value in NOT_AVAILABLE or value < 0:
        return None
    return None if most is not None and value > most else value


def _load() -> Any:
    chatter = io.StringIO()
    try:
        with contextlib.redirect_stdout(chatter):
            smi = import_module("amdsmi")
            smi.amdsmi_init()
    except Exception as error:  # the binding raises KeyError, OSError and kinds of its own
        raise UnableToOpenGpusError(ADVICE.format(why=f"({error!r})")) from error
    return smi
