"""XIDs that only the kernel tells of, and GPUs that only the bus knows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agents.gpus import xids
from agents.gpus.kernel_log import KernelLog, place, unlisted
from agents.gpus.nvml import NvmlSource
from tests.agents.gpus.conftest import FakeNvml

Open = Callable[..., NvmlSource]


@pytest.fixture
def kernel(tmp_path: Path) -> Callable[..., Path]:
    """Append records to a stand-in for /dev/kmsg and return its path."""
    path = tmp_path / "kmsg"
    path.touch()

    def say(*lines: str) -> Path:
        with path.open("a") as log:
            log.writelines(f"3,{number},88,-;{line}\n" for number, line in enumerate(lines))
        return path

    return say


XID_79 = (
    "NVRM: Xid (PCI:0000:0a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)


def test_only_what_is_said_from_now_on_counts(kernel: Callable[..., Path]) -> None:
    log = KernelLog(kernel("NVRM: Xid (PCI:0000:09:00): 48, an old one"))
    kernel("usb 1-1: new device", XID_79, "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python")

    assert log.take() == [((0, 0x0A, 0), 79, "kernel"), ((0, 0x3B, 0), 31, "kernel")]
    assert log.take() == []
    log.close()
    assert log.take() == []


@pytest.mark.parametrize(
    "lines",
    [
        [
            "NVRM: The NVIDIA GPU 0000:b3:00.0",
            "NVRM: (PCI ID: 10de:2330) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ],
        ["NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."],
    ],
)
def test_a_fall_off_the_bus_in_plain_words_is_xid_79(
    kernel: Callable[..., Path], lines: list[str]
) -> None:
    log = KernelLog(kernel())
    kernel(*lines)

    assert log.take() == [((0, 0xB3, 0), 79, "kernel text")]


def test_a_line_that_is_still_being_written_is_waited_for(kernel: Callable[..., Path]) -> None:
    path = kernel()
    log = KernelLog(path)
    with path.open("a") as half:
        half.write(XID_79[:40])
        half.flush()
        first = log.take()
        half.write(XID_79[40:] + "\n")

    assert first == []
    assert [xid for _, xid, _ in log.take()] == [79]


def test_a_log_that_may_not_be_read_is_done_without(tmp_path: Path) -> None:
    assert KernelLog(tmp_path / "absent").take() == []


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("00000000:3B:00.0", (0, 0x3B, 0)),
        ("0000:3b:00.0", (0, 0x3B, 0)),
        ("PCI:0001:3b:1f", (1, 0x3B, 0x1F)),
        ("somewhere", None),
        (None, None),
    ],
)
def test_a_pci_address_is_the_same_in_every_spelling(
    spelling: str | None, expected: object
) -> None:
    assert place(spelling) == expected


def test_an_event_that_two_sources_tell_of_counts_once_and_two_events_twice() -> None:
    history = xids.History()

    told = [
        history.note(31, source="nvml", at=100.0),
        history.note(31, source="kernel", at=101.0),
        history.note(31, source="kernel", at=102.0),
        history.note(31, source="nvml", at=103.0),
        history.note(31, source="kernel", at=200.0),
    ]

    assert told == [True, False, True, False, True]
    assert (history.last, history.count, history.at) == (31, 3, 200.0)


def test_a_gpu_that_nvml_says_nothing_of_is_lost_by_the_kernels_word(
    nvml: FakeNvml, open_nvml: Open, kernel: Callable[..., Path]
) -> None:
    source = open_nvml(kernel_log=kernel())
    source.inventory()
    kernel(XID_79, "NVRM: GPU 0000:0a:00.0: GPU has fallen off the bus.")

    source.sample(0, 0)
    health = {one.uuid: one for one in source.health()}

    assert health[nvml.uuid(0)].state == "ok"
    assert health[nvml.uuid(1)].state == "lost"
    assert str(health[nvml.uuid(1)].detail).startswith("XID 79: the GPU has fallen off the bus")


def test_a_gpu_on_the_bus_that_the_driver_does_not_list_is_named(
    nvml: FakeNvml, open_nvml: Open, tmp_path: Path
) -> None:
    def device(address: str, kind: str, driver: str | None) -> None:
        home = tmp_path / "devices" / address
        home.mkdir(parents=True)
        (home / "class").write_text(f"{kind}\n")
        if driver is not None:
            (tmp_path / "drivers" / driver).mkdir(parents=True, exist_ok=True)
            (home / "driver").symlink_to(tmp_path / "drivers" / driver)

    device("0000:09:00.0", "0x030200", "nvidia")
    device("0000:0a:00.0", "0x030200", "nvidia")
    device("0000:b3:00.0", "0x030200", "nvidia")
    device("0000:b4:00.0", "0x030200", "vfio-pci")  # given to a virtual machine
    device("0000:b5:00.0", "0x030000", None)
    device("0000:b3:00.1", "0x040300", "snd_hda_intel")
    source = open_nvml(pci_devices=tmp_path / "devices")

    assert len(source.inventory()) == 2
    assert source.reason() == "The driver holds GPU 0000:b3:00.0 but does not list it."
    assert unlisted(set(), tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("xid", "expected"),
    [
        (13, "application"),
        (31, "application"),
        (43, "application"),
        (63, "nothing"),
        (79, "reboot"),
        (95, "reset"),
        (119, "reset"),
        (48, "support"),
        (9999, "support"),
    ],
)
def test_an_xid_asks_for_its_remedy(xid: int, expected: str) -> None:
    assert xids.remedy(xid) == expected
    assert xids.sentence(xid).startswith(f"XID {xid}: ")
