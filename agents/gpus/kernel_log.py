"""The kernel's word on NVIDIA GPUs: errors that NVML does not pass on, devices it does not list."""

import errno
import logging
import os
import re
from pathlib import Path

from agents.gpus.xids import FELL_OFF_THE_BUS

log = logging.getLogger(__name__)

KERNEL_LOG = Path("/dev/kmsg")
PCI_DEVICES = Path("/sys/bus/pci/devices")
MOST_RECORDS_AT_ONCE = 2000
RECORD_BYTES = 8192

# Domain, bus and device: enough to tell GPUs apart, and all that every spelling has.
Place = tuple[int, int, int]

PLACE = r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})"
XID_LINE = re.compile(rf"NVRM: Xid \(PCI:{PLACE}(?:\.\d)?\): (\d+)")
GPU_LINE = re.compile(rf"NVRM:.*?\bGPU.*?{PLACE}")


def place(bus_id: str | None) -> Place | None:
    """Read a PCI address in any of its spellings; None when it is none."""
    match = re.search(PLACE, bus_id or "")
    return _place(match) if match else None


class KernelLog:
    """What the kernel says from now on; nothing, where this process may not read it."""

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        self._partial = b""
        self._last_place: Place | None = None
        try:
            self._file: int | None = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self._file = None
            log.info("The kernel log is not read (%s); XIDs come from NVML alone.", error)

    def take(self) -> list[tuple[Place, int, str]]:
        """Return the XIDs told since the last call: place, number, and the kind of line.

        Newer drivers tell of a GPU that fell off the bus in plain words over several lines; that
        counts as XID 79.
        """
        events = []
        for line in self._lines():
            text = line.decode(errors="replace")
            if (match := XID_LINE.search(text)) is not None:
                events.append((_place(match), int(match[4]), "kernel"))
                continue
            if (match := GPU_LINE.search(text)) is not None:
                self._last_place = _place(match)
            if "fallen off the bus" in text and self._last_place is not None:
                events.append((self._last_place, FELL_OFF_THE_BUS, "kernel text"))
                self._last_place = None
        return events

    def close(self) -> None:
        """Stop reading."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lines(self) -> list[bytes]:
        if self._file is None:
            return []
        read = self._partial
        for _ in range(MOST_RECORDS_AT_ONCE):
            try:
                record = os.read(self._file, RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten before they were read; go on with the rest
                break
            if not record:
                break
            read += record
        *lines, self._partial = read.split(b"\n")
        return lines


def unlisted(listed: set[Place], devices: Path = PCI_DEVICES) -> list[str]:
    """Return the addresses of GPUs that the NVIDIA driver holds but does not list."""
    missing = []
    for device in sorted(devices.glob("*")) if devices.is_dir() else []:
        try:
            is_display = (device / "class").read_text().startswith("0x03")
            driver = (device / "driver").resolve().name
        except OSError:
            continue  # it went away while we looked
        where = place(device.name)
        if is_display and driver == "nvidia" and where is not None and where not in listed:
            missing.append(device.name)
    return missing


def _place(match: re.Match[str]) -> Place:
    return int(match[1], 16), int(match[2], 16), int(match[3], 16)
