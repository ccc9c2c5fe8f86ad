"""What a first visit loads, and that what we wrote ourselves stays small."""

import gzip
import re
from pathlib import Path

import pytest
from django.urls import reverse

from portal.web.icons import ICONS
from tests.web.place import Place

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "static"
FONTS = ["vendor/geist.woff2", "vendor/geist-mono.woff2"]


def found(address: str) -> Path:
    """Return the file behind a static address."""
    from django.contrib.staticfiles import finders

    path = finders.find(address)
    assert path, address
    return Path(str(path))


@pytest.mark.parametrize("name", ["dashboard", "instance"])
def test_a_first_load_is_under_200_kilobytes_compressed(place: Place, name: str) -> None:
    if not (STATIC / "vendor" / "tabler.css").exists():
        pytest.skip("the front-end files were not fetched")
    given = [place.slug, *([place.instance.id] if name == "instance" else [])]
    html = place.client("member").get(reverse(name, args=given)).content

    linked = set(re.findall(r'(?:src|href)="/static/([^"#]+)', html.decode()))
    files = [found(address) for address in sorted(linked)]
    files += [found(address) for address in FONTS]
    total = len(gzip.compress(html)) + sum(
        path.stat().st_size if path.suffix == ".woff2" else len(gzip.compress(path.read_bytes()))
        for path in files
    )

    assert len(files) > 8
    assert total < 200_000


def test_our_own_styles_are_under_500_lines_and_keep_colours_in_one_file() -> None:
    styles = {path.name: path.read_text() for path in (STATIC / "css").glob("*.css")}

    assert sum(len(text.splitlines()) for text in styles.values()) < 500
    for name in styles.keys() - {"tokens.css"}:
        assert re.findall(r"#[0-9a-fA-F]{3,8}\b|(?:rgb|hsl)a?\(|oklch\(\d", styles[name]) == []


def test_the_sprite_holds_no_icon_that_no_page_uses() -> None:
    sources = [*(ROOT / "templates").rglob("*.html"), *(ROOT / "portal" / "web").rglob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in sources if path.name != "icons.py")

    assert [name for name in ICONS if f'"{name}"' not in text] == []


def test_no_template_has_a_style_or_a_script_of_its_own() -> None:
    for path in (ROOT / "templates").rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<style|\sstyle=|<script(?![^>]*\ssrc=)|\son[a-z]+=", text), path
