"""`flavors` and `images`: what is on offer."""

from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.endpoint import Endpoint, listed
from portal.api.fields import MoneyField
from portal.api.schema import operation, paged
from portal.errors import NotFound
from portal.instances import catalogue


class FlavorOut(serializers.Serializer[Any]):
    """A size on offer."""

    id = serializers.UUIDField(source="flavor.id")
    code = serializers.CharField(source="flavor.code", help_text="Also its SKU.")
    name = serializers.CharField(source="flavor.name")
    description = serializers.CharField(source="flavor.description")
    gpu_models = serializers.ListField(
        source="flavor.gpu_models", child=serializers.CharField(), help_text="Any of these."
    )
    gpu_count = serializers.IntegerField(source="flavor.gpu_count")
    units_per_gpu = serializers.IntegerField(
        source="flavor.units_per_gpu", help_text="Of 1000: below that a share of one GPU."
    )
    gpu_memory_bytes = serializers.IntegerField(source="flavor.gpu_memory_bytes")
    cpu_milli = serializers.IntegerField(source="flavor.cpu_milli")
    memory_bytes = serializers.IntegerField(source="flavor.memory_bytes")
    disk_bytes = serializers.IntegerField(source="flavor.disk_bytes")
    price_per_hour = MoneyField(
        source="per_hour", allow_null=True, help_text="Null: not sold in this currency."
    )
    free_now = serializers.IntegerField(help_text="How many would start at once.")
    total = serializers.IntegerField(help_text="How many the machines hold when empty.")


class ImageOut(serializers.Serializer[Any]):
    """A container image on offer."""

    id = serializers.UUIDField()
    code = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    reference = serializers.CharField()
    command = serializers.ListField(child=serializers.CharField())
    ports = serializers.ListField(child=serializers.IntegerField())


class Flavors(Endpoint):
    """`/flavors`."""

    needs = {"GET": "a token"}

    @operation("list_flavors", "List the flavors on offer.", gives=paged(FlavorOut))
    def get(self, request: Request) -> Response:
        """Answer them in their order."""
        return listed([FlavorOut(offer).data for offer in _offers(self)])


class Flavor(Endpoint):
    """`/flavors/{code or id}`."""

    needs = {"GET": "a token"}

    @operation("get_flavor", "Show a flavor on offer.", gives=FlavorOut)
    def get(self, request: Request, flavor: str) -> Response:
        """Answer one."""
        for offer in _offers(self):
            if flavor in {offer.flavor.code, str(offer.flavor.id)}:
                return Response(FlavorOut(offer).data)
        raise NotFound("flavor_not_found", _("There is no such flavor on offer."))


class Images(Endpoint):
    """`/images`."""

    needs = {"GET": "a token"}

    @operation("list_images", "List the images on offer.", gives=paged(ImageOut))
    def get(self, request: Request) -> Response:
        """Answer them in their order."""
        return listed([ImageOut(image).data for image in catalogue.images()])


class Image(Endpoint):
    """`/images/{code or id}`."""

    needs = {"GET": "a token"}

    @operation("get_image", "Show an image on offer.", gives=ImageOut)
    def get(self, request: Request, image: str) -> Response:
        """Answer one."""
        for found in catalogue.images():
            if image in {found.code, str(found.id)}:
                return Response(ImageOut(found).data)
        raise NotFound("image_not_found", _("There is no such image on offer."))


def _offers(endpoint: Endpoint) -> list[catalogue.Offer]:
    return catalogue.flavors(currency=endpoint.actor.organization.currency, now=endpoint.now)
