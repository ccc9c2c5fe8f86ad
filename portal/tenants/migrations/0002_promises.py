"""What the database itself keeps: rows of one organization point into the same one; audit rows stay."""

from django.contrib.postgres.operations import BtreeGistExtension
from django.db import migrations

SAME_ORGANIZATION = [
    # table, constraint, column, table it points into
    ("tenants_teammember", "team_member_of_own_team", "team_id", "tenants_team"),
    ("tenants_teammember", "team_member_of_own_member", "member_id", "tenants_member"),
    ("tenants_invitation", "invitation_to_own_team", "team_id", "tenants_team"),
    ("tenants_invitation", "invitation_by_own_member", "invited_by_id", "tenants_member"),
    ("tenants_apitoken", "token_of_own_member", "member_id", "tenants_member"),
]

APPEND_ONLY = """
CREATE FUNCTION tenants_audit_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit events are only ever added'
        USING ERRCODE = 'integrity_constraint_violation';
END
$$;
CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE ON tenants_auditevent
    FOR EACH ROW EXECUTE FUNCTION tenants_audit_stays();
"""
UNDO_APPEND_ONLY = """
DROP TRIGGER audit_stays ON tenants_auditevent;
DROP FUNCTION tenants_audit_stays();
"""


class Migration(migrations.Migration):

    dependencies = [("tenants", "0001_first")]

    operations = [
        BtreeGistExtension(),  # for the exclusion constraints of the floors above
        *(
            migrations.RunSQL(
                f"ALTER TABLE {table} ADD CONSTRAINT {name} "
                f"FOREIGN KEY (organization_id, {column}) REFERENCES {target} (organization_id, id)",
                f"ALTER TABLE {table} DROP CONSTRAINT {name}",
            )
            for table, name, column, target in SAME_ORGANIZATION
        ),
        migrations.RunSQL(APPEND_ONLY, UNDO_APPEND_ONLY),
    ]
