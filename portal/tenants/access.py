"""From a person, and the organization they name, to an Actor. Strangers learn nothing."""

from django.utils.translation import gettext as _

from portal.errors import NotFound
from portal.tenants.models import ApiToken, Member, Organization, TeamMember, User
from portal.tenants.roles import Actor
from portal.tenants.scope import every_tenant, scope


class UnableToEnter(NotFound):
    """No such organization, or not theirs: nobody can tell which."""


def actor_for(*, user: User, slug: str) -> Actor:
    """Return `user` acting in the organization of that slug.

    Raises UnableToEnter (404) for strangers, removed members and blocked users alike.
    """
    organization = Organization.objects.filter(slug=slug).first()
    if organization is not None and user.is_active:
        with scope(organization=organization):
            member = Member.objects.filter(user=user, removed_at=None).first()
        if member is not None:
            member.organization, member.user = organization, user
            return actor_for_member(member=member)
    raise UnableToEnter(
        "organization_not_found",
        _("There is no such organization, or you are not a member of it."),
        help=_("Check the address, or ask for an invitation."),
    )


def actor_for_member(*, member: Member, token: ApiToken | None = None) -> Actor:
    """Return the member acting, by a token if one is given.

    Raises UnableToEnter for a removed member and a blocked user.
    """
    if member.removed_at is not None or not member.user.is_active:
        raise UnableToEnter(
            "organization_not_found",
            _("There is no such organization, or you are not a member of it."),
        )
    with scope(organization=member.organization):
        places = dict(TeamMember.objects.filter(member=member).values_list("team_id", "is_admin"))
    return Actor(
        user=member.user,
        organization=member.organization,
        member=member,
        token=token,
        team_ids=frozenset(places),
        admin_team_ids=frozenset(team_id for team_id, is_admin in places.items() if is_admin),
    )


def memberships(*, user: User) -> list[Member]:
    """Return the organizations a person is in, by name, each as their Member row there."""
    with every_tenant("a person's own memberships, to choose from"):
        return list(
            Member.objects.filter(user=user, removed_at=None)
            .select_related("organization", "user")
            .order_by("organization__name", "id")
        )
