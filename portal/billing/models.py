"""Prices, meters, segments, and the double-entry ledger."""

import uuid
from typing import ClassVar

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.contrib.postgres.indexes import GistIndex
from django.db import models
from django.utils.translation import gettext_lazy as _

from portal.tenants.models import Member, Organization, Team
from portal.tenants.scope import tenant_manager


class Price(models.Model):
    """What one unit of a SKU costs per hour while `during` lasts.

    A price that has begun can only be ended (a trigger refuses the rest).
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    sku = models.SlugField(max_length=60)  # a flavor's code
    currency = models.CharField(max_length=3, default="USD")
    per_hour = models.DecimalField(max_digits=24, decimal_places=12)
    during = DateTimeRangeField()  # [from, to) in UTC; open-ended until replaced
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="price_one_at_a_time",
                expressions=[
                    ("sku", RangeOperators.EQUAL),
                    ("currency", RangeOperators.EQUAL),
                    ("during", RangeOperators.OVERLAPS),
                ],
            ),
            models.CheckConstraint(condition=models.Q(per_hour__gte=0), name="price_not_negative"),
        ]


class Meter(models.Model):
    """One run of one billable thing: from usable to its last proof. Segments tile that time."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    member = models.ForeignKey(Member, on_delete=models.PROTECT, related_name="+")
    subject = models.UUIDField()  # the instance
    subject_name = models.CharField(max_length=80)  # its name then: an old bill keeps the old name
    run = models.PositiveIntegerField()  # which start of the instance
    sku = models.SlugField(max_length=60)
    currency = models.CharField(max_length=3)
    opened_at = models.DateTimeField()
    opened_by = models.CharField(max_length=200)  # the cause, in words
    # Proof that it ran reaches to here; what lies between this and now is unverified.
    proved_until = models.DateTimeField()
    closed_at = models.DateTimeField(null=True, blank=True)
    closed_by = models.CharField(max_length=200, blank=True)
    # The ledger's place in it: every month before this instant's is posted, and, once settled, all.
    posted_until = models.DateTimeField()
    is_settled = models.BooleanField(default=False)

    objects: ClassVar[models.Manager["Meter"]] = tenant_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["subject", "run"], name="meter_once_per_run"),
            models.UniqueConstraint(fields=["organization", "id"], name="meter_in_organization"),
            models.CheckConstraint(
                condition=models.Q(proved_until__gte=models.F("opened_at")),
                name="meter_proof_after_opening",
            ),
            models.CheckConstraint(
                condition=models.Q(closed_at=None) | models.Q(closed_at=models.F("proved_until")),
                name="meter_ends_at_its_last_proof",
            ),
            models.CheckConstraint(
                condition=models.Q(is_settled=False) | models.Q(closed_at__isnull=False),
                name="meter_settled_only_when_closed",
            ),
        ]
        indexes = [
            models.Index(fields=["organization", "-opened_at"], name="meter_recent"),
            models.Index(
                fields=["organization"], condition=models.Q(closed_at=None), name="meter_open"
            ),
            models.Index(
                fields=["organization"],
                condition=models.Q(is_settled=False),
                name="meter_unsettled",
            ),
        ]


class SegmentState(models.TextChoices):
    """Whether the time is billed."""

    BILLED = "BILLED", _("Billed")
    DROPPED = "DROPPED", _("Not billed: never proved")


class Segment(models.Model):
    """A half-open stretch of a meter's time, in whole milliseconds, at one price version.

    The last BILLED segment of an open meter grows as proof arrives; every other one is final.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    meter = models.ForeignKey(Meter, on_delete=models.PROTECT, related_name="segments")
    price = models.ForeignKey(Price, on_delete=models.PROTECT, related_name="+")
    state = models.CharField(max_length=8, choices=SegmentState, default=SegmentState.BILLED)
    during = DateTimeRangeField()
    opened_by = models.CharField(max_length=200)
    closed_by = models.CharField(max_length=200, blank=True)

    objects: ClassVar[models.Manager["Segment"]] = tenant_manager()

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="segment_second_never_twice",
                expressions=[("meter", RangeOperators.EQUAL), ("during", RangeOperators.OVERLAPS)],
            ),
        ]
        indexes = [GistIndex(fields=["organization", "during"], name="segment_when")]


class AccountKind(models.TextChoices):
    """What an account counts. The sign convention: debit positive, credit negative."""

    RECEIVABLE = "RECEIVABLE", _("Owed by the organization")
    REVENUE = "REVENUE", _("Revenue")
    ROUNDING = "ROUNDING", _("Rounding")
    WALLET = "WALLET", _("Prepaid balance")


class Account(models.Model):
    """A place where money is counted, in one currency. Each organization has its own books.

    The operator's revenue is the sum of its customers' REVENUE accounts, so no row is shared.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    kind = models.CharField(max_length=12, choices=AccountKind)
    currency = models.CharField(max_length=3)

    objects: ClassVar[models.Manager["Account"]] = tenant_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "kind", "currency"], name="account_once"
            ),
            # The target of the entries' composite foreign key: own organization, own currency.
            models.UniqueConstraint(
                fields=["organization", "currency", "id"], name="account_in_organization"
            ),
        ]


class Transaction(models.Model):
    """One posting: two or more entries that sum to zero. Only ever added."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    idempotency_key = models.CharField(max_length=200, unique=True)
    kind = models.CharField(max_length=30)  # "usage", "reversal"
    # How many entries it has: said once, so that none can be added to it later.
    entry_count = models.PositiveSmallIntegerField()
    memo = models.CharField(max_length=200, blank=True)
    effective_at = models.DateTimeField()  # when it happened
    booked_at = models.DateTimeField()  # when we wrote it down
    reverses = models.OneToOneField(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="reversed_by"
    )
    # The usage line that it brings up to date, for kind "usage".
    usage_line = models.ForeignKey(
        "UsagePosting", null=True, blank=True, on_delete=models.PROTECT, related_name="transactions"
    )

    objects: ClassVar[models.Manager["Transaction"]] = tenant_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "id"], name="transaction_in_organization"
            )
        ]


class Entry(models.Model):
    """One side of a transaction: debit positive, credit negative, exact."""

    id = models.BigAutoField(primary_key=True)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    transaction = models.ForeignKey(Transaction, on_delete=models.PROTECT, related_name="entries")
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="+")
    currency = models.CharField(max_length=3)
    amount = models.DecimalField(max_digits=38, decimal_places=12)

    objects: ClassVar[models.Manager["Entry"]] = tenant_manager()

    class Meta:
        constraints = [models.CheckConstraint(condition=~models.Q(amount=0), name="entry_not_zero")]


class UsagePosting(models.Model):
    """How much of a usage line the ledger already holds, so that the next posting is a difference.

    One row per organization, month (of its billing zone), SKU and price version.
    """

    id = models.BigAutoField(primary_key=True)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    period = models.DateField()  # the first day of the month
    price = models.ForeignKey(Price, on_delete=models.PROTECT, related_name="+")
    milliseconds = models.PositiveBigIntegerField(default=0)
    amount = models.DecimalField(max_digits=38, decimal_places=12, default=0)  # rounded, as posted
    postings = models.PositiveIntegerField(default=0)  # how many transactions brought it here

    objects: ClassVar[models.Manager["UsagePosting"]] = tenant_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "period", "price"], name="usage_line_once"
            ),
            models.UniqueConstraint(
                fields=["organization", "id"], name="usage_line_in_organization"
            ),
        ]
