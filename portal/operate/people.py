"""Make people who can sign in at once: the first operator, and those of the demo."""

from allauth.account.models import EmailAddress
from django.db import transaction

from portal.tenants.models import User


@transaction.atomic
def person(*, email: str, password: str, name: str = "", is_operator: bool = False) -> User:
    """Return the person with this address, made with the password if he did not exist.

    His address counts as verified: whoever runs this command vouches for it.
    """
    user = User.objects.filter(email=email.lower()).first()
    if user is None:
        user = User.objects.create_user(email, password, name=name, is_operator=is_operator)
    if is_operator and not user.is_operator:
        user.is_operator = True
        user.save(update_fields=["is_operator"])
    EmailAddress.objects.update_or_create(
        user=user, email=user.email, defaults={"verified": True, "primary": True}
    )
    return user
