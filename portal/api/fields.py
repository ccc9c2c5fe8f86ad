"""How money and times stand in JSON, for every resource."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request

from portal.money import Money, minor_digits


@extend_schema_field(
    {
        "type": "object",
        "properties": {
            "amount": {"type": "string", "examples": ["12.34"]},
            "currency": {"type": "string", "examples": ["USD"]},
        },
        "required": ["amount", "currency"],
        "additionalProperties": False,
    }
)
class MoneyField(serializers.Field[Any, Any, Any, Any]):
    """An exact amount: no zeros at the end, but never fewer digits than the currency has."""

    def to_representation(self, value: Money) -> dict[str, str]:
        """Write {"amount": "12.34", "currency": "USD"}."""
        return money(value)


class ColumnMoneyField(MoneyField):
    """The amount in one column of a row that names its currency in another."""

    def __init__(self, column: str, **rest: Any) -> None:
        super().__init__(source="*", read_only=True, **rest)
        self.column = column

    def to_representation(self, value: Any) -> dict[str, str]:
        """Write {"amount": "12.34", "currency": "USD"}."""
        return money(Money(getattr(value, self.column), value.currency))


def money(value: Money) -> dict[str, str]:
    """Write {"amount": "12.34", "currency": "USD"}; exact."""
    return {"amount": amount(value.amount, value.currency), "currency": value.currency}


def amount(value: Decimal, currency: str) -> str:
    """Write an exact amount without needless zeros: "2.49", "0.000012", "100"."""
    text = format(value, "f")
    whole, _point, digits = text.partition(".")
    digits = digits.rstrip("0").ljust(minor_digits(currency), "0")
    return f"{whole}.{digits}" if digits else whole


def moment(request: Request, name: str) -> datetime | None:
    """Read a time out of the query, in UTC where it names no zone. Raises ValidationError."""
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        return serializers.DateTimeField().to_internal_value(text)
    except serializers.ValidationError as error:
        raise serializers.ValidationError({name: error.detail}) from error
