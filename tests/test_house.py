"""The rules of the house that no linter knows."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONG_FILES: dict[str, str] = {}  # path: why it is longer than 400 lines
LONG_FUNCTIONS: dict[str, str] = {}  # path::function: why it is longer than 60 lines
EMPTY_WORDS = {"utils", "helpers", "common", "base", "core", "manager", "services", "misc"}


def _tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name.endswith(suffixes)]
    return [path for path in paths if path.exists() and "/migrations/" not in str(path)]


def test_no_file_is_longer_than_400_lines() -> None:
    sources = _tracked(".py", ".html", ".css", ".js", ".c")

    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources
        if (lines := len(path.read_text().splitlines())) > 400
    }

    assert set(long) <= set(LONG_FILES), long


def test_no_function_is_longer_than_60_lines() -> None:
    long = {}
    for path in _tracked(".py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 60:
                    long[f"{path.relative_to(ROOT)}::{node.name}"] = length

    assert set(long) <= set(LONG_FUNCTIONS), long


def test_every_module_has_a_subject() -> None:
    nameless = [str(path) for path in _tracked(".py") if path.stem in EMPTY_WORDS]

    assert nameless == []


def test_lock_files_carry_no_address() -> None:
    locks = [*sorted((ROOT / "requirements").glob("*.txt")), ROOT / "package-lock.json"]

    with_address = [
        f"{path.name}: {line.strip()}"
        for path in locks
        for line in path.read_text().splitlines()
        if "://" in line and '"url"' not in line  # "url" names where to fund a package
    ]

    assert with_address == []


def test_every_dependency_says_why_it_is_there() -> None:
    inside = False
    silent = []
    for line in (ROOT / "pyproject.toml").read_text().splitlines():
        if line.startswith("[project.optional-dependencies]"):
            inside = True
        elif inside and line.startswith("["):
            break
        elif inside and line.startswith('  "') and not line.startswith('  "corral['):
            silent += [] if "#" in line else [line]

    assert silent == []


def test_every_setting_is_documented() -> None:
    source = (ROOT / "portal" / "settings.py").read_text()
    documented = (ROOT / "docs" / "settings.md").read_text()

    read = set(re.findall(r'(?:environ\.get|_flag|_list)\(\s*"([A-Z_]+)"', source))
    shortened = {"CORRAL_NODE_OFFLINE_SECONDS", "CORRAL_NODE_LOST_SECONDS"}  # one row for three

    assert {name for name in read - shortened if f"`{name}`" not in documented} == set()


def test_the_agent_runs_without_django() -> None:
    """Import every module of the agent in a process where Django can't be imported."""
    program = (
        "import sys, importlib, pkgutil\n"
        "for name in ('django', 'celery', 'rest_framework', 'channels', 'portal', 'scheduler'):\n"
        "    sys.modules[name] = None\n"
        "import agents\n"
        "for found in pkgutil.walk_packages(agents.__path__, 'agents.'):\n"
        "    if not found.name.endswith('__main__'):\n"
        "        importlib.import_module(found.name)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_the_command_line_runs_without_django() -> None:
    program = "import sys; sys.modules['django'] = None; import portal.cli.__main__"

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_only_the_choke_points_write() -> None:
    """State by lifecycle.move, money by ledger.post, live readers by events.announce."""
    rules = {
        r"\.state\s*=[^=].*State\.": {"portal/instances/lifecycle.py"},
        r"Entry\.objects\.(bulk_)?create": {"portal/billing/ledger.py"},
        r"Transaction\.objects\.create": {"portal/billing/ledger.py"},
        r"\.publish\(": {"portal/events.py", "portal/fleet/commands.py", "portal/live/hub.py"},
    }
    broken = []
    for path in _tracked(".py"):
        name = str(path.relative_to(ROOT))
        if not name.startswith(("portal/", "scheduler/")):
            continue
        for pattern, allowed in rules.items():
            if name not in allowed and re.search(pattern, path.read_text()):
                broken.append(f"{name}: {pattern}")

    assert broken == []


def test_nothing_fetched_or_built_is_committed() -> None:
    tracked = [str(path.relative_to(ROOT)) for path in _tracked("")]

    assert [
        name for name in tracked if re.search(r"(node_modules|static/vendor)/|\.min\.", name)
    ] == []
