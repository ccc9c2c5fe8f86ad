"""What the database itself keeps: instances and their story stay in their organization; moves stay."""

from django.db import migrations

SAME_ORGANIZATION = [
    # table, constraint, column, table it points into
    ("instances_instance", "instance_of_own_team", "team_id", "tenants_team"),
    ("instances_instance", "instance_of_own_member", "member_id", "tenants_member"),
    ("instances_instance", "instance_of_own_request", "request_id", "scheduler_request"),
    ("instances_move", "move_of_own_instance", "instance_id", "instances_instance"),
    ("instances_move", "move_by_own_member", "by_id", "tenants_member"),
]

MOVES_STAY = """
CREATE FUNCTION instances_move_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'moves are only ever added'
        USING ERRCODE = 'integrity_constraint_violation';
END
$$;
CREATE TRIGGER move_stays BEFORE UPDATE ON instances_move
    FOR EACH ROW EXECUTE FUNCTION instances_move_stays();
"""
UNDO_MOVES_STAY = """
DROP TRIGGER move_stays ON instances_move;
DROP FUNCTION instances_move_stays();
"""


class Migration(migrations.Migration):

    dependencies = [("instances", "0001_first"), ("scheduler", "0002_promises")]

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
        migrations.RunSQL(MOVES_STAY, UNDO_MOVES_STAY),
    ]
