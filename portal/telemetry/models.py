"""Samples at 1 Hz, one wide row per GPU and second, in daily partitions that are dropped whole."""

from django.db import models


class Sample(models.Model):
    """What one GPU measured in one second. Absent is null, never zero.

    The table is partitioned by day (migration 0002); Django reads it, portal.telemetry.samples
    writes it with COPY.
    """

    pk = models.CompositePrimaryKey("gpu_id", "at")
    gpu = models.ForeignKey(
        "fleet.Gpu", on_delete=models.DO_NOTHING, db_constraint=False, related_name="+"
    )
    at = models.DateTimeField()
    util = models.FloatField(null=True)  # percent, 0 to 100
    mem_used = models.BigIntegerField(null=True)  # bytes
    power = models.FloatField(null=True)  # watts
    temp = models.FloatField(null=True)  # degrees Celsius
    sm_clock = models.FloatField(null=True)  # MHz
    energy = models.FloatField(null=True)  # joules since the driver was loaded

    class Meta:
        managed = False
        db_table = "telemetry_sample"
