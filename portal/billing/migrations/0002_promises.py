"""What the database itself keeps about money and metered time."""

from django.db import migrations

SAME_ORGANIZATION = [
    # table, constraint, columns, table they point into, columns there
    ("billing_meter", "meter_of_own_team", "team_id", "tenants_team", "id"),
    ("billing_meter", "meter_of_own_member", "member_id", "tenants_member", "id"),
    ("billing_segment", "segment_of_own_meter", "meter_id", "billing_meter", "id"),
    ("billing_transaction", "transaction_of_own_line", "usage_line_id", "billing_usageposting", "id"),
    ("billing_transaction", "reversal_of_own_transaction", "reverses_id", "billing_transaction", "id"),
    ("billing_entry", "entry_of_own_transaction", "transaction_id", "billing_transaction", "id"),
    # Also the same currency: an account never holds two.
    ("billing_entry", "entry_in_own_account", "currency, account_id", "billing_account", "currency, id"),
]

WHOLE_MILLISECONDS = """
ALTER TABLE billing_segment ADD CONSTRAINT segment_is_whole_milliseconds CHECK (
    NOT isempty(during) AND lower_inc(during) AND NOT upper_inc(during)
    AND NOT lower_inf(during) AND NOT upper_inf(during)
    AND isfinite(lower(during)) AND isfinite(upper(during))
    AND date_trunc('milliseconds', lower(during)) = lower(during)
    AND date_trunc('milliseconds', upper(during)) = upper(during)
);
ALTER TABLE billing_price ADD CONSTRAINT price_begins_and_ends_on_milliseconds CHECK (
    NOT isempty(during) AND lower_inc(during) AND NOT upper_inc(during)
    AND NOT lower_inf(during) AND isfinite(lower(during))
    AND date_trunc('milliseconds', lower(during)) = lower(during)
    AND (upper_inf(during) OR date_trunc('milliseconds', upper(during)) = upper(during))
);
ALTER TABLE billing_meter ADD CONSTRAINT meter_is_whole_milliseconds CHECK (
    date_trunc('milliseconds', opened_at) = opened_at
    AND date_trunc('milliseconds', proved_until) = proved_until
);
"""
UNDO_WHOLE_MILLISECONDS = """
ALTER TABLE billing_segment DROP CONSTRAINT segment_is_whole_milliseconds;
ALTER TABLE billing_price DROP CONSTRAINT price_begins_and_ends_on_milliseconds;
ALTER TABLE billing_meter DROP CONSTRAINT meter_is_whole_milliseconds;
"""

APPEND_ONLY = """
CREATE FUNCTION billing_ledger_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the ledger is only ever added to: post a reversing transaction instead'
        USING ERRCODE = 'integrity_constraint_violation';
END
$$;
CREATE TRIGGER transaction_stays BEFORE UPDATE OR DELETE ON billing_transaction
    FOR EACH ROW EXECUTE FUNCTION billing_ledger_stays();
CREATE TRIGGER entry_stays BEFORE UPDATE OR DELETE ON billing_entry
    FOR EACH ROW EXECUTE FUNCTION billing_ledger_stays();
CREATE TRIGGER transactions_stay BEFORE TRUNCATE ON billing_transaction
    FOR EACH STATEMENT EXECUTE FUNCTION billing_ledger_stays();
CREATE TRIGGER entries_stay BEFORE TRUNCATE ON billing_entry
    FOR EACH STATEMENT EXECUTE FUNCTION billing_ledger_stays();
"""
UNDO_APPEND_ONLY = """
DROP TRIGGER transaction_stays ON billing_transaction;
DROP TRIGGER entry_stays ON billing_entry;
DROP TRIGGER transactions_stay ON billing_transaction;
DROP TRIGGER entries_stay ON billing_entry;
DROP FUNCTION billing_ledger_stays();
"""

# Checked when the database transaction commits, so that entries can be written one after another.
BALANCED = """
CREATE FUNCTION billing_transaction_balances() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    checked uuid := CASE TG_TABLE_NAME WHEN 'billing_entry'
        THEN (to_jsonb(NEW) ->> 'transaction_id')::uuid ELSE (to_jsonb(NEW) ->> 'id')::uuid END;
BEGIN
    IF (SELECT count(*) FROM billing_entry WHERE transaction_id = checked) < 2 THEN
        RAISE EXCEPTION 'transaction % has fewer than two entries', checked
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
CREATE CONSTRAINT TRIGGER transaction_balances AFTER INSERT ON billing_transaction
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_transaction_balances();
CREATE CONSTRAINT TRIGGER entries_balance AFTER INSERT ON billing_entry
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_transaction_balances();
"""
UNDO_BALANCED = """
DROP TRIGGER transaction_balances ON billing_transaction;
DROP TRIGGER entries_balance ON billing_entry;
DROP FUNCTION billing_transaction_balances();
"""

