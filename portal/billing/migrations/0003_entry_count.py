"""A transaction says how many entries it has, so that none can be added to it later."""

from django.db import migrations, models

COUNTED = """
CREATE OR REPLACE FUNCTION billing_transaction_balances() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    checked uuid := CASE TG_TABLE_NAME WHEN 'billing_entry'
        THEN (to_jsonb(NEW) ->> 'transaction_id')::uuid ELSE (to_jsonb(NEW) ->> 'id')::uuid END;
    said integer := (SELECT entry_count FROM billing_transaction WHERE id = checked);
    found integer := (SELECT count(*) FROM billing_entry WHERE transaction_id = checked);
BEGIN
    IF said < 2 THEN
        RAISE EXCEPTION 'transaction % has fewer than two entries', checked
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF said <> found THEN
        RAISE EXCEPTION 'transaction % has % entries, not %', checked, found, said
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF EXISTS (SELECT FROM billing_entry WHERE transaction_id = checked
               GROUP BY currency HAVING sum(amount) <> 0) THEN
        RAISE EXCEPTION 'the entries of transaction % do not sum to zero', checked
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END
$$;
"""


class Migration(migrations.Migration):

    dependencies = [("billing", "0002_promises")]

    operations = [
        migrations.AddField(
            model_name="transaction",
            name="entry_count",
            # All that were posted before this are of two accounts.
            field=models.PositiveSmallIntegerField(default=2),
            preserve_default=False,
        ),
        migrations.RunSQL(COUNTED, migrations.RunSQL.noop),
    ]
