"""What every endpoint shares: who may call it, in which scope it runs, and how it answers lists.

An endpoint names what each of its methods needs. A method without a name can't be defined, so a
new route can't forget to ask; the test that walks all routes reads the same table.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Literal, cast

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.api import idempotency
from portal.api.access import TokenRequest
from portal.errors import Forbidden, NotFound
from portal.tenants import roles
from portal.tenants.models import Organization
from portal.tenants.roles import Actor, Permission
from portal.tenants.scope import scope

Need = Permission | Literal["operator", "a token"]
_METHODS: Final = ("get", "post", "put", "patch", "delete")


class UnableToOperate(Forbidden):
    """Only operators may see or change the installation itself."""


class Endpoint(APIView):
    """One path of the API. Its methods run inside the scope of the token's organization."""

    # What each method needs, somewhere; the domain call checks the very thing it touches.
    needs: ClassVar[Mapping[str, Need]] = {}
    # Fields of an answer that are shown once: a repeated POST gets them empty.
    shown_once: ClassVar[tuple[str, ...]] = ()

    http_method_names = [*_METHODS, "head"]
    request: TokenRequest

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        defined = {method.upper() for method in _METHODS if method in vars(cls)}
        if forgotten := defined - set(cls.needs):
            raise TypeError(f"{cls.__name__} does not say what {sorted(forgotten)} needs")
        if "post" in vars(cls):
            cls.post = idempotency.once(cls.post)  # type: ignore[attr-defined]

    @property
    def actor(self) -> Actor:
        """Who acts."""
        return self.request.actor

    @property
    def now(self) -> datetime:
        """The moment of the request."""
        return self._now

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Keep the scope open until the answer's data is complete."""
        self._now = datetime.now(UTC)
        with ExitStack() as self._stack:
            return super().dispatch(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate, open the scope, and ask for what the method needs."""
        super().initial(request, *args, **kwargs)
        if "%00" in request.get_full_path():  # no text in the database can hold it
            raise ParseError(_("The address contains a NUL character."))
        actor = cast(TokenRequest, request).actor
        self._stack.enter_context(scope(organization=actor.organization))
        _check_organization(request, actor.organization)
        need = self.needs.get("GET" if request.method == "HEAD" else str(request.method))
        if need is not None:  # else the answer is 405
            _ask(actor, need)


def listed(results: list[Any]) -> Response:
    """Answer a list that is always short enough for one page."""
    return Response({"results": results, "next": None})


def _check_organization(request: Request, own: Organization) -> None:
    """Refuse another organization than the token's, as if it did not exist."""
    named = {*request.query_params.getlist("organization")}
    if isinstance(request.data, Mapping) and request.data.get("organization") is not None:
        named.add(str(request.data["organization"]))
    if named - {str(own.id), own.slug}:
        raise NotFound(
            "organization_not_found",
            _("There is no such organization, or this token is not for it."),
            help=_("Leave `organization` out: it follows from the token."),
        )


def _ask(actor: Actor, need: Need) -> None:
    if need == "a token":
        return
    if need == "operator":
        if not actor.is_operator:
            raise UnableToOperate(
                "operator_only",
                _("Only operators of this installation may do that."),
                help=_("Use an operator's token with the scope “operator” or “full”."),
            )
    elif not actor.may_somewhere(need):
        roles.require(actor, need)
