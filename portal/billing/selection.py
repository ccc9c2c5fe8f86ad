"""Which metered time a person may see, and which of it he asked for: decided here for all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from portal.tenants.models import Organization
from portal.tenants.roles import Actor, Reach, require


@dataclass(frozen=True, slots=True)
class Filters:
    """Narrow usage to one team, member, flavor (its code) or instance; None leaves it open."""

    team_id: UUID | None = None
    member_id: UUID | None = None
    flavor: str | None = None
    instance_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """Metered time of one organization that somebody may see and asked for."""

    organization: Organization
    everything: bool
    team_ids: frozenset[UUID]
    own_id: UUID | None
    filters: Filters

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Return what CLAUSE needs."""
        return {
            "organization": self.organization.id,
            "everything": self.everything,
            "teams": list(self.team_ids),
            "own": self.own_id,
            "team": self.filters.team_id,
            "member": self.filters.member_id,
            "flavor": self.filters.flavor,
            "instance": self.filters.instance_id,
        }


# Over `billing_meter m`. A filter only ever narrows what the first two lines allow.
CLAUSE = """
    m.organization_id = %(organization)s
AND (%(everything)s OR m.team_id = ANY(%(teams)s::uuid[]) OR m.member_id = %(own)s::uuid)
AND (%(team)s::uuid IS NULL OR m.team_id = %(team)s::uuid)
AND (%(member)s::uuid IS NULL OR m.member_id = %(member)s::uuid)
AND (%(flavor)s::text IS NULL OR m.sku = %(flavor)s::text)
AND (%(instance)s::uuid IS NULL OR m.subject = %(instance)s::uuid)
"""


def seen_by(*, actor: Actor, filters: Filters | None = None) -> Selection:
    """Return what the actor may see of his organization's usage, narrowed by the filters.

    Owners, admins and finance see all, admins of teams their teams, members their own. Raises
    UnableToAct for those who see none.
    """
    if not actor.may_somewhere("usage.view"):
        require(actor, "usage.view")
    reach = actor.reach("usage.view")
    teams = actor.team_ids if Reach.TEAMS in reach else frozenset()
    led = actor.admin_team_ids if Reach.LED in reach else frozenset()
    return Selection(
        organization=actor.organization,
        everything=Reach.ALL in reach,
        team_ids=teams | led,
        own_id=actor.member.id if Reach.OWN in reach else None,
        filters=filters or Filters(),
    )


def whole(*, organization: Organization) -> Selection:
    """Return everything of one organization: for the installation's own commands."""
    return Selection(organization, True, frozenset(), None, Filters())
