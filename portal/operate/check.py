"""What `make check` asks of Django: system checks, migrations, API description, translations."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def main() -> int:
    """Run the checks in order, the cheap first; return 1 at the first that fails."""
    os.environ.setdefault("SECRET_KEY", "only-for-checks-" + "x" * 50)
    os.environ.setdefault("STATIC_HASHED", "0")
    for title, check in (
        ("system checks", _system),
        ("migrations match models", _migrations),
        ("docs/openapi.yaml is current", _openapi),
    ):
        problem = check()
        if problem:
            sys.stdout.write(f"{title}: no\n{problem}\n")
            return 1
        sys.stdout.write(f"{title}: yes\n")
    return 0


def _system() -> str:
    return _manage("check", "--fail-level", "WARNING")


def _migrations() -> str:
    # Without a database Django warns that it could not compare histories; that is not asked here.
    return _manage(
        "makemigrations", "--check", "--dry-run", python=("-W", "ignore::RuntimeWarning")
    )


def _openapi() -> str:
    committed = ROOT / "docs" / "openapi.yaml"
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "openapi.yaml"
        problem = _manage("spectacular", "--validate", "--fail-on-warn", "--file", str(fresh))
        if problem:
            return problem
        if not committed.exists() or committed.read_text() != fresh.read_text():
            return "Run: .venv/bin/python manage.py spectacular --file docs/openapi.yaml"
    return ""


def _manage(*arguments: str, python: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [sys.executable, *python, "manage.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-4000:]


if __name__ == "__main__":
    sys.exit(main())
