"""What can be launched, what was launched, and every move it made."""

import uuid
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils.translation import gettext_lazy as _

from portal.tenants.models import Member, Organization, Team
from portal.tenants.scope import tenant_manager


class Flavor(models.Model):
    """A size on offer: which GPU, how much of it, what comes with it; its code is its SKU."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    code = models.SlugField(max_length=60, unique=True)  # also the SKU
    name = models.CharField(max_length=80)
    description = models.CharField(max_length=200, blank=True)
    gpu_models = ArrayField(models.CharField(max_length=80))  # any of these
    gpu_count = models.PositiveSmallIntegerField(default=1)
    units_per_gpu = models.PositiveSmallIntegerField(default=1000)
    gpu_memory_bytes = models.PositiveBigIntegerField()  # that the instance gets, per GPU
    cpu_milli = models.PositiveIntegerField()
    memory_bytes = models.PositiveBigIntegerField()
    disk_bytes = models.PositiveBigIntegerField()
    is_offered = models.BooleanField(default=True)
    position = models.PositiveSmallIntegerField(default=0)

    class Meta:
        ordering = ["position", "code"]

    def __str__(self) -> str:
        return self.name

    @property
    def milli_gpus(self) -> int:
        """How much GPU one instance takes, in thousandths."""
        return self.gpu_count * self.units_per_gpu


class Image(models.Model):
    """What runs: a container image, its default command and ports."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    code = models.SlugField(max_length=60, unique=True)
    name = models.CharField(max_length=80)
    description = models.CharField(max_length=200, blank=True)
    reference = models.CharField(max_length=200)  # "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime"
    command = ArrayField(models.CharField(max_length=500), default=list, blank=True)
    ports = ArrayField(models.PositiveIntegerField(), default=list, blank=True)
    is_offered = models.BooleanField(default=True)
    position = models.PositiveSmallIntegerField(default=0)

    class Meta:
        ordering = ["position", "code"]

    def __str__(self) -> str:
        return self.name


class State(models.TextChoices):
    """Where an instance stands; portal.instances.lifecycle says what each means."""

    QUEUED = "QUEUED", _("Queued")
    PLACING = "PLACING", _("Placing")
    STARTING = "STARTING", _("Starting")
    RUNNING = "RUNNING", _("Running")
    STOPPING = "STOPPING", _("Stopping")
    STOPPED = "STOPPED", _("Stopped")
    FAILED = "FAILED", _("Failed")
    LOST = "LOST", _("Lost")
    TERMINATED = "TERMINATED", _("Terminated")


class Wanted(models.TextChoices):
    """What its owner last asked for."""

    RUN = "RUN", _("Run")
    STOP = "STOP", _("Stop")
    TERMINATE = "TERMINATE", _("Terminate")


class Instance(models.Model):
    """Something a member launched. `state` is written by lifecycle.move alone."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    member = models.ForeignKey(Member, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=63)
    flavor = models.ForeignKey(Flavor, on_delete=models.PROTECT, related_name="+")
    image = models.ForeignKey(Image, on_delete=models.PROTECT, related_name="+")
    command = ArrayField(
        models.CharField(max_length=2000), default=list, blank=True
    )  # empty: image's
    env = models.JSONField(default=dict, blank=True)
    priority = models.SmallIntegerField(default=0)
    created_at = models.DateTimeField()
    # The state, since when and why.
    state = models.CharField(max_length=10, choices=State, default=State.QUEUED)
    state_since = models.DateTimeField()
    reason_code = models.CharField(max_length=40, blank=True)
    reason = models.CharField(max_length=500, blank=True)
    wanted = models.CharField(max_length=9, choices=Wanted, default=Wanted.RUN)
    stop_at = models.DateTimeField(null=True, blank=True)  # the portal stops it then
    # When this run was told to end, by its owner or by a limit: nothing later is billed.
    ending_since = models.DateTimeField(null=True, blank=True)
    # The present run: how many starts so far, its request, where, and the node's evidence.
    run = models.PositiveIntegerField(default=0)
    request = models.ForeignKey(
        "scheduler.Request", null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    node = models.ForeignKey(
        "fleet.Node", null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    container_id = models.CharField(max_length=100, blank=True)
    boot_id = models.CharField(max_length=64, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)  # RUNNING began, this run
    progress = models.PositiveSmallIntegerField(null=True, blank=True)  # of starting, 0 to 100
    missing_since = models.DateTimeField(null=True, blank=True)  # its node's reports lack it
    ports = models.JSONField(default=dict, blank=True)  # {"8888": 41233} on the node

    objects: ClassVar[models.Manager["Instance"]] = tenant_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "id"], name="instance_in_organization"),
            models.UniqueConstraint(
                fields=["team", "name"],
                condition=~models.Q(state="TERMINATED"),
                name="instance_name_once",
            ),
        ]
        indexes = [
            models.Index(fields=["organization", "-created_at"], name="instance_recent"),
            models.Index(
                fields=["node"], condition=models.Q(node__isnull=False), name="instance_on_node"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Move(models.Model):
    """One step of an instance's story. Rows are only ever added."""

    id = models.BigAutoField(primary_key=True)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="moves")
    run = models.PositiveIntegerField()
    at = models.DateTimeField()
    from_state = models.CharField(max_length=10, blank=True)  # empty: it was created
    to_state = models.CharField(max_length=10, choices=State)
    reason_code = models.CharField(max_length=40, blank=True)
    reason = models.CharField(max_length=500, blank=True)
    by = models.ForeignKey(
        Member, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )

    objects: ClassVar[models.Manager["Move"]] = tenant_manager()

    class Meta:
        indexes = [models.Index(fields=["instance", "at"], name="move_story")]
