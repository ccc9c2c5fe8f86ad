"""API tokens: made, shown once, revoked."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.http import HttpResponse, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from portal.errors import DomainError
from portal.tenants import tokens
from portal.tenants.models import ApiToken
from portal.web import answers, once
from portal.web.access import MemberRequest, member_page
from portal.web.forms import TokenForm

_SCOPES: Mapping[str, str | Promise] = {
    "read": gettext_lazy("Read: see instances, members, quotas and usage"),
    "instances": gettext_lazy("Instances: launch, start, stop, terminate"),
    "admin": gettext_lazy("Admin: members, teams, quotas, settings"),
    "money": gettext_lazy("Money: usage, prices and bills"),
    "operator": gettext_lazy("Operator: nodes, GPUs, metrics"),
    "full": gettext_lazy("Full: everything that you may do"),
}
_NEW = "token"


@member_page("tokens.manage")
@require_http_methods(["GET", "HEAD", "POST"])
def index(request: MemberRequest) -> HttpResponse:
    """List the live tokens, the ended ones on request; a POST makes one."""
    now = datetime.now(UTC)
    form = TokenForm(request.POST or None, initial={"scopes": ["read"], "days": "90"})
    form.offer(scopes=[*_offered(request)])
    refusal: DomainError | None = None
    if request.method == "POST" and form.is_valid():
        try:
            _issue(request, form, now)
        except DomainError as error:
            refusal = error
        else:
            return answers.done(
                request, _("The token is made."), "tokens", request.actor.organization.slug
            )
    shows_all = request.GET.get("all") == "1"
    rows = [_row(token, now) for token in tokens.visible(actor=request.actor)]
    secret = once.take(request, _NEW)
    response = answers.page(
        request,
        "people/tokens.html",
        {
            "rows": [row for row in rows if shows_all or row["is_live"]],
            "ended": sum(not row["is_live"] for row in rows),
            "shows_all": shows_all,
            "form": form,
            "secret": secret,
            "refusal": refusal,
            "sees_all": request.actor.may("tokens.manage"),
        },
        status=422 if request.method == "POST" else 200,
    )
    if secret:
        response["Cache-Control"] = "no-store"
    return response


def _offered(request: MemberRequest) -> list[tuple[str, str | Promise]]:
    return [
        (scope, words)
        for scope, words in _SCOPES.items()
        if scope != "operator" or request.actor.is_operator
    ]


def _issue(request: MemberRequest, form: TokenForm, now: datetime) -> None:
    days = form.cleaned_data["days"]
    _token, secret = tokens.issue(
        actor=request.actor,
        name=form.cleaned_data["name"],
        scopes=form.cleaned_data["scopes"],
        expires_at=now + timedelta(days=int(days)) if days else None,
        now=now,
    )
    once.keep(request, _NEW, secret)


def _row(token: ApiToken, now: datetime) -> dict[str, object]:
    is_expired = token.expires_at is not None and token.expires_at <= now
    return {
        "token": token,
        "scopes": [str(_SCOPES.get(scope, scope)) for scope in token.scopes],
        "is_expired": is_expired,
        "is_live": not is_expired and token.revoked_at is None,
        "dialog": f"revoke-{token.id}",
    }


@member_page("tokens.manage")
@require_POST
def revoke(request: MemberRequest, token_id: UUID) -> HttpResponseRedirect:
    """End a token at once."""
    tokens.revoke(actor=request.actor, token_id=token_id, now=datetime.now(UTC))
    return answers.done(
        request,
        _("Revoked. It opens nothing from now on."),
        "tokens",
        request.actor.organization.slug,
    )
