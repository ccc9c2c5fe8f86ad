"""The organization's own settings, and the way out of it."""

from datetime import UTC, datetime

from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from portal.errors import DomainError
from portal.tenants import members
from portal.web import answers
from portal.web.access import MemberRequest, member_page
from portal.web.forms import TeamForm


@member_page()
@require_http_methods(["GET", "HEAD", "POST"])
def settings(request: MemberRequest) -> HttpResponse:
    """Show the settings to every member; a POST renames the organization."""
    organization = request.actor.organization
    form = TeamForm(request.POST or None, initial={"name": organization.name})
    refusal: DomainError | None = None
    if request.method == "POST" and form.is_valid():
        try:
            members.rename_organization(
                actor=request.actor, now=datetime.now(UTC), **form.cleaned_data
            )
        except DomainError as error:
            if error.status == 403:
                raise
            refusal = error
        else:
            return answers.done(request, _("Saved."), "organization", organization.slug)
    return answers.page(
        request,
        "people/organization.html",
        {
            "organization": organization,
            "form": form,
            "refusal": refusal,
            "may_manage": request.actor.may("organization.manage"),
        },
        status=422 if request.method == "POST" else 200,
    )
