"""The sections of the navigation, in order, and who is offered each."""

from dataclasses import dataclass

from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.tenants.roles import Actor, Permission


@dataclass(frozen=True, slots=True)
class Section:
    """One entry: a page that somebody may be offered."""

    name: str | Promise
    url_name: str
    icon: str
    permission: Permission | None = None


WORK = (
    Section(_("Dashboard"), "dashboard", "dashboard"),
    Section(_("Instances"), "instances", "cpu", "instances.view"),
    Section(_("Usage"), "usage", "chart-line", "usage.view"),
    Section(_("Quotas"), "quotas", "gauge", "quotas.view"),
    Section(_("Prices"), "prices", "tag"),
)
PEOPLE = (
    Section(_("Teams"), "teams", "users-group", "members.view"),
    Section(_("Members"), "members", "users", "members.view"),
    Section(_("API tokens"), "tokens", "key", "tokens.manage"),
    Section(_("Audit log"), "audit", "history", "audit.view"),
    Section(_("Settings"), "organization", "settings"),
)
OPERATE = (
    Section(_("Nodes"), "nodes", "server-2"),
    Section(_("Catalogue"), "catalogue", "list"),
)


@dataclass(frozen=True, slots=True)
class Link:
    """A section as this page shows it."""

    name: str | Promise
    url: str
    icon: str
    is_current: bool


def links(sections: tuple[Section, ...], *, actor: Actor | None, path: str) -> list[Link]:
    """Return the sections that this person is offered, as links; the one we are in is marked."""
    slug = [actor.organization.slug] if actor else []
    found = []
    for section in sections:
        if section.permission and not (actor and actor.may_somewhere(section.permission)):
            continue
        url = reverse(section.url_name, args=slug)
        here = path == url if section.url_name == "dashboard" else path.startswith(url)
        found.append(Link(section.name, url, section.icon, here))
    return found
