"""A machine with NVIDIA GPUs that is not there.

`fake_nvml/fake.c` is built into a `libnvidia-ml.so.1` and loaded before the real binding looks for
one, so that the agent's whole path through ctypes runs. Each test writes the control file that the
library reads on every call; the orders it knows are listed at the top of `fake.c`. Without a C
compiler these tests are skipped.
"""

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agents.gpus.nvml import NvmlSource
from agents.wire import GpuHealth, Sample

SOURCE = Path(__file__).parent / "fake_nvml" / "fake.c"


class FakeNvml:
    """The control file of the fake library, and where the library lies."""

    def __init__(self, library: Path, control: Path) -> None:
        self.library = library
        self.control = control
        self.lines: list[str] = []

    def says(self, *lines: str) -> None:
        """Replace all orders."""
        self.lines = list(lines)
        draft = self.control.with_suffix(".draft")
        draft.write_text("".join(f"{line}\n" for line in self.lines))
        draft.replace(self.control)

    def also(self, *lines: str) -> None:
        """Add orders."""
        self.says(*self.lines, *lines)

    def no_more(self, *lines: str) -> None:
        """Take orders back."""
        self.says(*(line for line in self.lines if line not in lines))

    @staticmethod
    def uuid(index: int) -> str:
        return f"GPU-{index:08d}-0000-4000-8000-000000000000"


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (gcc) to build the fake NVML library")
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-stringop-truncation"]
        + ["-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(SOURCE)],
        check=True,
    )
    return library


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """Two H100 that answer; the test changes what they say."""
    fake = FakeNvml(nvml_library, tmp_path / "nvml.ctl")
    fake.says("count 2", "util 0 93 40", "util 1 8 3", "mem * 1024 81559", "power * 69850")
    monkeypatch.setenv("FAKE_NVML_CTL", str(fake.control))
    # The binding asks for this SONAME and gets the one that is loaded already.
    ctypes.CDLL(str(nvml_library), mode=os.RTLD_GLOBAL)
    yield fake
    fake.says("count 2")  # lets every hanging call return


@pytest.fixture
def open_nvml(nvml: FakeNvml) -> Iterator[Callable[..., NvmlSource]]:
    """Open the source as the agent does, with short waits; all are closed after the test."""
    opened: list[NvmlSource] = []

    def open_one(activity: Mapping[str, float] | None = None, **extra: Any) -> NvmlSource:
        held = {nvml.uuid(0): 1.0, nvml.uuid(1): 1.0} if activity is None else activity
        nowhere = nvml.control.parent / "absent"  # the kernel of this machine has no say
        options: dict[str, Any] = {
            "deadline_seconds": 0.3,
            "retry_seconds": 0.0,
            "open_seconds": 5.0,
            "kernel_log": nowhere,
            "pci_devices": nowhere,
        }
        source = NvmlSource(activity=lambda: held, **(options | extra))
        opened.append(source)
        return source

    yield open_one
    nvml.says("count 2")
    for source in opened:
        source.close()


def by_gpu(samples: Iterable[Sample]) -> dict[str, Sample]:
    return {sample.gpu: sample for sample in samples}


def states(health: Iterable[GpuHealth]) -> dict[str, str]:
    return {one.uuid: one.state for one in health}


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False
