"""Lists come in pages: {"results": [...], "next": URL or null}.

The URL holds a cursor and not a number, so that nothing is skipped or shown twice while rows are
added.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError
from django.db.models import QuerySet
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer, ListSerializer

from portal.api.endpoint import Endpoint


class Pages(CursorPagination):
    """Pages of 100, or of `limit` (1 to 500)."""

    page_size_query_param = "limit"
    max_page_size = 500

    def __init__(self, ordering: Sequence[str] = ("-created_at", "-id")) -> None:
        self.ordering = tuple(ordering)

    def paginate_queryset(
        self, queryset: Any, request: Request, view: Any = None
    ) -> list[Any] | None:
        """Return the rows of the page. Raises NotFound for a cursor that was never ours."""
        try:
            return super().paginate_queryset(queryset, request, view)
        except (ValidationError, ValueError, DataError) as error:
            if self.cursor is None:
                raise
            # Well-formed, but its position is no value of the column that the list is sorted by.
            raise NotFound(self.invalid_cursor_message) from error

    def _get_position_from_instance(self, instance: Any, ordering: Sequence[str]) -> str:
        # The framework's own can't follow a relation, as in "user__email".
        return str(attrgetter(ordering[0].lstrip("-").replace("__", "."))(instance))

    def get_paginated_response(self, data: Any) -> Response:
        """Answer one page."""
        return Response({"results": data, "next": self.get_next_link()})


def page(
    endpoint: Endpoint,
    rows: QuerySet[Any],
    output: type[BaseSerializer[Any]],
    *,
    ordering: Sequence[str] = ("-created_at", "-id"),
    context: dict[str, Any] | None = None,
) -> Response:
    """Answer the page of `rows` that the request asks for, each written by `output`."""
    pages = Pages(ordering)
    found = pages.paginate_queryset(rows, endpoint.request, view=endpoint)
    written = ListSerializer(found or [], child=output(), context=context or {})
    return pages.get_paginated_response(written.data)
