"""How pages answer: whole, or only the part that htmx asks for; refusals become messages."""

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme

from portal.errors import DomainError


def page(
    request: HttpRequest,
    template: str,
    context: Mapping[str, Any] | None = None,
    *,
    parts: Mapping[str, str] | None = None,
    status: int = 200,
) -> HttpResponse:
    """Render a page, or only the one of its `parts` that htmx asks for.

    `parts` are the element ids that may be asked for, each with the template that draws it: the
    page includes that very template, or it is a partial of the page's ("page.html#part"), so that
    fragment and page can't differ.
    """
    htmx = getattr(request, "htmx", None)
    if htmx and parts and htmx.target in parts:
        template = parts[htmx.target]
    return render(request, template, dict(context or {}), status=status)


def done(request: HttpRequest, sentence: str, to: str, *args: Any) -> HttpResponseRedirect:
    """Say what was done, and show the page where it can be seen."""
    messages.success(request, sentence)
    return redirect(to, *args)


def refused(
    request: HttpRequest,
    refusal: DomainError,
    to: str,
    *args: Any,
) -> HttpResponseRedirect:
    """Say why not and what to do next, on the page where it was asked."""
    messages.error(request, f"{refusal.message} {refusal.help}".strip())
    return redirect(to, *args)


def way_back(request: HttpRequest, fallback: str = "/") -> str:
    """Return the page that a form says it came from, if it is one of ours."""
    wanted = request.POST.get("next", "")
    is_ours = url_has_allowed_host_and_scheme(
        wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    # A path only: what has no slash would be taken for the name of a view.
    return wanted if is_ours and wanted.startswith("/") else fallback
