"""What part of usage a person asks to see: the period in the billing zone, grouping, filters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from django import forms
from django.http import QueryDict
from django.utils.translation import gettext_lazy as _

from portal.billing import periods
from portal.billing.selection import Filters
from portal.billing.usage import Grouping
from portal.instances.models import Flavor
from portal.tenants.models import Member, Organization, Team, TeamMember
from portal.tenants.roles import Actor, Reach
from portal.web.forms import Styled

_LONGEST = timedelta(days=366 * 3)
_EARLIEST, _LATEST = date(2000, 1, 1), date(2100, 1, 1)
_DEFAULTS: Mapping[str, list[str]] = {"period": ["this-month"], "by": ["day"]}


@dataclass(frozen=True, slots=True)
class Span:
    """Whole days of a billing zone: the first and the last, and [start, end) as instants."""

    first: date
    last: date
    start: datetime
    end: datetime


def this_month(*, organization: Organization, now: datetime) -> Span:
    """Return the month of the billing zone that contains `now`."""
    return _month(organization, now)


def last_month(*, organization: Organization, now: datetime) -> Span:
    """Return the month before that one."""
    return _month(organization, _month(organization, now).start - timedelta(milliseconds=1))


def _month(organization: Organization, at: datetime) -> Span:
    month = periods.month_of(at=at, zone=ZoneInfo(organization.billing_zone))
    following = (month.first + timedelta(days=32)).replace(day=1)
    return Span(
        month.first,
        following - timedelta(days=1),
        periods.from_ms(month.start),
        periods.from_ms(month.end),
    )


def _days(organization: Organization, first: date, last: date) -> Span:
    zone = ZoneInfo(organization.billing_zone)
    return Span(
        first,
        last,
        periods.midnight(day=first, zone=zone),
        periods.midnight(day=last + timedelta(days=1), zone=zone),
    )


def _day_input() -> forms.DateInput:
    return forms.DateInput(format="%Y-%m-%d", attrs={"type": "date"})


class UsageForm(Styled):
    """The address of the page, as a form: what is not given has its default."""

    period = forms.ChoiceField(
        label=_("Period"),
        choices=[
            ("this-month", _("This month")),
            ("last-month", _("Last month")),
            ("custom", _("From and to")),
        ],
    )
    first = forms.DateField(label=_("From"), required=False, widget=_day_input())
    last = forms.DateField(label=_("To, inclusive"), required=False, widget=_day_input())
    by = forms.MultipleChoiceField(
        label=_("Group by"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        choices=[
            ("day", _("Day")),
            ("team", _("Team")),
            ("member", _("Member")),
            ("flavor", _("Size")),
            ("instance", _("Instance")),
        ],
    )
    team = forms.ChoiceField(label=_("Team"), required=False)
    member = forms.ChoiceField(label=_("Member"), required=False)
    flavor = forms.ChoiceField(label=_("Size"), required=False)
    instance = forms.UUIDField(required=False, widget=forms.HiddenInput)

    def __init__(self, query: QueryDict, *, actor: Actor, **kwargs: Any) -> None:
        self.query = _with_defaults(query)
        given = self.query.copy()
        given.setlist("by", [name for name in self.query.getlist("by") if name])  # "by=": ungrouped
        super().__init__(given, auto_id="usage_%s", **kwargs)
        self.actor = actor
        everyone = [("", _("All"))]
        self._choose("team", [*everyone, *_teams(actor)])
        self._choose("member", [*everyone, *_members(actor)])
        self._choose("flavor", [*everyone, *Flavor.objects.values_list("code", "name")])

    def _choose(self, name: str, choices: Sequence[tuple[str, Any]]) -> None:
        field = cast(forms.ChoiceField, self.fields[name])
        # A link to a team that was just deleted, or to a size no longer known, finds nothing.
        asked = self.query.get(name, "")
        known = {value for value, _label in choices}
        field.choices = [*choices, *([] if asked in known else [(asked, asked)])]

    def clean(self) -> dict[str, Any]:
        """Check the dates of a period of one's own."""
        values = dict(super().clean() or {})
        if values.get("period") != "custom" or self.errors:
            return values
        first, last = values.get("first"), values.get("last")
        if first is None or last is None:
            self.add_error(
                "first" if first is None else "last", forms.ValidationError(_("Choose a day."))
            )
        elif last < first:
            self.add_error("last", forms.ValidationError(_("It ends before it begins.")))
        elif last - first > _LONGEST or first < _EARLIEST or last >= _LATEST:
            self.add_error("last", forms.ValidationError(_("Choose at most three years.")))
        return values

    def clean_team(self) -> UUID | None:
        """Read the team's id."""
        return _uuid(self.cleaned_data["team"])

    def clean_member(self) -> UUID | None:
        """Read the member's id."""
        return _uuid(self.cleaned_data["member"])

    def span(self, *, now: datetime) -> Span:
        """Return the period that was asked for; the form must be valid."""
        organization, values = self.actor.organization, self.cleaned_data
        if values["period"] == "custom":
            return _days(organization, values["first"], values["last"])
        month = last_month if values["period"] == "last-month" else this_month
        return month(organization=organization, now=now)

    @property
    def group_by(self) -> list[Grouping]:
        """What to group by, in one order, whatever the order in the address."""
        asked = self.cleaned_data["by"]
        ordered: tuple[Grouping, ...] = ("day", "team", "member", "flavor", "instance")
        return [name for name in ordered if name in asked]

    @property
    def is_narrowed(self) -> bool:
        """Whether something more than a month and one grouping was asked for."""
        values = self.cleaned_data
        return (
            values["period"] == "custom"
            or len(values["by"]) > 1
            or bool(values["team"] or values["member"] or values["flavor"])
        )

    @property
    def filters(self) -> Filters:
        """What to narrow it to."""
        values = self.cleaned_data
        return Filters(
            team_id=values["team"],
            member_id=values["member"],
            flavor=values["flavor"] or None,
            instance_id=values["instance"],
        )


def _with_defaults(query: QueryDict) -> QueryDict:
    filled = query.copy()
    for name, values in _DEFAULTS.items():
        if name not in filled:
            filled.setlist(name, values)
    return filled


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError as error:
        raise forms.ValidationError(_("This is not known here.")) from error


def _teams(actor: Actor) -> list[tuple[str, str]]:
    """Return the teams whose usage the actor sees."""
    teams = Team.objects.order_by("name", "id")
    return [(str(team.id), team.name) for team in teams if actor.may("usage.view", team_id=team.id)]


def _members(actor: Actor) -> list[tuple[str, str]]:
    """Return the members whose usage the actor sees; removed ones too, since bills name them."""
    reach = actor.reach("usage.view")
    members = Member.objects.select_related("user").order_by("user__name", "user__email")
    if Reach.ALL not in reach:
        teams = actor.team_ids if Reach.TEAMS in reach else actor.admin_team_ids
        places = TeamMember.objects.filter(team_id__in=teams)
        members = members.filter(id__in={actor.member.id, *places.values_list("member", flat=True)})
    return [(str(member.id), str(member)) for member in members]
