"""Tags and filters of every page: icons, amounts, times, sizes, states, components."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

from babel import Locale
from babel.dates import format_datetime, format_timedelta
from babel.numbers import format_currency, format_decimal
from django import template
from django.forms import BoundField
from django.template.base import Node, NodeList, Parser, Token, token_kwargs
from django.template.context import Context
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from portal.instances import reasons
from portal.money import Money, minor_digits
from portal.web import looks
from portal.web.forms import dress
from portal.web.icons import ICONS

register = template.Library()
_KNOWN = frozenset(ICONS)
_GIB = Decimal(1 << 30)
NOTHING = "--"  # what could not be measured; never 0


def locale() -> Locale:
    """Return Babel's locale for the language of this page."""
    return Locale.parse("zh_Hans_CN" if (get_language() or "").startswith("zh") else "en_US")


@register.simple_tag
def icon(name: str, label: str = "") -> SafeString:
    """Draw an icon from the sprite; without a label it is decoration and hidden from readers."""
    if name not in _KNOWN:
        raise template.TemplateSyntaxError(f"no icon {name!r} in portal.web.icons")
    address = f"{static('vendor/icons.svg')}#{name}"
    if label:
        return format_html(
            '<svg class="icon" role="img" aria-label="{}"><use href="{}"/></svg>', label, address
        )
    return format_html('<svg class="icon" aria-hidden="true"><use href="{}"/></svg>', address)


@cache
def _pattern(language: str, least: int, most: int) -> str:
    pattern = Locale.parse(language).currency_formats["standard"].pattern
    fraction = "." + "0" * least + "#" * (most - least) if most else ""
    return re.sub(r"0\.0+", "0" + fraction, pattern)


@register.simple_tag
def money(value: Money | None, most: int | None = None) -> str:
    """Write an amount in its currency; `most` allows more decimals than an invoice has."""
    if value is None:
        return NOTHING
    least = minor_digits(value.currency)
    here = locale()
    pattern = _pattern(str(here), least, max(least, most or least))
    return str(
        format_currency(
            value.amount, value.currency, format=pattern, locale=here, currency_digits=False
        )
    )


@register.simple_tag
def price(value: Money | None) -> str:
    """Write a price with every decimal it has (list prices go to 12), and no fewer than usual."""
    return money(value, most=12)


@register.simple_tag
def since(moment: datetime | None, style: str = "ago") -> SafeString | str:
    """Write when something happened or will: "3 minutes ago", the exact time on hover.

    With `style="for"` how long it has lasted ("3 minutes"), without a direction. The page keeps
    the words fresh by itself.
    """
    if moment is None:
        return NOTHING
    words = format_timedelta(
        moment - datetime.now(UTC),
        add_direction=style == "ago",
        locale=locale(),
        threshold=1.5,
    )
    return format_html(
        '<time datetime="{}" data-since="{}" title="{}">{}</time>',
        moment.astimezone(UTC).isoformat(timespec="milliseconds"),
        style,
        exact(moment),
        words,
    )


@register.filter
def exact(moment: datetime | None, precision: str = "s") -> str:
    """Write a moment to the second, or with `"ms"` to the millisecond, with its zone."""
    if moment is None:
        return NOTHING
    pattern = "yyyy-MM-dd HH:mm:ss" + (".SSS" if precision == "ms" else "")
    text = format_datetime(moment.astimezone(UTC), pattern, locale=locale())
    return f"{text} UTC"


@register.filter
def lasting(milliseconds: float | timedelta | None, precision: str = "s") -> str:
    """Write a duration: "3 h 12 min 05 s", or with `"ms"` "3 h 12 min 05.250 s"."""
    if milliseconds is None:
        return NOTHING
    if isinstance(milliseconds, timedelta):
        milliseconds = milliseconds / timedelta(milliseconds=1)
    seconds, rest = divmod(int(milliseconds), 1000)
    hours, minutes, seconds = seconds // 3600, seconds // 60 % 60, seconds % 60
    if precision == "ms":
        return _lasting_exactly(hours, minutes, seconds, rest)
    if hours:
        return _("%(h)s h %(m)02d min %(s)02d s") % {
            "h": number(hours),
            "m": minutes,
            "s": seconds,
        }
    if minutes:
        return _("%(m)d min %(s)02d s") % {"m": minutes, "s": seconds}
    return _("%(s)d s") % {"s": seconds}


