"""The table itself: partitioned by day, with the first days, and a default so that nothing is lost."""

from datetime import UTC, datetime, timedelta

from django.db import migrations

from portal.telemetry import partitions

MAKE = """
CREATE TABLE telemetry_sample (
    gpu_id uuid NOT NULL,
    at timestamptz NOT NULL,
    util double precision,
    mem_used bigint,
    power double precision,
    temp double precision,
    sm_clock double precision,
    energy double precision,
    PRIMARY KEY (gpu_id, at)
) PARTITION BY RANGE (at);
CREATE TABLE telemetry_sample_default PARTITION OF telemetry_sample DEFAULT;
"""


def make_first_days(apps, schema_editor):
    today = datetime.now(UTC).date()
    with schema_editor.connection.cursor() as cursor:
        partitions.make(cursor, [today + timedelta(days=ahead) for ahead in range(-1, 3)])


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0001_first")]

    operations = [
        migrations.RunSQL(MAKE, "DROP TABLE telemetry_sample"),
        migrations.RunPython(make_first_days, migrations.RunPython.noop),
    ]
