"""What is asked of one NVIDIA GPU, one call at a time, so that no failing call spoils another.

Everything here blocks in the driver and runs on the GPU's own lane.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.wire import GpuInfo

NOT_SUPPORTED, FUNCTION_NOT_FOUND = 3, 13
LOST_CODES = {
    15: "The GPU is lost: it fell off the bus.",
    16: "The GPU must be reset.",
    28: "Gone.",
}
# The session itself is of no use any more: not initialised, no driver, no library, other version.
SESSION_CODES = frozenset({1, 9, 12, 18})

TEMPERATURE_OF_GPU = 0
CLOCK_OF_SM = 1
MEMORY_V2 = 0x02000028
XID_EVENTS = 0x8
FIELD_RECOVERY_ACTION = 230
NOBODY = frozenset({0, 0xFFFFFFFF})

# Idle GPUs hold up to this much for the driver and a display without being in use.
IDLE_MEMORY_BYTES = 600 * 1024 * 1024

# Readings beyond these are sentinels or struct mix-ups, not measurements.
PLAUSIBLE = {
    "util": 100,
    "mem_util": 100,
    "fan": 500,
    "temp_c": 200,
    "power_mw": 10_000_000,
    "sm_mhz": 100_000,
    "throttle": 2**63 - 1,
    "energy_mj": 2**63 - 1,
}


class GpuIsLostError(Exception):
    """The driver says that this GPU is gone or needs a reset."""


class GpuUnreadableError(Exception):
    """This GPU can't be identified just now; the others can."""


class DriverFailedError(Exception):
    """The driver as a whole can't be used; the sentence says why and what to do."""


@dataclass(frozen=True)
class GpuProcess:
    """A process of this machine that holds memory on a GPU; `memory_bytes` None is not known."""

    pid: int
    memory_bytes: int | None
    name: str | None


@dataclass(frozen=True)
class Slice:
    """One MIG slice of a device."""

    handle: Any
    info: GpuInfo


@dataclass
class Device:
    """One physical GPU within one driver session."""

    nvml: Any
    handle: Any
    info: GpuInfo
    slices: list[Slice] = field(default_factory=list)
    # Calls that answered "not supported" here; they are not made again.
    unsupported: set[str] = field(default_factory=set)
    # What went wrong in the last reading, call by call.
    errors: list[str] = field(default_factory=list)

    @property
    def units(self) -> list[GpuInfo]:
        """What can be given to an instance: the slices of a sliced GPU, else the GPU."""
        return [part.info for part in self.slices] or [self.info]

    def call(self, name: str, *arguments: Any, on: Any = None) -> Any:
        """Call one NVML function on this GPU; None when it has no answer.

        Raises GpuIsLostError and DriverFailedError, which concern more than this one call.
        """
        key = f"{name}{arguments}{'' if on is None else ' on a slice'}"
        if key in self.unsupported:
            return None
        function = getattr(self.nvml, name, None)
        if function is None:
            self.unsupported.add(key)
            return None
        try:
            return function(self.handle if on is None else on, *arguments)
        except self.nvml.NVMLError as error:
            code = error.value
            if code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                self.unsupported.add(key)
            elif code in LOST_CODES:
                raise GpuIsLostError(LOST_CODES[code]) from error
            elif code in SESSION_CODES:
                raise DriverFailedError(explain(code, str(error))) from error
            else:
                self.errors.append(f"{name}: {error}")
            return None
        except getattr(self.nvml, "NVMLLibraryMismatchError", ()):
            self.unsupported.add(key)  # the driver lacks the version of the call the binding wants
            return None


def explain(code: int, text: str) -> str:
    """Put a session error into a sentence that says what to do."""
    if code == 12:
        return "No NVIDIA driver library (libnvidia-ml.so.1) on this machine: install the driver."
    if code == 9:
        return "The NVIDIA driver is not loaded: load it (modprobe nvidia) or restart the machine."
    if code == 18:
        return (
            "The NVIDIA driver and its library have different versions, as after an upgrade: "
            "restart the machine."
        )
    return f"The NVIDIA driver can't be used: {text} (code {code})."