# A price that has begun is a promise: it can be given an end, and nothing else.
PRICES_STAND = """
CREATE FUNCTION billing_price_stands() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF lower(OLD.during) > clock_timestamp() THEN
        RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    END IF;
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'a price that has begun cannot be deleted'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF (NEW.id, NEW.sku, NEW.currency, NEW.per_hour, lower(NEW.during), NEW.created_at)
       IS DISTINCT FROM
       (OLD.id, OLD.sku, OLD.currency, OLD.per_hour, lower(OLD.during), OLD.created_at)
       OR (NEW.during <> OLD.during AND NOT upper_inf(OLD.during)
           AND upper(OLD.during) <= clock_timestamp()) THEN
        RAISE EXCEPTION 'a price that has begun can only be ended'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF EXISTS (SELECT FROM billing_segment
               WHERE price_id = OLD.id AND NOT during <@ NEW.during) THEN
        RAISE EXCEPTION 'this price cannot end before time that was metered at it'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER price_stands BEFORE UPDATE OR DELETE ON billing_price
    FOR EACH ROW EXECUTE FUNCTION billing_price_stands();
"""
UNDO_PRICES_STAND = """
DROP TRIGGER price_stands ON billing_price;
DROP FUNCTION billing_price_stands();
"""

# Metered time is never taken back: the last billed segment grows, the rest is final.
SEGMENTS_STAND = """
CREATE FUNCTION billing_segment_stands() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'UPDATE' THEN
        RAISE EXCEPTION 'metered time is never deleted'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF (NEW.id, NEW.organization_id, NEW.meter_id, NEW.price_id, NEW.state, NEW.opened_by,
        lower(NEW.during)) IS DISTINCT FROM
       (OLD.id, OLD.organization_id, OLD.meter_id, OLD.price_id, OLD.state, OLD.opened_by,
        lower(OLD.during))
       OR upper(NEW.during) < upper(OLD.during)
       OR (NEW.state = 'DROPPED' AND NEW.during <> OLD.during) THEN
        RAISE EXCEPTION 'a segment only ever grows'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER segment_stands BEFORE UPDATE OR DELETE ON billing_segment
    FOR EACH ROW EXECUTE FUNCTION billing_segment_stands();
CREATE TRIGGER segments_stand BEFORE TRUNCATE ON billing_segment
    FOR EACH STATEMENT EXECUTE FUNCTION billing_segment_stands();
"""
UNDO_SEGMENTS_STAND = """
DROP TRIGGER segment_stands ON billing_segment;
DROP TRIGGER segments_stand ON billing_segment;
DROP FUNCTION billing_segment_stands();
"""

# Posted months were cut in one zone and counted in one currency.
BOOKS_STAND = """
CREATE FUNCTION billing_books_stand() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.currency, NEW.billing_zone) IS DISTINCT FROM (OLD.currency, OLD.billing_zone)
       AND EXISTS (SELECT FROM billing_meter WHERE organization_id = OLD.id) THEN
        RAISE EXCEPTION 'currency and billing zone are fixed once time has been metered'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER books_stand BEFORE UPDATE OF currency, billing_zone ON tenants_organization
    FOR EACH ROW EXECUTE FUNCTION billing_books_stand();
"""
UNDO_BOOKS_STAND = """
DROP TRIGGER books_stand ON tenants_organization;
DROP FUNCTION billing_books_stand();
"""


class Migration(migrations.Migration):

    dependencies = [("billing", "0001_first"), ("tenants", "0002_promises")]

    operations = [
        *(
            migrations.RunSQL(
                f"ALTER TABLE {table} ADD CONSTRAINT {name} FOREIGN KEY (organization_id, {columns}) "
                f"REFERENCES {target} (organization_id, {there})",
                f"ALTER TABLE {table} DROP CONSTRAINT {name}",
            )
            for table, name, columns, target, there in SAME_ORGANIZATION
        ),
        migrations.RunSQL(WHOLE_MILLISECONDS, UNDO_WHOLE_MILLISECONDS),
        migrations.RunSQL(APPEND_ONLY, UNDO_APPEND_ONLY),
        migrations.RunSQL(BALANCED, UNDO_BALANCED),
        migrations.RunSQL(PRICES_STAND, UNDO_PRICES_STAND),
        migrations.RunSQL(SEGMENTS_STAND, UNDO_SEGMENTS_STAND),
        migrations.RunSQL(BOOKS_STAND, UNDO_BOOKS_STAND),
    ]
