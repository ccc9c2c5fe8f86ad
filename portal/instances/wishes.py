"""What a launch may ask for: names, commands, variables, times, and what is on offer."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils.translation import gettext as _

from portal.errors import DomainError, Invalid, NotFound
from portal.instances.models import Flavor, Image
from portal.tenants.models import Team
from portal.tenants.roles import Actor

# As a host name's label: it becomes one on the node.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MOST_WORDS, _LONGEST_WORD = 64, 2000
_MOST_VARIABLES, _LONGEST_VALUE = 100, 8192
_LONGEST_TIME = timedelta(days=366)
LEAST_PRIORITY, MOST_PRIORITY = -100, 100


class UnableToWish(Invalid):
    """Some fields make no sense; `details` has a list of sentences for each."""


class UnableToLaunch(DomainError):
    """The instance can't be launched as asked."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Fields of a launch that make sense."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    priority: int
    stop_at: datetime | None

    def fields(self) -> dict[str, Any]:
        """Return them as fields of an instance."""
        return {
            "name": self.name,
            "command": list(self.command),
            "env": dict(self.env),
            "priority": self.priority,
            "stop_at": self.stop_at,
        }


def check(
    *,
    name: str,
    command: Sequence[str],
    env: Mapping[str, str] | None,
    priority: int,
    stop_at: datetime | None,
    now: datetime,
) -> Wish:
    """Return the fields of a launch, or raise UnableToWish with every fault at once."""
    found = {
        "name": _fault_of_name(name),
        "command": _fault_of_command(command),
        "env": _fault_of_env(env or {}),
        "priority": _fault_of_priority(priority),
        "stop_at": _fault_of_time(stop_at, now),
    }
    faults = {field: [fault] for field, fault in found.items() if fault}
    if faults:
        raise _unable(faults)
    return Wish(name, tuple(command), dict(env or {}), priority, stop_at)


def stop_time(stop_at: datetime | None, now: datetime) -> datetime | None:
    """Return a stop time that lies ahead, or raise UnableToWish."""
    fault = _fault_of_time(stop_at, now)
    if fault:
        raise _unable({"stop_at": [fault]})
    return stop_at


def _unable(faults: Mapping[str, list[str]]) -> UnableToWish:
    first = next(iter(faults.values()))[0]
    return UnableToWish(
        "invalid", first, help=_("Correct the fields and send it again."), details=faults
    )


def _fault_of_name(name: str) -> str:
    if _NAME.fullmatch(name):
        return ""
    return _(
        "Use 1 to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends."
    )


def _fault_of_command(command: Sequence[Any]) -> str:
    if isinstance(command, str) or not all(isinstance(word, str) for word in command):
        return _("A command is a list of words.")
    if len(command) > _MOST_WORDS or any(len(word) > _LONGEST_WORD for word in command):
        return _("A command has at most %(words)s words of at most %(letters)s letters.") % {
            "words": _MOST_WORDS,
            "letters": _LONGEST_WORD,
        }
    return _no_nul(command)


def _fault_of_env(env: Mapping[Any, Any]) -> str:
    for name, value in env.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            return _("“%(name)s” can't be the name of a variable.") % {"name": str(name)[:80]}
        if not isinstance(value, str) or len(value) > _LONGEST_VALUE:
            return _("The value of %(name)s must be text of at most %(letters)s letters.") % {
                "name": name,
                "letters": _LONGEST_VALUE,
            }
    if len(env) > _MOST_VARIABLES:
        return _("At most %(count)s variables.") % {"count": _MOST_VARIABLES}
    return _no_nul(env.values())


def _no_nul(texts: Iterable[str]) -> str:
    if any("\0" in text for text in texts):
        return _("Text can't contain the NUL character.")
    return ""


def _fault_of_priority(priority: object) -> str:
    if isinstance(priority, int) and LEAST_PRIORITY <= priority <= MOST_PRIORITY:
        return ""
    return _("Use a whole number from %(least)s to %(most)s.") % {
        "least": LEAST_PRIORITY,
        "most": MOST_PRIORITY,
    }


def _fault_of_time(stop_at: datetime | None, now: datetime) -> str:
    if stop_at is None:
        return ""
    if stop_at.tzinfo is None:
        return _("Give the stop time with its time zone.")
    if stop_at <= now:
        return _("The stop time has passed; give a time that lies ahead.")
    if stop_at - now > _LONGEST_TIME:
        return _("Give a stop time within a year.")
    return ""


def team_of(actor: Actor, team_id: UUID) -> Team:
    """Return a team of the actor's organization, or raise NotFound."""
    team = Team.objects.filter(organization=actor.organization, id=team_id).first()
    if team is None:
        raise NotFound(
            "team_not_found",
            _("There is no such team."),
            help=_("Choose one of your teams."),
        )
    return team


def by_code_or_id(code: str) -> Q:
    """Match a thing on offer by its code or by its id as text."""
    try:
        return Q(id=UUID(str(code)))
    except ValueError:
        return Q(code=code)


def offered_flavor(code: str) -> Flavor:
    """Return the flavor of that code or id. Raises UnableToLaunch where it is not on offer."""
    found = Flavor.objects.filter(by_code_or_id(code), is_offered=True).first()
    if found is None:
        sentence = _("There is no flavor “%(code)s” on offer.") % {"code": code}
        raise UnableToLaunch(
            "flavor_not_offered",
            sentence,
            help=_("Choose one of the flavors on offer."),
            details={"flavor": [sentence]},
        )
    return found


def offered_image(code: str) -> Image:
    """Return the image of that code or id. Raises UnableToLaunch where it is not on offer."""
    found = Image.objects.filter(by_code_or_id(code), is_offered=True).first()
    if found is None:
        sentence = _("There is no image “%(code)s” on offer.") % {"code": code}
        raise UnableToLaunch(
            "image_not_offered",
            sentence,
            help=_("Choose one of the images on offer."),
            details={"image": [sentence]},
        )
    return found
