"""A Django field for PostgreSQL's int4multirange: which units of a GPU a lease holds."""

from typing import TYPE_CHECKING, Any

from django.db import models
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

if TYPE_CHECKING:
    _Field = models.Field[Any, Any]
else:
    _Field = models.Field  # Django's own is not subscriptable at run time


class IntegerMultiRangeField(_Field):
    """Half-open integer ranges, in Python a tuple of (low, high) pairs."""

    description = "Integer ranges"

    def db_type(self, connection: Any) -> str:
        """Name the column type."""
        return "int4multirange"

    def from_db_value(
        self, value: Multirange[int] | None, expression: object, connection: object
    ) -> tuple[tuple[int, int], ...] | None:
        """Turn the driver's multirange into pairs."""
        if value is None:
            return None
        return tuple(
            (r.lower, r.upper) for r in value if r.lower is not None and r.upper is not None
        )

    def get_prep_value(self, value: Any) -> Multirange[int] | None:
        """Turn pairs into the driver's multirange."""
        if value is None or isinstance(value, Multirange):
            return value
        return Multirange([Range(low, high) for low, high in value])

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """Leave adaptation to the driver."""
        return value if prepared else self.get_prep_value(value)

    def to_python(self, value: Any) -> Any:
        """Accept pairs as lists or tuples."""
        return None if value is None else tuple((int(low), int(high)) for low, high in value)
