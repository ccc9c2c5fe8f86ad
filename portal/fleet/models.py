"""The machines and their GPUs. They are the operator's, so no row here names an organization."""

import uuid

from django.db import models
from django.utils.translation import gettext_lazy as _


class Link(models.TextChoices):
    """How long a node has been silent, in words. `Node.last_seen_at` is the fact behind it."""

    ONLINE = "ONLINE", _("Online")
    STALE = "STALE", _("Stale")
    OFFLINE = "OFFLINE", _("Offline")
    LOST = "LOST", _("Lost")
    CONFLICT = "CONFLICT", _("Identity conflict")


class GpuState(models.TextChoices):
    """Whether a GPU may be given out."""

    OK = "OK", _("OK")
    LOST = "LOST", _("Lost")
    NOT_ANSWERING = "NOT_ANSWERING", _("Not answering")
    BUSY = "BUSY", _("In use by something unknown")
    ABSENT = "ABSENT", _("No longer there")


class Node(models.Model):
    """One machine with an agent on it. Names and addresses need not be unique; ids are."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=100)
    pool = models.CharField(max_length=40, default="default")
    labels = models.JSONField(default=dict)
    # Identity: the key it made when it joined, and how often its credential was renewed.
    public_key = models.BinaryField(max_length=32)
    generation = models.PositiveIntegerField(default=1)
    signed_at_ms = models.BigIntegerField(default=0)  # node's clock at its newest sign-in
    # The session that may write: an older socket's reports are refused by this number.
    session_epoch = models.PositiveBigIntegerField(default=0)
    boot_id = models.CharField(max_length=64, blank=True)
    agent_run_id = models.CharField(max_length=64, blank=True)
    agent_version = models.CharField(max_length=40, blank=True)
    # What it said it has.
    runtime = models.CharField(max_length=20, blank=True)
    has_isolation = models.BooleanField(default=False)
    driver_version = models.CharField(max_length=40, blank=True)
    cuda_version = models.CharField(max_length=20, blank=True)
    cpu_milli = models.PositiveIntegerField(default=0)
    memory_bytes = models.PositiveBigIntegerField(default=0)
    disk_bytes = models.PositiveBigIntegerField(default=0)
    # Liveness, by the portal's own clock only.
    link = models.CharField(max_length=8, choices=Link, default=Link.OFFLINE)
    link_since = models.DateTimeField()
    last_seen_at = models.DateTimeField(null=True, blank=True)
    clock_offset_ms = models.BigIntegerField(null=True, blank=True)  # portal's clock minus node's
    # Added to every time that the node writes (samples, evidence): 0 while its clock is about
    # right, and the same for a whole run of its agent unless its clock is set.
    applied_offset_ms = models.BigIntegerField(default=0)
    # Up to which batch the samples of this run of the agent are stored.
    ack_seq = models.PositiveBigIntegerField(default=0)
    # Desired state: raised whenever what the node should run changes.
    desired_generation = models.PositiveBigIntegerField(default=0)
    observed_generation = models.PositiveBigIntegerField(default=0)
    cordoned_at = models.DateTimeField(null=True, blank=True)
    cordon_reason = models.CharField(max_length=200, blank=True)
    joined_at = models.DateTimeField()
    retired_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name


class Gpu(models.Model):
    """One GPU, known by its UUID; its index may change with every boot and is for people only."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpus")
    uuid = models.CharField(max_length=80, unique=True)  # NVML's, "GPU-…"
    index = models.PositiveSmallIntegerField()
    model = models.CharField(max_length=80)  # canonical, e.g. "H100 SXM 80GB": what flavors name
    memory_bytes = models.PositiveBigIntegerField()
    pci_bus_id = models.CharField(max_length=20, blank=True)
    state = models.CharField(max_length=14, choices=GpuState, default=GpuState.OK)
    state_since = models.DateTimeField()
    state_detail = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["node", "index"]

    def __str__(self) -> str:
        return f"{self.model} #{self.index}"


class JoinToken(models.Model):
    """Lets one machine join once, within the hour."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    secret_hash = models.CharField(max_length=64, unique=True)
    pool = models.CharField(max_length=40, default="default")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    node = models.ForeignKey(
        Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )


class NodeEvent(models.Model):
    """What happened to a node, for its page: link changes, cordon, conflict, GPU states."""

    id = models.BigAutoField(primary_key=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField()
    kind = models.CharField(max_length=40)
    detail = models.CharField(max_length=300, blank=True)

    class Meta:
        indexes = [models.Index(fields=["node", "-at"], name="node_event_recent")]


class Watch(models.Model):
    """The single row that says how the watch over all nodes itself is doing."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    ran_at = models.DateTimeField()
    # Silence counts from here at the earliest: the portal itself was deaf before.
    steady_since = models.DateTimeField()
    # Set while too many nodes fell silent at once for it to be the nodes' fault.
    frozen_since = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="watch_is_one_row")]
