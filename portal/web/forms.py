"""What people type, checked for form; whether it is allowed is the domain's answer."""

import shlex
from collections.abc import Sequence
from typing import Any
from uuid import UUID
from zoneinfo import available_timezones

from django import forms
from django.conf import settings
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.tenants.models import Role, User

CURRENCIES = ["USD", "EUR", "GBP", "CHF", "CNY", "JPY", "INR", "SEK", "NOK", "PLN", "CAD", "AUD"]


class Styled(forms.Form):
    """A form whose fields wear Tabler's classes wherever they are drawn."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            dress(field)


def dress(field: forms.Field) -> None:
    """Give a field the class of its kind, once."""
    widget = field.widget
    if isinstance(widget, forms.CheckboxInput):
        name = "form-check-input"
    elif isinstance(widget, forms.CheckboxSelectMultiple | forms.RadioSelect | forms.HiddenInput):
        return
    else:
        name = "form-select" if isinstance(widget, forms.Select) else "form-control"
    classes = str(widget.attrs.get("class", "")).split()
    if name not in classes:
        widget.attrs["class"] = " ".join([*classes, name])


def _choose(field: forms.Field, choices: Sequence[tuple[str, str | Promise]]) -> None:
    assert isinstance(field, forms.ChoiceField)  # noqa: S101
    field.choices = choices


class OrganizationForm(Styled):
    """A new organization."""

    name = forms.CharField(label=_("Name"), max_length=80)
    currency = forms.ChoiceField(
        label=_("Currency"),
        help_text=_("Prices and bills are in it. It can't be changed later."),
    )
    billing_zone = forms.ChoiceField(
        label=_("Billing time zone"),
        help_text=_("Days and months on bills begin at midnight there."),
        choices=lambda: [(zone, zone) for zone in sorted(available_timezones())],
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        codes = list(dict.fromkeys([settings.DEFAULT_CURRENCY, *CURRENCIES]))
        _choose(self.fields["currency"], [(code, code) for code in codes])


class ProfileForm(forms.ModelForm):  # type: ignore[type-arg]
    """What a person says of himself."""

    class Meta:
        model = User
        fields = ["name", "language", "theme"]
        labels = {"name": _("Name"), "language": _("Language"), "theme": _("Theme")}
        widgets = {
            "language": forms.Select(
                choices=[("", _("As the browser")), ("en", "English"), ("zh-hans", "简体中文")]
            )
        }


class LaunchForm(Styled):
    """What to run, where, and until when."""

    name = forms.CharField(label=_("Name"), max_length=63)
    team_id = forms.ChoiceField(label=_("Team"))
    image = forms.CharField(widget=forms.RadioSelect)
    flavor = forms.CharField(widget=forms.RadioSelect)
    command = forms.CharField(
        label=_("Command"),
        required=False,
        max_length=4000,
        help_text=_("As in a shell. Empty: what the image starts by itself."),
        widget=forms.TextInput(
            attrs={"class": "code", "autocomplete": "off", "spellcheck": "false"}
        ),
    )
    env = forms.CharField(
        label=_("Environment"),
        required=False,
        max_length=8000,
        help_text=_("One NAME=value a line."),
        widget=forms.Textarea(attrs={"rows": 3, "class": "code", "spellcheck": "false"}),
    )
    priority = forms.IntegerField(
        label=_("Priority"),
        required=False,
        initial=0,
        min_value=-100,
        max_value=100,
        help_text=_("From -100 to 100. It orders your organization's own queue."),
    )
    stop_after = forms.ChoiceField(
        label=_("Stop by itself"),
        required=False,
        choices=[
            ("", _("Never")),
            ("1", _("After 1 hour")),
            ("4", _("After 4 hours")),
            ("12", _("After 12 hours")),
            ("24", _("After 1 day")),
            ("72", _("After 3 days")),
            ("168", _("After 1 week")),
        ],
    )

    def __init__(self, *args: Any, teams: list[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _choose(self.fields["team_id"], teams)

    def clean_command(self) -> list[str]:
        """Split the command as a shell would."""
        try:
            return shlex.split(self.cleaned_data["command"])
        except ValueError as error:
            raise forms.ValidationError(_("A quotation mark is missing.")) from error

    def clean_env(self) -> dict[str, str]:
        """Read NAME=value lines."""
        found: dict[str, str] = {}
        for line in self.cleaned_data["env"].splitlines():
            if not line.strip():
                continue
            name, sign, value = line.partition("=")
            if not sign or not name.strip():
                raise forms.ValidationError(
                    _("“%(line)s” is not NAME=value."), params={"line": line[:40]}
                )
            found[name.strip()] = value.strip()
        return found

    def clean_priority(self) -> int:
        """Take an empty priority as 0."""
        return self.cleaned_data["priority"] or 0


class TeamForm(Styled):
    """A team's name."""

    name = forms.CharField(label=_("Name"), max_length=80)


class InviteForm(Styled):
    """Whom to let in, and as what."""

    email = forms.EmailField(label=_("E-mail address"))
    role = forms.ChoiceField(label=_("Role"))
    team_id = forms.ChoiceField(label=_("Team"), required=False)

    def offer(self, *, roles: list[tuple[str, str]], teams: list[tuple[str, str]]) -> None:
        """Set what there is to choose from."""
        _choose(self.fields["role"], roles)
        _choose(self.fields["team_id"], [("", _("None")), *teams])

    def invited(self) -> dict[str, Any]:
        """Return what was chosen, as `invitations.invite` takes it."""
        team_id = self.cleaned_data["team_id"]
        return {
            "email": self.cleaned_data["email"],
            "role": Role(self.cleaned_data["role"]),
            "team_id": UUID(team_id) if team_id else None,
        }


class TokenForm(Styled):
    """A new API token."""

    name = forms.CharField(label=_("Name"), max_length=80, help_text=_("What will use it."))
    scopes = forms.MultipleChoiceField(label=_("Scopes"), widget=forms.CheckboxSelectMultiple)
    days = forms.ChoiceField(
        label=_("Expires"),
        choices=[
            ("7", _("After 7 days")),
            ("30", _("After 30 days")),
            ("90", _("After 90 days")),
            ("365", _("After 1 year")),
            ("", _("Never")),
        ],
        required=False,
        initial="90",
    )

    def offer(self, *, scopes: Sequence[tuple[str, str | Promise]]) -> None:
        """Set what there is to choose from."""
        _choose(self.fields["scopes"], scopes)


class CordonForm(Styled):
    """Why nothing may be placed on a node."""

    reason = forms.CharField(label=_("Reason"), max_length=200)


class PriceForm(Styled):
    """A list price from a moment on."""

    sku = forms.ChoiceField(label=_("Size"))
    currency = forms.CharField(label=_("Currency"), min_length=3, max_length=3)
    per_hour = forms.DecimalField(
        label=_("Price per hour"), min_value=0, max_digits=24, decimal_places=12
    )
    from_at = forms.DateTimeField(
        label=_("From (UTC)"),
        required=False,
        help_text=_("Empty: from now on. A price that has begun can't be changed, only followed."),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )

    def offer(self, *, skus: Sequence[tuple[str, str | Promise]]) -> None:
        """Set what there is to choose from."""
        _choose(self.fields["sku"], skus)

    def clean_currency(self) -> str:
        """Write the code in capitals."""
        return str(self.cleaned_data["currency"]).upper()
