"""Where a machine without an identity gets one: the only page of nodes that is not a socket."""

import msgspec
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from agents import wire
from portal.errors import DomainError, Invalid
from portal.fleet import nodes

_decode = msgspec.json.Decoder(wire.JoinRequest).decode


@csrf_exempt  # the token is the proof; no cookie counts here
@require_POST
def join(request: HttpRequest) -> HttpResponse:
    """Let a machine join with its one-time token."""
    try:
        try:
            asked = _decode(request.body)
        except msgspec.DecodeError as error:
            raise Invalid(
                "bad_request", _("This is not a join request."), help=str(error)
            ) from error
        reply = nodes.join(request=asked, now=timezone.now())
    except DomainError as refusal:
        said = {"code": refusal.code, "message": refusal.message, "help": refusal.help}
        return JsonResponse({"error": said | {"details": refusal.details}}, status=refusal.status)
    return HttpResponse(msgspec.json.encode(reply), content_type="application/json", status=201)
