"""What the database itself keeps: requests, leases and quotas stay in their organization and in range."""

from django.db import migrations

SAME_ORGANIZATION = [
    # table, constraint, column, table it points into
    ("scheduler_request", "request_of_own_team", "team_id", "tenants_team"),
    ("scheduler_request", "request_of_own_member", "member_id", "tenants_member"),
    ("scheduler_lease", "lease_of_own_request", "request_id", "scheduler_request"),
    ("scheduler_quota", "quota_of_own_team", "team_id", "tenants_team"),
    ("scheduler_quota", "quota_of_own_member", "member_id", "tenants_member"),
    ("scheduler_decision", "decision_on_own_request", "request_id", "scheduler_request"),
]

UNITS_IN_RANGE = (
    "ALTER TABLE scheduler_lease ADD CONSTRAINT lease_units_of_one_gpu "
    "CHECK (units <@ int4range(0, 1000) AND NOT isempty(units) AND NOT isempty(during))"
)


class Migration(migrations.Migration):

    dependencies = [("scheduler", "0001_first")]

    operations = [
        *(
            migrations.RunSQL(
                f"ALTER TABLE {table} ADD CONSTRAINT {name} "
                f"FOREIGN KEY (organization_id, {column}) REFERENCES {target} (organization_id, id) "
                "DEFERRABLE INITIALLY DEFERRED",
                f"ALTER TABLE {table} DROP CONSTRAINT {name}",
            )
            for table, name, column, target in SAME_ORGANIZATION
        ),
        migrations.RunSQL(
            UNITS_IN_RANGE, "ALTER TABLE scheduler_lease DROP CONSTRAINT lease_units_of_one_gpu"
        ),
    ]
