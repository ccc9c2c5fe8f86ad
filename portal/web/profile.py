"""A person's own things: name, language, theme, sign-in."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import override
from django.views.decorators.http import require_POST

from portal.tenants.models import User
from portal.web import answers
from portal.web.access import SignedRequest, signed_page
from portal.web.forms import ProfileForm

_YEAR = 365 * 24 * 3600


@signed_page
def show(request: SignedRequest) -> HttpResponse:
    """Show and change the person's name, language and theme."""
    form = ProfileForm(request.POST or None, instance=request.user)
    if request.method == "POST" and form.is_valid():
        form.save()
        with override(request.user.language or None):
            return answers.done(request, _("Saved."), "profile")
    status = 422 if request.method == "POST" else 200
    return answers.page(request, "profile.html", {"form": form}, status=status)


@require_POST
def appearance(request: HttpRequest) -> HttpResponseRedirect:
    """Remember a theme or a language: on the account, or in a cookie for those without one."""
    response = redirect(answers.way_back(request))
    changes: dict[str, str] = {}
    if (theme := request.POST.get("theme")) in {"light", "dark", "auto"}:
        changes["theme"] = theme
        response.set_cookie("theme", theme, max_age=_YEAR, samesite="Lax")
    if (language := request.POST.get("language")) in dict(settings.LANGUAGES):
        changes["language"] = language
        response.set_cookie(settings.LANGUAGE_COOKIE_NAME, language, max_age=_YEAR, samesite="Lax")
    if changes and isinstance(request.user, User):
        User.objects.filter(pk=request.user.pk).update(**changes)
    return response
