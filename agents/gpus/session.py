"""One opening of the NVIDIA driver, and what is asked of the driver as a whole.

Everything here blocks in the driver and runs on its lane, but `meet`, which runs on the GPU's own.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from agents.gpus.device import XID_EVENTS, Device, DriverFailedError, describe, explain, text

MOST_EVENTS_AT_ONCE = 64


@dataclass
class Session:
    """The driver, open; `opened_at` is in monotonic seconds, `registered` are GPU indexes."""

    nvml: Any
    count: int
    driver_version: str | None
    cuda_version: str | None
    events: Any
    opened_at: float
    registered: set[int] = field(default_factory=set)


def load() -> Any:
    """Import the binding, which does not need the driver yet."""
    try:
        return import_module("pynvml")
    except ImportError as error:
        raise DriverFailedError(
            "The Python package nvidia-ml-py is not installed: install the agent with its "
            "requirements (pip install 'corral[agent]')."
        ) from error


def open_session(*, clock: Callable[[], float], after_closing: bool) -> Session:
    """Open the driver; `after_closing` ends the session before, which only a quiet one allows.

    Raises DriverFailedError with a sentence that says what to do.
    """
    nvml = load()
    if after_closing:
        quietly(nvml, nvml.nvmlShutdown)
    try:
        nvml.nvmlInit()
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        raise DriverFailedError(explain(error.value, str(error))) from error
    cuda = quietly(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return Session(
        nvml=nvml,
        count=count,
        driver_version=text(quietly(nvml, nvml.nvmlSystemGetDriverVersion)) or None,
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        events=quietly(nvml, nvml.nvmlEventSetCreate),
        opened_at=clock(),
    )


def meet(session: Session, index: int) -> Device:
    """Identify the GPU at an index and listen for its XIDs."""
    device = describe(session.nvml, index)
    if session.events is not None and index not in session.registered:
        device.call("nvmlDeviceRegisterEvents", XID_EVENTS, session.events)
        session.registered.add(index)
    return device


def pending_events(session: Session) -> list[tuple[int, int]]:
    """Take the XIDs that have happened, as pairs of a GPU's address and an XID."""
    events = []
    for _ in range(MOST_EVENTS_AT_ONCE):
        try:
            event = session.nvml.nvmlEventSetWait(session.events, 0)
        except session.nvml.NVMLError:
            break  # a timeout: nothing more has happened
        if event.eventType & XID_EVENTS:
            events.append((address(event.device), int(event.eventData)))
    return events


def address(handle: Any) -> int:
    """Return what makes two handles of one GPU equal."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def quietly(nvml: Any, function: Callable[[], Any]) -> Any:
    """Make a call that may fail without harm; None when it does."""
    try:
        return function()
    except nvml.NVMLError:
        return None
