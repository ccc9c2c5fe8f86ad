"""Simplified Chinese is complete: every string is marked, known, translated, and shown."""

import ast
import html as markup
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po
from django.urls import reverse
from django.utils.translation import trans_real
from django.utils.translation.template import templatize

from portal.operate import messages
from tests.web.place import Place

ROOT = Path(__file__).resolve().parent.parent.parent
CATALOGUE = ROOT / "portal" / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po"
PLACEHOLDER = re.compile(r"%(?:\(\w+\))?[-0-9.]*[sdi]|\{\w+\}")
CALLS = {"gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy", "_"}
# What is the same in every language: names, units, addresses, punctuation.
SAME_EVERYWHERE = {"Corral", "corral", "h100", "loss", "step", "ls", "run", "o", "Gi"}


@cache
def catalogue() -> Catalog:
    with CATALOGUE.open("rb") as text:
        return read_po(text, locale="zh_Hans")


def entries() -> list[Message]:
    return [message for message in catalogue() if message.id]


def source(message: Message) -> str:
    """Return the English of a message; the plural, where there is one."""
    return message.id if isinstance(message.id, str) else message.id[-1]


def translation(message: Message) -> str:
    return message.string if isinstance(message.string, str) else message.string[0]


def templates() -> list[Path]:
    return sorted((ROOT / "templates").rglob("*.html")) + sorted(
        (ROOT / "templates").rglob("*.txt")
    )


def marked() -> Iterator[tuple[str, str]]:
    """Yield every string that is marked for translation, and where."""
    for folder in ("portal", "scheduler"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for text in _in_python(ast.parse(path.read_text())):
                yield text, str(path.relative_to(ROOT))
    for path in templates():
        for text in _in_template(path):
            yield text, str(path.relative_to(ROOT))


def _in_python(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in CALLS and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value:
                yield first.value


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _in_template(path: Path) -> Iterator[str]:
    code = templatize(path.read_text(), origin=path.name)
    for found in re.finditer(r"\bn?gettext\((u?'(?:[^'\\]|\\.)*'|u?\"(?:[^\"\\]|\\.)*\")", code):
        if text := ast.literal_eval(found[1]):
            yield text


def test_every_marked_string_is_in_the_catalogue() -> None:
    known = {
        text
        for message in entries()
        for text in ([message.id] if isinstance(message.id, str) else message.id)
    }

    missing = {f"{where}: {text}" for text, where in marked() if text not in known}

    assert missing == set(), "run manage.py makemessages -l zh_Hans, and translate"


def test_every_string_is_translated() -> None:
    assert [source(message) for message in entries() if not translation(message)] == []
    assert [source(message) for message in entries() if message.fuzzy] == []


def test_a_translation_has_the_placeholders_of_its_source() -> None:
    different = [
        (source(message), translation(message))
        for message in entries()
        if set(PLACEHOLDER.findall(source(message)))
        != set(PLACEHOLDER.findall(translation(message)))
    ]

    assert different == []


def test_a_translation_keeps_the_markup_of_its_source() -> None:
    tags = re.compile(r"</?[a-z]+>")
    different = [
        source(message)
        for message in entries()
        if sorted(tags.findall(source(message))) != sorted(tags.findall(translation(message)))
    ]

    assert different == []


def test_one_thing_has_one_word() -> None:
    words = {"quota": "配额", "node": "节点", "image": "镜像", "lease": "租约", "invoice": "账单"}
    broken = [
        (source(message), translation(message))
        for message in entries()
        for english, chinese in words.items()
        if re.search(rf"\b{english}s?\b", PLACEHOLDER.sub("", source(message)), re.IGNORECASE)
        and chinese not in translation(message)
    ]

    assert broken == []


@pytest.mark.parametrize("path", templates(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_template_shows_words_that_are_not_marked(path: Path) -> None:
    text = path.read_text()
    for pattern in (
        r"{% comment %}.*?{% endcomment %}",
        r"{#.*?#}",
        r"{% blocktrans.*?{% endblocktrans(?:late)? %}",
        r"\bdata-[a-z-]+=\"[^\"]*\"",
        r"<(script|style|code)\b.*?</\1>",
        r"<pre\b.*?</pre>",
        r"{%.*?%}",
        r"{{.*?}}",
    ):
        text = re.sub(pattern, " ", text, flags=re.DOTALL)
    attributes = re.findall(r'\b(?:aria-label|title|placeholder|alt)="([^"]*)"', text)
    visible = markup.unescape(" ".join([re.sub(r"<[^>]*>", " ", text), *attributes]))

    words = set(re.findall(r"[A-Za-z][a-z]+", re.sub(r"\S*[@/:]\S*", " ", visible)))

    assert words - SAME_EVERYWHERE == set()


@pytest.fixture
def chinese(place: Place) -> Place:
    """Return the place with everybody reading Chinese."""
    messages.compile_all()
    trans_real._translations.clear()
    for who in ("owner", "member"):
        user = getattr(place, who).user
        user.language = "zh-hans"
        user.save()
    place.operator.language = "zh-hans"
    place.operator.save()
    return place


PAGES = [
    "dashboard",
    "instances",
    "launch",
    "usage",
    "quotas",
    "prices",
    "teams",
    "members",
    "tokens",
    "audit",
    "organization",
]


def english_in(html: str) -> list[str]:
    """Return the sentences of the catalogue that a page still shows in English."""
    shown = re.sub(r"\s+", " ", markup.unescape(re.sub(r"<[^>]*>", " ", html)))
    sentences = [source(message) for message in entries()]
    return [
        text
        for text in sentences
        if len(text.split()) > 2 and not PLACEHOLDER.search(text) and text in shown
    ]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_in_chinese_has_no_english_left(chinese: Place, name: str) -> None:
    html = chinese.client("owner").get(reverse(name, args=[chinese.slug])).content.decode()

    assert '<html lang="zh-Hans"' in html
    assert re.search(r"[\u4e00-\u9fff]", html)
    assert english_in(html) == []


def test_amounts_and_days_are_written_as_chinese_readers_write_them(chinese: Place) -> None:
    client = chinese.client("owner")

    prices = client.get(reverse("prices", args=[chinese.slug])).content.decode()
    usage = client.get(
        reverse("usage", args=[chinese.slug]),
        {"period": "custom", "first": "2026-03-01", "last": "2026-03-31"},
    ).content.decode()

    assert "US$2.49" in prices
    assert "美元" in prices
    assert "2026年3月31日" in usage
