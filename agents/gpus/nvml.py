"""The NVIDIA GPUs of this machine, through one long-lived NVML session.

Decided here: when the driver is opened and opened again, what a silent, lost or busy GPU is called.
What is asked of one GPU is in `device`, how a hanging call is left behind in `lanes`.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agents.gpus import xids
from agents.gpus.device import (
    Device,
    DriverFailedError,
    GpuIsLostError,
    GpuProcess,
    in_use,
    processes,
    read,
    recovery_action,
)
from agents.gpus.kernel_log import KERNEL_LOG, PCI_DEVICES, KernelLog, place, unlisted
from agents.gpus.lanes import Answers, Lane, LaneIsBusyError, ask_all
from agents.gpus.session import Session, address, meet, open_session, pending_events
from agents.wire import GpuHealth, GpuInfo, HealthState, Sample

log = logging.getLogger(__name__)

# A GPU stays marked this long after an XID that calls for a reset; then its answers count again.
XID_HOLD_SECONDS = 300.0
# A session is opened anew this often while a GPU is lost: NVML never takes one back by itself.
LOST_RENEWAL_SECONDS = 60.0
# Meeting a GPU may wake it up, which takes longer than reading it.
IDENTIFY_SECONDS = 2.0


@dataclass
class KnownGpu:
    """What is remembered of a GPU across sessions."""

    device: Device
    lane: Lane
    # The session that met it last: a handle is of no use in another.
    session: Session
    state: HealthState = "ok"
    detail: str | None = None
    history: xids.History = field(default_factory=xids.History)


class NvmlSource:
    """NVIDIA GPUs; a `GpuSource`.

    `deadline_seconds` is what one round of readings may take: a GPU that needs longer is left out
    of it and out of the next ones until it answers. `open_seconds` is the wait for the driver's
    first answer, `retry_seconds` the pause between attempts to open it or to meet a missing GPU.
    """

    def __init__(
        self,
        *,
        activity: Callable[[], Mapping[str, float]],
        deadline_seconds: float = 0.5,
        open_seconds: float = 10.0,
        retry_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        kernel_log: Path = KERNEL_LOG,
        pci_devices: Path = PCI_DEVICES,
    ) -> None:
        self._activity = activity
        self._deadline = deadline_seconds
        self._open_seconds = open_seconds
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._kernel_log = KernelLog(kernel_log)
        self._pci_devices = pci_devices
        self._lock = threading.RLock()
        self._driver_lane = Lane("nvml-driver")
        self._lanes: dict[int, Lane] = {}
        self._gpus: dict[str, KnownGpu] = {}
        self._session: Session | None = None
        self._opening: Future[Session] | None = None
        self._opened_before = False
        self._retry_at = float("-inf")
        self._identify_at = float("inf")
        self._reason = ""

    # -- what the agent asks ---------------------------------------------------------------------

    def inventory(self) -> list[GpuInfo]:
        """List the GPUs by index, sliced ones as their slices; a lost GPU stays listed.

        Empty where there is no driver or no GPU; `reason` says which.
        """
        with self._lock:
            if (session := self._ensure(self._open_seconds)) is not None:
                self._identify(session)
            listed = [unit for gpu in self._gpus.values() for unit in gpu.device.units]
        return sorted(listed, key=lambda info: info.index)

    def sample(self, at_ms: int, mono_ms: int) -> list[Sample]:
        """Read all GPUs at once; one that is lost or silent has no sample."""
        with self._lock:
            session = self._ensure(0.0)
            if session is not None and self._clock() >= self._identify_at:
                self._identify(session)
            if session is None:
                return []
            asks = {
                uuid: (gpu.lane, partial(read, gpu.device))
                for uuid, gpu in self._gpus.items()
                if gpu.session is session
            }
            answers = ask_all(asks, seconds=self._deadline)
            self._drain_events(session)
            self._judge(answers, {uuid: self._gpus[uuid] for uuid in asks})
            readings = [
                (unit, values)
                for reading in answers.given.values()
                for unit, values in reading.items()
                if values
            ]
        return [
            Sample(gpu=unit, at_ms=at_ms, mono_ms=mono_ms, **values) for unit, values in readings
        ]

    def health(self) -> list[GpuHealth]:
        """Say how each GPU does, by the last readings, its events, and who still uses it."""
        with self._lock:
            working = self._ensure(0.0) is not None
            held = set(self._activity())
            asks = {
                uuid: (gpu.lane, partial(_inspect, gpu.device, held))
                for uuid, gpu in self._gpus.items()
                if working and gpu.state == "ok"
            }
            answers = ask_all(asks, seconds=self._deadline)
            found: list[GpuHealth] = []
            for uuid, gpu in self._gpus.items():
                if not working:
                    gpu.state, gpu.detail = "not_answering", self._reason
                elif uuid in asks and uuid not in answers.given:
                    # Not knowing who uses a GPU must not read as nobody.
                    _mark(gpu, answers.failed.get(uuid))
                action, busy = answers.given.get(uuid, (0, {}))
                found.extend(self._verdict(gpu, unit, action, busy) for unit in gpu.device.units)
        return found

    def reason(self) -> str:
        """Say why the inventory is empty or incomplete; an empty text when all is well."""
        with self._lock:
            return self._reason

    def driver(self) -> tuple[str | None, str | None]:
        """Return the versions of the driver and of the newest CUDA it supports, where known."""
        with self._lock:
            session = self._ensure(self._open_seconds)
        return (session.driver_version, session.cuda_version) if session else (None, None)

    def processes(self, uuid: str) -> list[GpuProcess]:
        """List the living processes on a GPU or slice.

        Raises LookupError when that can't be known now: it proves nothing about the GPU.
        """
        with self._lock:
            gpu = next(
                (
                    gpu
                    for gpu in self._gpus.values()
                    if uuid in {unit.uuid for unit in gpu.device.units}
                ),
                None,
            )
            if gpu is None:
                raise LookupError(f"There is no GPU {uuid} on this machine.")
            answers = ask_all(
                {uuid: (gpu.lane, partial(processes, gpu.device, uuid))}, seconds=self._deadline
            )
        if uuid in answers.given:
            return answers.given[uuid]
        why = answers.failed.get(uuid, "it does not answer")
        raise LookupError(f"The processes of GPU {uuid} can't be read: {why}")

    def close(self) -> None:
        """End the session, without waiting for calls that hang."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None and not any(lane.is_stuck for lane in self._lanes.values()):
                ask_all({0: (self._driver_lane, session.nvml.nvmlShutdown)}, seconds=1.0)
            self._kernel_log.close()
            for lane in [self._driver_lane, *self._lanes.values()]:
                lane.close()

    # -- the session -----------------------------------------------------------------------------

    def _ensure(self, seconds: float) -> Session | None:
        now = self._clock()
        if self._session is not None:
            if self._wants_renewal(now):
                self._drop("The NVIDIA driver is opened again to look for the lost GPU.")
            else:
                return self._session
        if self._opening is None:
            if now < self._retry_at:
                return None
            self._retry_at = now + self._retry_seconds
            try:
                self._opening = self._driver_lane.submit(self._open)
            except LaneIsBusyError:
                self._reason = "The NVIDIA driver does not answer."
                return None
        try:
            session = self._opening.result(timeout=seconds or self._deadline)
        except TimeoutError:
            waited = self._driver_lane.waiting_seconds
            self._reason = f"The NVIDIA driver has not answered for {waited:.0f} s."
            return None
        except DriverFailedError as error:
            self._opening = None
            if str(error) != self._reason:
                log.warning("%s", error)
            self._reason = str(error)
            return None
        self._opening = None
        self._session = session
        self._identify(session)
        return self._session

    def _open(self) -> Session:
        # A lane that hangs inside the library forbids closing it; opening again only counts up.
        quiet = not any(lane.is_stuck for lane in self._lanes.values())
        session = open_session(clock=self._clock, after_closing=self._opened_before and quiet)
        self._opened_before = True
        return session

    def _wants_renewal(self, now: float) -> bool:
        if self._session is None or now - self._session.opened_at < LOST_RENEWAL_SECONDS:
            return False
        return any(gpu.state == "lost" for gpu in self._gpus.values())

    def _drop(self, reason: str) -> None:
        if self._session is not None:
            self._retry_at = self._session.opened_at + self._retry_seconds
        self._session = None
        self._reason = reason

    def _identify(self, session: Session) -> None:
        lanes = {
            index: self._lanes.setdefault(index, Lane(f"nvml-gpu-{index}"))
            for index in range(session.count)
        }
        answers = ask_all(
            {index: (lane, partial(meet, session, index)) for index, lane in lanes.items()},
            seconds=max(self._deadline, IDENTIFY_SECONDS),
        )
        for index, device in answers.given.items():
            gpu = self._gpus.setdefault(device.info.uuid, KnownGpu(device, lanes[index], session))
            gpu.device, gpu.lane, gpu.session = device, lanes[index], session
            if gpu.state in ("lost", "not_answering"):
                gpu.state, gpu.detail = "ok", None
        met = {device.info.uuid for device in answers.given.values()}
        for uuid in self._gpus.keys() - met:
            gpu = self._gpus[uuid]
            error = next((e for i, e in answers.failed.items() if lanes[i] is gpu.lane), None)
            if error is None and not gpu.lane.is_stuck:
                error = GpuIsLostError("The driver does not list this GPU any more.")
            _mark(gpu, error)
        troubles = dict.fromkeys(answers.silent, "it does not answer.")
        troubles |= {index: str(error) for index, error in answers.failed.items()}
        told = " ".join(f"GPU {index}: {trouble}" for index, trouble in sorted(troubles.items()))
        if not troubles:
            listed = {place(gpu.device.info.pci_bus_id) for gpu in self._gpus.values()}
            missing = unlisted({where for where in listed if where}, self._pci_devices)
            told = " ".join(
                f"The driver holds GPU {name} but does not list it." for name in missing
            )
        self._identify_at = self._clock() + self._retry_seconds if troubles else float("inf")
        none = "" if session.count else "The NVIDIA driver works but lists no GPU."
        self._reason = f"{none} {told}".strip()
        failed = [e for e in answers.failed.values() if isinstance(e, DriverFailedError)]
        if failed:
            self._drop(str(failed[0]))

    # -- judging ---------------------------------------------------------------------------------

    def _judge(
        self,
        answers: Answers[str, dict[str, dict[str, int | None]]],
        asked: Mapping[str, KnownGpu],
    ) -> None:
        for uuid, gpu in asked.items():
            if uuid not in answers.given:
                _mark(gpu, answers.failed.get(uuid))
            elif not answers.given[uuid][uuid] and gpu.device.errors:
                gpu.state, gpu.detail = "not_answering", "; ".join(gpu.device.errors[:2])
            else:
                gpu.state, gpu.detail = "ok", None
        failures = [str(e) for e in answers.failed.values() if isinstance(e, DriverFailedError)]
        broken = [gpu for gpu in asked.values() if gpu.state != "ok" and gpu.device.errors]
        if failures or (broken and len(broken) == len(asked)):
            why = failures[0] if failures else f"No GPU can be read: {broken[0].detail}"
            self._drop(why)

    def _drain_events(self, session: Session) -> None:
        by_place = {place(gpu.device.info.pci_bus_id): gpu for gpu in self._gpus.values()}
        for where, xid, source in self._kernel_log.take():
            self._note(by_place.get(where), xid, source)
        if session.events is None:
            return
        answers = ask_all(
            {0: (self._driver_lane, partial(pending_events, session))}, seconds=self._deadline
        )
        by_address = {address(gpu.device.handle): gpu for gpu in self._gpus.values()}
        for handle, xid in answers.given.get(0, []):
            self._note(by_address.get(handle), xid, "nvml")

    def _note(self, gpu: KnownGpu | None, xid: int, source: str) -> None:
        if gpu is None:
            log.warning("XID %d (from %s) on a GPU that is not identified", xid, source)
        elif gpu.history.note(xid, source=source, at=self._clock()):
            log.warning("GPU %s: %s", gpu.device.info.uuid, xids.sentence(xid))

    def _verdict(
        self, gpu: KnownGpu, unit: GpuInfo, action: int, busy: Mapping[str, str]
    ) -> GpuHealth:
        state, detail = gpu.state, gpu.detail
        if (xid := gpu.history.last) is not None:
            detail = f"{xids.sentence(xid, gpu.history.count)} {detail or ''}".strip()
            is_fresh = self._clock() - gpu.history.at < XID_HOLD_SECONDS
            if state == "ok" and is_fresh and xids.remedy(xid) in ("reset", "reboot"):
                state = "lost" if xid == xids.FELL_OFF_THE_BUS else "not_answering"
        if state == "ok" and action:
            state, detail = "not_answering", xids.recovery_sentence(action)
        if state == "ok" and unit.uuid in busy:
            state, detail = "busy", busy[unit.uuid]
        return GpuHealth(uuid=unit.uuid, state=state, detail=detail)


def _inspect(device: Device, held: set[str]) -> tuple[int, dict[str, str]]:
    action = recovery_action(device)
    free = [unit.uuid for unit in device.units if unit.uuid not in held]
    used = {uuid: in_use(device, uuid) for uuid in free}
    return action, {uuid: why for uuid, why in used.items() if why is not None}


def _mark(gpu: KnownGpu, error: BaseException | None) -> None:
    """Note that a GPU failed with an error or, without one, did not answer."""
    gpu.state = "lost" if isinstance(error, GpuIsLostError) else "not_answering"
    waited = gpu.lane.waiting_seconds
    gpu.detail = str(error or f"The driver has not answered for {waited:.0f} s about this GPU.")
