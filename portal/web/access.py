"""Who may open a page: sign-in, organization, scope and permission, once, before the view runs.

There is no other way from a page to a tenant's rows: a view gets `request.actor` and runs inside
the scope of that organization. A stranger gets the same 404 as for a page that never was.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase

from portal.tenants import access, roles
from portal.tenants.models import User
from portal.tenants.roles import Actor, Permission
from portal.tenants.scope import scope


class SignedRequest(HttpRequest):
    """A request of somebody signed in."""

    user: User


class MemberRequest(SignedRequest):
    """A request of somebody acting in an organization."""

    actor: Actor


View = Callable[..., HttpResponseBase]


def signed_page(view: View) -> View:
    """Open only to people signed in; others are asked to sign in and come back."""
    view.door = "signed"  # type: ignore[attr-defined]
    return login_required(view)


def member_page(permission: Permission | None = None) -> Callable[[View], View]:
    """Open only to members of the organization in the path, with that permission somewhere in it.

    The view's own domain call still checks the very thing it touches.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, slug: str, *args: Any, **kwargs: Any) -> HttpResponseBase:
            member_request = cast(MemberRequest, request)
            actor = access.actor_for(user=member_request.user, slug=slug)
            member_request.actor = actor
            with scope(organization=actor.organization):
                if permission is not None and not actor.may_somewhere(permission):
                    roles.require(actor, permission)
                return view(member_request, *args, **kwargs)

        guarded.door = "member"  # type: ignore[attr-defined]
        return cast(View, login_required(guarded))

    return decorate


def operator_page(view: View) -> View:
    """Open only to operators. To everybody else the page does not exist."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not cast(SignedRequest, request).user.is_operator:
            raise Http404
        return view(request, *args, **kwargs)

    guarded.door = "operator"  # type: ignore[attr-defined]
    return cast(View, login_required(guarded))
