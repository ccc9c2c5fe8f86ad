"""What every page has in common: headers, the person's language, and refusals as pages."""

from collections.abc import Callable

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import translation
from django.utils.cache import patch_cache_control, patch_vary_headers
from django.views.defaults import page_not_found

from portal.errors import DomainError, NotFound

# Nothing inline, nothing from elsewhere. `data:` is for the arrows inside Tabler's own CSS.
POLICY = "; ".join(
    [
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)
# Programs' doors translate their own refusals and have no language.
_NOT_PAGES = ("/api/", "/agent/", "/live/", "/metrics", "/healthz", "/readyz", "/static/")


class PageMiddleware:
    """See the module."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer a request, with the headers that every answer has."""
        is_page = not request.path.startswith(_NOT_PAGES)
        if is_page and _has_nul(request):
            raise SuspiciousOperation("a NUL character: no text in the database can hold it")
        if is_page and (language := getattr(request.user, "language", "")):
            translation.activate(language)
            request.LANGUAGE_CODE = translation.get_language() or language
        response = _signed_out(request, self.get_response(request))
        response.headers.setdefault("Content-Security-Policy", POLICY)
        response.headers.setdefault(
            "Permissions-Policy", "camera=(), geolocation=(), microphone=()"
        )
        if is_page:
            # A fragment and its page share an address, and neither is anybody else's to keep.
            patch_vary_headers(response, ["HX-Request", "HX-Target", "Cookie"])
            if not response.has_header("Cache-Control"):
                patch_cache_control(response, private=True, no_cache=True)
        return response

    def process_exception(
        self, request: HttpRequest, exception: Exception
    ) -> HttpResponseBase | None:
        """Turn a refusal that no view handled into a page with its sentence and what to do."""
        if not isinstance(exception, DomainError) or request.path.startswith(_NOT_PAGES):
            return None
        if isinstance(exception, NotFound):
            # Word for word the page of an address that never was: a stranger learns nothing.
            return page_not_found(request, Http404())
        # Outside of the organization's scope by now, so the frame is drawn without it.
        response: HttpResponse = render(
            request, "refused.html", {"refusal": exception}, status=exception.status
        )
        return response


def _has_nul(request: HttpRequest) -> bool:
    lists = [*request.GET.lists(), *request.POST.lists()]
    return any("\0" in text for _name, texts in lists for text in texts)


def _signed_out(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """Have a page whose session is over reload itself: a sign-in page is no fragment of it."""
    is_fragment = request.headers.get("HX-Request") == "true"
    if is_fragment and response.get("Location", "").startswith(reverse(settings.LOGIN_URL)):
        return HttpResponse(headers={"HX-Refresh": "true"})
    return response