def _lasting_exactly(hours: int, minutes: int, seconds: int, rest: int) -> str:
    padded = f"{seconds:02d}.{rest:03d}"
    if hours:
        return _("%(h)s h %(m)02d min %(s)s s") % {"h": number(hours), "m": minutes, "s": padded}
    if minutes:
        return _("%(m)d min %(s)s s") % {"m": minutes, "s": padded}
    return _("%(s)s s") % {"s": f"{seconds}.{rest:03d}"}


@register.filter
def number(value: float | Decimal | None) -> str:
    """Write a number with the page's separators."""
    return NOTHING if value is None else str(format_decimal(value, locale=locale()))


@register.filter
def gib(size: int | None) -> str:
    """Write bytes in GiB, with one decimal below ten."""
    if size is None:
        return NOTHING
    amount = Decimal(size) / _GIB
    amount = amount.quantize(Decimal("0.1") if amount < 10 else Decimal(1))
    return f"{number(amount.normalize() if amount else amount)} GiB"


@register.filter
def gpus(milli_gpus: int | None) -> str:
    """Write thousandths of a GPU as GPUs: 2500 is "2.5"."""
    return NOTHING if milli_gpus is None else number(Decimal(milli_gpus) / 1000)


@register.filter
def cores(cpu_milli: int | None) -> str:
    """Write thousandths of a CPU as vCPUs."""
    return gpus(cpu_milli)


@register.filter
def times(value: int, step: int) -> int:
    """Multiply."""
    return value * step


@register.simple_tag
def look(kind: str, value: str) -> dict[str, Any]:
    """Return icon, tone, word and meaning of a state; kind is `instance`, `link` or `gpu`."""
    found, word = looks.of(kind, str(value))
    return {"icon": found.icon, "tone": found.tone, "word": word, "meaning": found.meaning}


@register.inclusion_tag("components/state.html")
def state(value: str, kind: str = "instance", size: str = "") -> dict[str, Any]:
    """Show a state as icon, word and tone."""
    return {"look": look(kind, value), "value": value, "size": size}


class _Component(Node):
    """Renders components/<name>.html with the body as `body` and each fill by its name."""

    def __init__(self, name: str, values: dict[str, Any], nodelist: NodeList) -> None:
        self.name = name
        self.values = values
        self.nodelist = nodelist

    def render(self, context: Context) -> SafeString:
        given: dict[str, Any] = {key: value.resolve(context) for key, value in self.values.items()}
        fills: dict[str, SafeString] = {}
        with context.push(_fills=fills):
            given["body"] = self.nodelist.render(context)
        # Only what it is given: a `title` of the page must not become the title of a card.
        given |= {**fills, "csrf_token": context.get("csrf_token")}
        assert context.template is not None  # noqa: S101
        found = context.template.engine.get_template(f"components/{self.name}.html")
        return found.render(context.new(given))


class _Fill(Node):
    def __init__(self, name: str, nodelist: NodeList) -> None:
        self.name = name
        self.nodelist = nodelist

    def render(self, context: Context) -> SafeString:
        context["_fills"][self.name] = self.nodelist.render(context)
        return mark_safe("")


@register.tag
def component(parser: Parser, token: Token) -> Node:
    """`{% component "card" title=... %} body {% endcomponent %}`: a component with a body."""
    bits = token.split_contents()
    if len(bits) < 2 or bits[1][0] not in "\"'":
        raise template.TemplateSyntaxError('{% component "name" key=value %}')
    values = token_kwargs(bits[2:], parser)
    nodelist = parser.parse(("endcomponent",))
    parser.delete_first_token()
    return _Component(bits[1][1:-1], values, nodelist)


@register.tag
def fill(parser: Parser, token: Token) -> Node:
    """`{% fill actions %}...{% endfill %}` inside a component: a second body, by name."""
    bits = token.split_contents()
    if len(bits) != 2:
        raise template.TemplateSyntaxError("{% fill name %}")
    nodelist = parser.parse(("endfill",))
    parser.delete_first_token()
    return _Fill(bits[1], nodelist)


@register.filter
def dressed(field: BoundField) -> BoundField:
    """Give a form field the class of its kind, also where the form is a library's."""
    dress(field.field)
    return field


@register.filter
def happened(kind: str) -> str:
    """Say what an event of a node is about."""
    return str(looks.HAPPENED.get(kind, kind))


@register.filter
def because(cause: str) -> str:
    """Say why a segment of the bill began or ended."""
    return reasons.translated(cause)


@register.simple_tag
def now_ms() -> int:
    """Return the portal's clock in milliseconds, so that scripts can tell how old a figure is."""
    return int(datetime.now(UTC).timestamp() * 1000)
