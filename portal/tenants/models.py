"""People, organizations, teams, and the credentials that act for them."""

import uuid
from typing import ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Lower
from django.utils.translation import gettext_lazy as _

from portal.tenants.scope import tenant_manager


class Role(models.TextChoices):
    """What a member is in the whole organization. portal.tenants.roles says what each may do."""

    OWNER = "OWNER", _("Owner")
    ADMIN = "ADMIN", _("Admin")
    FINANCE = "FINANCE", _("Finance")
    MEMBER = "MEMBER", _("Member")
    VIEWER = "VIEWER", _("Viewer")


class UserManager(BaseUserManager["User"]):
    """Make users; an e-mail address is the name they sign in with."""

    def create_user(self, email: str, password: str | None = None, **fields: object) -> "User":
        """Make a person who can sign in. Without a password, only by reset."""
        user = self.model(email=self.normalize_email(email).lower(), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user


class User(AbstractBaseUser):
    """A person. What he may do in an organization stands on his Member row there."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    email = models.EmailField(_("e-mail address"), unique=True)
    name = models.CharField(_("name"), max_length=120, blank=True)
    is_active = models.BooleanField(default=True)
    # Operators own the machines: they see all nodes, and no tenant's instances or money.
    is_operator = models.BooleanField(default=False)
    language = models.CharField(max_length=12, blank=True)
    theme = models.CharField(
        max_length=6,
        default="auto",
        choices=[("auto", _("As the system")), ("light", _("Light")), ("dark", _("Dark"))],
    )
    joined_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[UserManager] = UserManager()
    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    def __str__(self) -> str:
        return self.name or self.email


class Organization(models.Model):
    """A tenant: who pays, and whose rows are nobody else's."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=80)
    slug = models.SlugField(max_length=50, unique=True)
    currency = models.CharField(max_length=3, default="USD")
    billing_zone = models.CharField(max_length=64, default="UTC")  # IANA name; months begin there
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Team(models.Model):
    """A group of members with a limit of its own; every instance belongs to one."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=80)
    slug = models.SlugField(max_length=50)
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[models.Manager["Team"]] = tenant_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "slug"], name="team_slug_once"),
            # The target of composite foreign keys (see migration 0002).
            models.UniqueConstraint(fields=["organization", "id"], name="team_in_organization"),
        ]

    def __str__(self) -> str:
        return self.name


class Member(models.Model):
    """A person in an organization, with a role."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    role = models.CharField(max_length=8, choices=Role, default=Role.MEMBER)
    # Removed members keep their row: their instances and bills still name them.
    removed_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[models.Manager["Member"]] = tenant_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "user"], name="member_once"),
            models.UniqueConstraint(fields=["organization", "id"], name="member_in_organization"),
        ]

    def __str__(self) -> str:
        return str(self.user)


class TeamMember(models.Model):
    """A member's place in a team; team admins set its quotas and see its usage."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    member = models.ForeignKey(Member, on_delete=models.CASCADE, related_name="+")
    is_admin = models.BooleanField(default=False)

    objects: ClassVar[models.Manager["TeamMember"]] = tenant_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "member"], name="team_member_once")]


class Invitation(models.Model):
    """An open door for one e-mail address, for a limited time."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    email = models.EmailField()
    role = models.CharField(max_length=8, choices=Role, default=Role.MEMBER)
    team = models.ForeignKey(
        Team, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    secret_hash = models.CharField(max_length=64, unique=True)  # SHA-256 of the secret in the link
    invited_by = models.ForeignKey(Member, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    # Of the link; known only to the call that made the invitation, never stored.
    secret = ""

    objects: ClassVar[models.Manager["Invitation"]] = tenant_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                "organization",
                Lower("email"),
                condition=models.Q(accepted_at=None, revoked_at=None),
                name="invitation_open_once",
            )
        ]


class ApiToken(models.Model):
    """A secret that lets a program act for a member, within scopes, until it expires."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    member = models.ForeignKey(Member, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12)  # shown in lists, so that people can tell them apart
    secret_hash = models.CharField(max_length=64, unique=True)
    scopes = ArrayField(models.CharField(max_length=20))  # see portal.tenants.roles.SCOPES
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    # The token that issued this one, if a program did: revoking that revokes this.
    issued_with = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.CASCADE, related_name="+"
    )

    objects: ClassVar[models.Manager["ApiToken"]] = tenant_manager()


class AuditEvent(models.Model):
    """Who did what to which thing. Rows are only ever added (a trigger refuses the rest)."""

    id = models.BigAutoField(primary_key=True)
    # Empty for what happens to the installation itself (nodes, prices): operators read those.
    organization = models.ForeignKey(
        Organization, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    at = models.DateTimeField()
    user = models.ForeignKey(
        User, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    token = models.ForeignKey(
        ApiToken, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    verb = models.CharField(max_length=60)  # "instance.launch", "quota.set"
    target_kind = models.CharField(max_length=30)
    target_id = models.CharField(max_length=64)
    target_name = models.CharField(max_length=200, blank=True)
    details = models.JSONField(default=dict)

    objects: ClassVar[models.Manager["AuditEvent"]] = tenant_manager()

    class Meta:
        indexes = [models.Index(fields=["organization", "-at"], name="audit_recent")]
