"""The third-party files: copied as they are, in a layer, with a sprite of the icons in use."""

from pathlib import Path

import pytest

from portal.operate import front_end
from portal.web.icons import ICONS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A node_modules with the least in it."""
    modules = tmp_path / "node_modules"
    for source in front_end._COPIES:
        path = modules / source
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('@charset "UTF-8";a{b:c}\n/*# sourceMappingURL=x.css.map */\n')
    outline = modules / "@tabler" / "icons" / "icons" / "outline"
    outline.mkdir(parents=True)
    for name in ICONS:
        (outline / f"{name}.svg").write_text(
            f'<svg\n  width="24"\n>\n  <path d="{name}" />\n</svg>\n'
        )
    return modules


def test_styles_are_put_in_a_layer_and_point_at_no_missing_map(
    modules: Path, tmp_path: Path
) -> None:
    front_end._build(modules, tmp_path / "vendor")

    text = (tmp_path / "vendor" / "tabler.css").read_text()
    assert text.startswith("@layer tabler{a{b:c}")
    assert "sourceMappingURL" not in text
    assert "@charset" not in text


def test_the_sprite_has_every_icon_once(modules: Path, tmp_path: Path) -> None:
    front_end._build(modules, tmp_path / "vendor")

    sprite = (tmp_path / "vendor" / "icons.svg").read_text()
    assert sprite.count("<symbol") == len(ICONS) == len(set(ICONS))
    assert all(f'<symbol id="{name}"' in sprite for name in ICONS)


def test_an_icon_that_is_not_there_is_named(modules: Path, tmp_path: Path) -> None:
    (modules / "@tabler" / "icons" / "icons" / "outline" / "cpu.svg").unlink()

    with pytest.raises(front_end.UnableToFetch, match="cpu"):
        front_end._build(modules, tmp_path / "vendor")


def test_a_second_call_has_nothing_to_do(
    modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = tmp_path / "static" / "vendor"
    calls: list[str] = []
    monkeypatch.setattr(front_end, "VENDOR", vendor)
    monkeypatch.setattr(front_end, "_STAMP", vendor / ".stamp")
    monkeypatch.setattr(front_end, "_install", lambda: calls.append("npm"))
    build = front_end._build
    monkeypatch.setattr(front_end, "_build", lambda _from, target: build(modules, target))

    assert front_end.fetch() is True
    assert front_end.fetch() is False
    assert calls == ["npm"]


def test_the_lock_file_names_no_registry() -> None:
    assert "resolved" not in (ROOT / "package-lock.json").read_text()


def test_versions_are_exact() -> None:
    import json

    package = json.loads((ROOT / "package.json").read_text())
    for version in (package["dependencies"] | package["devDependencies"]).values():
        assert version[0].isdigit()