def describe(nvml: Any, index: int) -> Device:
    """Identify the GPU at an index, with its slices; only the UUID is indispensable."""
    handle = nvml_answer(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    uuid = text(nvml_answer(nvml, nvml.nvmlDeviceGetUUID, handle))
    blank = GpuInfo(uuid=uuid, index=index, model="", memory_bytes=0)
    device = Device(nvml, handle, blank)
    pci = device.call("nvmlDeviceGetPciInfo")
    bus_id = text(pci.busId) if pci is not None else None
    model = text(device.call("nvmlDeviceGetName")) or (
        f"NVIDIA GPU {pci.pciDeviceId & 0xFFFF:04x}:{pci.pciDeviceId >> 16:04x}"
        if pci is not None
        else "NVIDIA GPU"
    )
    mode = device.call("nvmlDeviceGetMigMode")
    device.info = GpuInfo(
        uuid=uuid,
        index=index,
        model=model,
        memory_bytes=read_memory(device).get("mem_total") or 0,
        pci_bus_id=bus_id,
        mig=mode is not None and mode[0] == 1,
    )
    if device.info.mig:
        device.slices = list(_slices(device))
    return device


def nvml_answer(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Make a call that can't be done without; raise what its failure means."""
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        code = error.value
        if code in LOST_CODES:
            raise GpuIsLostError(LOST_CODES[code]) from error
        if code in SESSION_CODES:
            raise DriverFailedError(explain(code, str(error))) from error
        raise GpuUnreadableError(f"The driver answers {error} (code {code}).") from error


def text(value: Any) -> str:
    """Read a string of the binding, which is bytes in some versions."""
    if value is None:
        return ""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _slices(device: Device) -> list[Slice]:
    found = []
    for number in range(device.call("nvmlDeviceGetMaxMigDeviceCount") or 0):
        try:
            handle = device.nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, number)
            uuid = text(device.nvml.nvmlDeviceGetUUID(handle))
        except device.nvml.NVMLError:
            continue  # indexes have gaps where no slice is made
        info = GpuInfo(
            uuid=uuid,
            index=device.info.index,
            model=text(device.call("nvmlDeviceGetName", on=handle)) or f"{device.info.model} MIG",
            memory_bytes=read_memory(device, on=handle).get("mem_total") or 0,
            pci_bus_id=device.info.pci_bus_id,
            mig=True,
        )
        found.append(Slice(handle, info))
    return found


def read_memory(device: Device, on: Any = None) -> dict[str, int | None]:
    """Read used and total memory in bytes, without what the driver reserves; empty if unknown."""
    memory = device.call("nvmlDeviceGetMemoryInfo", MEMORY_V2, on=on)
    if memory is None:
        # An old driver: its first version counts the reserve as used, better than nothing.
        memory = device.call("nvmlDeviceGetMemoryInfo", on=on)
    if memory is None or memory.total == 0 or memory.used > memory.total:
        return {}
    return {"mem_used": memory.used, "mem_total": memory.total}


def read(device: Device) -> dict[str, dict[str, int | None]]:
    """Read every value of a GPU and its slices, by UUID; a value that can't be had is absent.

    A slice knows its memory; temperature, clock and throttling are the board's. Power and energy
    of the board are not repeated for its slices: their sum would be wrong.
    """
    device.errors.clear()
    values: dict[str, int | None] = dict(read_memory(device))
    rates = device.call("nvmlDeviceGetUtilizationRates")
    if rates is not None:
        values |= {"util": rates.gpu, "mem_util": rates.memory}
    values["power_mw"] = device.call("nvmlDeviceGetPowerUsage")
    values["temp_c"] = device.call("nvmlDeviceGetTemperature", TEMPERATURE_OF_GPU)
    values["sm_mhz"] = device.call("nvmlDeviceGetClockInfo", CLOCK_OF_SM)
    values["fan"] = device.call("nvmlDeviceGetFanSpeed")
    values["throttle"] = device.call("nvmlDeviceGetCurrentClocksEventReasons")
    if values["throttle"] is None:  # its name before driver 535
        values["throttle"] = device.call("nvmlDeviceGetCurrentClocksThrottleReasons")
    values["energy_mj"] = device.call("nvmlDeviceGetTotalEnergyConsumption")
    values = {name: value for name, value in values.items() if _is_plausible(name, value)}
    readings = {device.info.uuid: values}
    board = {name: values[name] for name in ("temp_c", "sm_mhz", "throttle") if name in values}
    for part in device.slices:
        readings[part.info.uuid] = board | read_memory(device, on=part.handle)
    return readings


def _is_plausible(name: str, value: int | None) -> bool:
    return value is not None and 0 <= value <= PLAUSIBLE.get(name, value)


def recovery_action(device: Device) -> int:
    """Read which recovery the driver asks for; 0 is none, or a driver that can't say."""
    answers = device.call("nvmlDeviceGetFieldValues", [FIELD_RECOVERY_ACTION])
    if answers is None or answers[0].nvmlReturn != 0:
        return 0
    return int(answers[0].value.uiVal)


def processes(device: Device, uuid: str) -> list[GpuProcess]:
    """List the living processes on a GPU or slice, without what the driver makes up.

    Raises LookupError when the driver can't tell: not knowing is not the same as none.
    """
    handle = next((part.handle for part in device.slices if part.info.uuid == uuid), None)
    listed = device.call("nvmlDeviceGetComputeRunningProcesses", on=handle)
    if listed is None:
        raise LookupError("The driver does not say which processes use this GPU.")
    total = read_memory(device, on=handle).get("mem_total")
    found = []
    for process in listed:
        used = process.usedGpuMemory
        if process.pid in NOBODY or (used is not None and total is not None and used > total):
            continue
        home = Path("/proc") / str(process.pid)
        if not home.exists():
            continue
        try:
            name = (home / "comm").read_text(errors="replace").strip()
        except OSError:
            name = None  # it ended just now, or is not ours to look at
        found.append(GpuProcess(pid=process.pid, memory_bytes=used, name=name))
    return found


def in_use(device: Device, uuid: str) -> str | None:
    """Say why a GPU that nobody should hold isn't free; None when it is."""
    handle = next((part.handle for part in device.slices if part.info.uuid == uuid), None)
    used = read_memory(device, on=handle).get("mem_used")
    try:
        running = processes(device, uuid)
    except LookupError as unknown:
        if used is None:
            return str(unknown)
        running = []  # then its memory must do as evidence
    if running:
        who = ", ".join(f"{process.name or 'process'} ({process.pid})" for process in running[:3])
        return f"{len(running)} process(es) still use this GPU: {who}."
    if used is not None and used > IDLE_MEMORY_BYTES:
        return f"{used // 2**20} MiB are still in use though no living process holds them."
    return None
