"""What is on offer: flavors with their price and how many are free now, and images."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from portal.billing import prices
from portal.instances import placement
from portal.instances.models import Flavor, Image
from portal.money import Money
from portal.tenants.scope import every_tenant
from scheduler.engine.snapshot import WHOLE_GPU, Node

_UNLIMITED = 10**6


@dataclass(frozen=True, slots=True)
class Offer:
    """A flavor with its price per hour (None: can't be launched in this currency).

    `free_now` is how many of it would start at once, `total` how many the machines in service
    could hold when empty.
    """

    flavor: Flavor
    per_hour: Money | None
    free_now: int
    total: int


def flavors(*, currency: str, now: datetime) -> list[Offer]:
    """Return the flavors on offer, in their order, with prices in `currency`."""
    with every_tenant("free counts rest on all tenants' leases; no tenant's row is shown"):
        machines = placement.supply(now=now)
    per_hour = {
        price.sku: Money(price.per_hour, currency)
        for price in prices.list_prices(at=now)
        if price.currency == currency
    }
    return [
        Offer(
            flavor=flavor,
            per_hour=per_hour.get(flavor.code),
            free_now=free_now(flavor, machines),
            total=sum(_when_empty(flavor, machine) for machine in machines),
        )
        for flavor in Flavor.objects.filter(is_offered=True)
    ]


def images() -> QuerySet[Image]:
    """Return the images on offer, in their order."""
    return Image.objects.filter(is_offered=True)


def free_now(flavor: Flavor, machines: Sequence[Node]) -> int:
    """Count how many of a flavor these machines could start at once."""
    return sum(_on(flavor, machine) for machine in machines if machine.schedulable)


def _on(flavor: Flavor, machine: Node) -> int:
    free = [
        [high - low for low, high in gpu.free]
        for gpu in machine.gpus
        if gpu.healthy and _accepts(flavor, gpu.model, gpu.memory_bytes)
    ]
    left = (machine.cpu_free, machine.memory_free, machine.disk_free)
    return min(_by_gpus(flavor, free), *_by_the_rest(flavor, left))


def _when_empty(flavor: Flavor, machine: Node) -> int:
    gpus = [[WHOLE_GPU] for gpu in machine.gpus if _accepts(flavor, gpu.model, gpu.memory_bytes)]
    total = (machine.cpu_milli, machine.memory_bytes, machine.disk_bytes)
    return min(_by_gpus(flavor, gpus), *_by_the_rest(flavor, total))


def _by_the_rest(flavor: Flavor, there: tuple[int, int, int]) -> list[int]:
    needed = (flavor.cpu_milli, flavor.memory_bytes, flavor.disk_bytes)
    return [have // need for have, need in zip(there, needed, strict=True) if need] or [_UNLIMITED]


def _accepts(flavor: Flavor, model: str, memory_bytes: int) -> bool:
    # As the planner asks: the memory of the whole GPU that a share is cut from.
    needed = -(-flavor.gpu_memory_bytes * WHOLE_GPU // flavor.units_per_gpu)
    return model in (flavor.gpu_models or [model]) and memory_bytes >= needed


def _by_gpus(flavor: Flavor, gpus: Sequence[Sequence[int]]) -> int:
    """Count instances that the free stretches of these GPUs hold, by GPU alone."""
    if not flavor.gpu_count:
        return _UNLIMITED  # CPU, memory or disk limit it
    pieces = [sum(size // flavor.units_per_gpu for size in sizes) for sizes in gpus]
    if flavor.units_per_gpu < WHOLE_GPU:
        return sum(pieces)
    return sum(pieces) // flavor.gpu_count
