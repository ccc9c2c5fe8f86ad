"""The page for when something broke: the database is out of reach, or a fault of ours."""

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.template import loader
from django.views.decorators.csrf import requires_csrf_token


@requires_csrf_token
def server_error(request: HttpRequest) -> HttpResponse:
    """Answer 503 and reload by itself while the database is away, else 500.

    Drawn without a request: nothing here may ask the database again. Django calls it while the
    exception is being handled (`handler500`).
    """
    if isinstance(sys.exc_info()[1], OperationalError | InterfaceError):
        page = loader.get_template("503.html").render()
        return HttpResponse(page, status=503, headers={"Retry-After": "3", "Refresh": "3"})
    return HttpResponse(loader.get_template("500.html").render(), status=500)
