"""`prices`: list prices; operators set them."""

from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.endpoint import Endpoint
from portal.api.fields import ColumnMoneyField, moment
from portal.api.pages import page
from portal.api.schema import operation
from portal.billing import prices
from portal.instances.models import Flavor


class PriceOut(serializers.Serializer[Any]):
    """What one unit of a SKU costs per hour, while it holds."""

    id = serializers.UUIDField()
    sku = serializers.CharField(help_text="A flavor's code.")
    per_hour = ColumnMoneyField("per_hour")
    starts_at = serializers.DateTimeField(source="during.lower")
    ends_at = serializers.DateTimeField(source="during.upper", allow_null=True)


class PriceIn(serializers.Serializer[Any]):
    """A price to be."""

    sku = serializers.SlugField(max_length=60)
    currency = serializers.RegexField(r"^[A-Z]{3}$")
    per_hour = serializers.DecimalField(max_digits=24, decimal_places=12, min_value=0)
    starts_at = serializers.DateTimeField(
        required=False, help_text="Now, if left out; never in the past."
    )

    def validate_sku(self, sku: str) -> str:
        """Refuse a slip of the pen: a price of nothing would never be charged."""
        if not Flavor.objects.filter(code=sku).exists():
            raise ValidationError(_("This is not known here."))
        return sku


class Prices(Endpoint):
    """`/prices`."""

    needs = {"GET": "a token", "POST": "operator"}

    @operation(
        "list_prices",
        "List the prices in the organization's currency that hold at an instant.",
        gives=PriceOut,
        pages=True,
        query=[OpenApiParameter("at", OpenApiTypes.DATETIME, description="Now, if left out.")],
    )
    def get(self, request: Request) -> Response:
        """Answer them by SKU."""
        rows = prices.list_prices(at=moment(request, "at") or self.now)
        own = rows.filter(currency=self.actor.organization.currency)
        return page(self, own, PriceOut, ordering=["sku", "currency"])

    @operation(
        "set_price",
        "Let a new price hold from an instant on; the present one ends there.",
        takes=PriceIn,
        gives=PriceOut,
        status=201,
    )
    def post(self, request: Request) -> Response:
        """Set it."""
        asked = PriceIn(data=request.data)
        asked.is_valid(raise_exception=True)
        fields = asked.validated_data
        made = prices.set_price(
            user=self.actor.user,
            sku=fields["sku"],
            currency=fields["currency"],
            per_hour=fields["per_hour"],
            from_at=fields.get("starts_at") or self.now,
            now=self.now,
        )
        made.refresh_from_db(fields=["during"])  # as a range
        return Response(PriceOut(made).data, status=201)
