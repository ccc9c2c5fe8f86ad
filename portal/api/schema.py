"""What the OpenAPI description says about every operation, in one decorator."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers

from portal.api.errors import RefusalOut

_Method = TypeVar("_Method", bound=Callable[..., Any])
_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The same key and body get the first answer again, for 24 hours.",
)
_ORGANIZATION = OpenApiParameter(
    "organization",
    OpenApiTypes.STR,
    description="Follows from the token; another one than the token's is a 404.",
)
_PAGING = (
    OpenApiParameter("cursor", OpenApiTypes.STR, description="Where to go on; see `next`."),
    OpenApiParameter("limit", OpenApiTypes.INT, description="Rows of a page, 1 to 500."),
)


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Describe the bearer token."""

    target_class = "portal.api.access.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        """Return the security scheme."""
        return {"type": "http", "scheme": "bearer"}


def operation(
    name: str,
    summary: str,
    *,
    takes: Any = None,
    gives: Any = None,
    status: int = 200,
    query: Sequence[OpenApiParameter] = (),
    pages: bool = False,
) -> Callable[[_Method], _Method]:
    """Describe a method: its name for client code, one sentence, its body and its answer.

    `pages` says that `gives` is one of a list's results and the list is cut into pages.
    """
    answer = paged(gives) if pages else gives
    answers = answer if isinstance(answer, dict) else {status: answer}

    def decorate(method: _Method) -> _Method:
        parameters = [_ORGANIZATION, *query, *(_PAGING if pages else ())]
        if method.__name__ == "post":
            parameters.append(_KEY)
        return extend_schema(
            operation_id=name,
            summary=summary,
            request=takes,
            responses={**answers, "4XX": RefusalOut},
            parameters=parameters,
        )(method)

    return decorate


@functools.cache
def paged(output: type[serializers.Serializer[Any]]) -> type[serializers.Serializer[Any]]:
    """Return the description of a page of these."""
    name = output.__name__.removesuffix("Out") + "Page"
    fields = {
        "results": output(many=True),
        "next": serializers.URLField(allow_null=True),
        "__doc__": "One page of a list.",
    }
    return type(name, (serializers.Serializer,), fields)
