"""Days of a billing zone, and a currency's name, as the page's language writes them."""

from datetime import date

from babel.dates import format_date, format_skeleton
from babel.numbers import get_currency_name
from django import template

from portal.web.templatetags.ui import NOTHING, locale

register = template.Library()


@register.filter
def day(value: date | None) -> str:
    """Write a day: "Mar 2, 2026"."""
    return NOTHING if value is None else str(format_date(value, "medium", locale=locale()))


@register.filter
def month(value: date) -> str:
    """Write the month that a day is in: "March 2026"."""
    return str(format_skeleton("yMMMM", value, locale=locale()))


@register.filter
def currency_name(code: str) -> str:
    """Write a currency out: "US Dollar"."""
    return str(get_currency_name(code, locale=locale()))
