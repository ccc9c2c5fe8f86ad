"""The front door: what strangers see, and where people with an account belong."""

from datetime import UTC, datetime

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from portal.errors import DomainError
from portal.tenants import access, members
from portal.tenants.models import User
from portal.web import answers
from portal.web.access import SignedRequest, signed_page
from portal.web.forms import OrganizationForm

LAST_ORGANIZATION = "organization"  # session key: where this person worked last


def show(request: HttpRequest) -> HttpResponse:
    """Show the landing page to strangers; send others to their organization, or to make one."""
    if not isinstance(request.user, User):
        return answers.page(request, "landing.html")
    slugs = [member.organization.slug for member in access.memberships(user=request.user)]
    if slugs:
        last = request.session.get(LAST_ORGANIZATION)
        return redirect("dashboard", last if last in slugs else slugs[0])
    return redirect("nodes" if request.user.is_operator else "organization-new")


@signed_page
def new_organization(request: SignedRequest) -> HttpResponse:
    """Make an organization; whoever makes it owns it."""
    form = OrganizationForm(
        request.POST or None,
        initial={"currency": settings.DEFAULT_CURRENCY, "billing_zone": "UTC"},
    )
    refusal = None
    if request.method == "POST" and form.is_valid():
        try:
            organization = members.create_organization(
                user=request.user, now=datetime.now(UTC), **form.cleaned_data
            )
        except DomainError as error:
            refusal = error
        else:
            return redirect("dashboard", organization.slug)
    return answers.page(
        request,
        "organization_new.html",
        {"form": form, "refusal": refusal},
        status=422 if request.method == "POST" else 200,
    )
