"""Make this checkout ready to run: virtual environment, locked packages, front-end files.

Runs before anything is installed, so it uses the standard library only:
`python3 portal/operate/prepare.py run|test`. Each step is skipped when its inputs did not change.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# Programs that the tests drive (one of each is enough), and the Debian packages that bring them.
_TEST_PROGRAMS = {
    ("chromium", "chromium-browser", "google-chrome"): ("chromium", "fonts-noto-cjk"),
    ("gcc",): ("gcc", "libc6-dev"),
    ("docker", "podman"): (
        *("podman", "runc", "catatonit", "iptables", "netavark", "aardvark-dns", "fuse-overlayfs"),
    ),
}
LOCKS = {"run": "requirements/demo.txt", "test": "requirements/dev.txt"}


class UnableToPrepare(Exception):
    """A step failed; the sentence says why and what to do."""


class Line:
    """One line of output for one step: what it is, how far, and how long it took."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.began = time.monotonic()
        self.live = sys.stdout.isatty()
        self.progress("")

    def progress(self, text: str) -> None:
        """Show how far the step is; on a terminal only."""
        if self.live:
            sys.stdout.write(f"\r\x1b[2K  … {self.title}  {text}")
            sys.stdout.flush()

    def done(self, note: str = "") -> None:
        """Close the line."""
        lead = "\r\x1b[2K" if self.live else ""
        seconds = time.monotonic() - self.began
        took = f"  ({seconds:.0f} s)" if seconds >= 1 else ""
        sys.stdout.write(f"{lead}  ✓ {self.title}{'  ' + note if note else ''}{took}\n")
        sys.stdout.flush()


def main() -> int:
    """Prepare for `run` or `test`; say what failed and return 1 when a step did."""
    purpose = sys.argv[1] if len(sys.argv) > 1 else "run"
    try:
        _environment(purpose)
        _packages(purpose)
        _front_end()
        _messages()
        if purpose == "test":
            _test_programs()
    except UnableToPrepare as error:
        sys.stdout.write(f"\n  ✗ {error}\n")
        return 1
    return 0


def _environment(purpose: str) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036  (the one place that an old Python reaches)
        raise UnableToPrepare("Corral needs Python 3.11 or newer; set PYTHON=... for make.")
    if PYTHON.exists():
        return
    line = Line(f"Python {sys.version_info.major}.{sys.version_info.minor} environment")
    try:
        venv.create(VENV, with_pip=True, symlinks=True)
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(VENV, ignore_errors=True)
        raise UnableToPrepare(
            f"Could not make {VENV.name}: {error}. On Debian: apt-get install python3-venv"
        ) from error
    line.done()


def _packages(purpose: str) -> None:
    lock = ROOT / LOCKS[purpose]
    wanted = lock.read_text()
    if _is_fresh("packages-test", (ROOT / LOCKS["test"]).read_text()) or _is_fresh(
        f"packages-{purpose}", wanted
    ):
        return
    total = len(re.findall(r"^[A-Za-z0-9_.-]+==", wanted, re.MULTILINE))
    line = Line("Python packages")
    seen = 0

    def watch(text: str) -> None:
        nonlocal seen
        if text.startswith(("Collecting ", "Requirement already")):
            seen += 1
            line.progress(f"{min(seen, total)} of {total}")
        elif text.startswith("Installing collected"):
            line.progress("installing")

    pip = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    _run([*pip, "--require-hashes", "-r", str(lock)], "installing Python packages", watch)
    _run(
        [*pip, "--no-deps", "--no-build-isolation", "-q", "-e", str(ROOT)],
        "installing the `corral` commands",
        lambda text: None,
    )
    _mark_fresh(f"packages-{purpose}", wanted)
    line.done(f"{total} installed")


def _front_end() -> None:
    inputs = "".join(
        (ROOT / name).read_text()
        for name in ("package-lock.json", "portal/operate/front_end.py", "portal/web/icons.py")
    )
    if (ROOT / "static" / "vendor").exists() and _is_fresh("front-end", inputs):
        return
    line = Line("Front-end files")
    _run([str(PYTHON), "-m", "portal.operate.front_end"], "fetching front-end files", line.progress)
    _mark_fresh("front-end", inputs)
    line.done()


def _messages() -> None:
    catalogues = sorted((ROOT / "portal" / "locale").glob("*/LC_MESSAGES/*.po"))
    inputs = "".join(path.read_text() for path in catalogues)
    compiled = all(path.with_suffix(".mo").exists() for path in catalogues)
    if not catalogues or (compiled and _is_fresh("messages", inputs)):
        return
    line = Line("Translations")
    _run(
        [str(PYTHON), "-m", "portal.operate.messages", "compile"],
        "compiling translations",
        line.progress,
    )
    _mark_fresh("messages", inputs)
    line.done()


def _test_programs() -> None:
    """Install what the browser and container tests drive, where we may; else they are skipped."""
    missing = [
        package
        for programs, packages in _TEST_PROGRAMS.items()
        if not any(map(shutil.which, programs))
        for package in packages
    ]
    if not missing or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    line = Line(f"Programs for the tests: {', '.join(missing)}")
    quiet: Callable[[str], None] = line.progress
    try:
        _run(["apt-get", "update", "-q"], "apt-get update", quiet)
        _run(
            ["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing],
            "apt-get install",
            quiet,
        )
    except UnableToPrepare as error:
        line.done(f"not to be had, their tests will be skipped: {str(error).splitlines()[0]}")
        return
    line.done()


def _run(command: list[str], what: str, watch: Callable[[str], None]) -> None:
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert child.stdout is not None
    tail: list[str] = []
    for text in child.stdout:
        tail = [*tail[-14:], text.rstrip()]
        watch(text.strip()[:70])
    if child.wait() != 0:
        raise UnableToPrepare(f"{what} failed:\n    " + "\n    ".join(tail))


def _stamp(name: str) -> Path:
    return VENV / f".corral-{name}"


def _digest(inputs: str) -> str:
    return hashlib.sha256((inputs + sys.version).encode()).hexdigest()


def _is_fresh(name: str, inputs: str) -> bool:
    stamp = _stamp(name)
    return stamp.exists() and stamp.read_text() == _digest(inputs)


def _mark_fresh(name: str, inputs: str) -> None:
    _stamp(name).write_text(_digest(inputs))


if __name__ == "__main__":
    sys.exit(main())
