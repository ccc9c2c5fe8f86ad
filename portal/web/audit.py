"""Who did what, when."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

from django import forms
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpResponse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from portal.billing import periods
from portal.tenants import audit
from portal.tenants.models import AuditEvent, Member
from portal.tenants.roles import Actor
from portal.web import answers
from portal.web.access import MemberRequest, member_page
from portal.web.forms import Styled
from portal.web.templatetags.ui import gpus

_PAGE = 50
VERBS: Mapping[str, Promise] = {
    "instance.launch": _("launched an instance"),
    "instance.start": _("started an instance"),
    "instance.stop": _("stopped an instance"),
    "instance.terminate": _("terminated an instance"),
    "instance.set_stop_at": _("set when an instance stops"),
    "organization.create": _("made the organization"),
    "organization.rename": _("renamed the organization"),
    "member.change_role": _("changed a role"),
    "member.remove": _("removed a member"),
    "member.leave": _("left"),
    "invitation.send": _("invited somebody"),
    "invitation.accept": _("accepted an invitation"),
    "invitation.revoke": _("closed an invitation"),
    "invitation.expire": _("closed an invitation that ran out"),
    "team.create": _("made a team"),
    "team.rename": _("renamed a team"),
    "team.add": _("added somebody to a team"),
    "team.remove": _("took somebody out of a team"),
    "team.set_admin": _("changed who is admin of a team"),
    "token.issue": _("made an API token"),
    "token.revoke": _("revoked an API token"),
    "quota.set": _("set a limit"),
}


class AuditForm(Styled):
    """What part of the log to show."""

    first = forms.DateField(
        label=_("From"), required=False, widget=forms.DateInput(attrs={"type": "date"})
    )
    last = forms.DateField(
        label=_("To, inclusive"), required=False, widget=forms.DateInput(attrs={"type": "date"})
    )
    person = forms.ChoiceField(label=_("Person"), required=False)
    verb = forms.ChoiceField(label=_("Act"), required=False)

    def __init__(self, *args: Any, actor: Actor, **kwargs: Any) -> None:
        super().__init__(*args, auto_id="audit_%s", **kwargs)
        self.zone = ZoneInfo(actor.organization.billing_zone)
        people = Member.objects.select_related("user").order_by("user__name", "user__email")
        self._choose("person", [(str(member.user_id), str(member)) for member in people])
        verbs = audit.events(actor=actor).order_by("verb").values_list("verb", flat=True)
        self._choose("verb", [(verb, _sentence(verb)) for verb in verbs.distinct()])

    def _choose(self, name: str, choices: list[tuple[str, Any]]) -> None:
        cast(forms.ChoiceField, self.fields[name]).choices = [("", _("All")), *choices]

    def narrow(self, events: QuerySet[AuditEvent]) -> QuerySet[AuditEvent]:
        """Return the events that were asked for; days are those of the billing zone."""
        values = self.cleaned_data
        if values["first"]:
            events = events.filter(at__gte=periods.midnight(day=values["first"], zone=self.zone))
        if values["last"]:
            following = values["last"] + timedelta(days=1)
            events = events.filter(at__lt=periods.midnight(day=following, zone=self.zone))
        if values["person"]:
            events = events.filter(user_id=values["person"])
        if values["verb"]:
            events = events.filter(verb=values["verb"])
        return events

    def clean(self) -> dict[str, Any]:
        """Refuse days that no calendar of ours has."""
        values = dict(super().clean() or {})
        for name in ("first", "last"):
            day = values.get(name)
            if day is not None and not 2000 <= day.year <= datetime.now(UTC).year + 1:
                self.add_error(name, forms.ValidationError(_("Choose a day of this century.")))
        return values


@member_page("audit.view")
@require_GET
def index(request: MemberRequest) -> HttpResponse:
    """List what happened, newest first, narrowed to days, a person or an act."""
    form = AuditForm(request.GET, actor=request.actor)
    is_valid = form.is_valid()
    events = audit.events(actor=request.actor)
    events = form.narrow(events) if is_valid else events.none()
    page = Paginator(events, _PAGE).get_page(request.GET.get("page"))
    query = request.GET.copy()
    query.pop("page", None)
    return answers.page(
        request,
        "people/audit.html",
        {
            "form": form,
            "page": page,
            "rows": [_row(event) for event in page],
            "zone": request.actor.organization.billing_zone,
            "query": f"{query.urlencode()}&" if query else "",
        },
        status=200 if is_valid else 400,
    )


def _row(event: AuditEvent) -> dict[str, Any]:
    return {"event": event, "sentence": _sentence(event.verb), "details": _details(event)}


def _sentence(verb: str) -> Promise | str:
    return VERBS.get(verb, verb)


def _details(event: AuditEvent) -> list[tuple[str, object]]:
    """Return what else was written down, without what is empty."""
    return [
        (name.replace("_", " "), _value(event.verb, value))
        for name, value in event.details.items()
        if value not in (None, "", [], {})
    ]


def _value(verb: str, value: object) -> object:
    if verb == "quota.set" and isinstance(value, int):
        return _("%(gpus)s GPUs") % {"gpus": gpus(value)}
    return ", ".join(map(str, value)) if isinstance(value, list) else value
