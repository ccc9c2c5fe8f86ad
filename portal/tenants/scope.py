"""Tenant rows can't be queried outside a scope.

`TenantModel.objects` raises `django_scopes.exceptions.ScopeError` unless an organization is in
scope. Doors open the scope once, after they know who is asking; background work that must cross
organizations says why with `every_tenant("reason")`, which a reviewer can grep for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models
from django_scopes import ScopedManager, scopes_disabled
from django_scopes import scope as _scope

if TYPE_CHECKING:
    from portal.tenants.models import Organization

_M = TypeVar("_M", bound=models.Model)


@contextmanager
def scope(*, organization: "Organization") -> Iterator[None]:
    """Make only this organization's rows visible inside the block."""
    with _scope(organization=organization):
        yield


@contextmanager
def every_tenant(reason: str) -> Iterator[None]:
    """Make the rows of all organizations visible inside the block; `reason` says why."""
    if not reason:
        raise ValueError("say why this crosses organizations")
    with scopes_disabled():
        yield


def tenant_manager(queryset: type[models.QuerySet[Any]] = models.QuerySet) -> Any:
    """Return a manager that refuses to query outside a scope, with the methods of `queryset`.

    Declare it as `objects: ClassVar[models.Manager[Model]] = tenant_manager()`.
    """
    return ScopedManager(
        _manager_class=models.Manager.from_queryset(queryset), organization="organization"
    )
