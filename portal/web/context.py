"""What the frame around every page needs: who, where, which language and theme."""

import json
from functools import cached_property

from django.conf import settings
from django.http import HttpRequest
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from portal.tenants import access
from portal.tenants.models import Member, User
from portal.tenants.roles import Actor
from portal.web import navigation


class Shell:
    """The frame, computed only as far as a template asks for it (fragments ask for none)."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    @cached_property
    def user(self) -> User | None:
        """The person, or None."""
        user = getattr(self._request, "user", None)
        return user if isinstance(user, User) else None

    @cached_property
    def actor(self) -> Actor | None:
        """The person in the organization of this page, or None outside of one."""
        return getattr(self._request, "actor", None)

    @cached_property
    def memberships(self) -> list[Member]:
        """The organizations to switch between."""
        return access.memberships(user=self.user) if self.user else []

    @cached_property
    def theme(self) -> str:
        """`light`, `dark` or `auto`."""
        chosen = self.user.theme if self.user else self._request.COOKIES.get("theme", "auto")
        return chosen if chosen in {"light", "dark"} else "auto"

    @property
    def language(self) -> str:
        """The language of the page, as HTML names it."""
        return "zh-Hans" if (get_language() or "").startswith("zh") else "en"

    @property
    def languages(self) -> list[tuple[str, str]]:
        """The languages to choose from, each by its own name."""
        return [("en", "English"), ("zh-hans", "简体中文")]

    @cached_property
    def sections(self) -> list[navigation.Link]:
        """What the member works with."""
        return self._links(navigation.WORK) if self.actor else []

    @cached_property
    def people_sections(self) -> list[navigation.Link]:
        """The organization itself."""
        return self._links(navigation.PEOPLE) if self.actor else []

    @cached_property
    def operator_sections(self) -> list[navigation.Link]:
        """The installation, for operators."""
        if not (self.user and self.user.is_operator):
            return []
        return navigation.links(navigation.OPERATE, actor=None, path=self._request.path)

    @property
    def is_demo(self) -> bool:
        """Whether this installation shows demo data."""
        return bool(settings.DEMO)

    @property
    def script_words(self) -> str:
        """The few words that scripts put on the page, as JSON."""
        return json.dumps(
            {
                "reconnecting": _("Reconnecting… figures may be out of date."),
                "offline": _("You are offline. This page catches up by itself."),
                "live": _("Live again."),
                "copied": _("Copied"),
                "age": _("{age} old"),
                "sessionOver": _("You have been signed out. Reload to sign in."),
                "failed": _("That did not work. Try again."),
                "noData": _("No samples yet"),
            }
        )

    def _links(self, sections: tuple[navigation.Section, ...]) -> list[navigation.Link]:
        return navigation.links(sections, actor=self.actor, path=self._request.path)


def page(request: HttpRequest) -> dict[str, Shell]:
    """Give every template its `shell`."""
    return {"shell": Shell(request)}
