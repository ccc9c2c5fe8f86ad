"""Every refusal in one shape: {"error": {"code", "message", "help", "details"}}, never HTML."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import Resolver404, resolve
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions, serializers
from rest_framework.response import Response

from portal.errors import DomainError

log = logging.getLogger(__name__)


class ErrorOut(serializers.Serializer[Any]):
    """What went wrong, and what to do."""

    code = serializers.CharField(help_text="Stable, for programs.")
    message = serializers.CharField(help_text="A sentence for people.")
    help = serializers.CharField(help_text="What to do next; may be empty.")
    details = serializers.DictField(help_text="Fields and amounts, by code.")


class RefusalOut(serializers.Serializer[Any]):
    """The body of every answer with a status from 400 on."""

    error = ErrorOut()


def respond(error: Exception, context: Mapping[str, Any]) -> Response:
    """Translate an exception into an answer. Named in the settings."""
    headers: dict[str, str] = {}
    if isinstance(error, DomainError):
        status = error.status
        body = _body(error.code, error.message, error.help, error.details)
    elif isinstance(error, exceptions.APIException):
        status = error.status_code
        body = _of_framework(error)
        if wait := getattr(error, "wait", None):
            headers["Retry-After"] = str(int(wait))
    elif isinstance(error, Http404):
        status, body = 404, _not_found()
    elif isinstance(error, PermissionDenied):
        status, body = 403, _body("forbidden", _("That is not allowed."))
    elif isinstance(error, SuspiciousOperation | RecursionError):  # too long, or nested too deep
        status, body = 400, _body("bad_request", _("The request makes no sense."))
    elif isinstance(error, OperationalError | InterfaceError):
        log.warning("the database does not answer: %s", error)
        status, headers["Retry-After"] = 503, "2"
        body = _body(
            "unavailable",
            _("Corral can't reach its database for the moment. Nothing was lost."),
            _("Try again in a few seconds, with the same idempotency key."),
        )
    else:
        log.error("unexpected error in the API", exc_info=error)
        status = 500
        body = _body(
            "internal_error",
            _("Something went wrong here. It was noted."),
            _("Try again; if it stays, tell the operator."),
        )
    view = context.get("view")
    if status == 401 and view is not None:
        headers["WWW-Authenticate"] = view.get_authenticate_header(context["request"])
    return Response(body, status=status, headers=headers)


@csrf_exempt
def elsewhere(request: HttpRequest, **rest: object) -> HttpResponse:
    """Answer for every path that no endpoint has; a slash at the end does not count."""
    with suppress(Resolver404):
        match = resolve(request.path.removesuffix("/"))
        if match.func is not elsewhere:
            endpoint: Callable[..., HttpResponse] = match.func
            return endpoint(request, *match.args, **match.kwargs)
    return JsonResponse(_not_found(), status=404)


def _of_framework(error: exceptions.APIException) -> dict[str, Any]:
    if isinstance(error, exceptions.ValidationError):
        details = error.detail if isinstance(error.detail, dict) else {"body": error.detail}
        return _body(
            "invalid",
            _("Some fields are not right."),
            _("See `details`: it names the fields."),
            _plain(details),
        )
    if isinstance(error, exceptions.NotAuthenticated):
        return _body(
            "token_missing",
            _("This needs an API token."),
            _("Send it as the header “Authorization: Bearer TOKEN”."),
        )
    code = str(getattr(error.detail, "code", "") or error.default_code)
    return _body(code, str(error.detail))


def _plain(value: Any) -> Any:
    """Turn the framework's error details into JSON values, and lists at the leaves."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return str(value)


def _not_found() -> dict[str, Any]:
    return _body(
        "not_found", _("There is nothing at this address."), _("See /api/v1/schema/ for what is.")
    )


def _body(
    code: str, message: str, help: str = "", details: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "error": {"code": code, "message": message, "help": help, "details": dict(details or {})}
    }
