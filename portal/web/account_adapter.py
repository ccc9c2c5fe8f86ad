"""How sign-up and sign-in behave here: the one seam that django-allauth offers."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest

from portal.tenants.models import User


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Our user has an e-mail address and a name, and no user name."""

    def save_user(self, request: HttpRequest, user: User, form: Any, commit: bool = True) -> User:
        """Fill a new user from the sign-up form; the language is the one he signed up in."""
        user.email = form.cleaned_data["email"].lower()
        user.language = getattr(request, "LANGUAGE_CODE", "")[:12]
        if password := form.cleaned_data.get("password1"):
            user.set_password(password)
        else:
            user.set_unusable_password()
        if commit:
            user.save()
        return user

    def get_login_redirect_url(self, request: HttpRequest) -> str:
        """Send people home, which knows where they belong."""
        return "/"
