"""Build the least that a test needs. Rows only; nothing here goes through a door."""

import itertools
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from portal.billing.models import Price
from portal.fleet.models import Gpu, Link, Node
from portal.instances.models import Flavor, Image
from portal.tenants.models import Member, Organization, Role, Team, TeamMember, User
from portal.tenants.scope import every_tenant

_numbers = itertools.count(1)
NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
GIB = 1024**3
H100 = "H100 SXM 80GB"
PASSWORD = "correct horse battery"


def user(email: str = "", **fields: Any) -> User:
    """Make a person with a verified address and the password PASSWORD."""
    from allauth.account.models import EmailAddress

    person = User.objects.create_user(
        email or f"person{next(_numbers)}@example.com", PASSWORD, **fields
    )
    EmailAddress.objects.create(user=person, email=person.email, verified=True, primary=True)
    return person


def organization(name: str = "", **fields: Any) -> Organization:
    """Make an organization without members."""
    number = next(_numbers)
    return Organization.objects.create(
        name=name or f"Organization {number}", slug=f"organization-{number}", **fields
    )


def member(
    organization: Organization,
    role: str = Role.MEMBER,
    *,
    teams: tuple[Team, ...] = (),
    admin_of: tuple[Team, ...] = (),
    **fields: Any,
) -> Member:
    """Make a person and put him into the organization and the teams."""
    with every_tenant("factories"):
        made = Member.objects.create(organization=organization, user=user(**fields), role=role)
        for joined in {*teams, *admin_of}:
            TeamMember.objects.create(
                organization=organization, team=joined, member=made, is_admin=joined in admin_of
            )
    return made


def team(organization: Organization, name: str = "") -> Team:
    """Make a team."""
    number = next(_numbers)
    with every_tenant("factories"):
        return Team.objects.create(
            organization=organization, name=name or f"Team {number}", slug=f"team-{number}"
        )


def flavor(
    *, per_hour: str = "2.49", model: str = H100, currency: str = "USD", **fields: Any
) -> Flavor:
    """Make a flavor with an open-ended price that began long ago."""
    number = next(_numbers)
    values = {
        "code": f"flavor-{number}",
        "name": f"Flavor {number}",
        "gpu_models": [model],
        "gpu_memory_bytes": 80 * GIB,
        "cpu_milli": 8000,
        "memory_bytes": 64 * GIB,
        "disk_bytes": 100 * GIB,
    }
    made = Flavor.objects.create(**(values | fields))
    price(made.code, per_hour, currency=currency)
    return made


def price(
    sku: str,
    per_hour: str,
    *,
    currency: str = "USD",
    from_at: datetime | None = None,
    to_at: datetime | None = None,
) -> Price:
    """Make a price valid from `from_at` (2020 by default)."""
    start = from_at or datetime(2020, 1, 1, tzinfo=UTC)
    return Price.objects.create(
        sku=sku,
        currency=currency,
        per_hour=Decimal(per_hour),
        during=(start, to_at),
        created_at=start,
    )


def image(**fields: Any) -> Image:
    """Make an image."""
    number = next(_numbers)
    values = {
        "code": f"image-{number}",
        "name": f"Image {number}",
        "reference": "corral/demo:1",
        "command": ["sleep", "60"],
    }
    return Image.objects.create(**(values | fields))


def node(
    *, gpus: int = 8, model: str = H100, online: bool = True, now: datetime = NOW, **fields: Any
) -> Node:
    """Make a node with healthy GPUs and plenty of CPU, memory and disk."""
    number = next(_numbers)
    values = {
        "name": f"node-{number}",
        "public_key": bytes(32),
        "link": Link.ONLINE if online else Link.OFFLINE,
        "link_since": now,
        "last_seen_at": now,
        "joined_at": now,
        "runtime": "process",
        "cpu_milli": 128_000,
        "memory_bytes": 1024 * GIB,
        "disk_bytes": 8192 * GIB,
        "session_epoch": 1,
        "boot_id": "boot-1",
    }
    made = Node.objects.create(**(values | fields))
    for index in range(gpus):
        Gpu.objects.create(
            node=made,
            uuid=f"GPU-{uuid.uuid4()}",
            index=index,
            model=model,
            memory_bytes=80 * GIB,
            state_since=now,
        )
    return made
