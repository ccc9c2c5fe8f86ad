"""The links of the usage page: its periods and groupings, each keeping everything else as it is."""

from typing import Any

from django.utils.translation import gettext as _

from portal.web.usage_form import Span, UsageForm
from portal.web.usage_table import HEADERS

_DATES = ("first", "last")


def of(form: UsageForm, span: Span) -> dict[str, Any]:
    """Return `periods` and `groupings`, each a list of {name, url, is_current}."""
    period, by = form.cleaned_data["period"], form.group_by
    own = {"first": span.first.isoformat(), "last": span.last.isoformat()}
    return {
        "periods": [
            _link(_("This month"), form, period == "this-month", period="this-month"),
            _link(_("Last month"), form, period == "last-month", period="last-month"),
            _link(_("From and to"), form, period == "custom", period="custom", **own),
        ],
        "groupings": [
            _link(
                _("By %(what)s") % {"what": str(HEADERS[name]).lower()}, form, by == [name], by=name
            )
            for name in ("day", "team", "member", "flavor", "instance")
        ],
    }


def without(form: UsageForm, name: str) -> str:
    """Return the address of this page without one of its filters."""
    query = form.query.copy()
    query.pop(name, None)
    return f"?{query.urlencode()}"


def _link(name: str, form: UsageForm, is_current: bool, **changes: str) -> dict[str, Any]:
    query = form.query.copy()
    if "period" in changes:
        for date in _DATES:
            query.pop(date, None)
    for key, value in changes.items():
        query[key] = value
    return {"name": name, "url": f"?{query.urlencode()}", "is_current": is_current}
