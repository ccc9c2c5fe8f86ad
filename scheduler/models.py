"""Requests wait, leases hold, quotas limit, decisions explain.

Nodes and GPUs are named here by key only: the scheduler does not know what a machine is.
"""

import uuid
from typing import ClassVar

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, DateTimeRangeField, RangeOperators
from django.db import models
from django.utils.translation import gettext_lazy as _

from portal.tenants.models import Member, Organization, Team
from portal.tenants.scope import tenant_manager
from scheduler.multirange import IntegerMultiRangeField


class Standing(models.TextChoices):
    """Where a request stands."""

    PENDING = "PENDING", _("Waiting")
    PLACED = "PLACED", _("Placed")
    ENDED = "ENDED", _("Ended")


class Request(models.Model):
    """A wish for GPUs: waits, is placed, ends. One per start of an instance."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    member = models.ForeignKey(Member, on_delete=models.PROTECT, related_name="+")
    subject = models.UUIDField()  # the instance; the scheduler needs no more than its id
    standing = models.CharField(max_length=8, choices=Standing, default=Standing.PENDING)
    priority = models.SmallIntegerField(default=0)  # -100 to 100; counts inside the organization
    submitted_at = models.DateTimeField()
    # What is wanted.
    gpu_models = ArrayField(models.CharField(max_length=80), default=list)  # empty: any
    gpu_count = models.PositiveSmallIntegerField()
    units_per_gpu = models.PositiveSmallIntegerField(default=1000)  # of 1000; below that a share
    gpu_memory_bytes = models.PositiveBigIntegerField(default=0)  # at least, per GPU or share
    cpu_milli = models.PositiveIntegerField(default=0)
    memory_bytes = models.PositiveBigIntegerField(default=0)
    disk_bytes = models.PositiveBigIntegerField(default=0)
    pool = models.CharField(max_length=40, blank=True)  # empty: any
    ends_by = models.DateTimeField(null=True, blank=True)  # a known limit, for others' estimates
    # Where it stands in the queue, as last decided (see Decision for the history).
    position = models.PositiveIntegerField(null=True, blank=True)
    reason_code = models.CharField(max_length=40, blank=True)
    reason_args = models.JSONField(default=dict)
    estimate = models.JSONField(null=True, blank=True)  # {"low_s", "high_s", "basis"}
    sooner = models.JSONField(default=list)
    decided_at = models.DateTimeField(null=True, blank=True)
    # Where it was placed.
    node = models.ForeignKey(
        "fleet.Node", null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    placed_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar[models.Manager["Request"]] = tenant_manager()

    class Meta:
        constraints = [
            # A reload or a double click never adds a place in the queue.
            models.UniqueConstraint(
                fields=["subject"], condition=~models.Q(standing="ENDED"), name="request_live_once"
            ),
            # The target of the composite foreign keys of leases and decisions.
            models.UniqueConstraint(fields=["organization", "id"], name="request_in_organization"),
            models.CheckConstraint(
                condition=models.Q(units_per_gpu__gte=1, units_per_gpu__lte=1000)
                & (models.Q(units_per_gpu=1000) | models.Q(gpu_count=1)),
                name="request_share_of_one_gpu",
            ),
            models.CheckConstraint(
                condition=models.Q(standing="PENDING", node=None)
                | models.Q(standing="PLACED", node__isnull=False)
                | models.Q(standing="ENDED"),
                name="request_placed_somewhere",
            ),
        ]
        indexes = [
            models.Index(
                fields=["submitted_at"],
                condition=models.Q(standing="PENDING"),
                name="request_queue",
            ),
            models.Index(fields=["organization", "standing"], name="request_standing"),
            models.Index(
                fields=["node"], condition=models.Q(standing="PLACED"), name="request_on_node"
            ),
            models.Index(
                fields=["-ended_at"], condition=models.Q(standing="ENDED"), name="request_past_runs"
            ),
        ]

    @property
    def milli_gpus(self) -> int:
        """How much GPU this takes, in thousandths: what quotas count."""
        return self.gpu_count * self.units_per_gpu


class Lease(models.Model):
    """Units of one GPU, promised to one request for a time. Never promised twice."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    request = models.ForeignKey(Request, on_delete=models.PROTECT, related_name="leases")
    gpu = models.ForeignKey("fleet.Gpu", on_delete=models.PROTECT, related_name="+")
    units = IntegerMultiRangeField()  # inside [0,1000)
    during = DateTimeRangeField()  # open-ended while held

    objects: ClassVar[models.Manager["Lease"]] = tenant_manager()

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="lease_gpu_never_promised_twice",
                expressions=[
                    ("gpu", RangeOperators.EQUAL),
                    ("units", RangeOperators.OVERLAPS),
                    ("during", RangeOperators.OVERLAPS),
                ],
            ),
        ]


class Quota(models.Model):
    """A limit of GPUs for the organization (no team, no member), a team, or a member.

    The organization's own row always exists and is the one lock of every launch.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey(
        Team, null=True, blank=True, on_delete=models.CASCADE, related_name="+"
    )
    member = models.ForeignKey(
        Member, null=True, blank=True, on_delete=models.CASCADE, related_name="+"
    )
    milli_gpus = models.PositiveIntegerField(null=True, blank=True)  # None: no limit at this level
    updated_at = models.DateTimeField()

    objects: ClassVar[models.Manager["Quota"]] = tenant_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "team", "member"], nulls_distinct=False, name="quota_once"
            ),
            models.CheckConstraint(
                condition=models.Q(team=None) | models.Q(member=None), name="quota_of_one_level"
            ),
        ]


class Decision(models.Model):
    """Why a request waits or where it went, kept whenever the answer changed."""

    id = models.BigAutoField(primary_key=True)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    request = models.ForeignKey(Request, on_delete=models.CASCADE, related_name="decisions")
    at = models.DateTimeField()
    code = models.CharField(max_length=40)
    args = models.JSONField(default=dict)
    position = models.PositiveIntegerField(null=True, blank=True)
    estimate = models.JSONField(null=True, blank=True)

    objects: ClassVar[models.Manager["Decision"]] = tenant_manager()
