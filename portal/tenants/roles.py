"""The table of roles and permissions, and the one question everybody asks of it.

A role reaches every permission so far: not at all, one's own things, the teams one is in, the whole
organization. Being admin of a team adds to that, inside that team. A token can only narrow.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Flag, auto
from typing import Final, Literal, get_args
from uuid import UUID

from django.utils.translation import gettext as _

from portal.errors import Forbidden
from portal.tenants.models import ApiToken, Member, Organization, Role, User

Permission = Literal[
    "instances.view",
    "instances.launch",
    "instances.manage",
    "members.view",
    "members.manage",
    "teams.manage",
    "quotas.view",
    "quotas.manage",
    "usage.view",
    "money.view",
    "tokens.manage",
    "audit.view",
    "organization.manage",
]
PERMISSIONS: Final[tuple[Permission, ...]] = get_args(Permission)


class Reach(Flag):
    """How far a permission goes."""

    NOTHING = 0
    OWN = auto()  # what the member owns
    TEAMS = auto()  # what belongs to a team the member is in
    LED = auto()  # what belongs to a team the member is admin of
    ALL = auto()  # the whole organization


_NOTHING, _OWN, _TEAMS, _ALL = Reach.NOTHING, Reach.OWN, Reach.TEAMS, Reach.ALL
_SEEN = _OWN | _TEAMS

_COLUMNS = (Role.OWNER, Role.ADMIN, Role.FINANCE, Role.MEMBER, Role.VIEWER)
_ROWS: Final[dict[Permission, tuple[Reach, ...]]] = {
    #                      OWNER ADMIN FINANCE   MEMBER    VIEWER
    "instances.view":      (_ALL, _ALL, _NOTHING, _SEEN,    _TEAMS),
    "instances.launch":    (_ALL, _ALL, _NOTHING, _TEAMS,   _NOTHING),
    "instances.manage":    (_ALL, _ALL, _NOTHING, _OWN,     _NOTHING),
    "members.view":        (_ALL, _ALL, _ALL,     _ALL,     _ALL),
    "members.manage":      (_ALL, _ALL, _NOTHING, _NOTHING, _NOTHING),
    "teams.manage":        (_ALL, _ALL, _NOTHING, _NOTHING, _NOTHING),
    "quotas.view":         (_ALL, _ALL, _ALL,     _SEEN,    _TEAMS),
    "quotas.manage":       (_ALL, _ALL, _NOTHING, _NOTHING, _NOTHING),
    "usage.view":          (_ALL, _ALL, _ALL,     _OWN,     _TEAMS),
    "money.view":          (_ALL, _ALL, _ALL,     _NOTHING, _NOTHING),
    "tokens.manage":       (_ALL, _ALL, _OWN,     _OWN,     _OWN),
    "audit.view":          (_ALL, _ALL, _NOTHING, _NOTHING, _NOTHING),
    "organization.manage": (_ALL, _ALL, _NOTHING, _NOTHING, _NOTHING),
}  # fmt: skip
REACH: Final[dict[Role, dict[Permission, Reach]]] = {
    role: {permission: row[column] for permission, row in _ROWS.items()}
    for column, role in enumerate(_COLUMNS)
}

# What the admin of a team may do inside that team, on top of the role.
_TEAM_ADMIN: Final[frozenset[Permission]] = frozenset(
    {
        "instances.view",
        "instances.launch",
        "instances.manage",
        "teams.manage",
        "quotas.view",
        "quotas.manage",
        "usage.view",
    }
)
# These two roles look only, whatever team they are put in charge of.
_NEVER_TEAM_ADMIN: Final = frozenset({Role.FINANCE, Role.VIEWER})

# What a token of each scope may be used for, as far as its member may.
SCOPES: Final[dict[str, frozenset[Permission]]] = {
    "read": frozenset({"instances.view", "members.view", "quotas.view", "usage.view"}),
    "instances": frozenset(
        {"instances.view", "instances.launch", "instances.manage", "quotas.view"}
    ),
    "admin": frozenset(
        {
            "members.view",
            "members.manage",
            "teams.manage",
            "quotas.view",
            "quotas.manage",
            "tokens.manage",
            "audit.view",
            "organization.manage",
        }
    ),
    "money": frozenset({"usage.view", "money.view"}),
    "operator": frozenset(),
    "full": frozenset(PERMISSIONS),
}


class UnableToAct(Forbidden):
    """The role, or the token's scopes, do not allow it."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody acting in an organization, and how far they may go.

    Made by `portal.tenants.access` for people and by `portal.tenants.tokens` for programs; it is a
    picture of the moment, so make a new one for every request.
    """

    user: User
    organization: Organization
    member: Member
    token: ApiToken | None
    team_ids: frozenset[UUID]
    admin_team_ids: frozenset[UUID]

    def may(
        self, permission: Permission, *, team_id: UUID | None = None, owner_id: UUID | None = None
    ) -> bool:
        """Tell whether this is allowed on a thing of that team and that owner (a member's id).

        With neither named the question is about the whole organization; see `may_somewhere`.
        """
        reach = self.reach(permission)
        if Reach.ALL in reach:
            return True
        if Reach.OWN in reach and owner_id is not None and owner_id == self.member.id:
            return True
        if Reach.TEAMS in reach and team_id in self.team_ids:
            return True
        return Reach.LED in reach and team_id in self.admin_team_ids

    def may_somewhere(self, permission: Permission) -> bool:
        """Tell whether this is allowed on anything at all: whether to offer a page or a button."""
        reach = self.reach(permission)
        return bool(reach) and (reach != Reach.TEAMS or bool(self.team_ids))

    def reach(self, permission: Permission) -> Reach:
        """Return how far the permission goes, to filter a list by it."""
        if self.token is not None and not _token_allows(self.token.scopes, permission):
            return Reach.NOTHING
        role = Role(self.member.role)
        reach = REACH[role][permission]
        leads = bool(self.admin_team_ids) and role not in _NEVER_TEAM_ADMIN
        if leads and permission in _TEAM_ADMIN:
            reach |= Reach.LED
        return reach

    @property
    def is_operator(self) -> bool:
        """Whether they may see and change the installation itself: nodes, GPUs, prices."""
        if not (self.user.is_active and self.user.is_operator):
            return False
        return self.token is None or bool({"operator", "full"} & set(self.token.scopes))


def require(
    actor: Actor,
    permission: Permission,
    *,
    team_id: UUID | None = None,
    owner_id: UUID | None = None,
) -> None:
    """Raise UnableToAct unless `actor.may(...)`.

    For a thing that the actor may not even see, raise NotFound instead: the answer to a foreign id
    and to a missing one is the same.
    """
    if actor.may(permission, team_id=team_id, owner_id=owner_id):
        return
    if actor.token is not None and not _token_allows(actor.token.scopes, permission):
        raise UnableToAct(
            "scope_missing",
            _("This token's scopes do not allow that."),
            help=_("Use a token with one of these scopes: %(scopes)s.")
            % {"scopes": ", ".join(_scopes_for(permission))},
            details={"permission": permission, "scopes": sorted(_scopes_for(permission))},
        )
    raise UnableToAct(
        "role_missing",
        _("Your role in this organization does not allow that."),
        help=_("Ask an owner or admin of the organization, or an admin of the team."),
        details={"permission": permission},
    )


def _token_allows(scopes: Iterable[str], permission: Permission) -> bool:
    return any(permission in SCOPES.get(scope, ()) for scope in scopes)


def _scopes_for(permission: Permission) -> list[str]:
    return [scope for scope, permissions in SCOPES.items() if permission in permissions]
