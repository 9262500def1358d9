-- Locks of identifiers: which ones other sessions hold, so that counts leave these identifiers out.

-- Returns the number of the row of taskq_internal.identifier_lock that a poll locks for an identifier. The rows from
-- 65,536 on are those of offers.
CREATE FUNCTION taskq_internal.identifier_bucket(p_topic_id int, p_identifier text) RETURNS int
LANGUAGE sql IMMUTABLE AS $$
    SELECT (hashtextextended(p_identifier, p_topic_id) & 65535)::int
$$;

-- Returns the identifiers that another open transaction has locked, which a poll would leave out. It takes no lock.
-- Rows of identifier_lock are only locked, never changed, so xmax is the transaction that locked the row last. For most
-- rows it is older than every open transaction.
CREATE FUNCTION taskq_internal.locked_identifiers(p_topic_id int, p_identifiers text[]) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    v_next   bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_oldest int := age(pg_snapshot_xmin(pg_current_snapshot())::xid);
BEGIN
    RETURN ARRAY(SELECT u.identifier FROM unnest(p_identifiers) AS u (identifier)
                 JOIN taskq_internal.identifier_lock b
                     ON b.bucket = taskq_internal.identifier_bucket(p_topic_id, u.identifier)
                 WHERE age(b.xmax) <= v_oldest AND taskq_internal.is_locked_elsewhere(b.xmax, v_next));
END $$;

-- Returns whether another open transaction has locked a row of identifier_lock, by the row's xmax. The lock may belong
-- to this transaction itself, under its own number or that of a savepoint. No function tells these numbers from those
-- of other transactions, but each other transaction holds a lock on its number.
CREATE FUNCTION taskq_internal.is_locked_elsewhere(p_locker xid, p_next bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT taskq_internal.is_transaction_open(p_locker, p_next) THEN
        RETURN false;
    END IF;
    RETURN pg_current_xact_id_if_assigned() IS NULL OR EXISTS (
        SELECT FROM pg_locks k WHERE k.locktype = 'transactionid' AND k.transactionid = p_locker
          AND k.mode = 'ExclusiveLock' AND k.pid IS DISTINCT FROM pg_backend_pid());
END $$;

-- Returns whether a transaction is still open. p_xid may be the xmax of a row of live. These rows are only locked FOR
-- UPDATE, by the call that then changes them, so xmax is one transaction and no multixact. The xmin of a visible row
-- belongs to this transaction itself. p_next is the next transaction number. It gives the epoch of the row's 32 bits; a
-- number beyond it began after this snapshot.
CREATE FUNCTION taskq_internal.is_transaction_open(p_xid xid, p_next bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_xid bigint := p_xid::text::bigint;
BEGIN
    IF v_xid = 0 THEN
        RETURN false;
    END IF;
    v_xid := v_xid + (p_next >> 32 << 32);
    IF v_xid >= p_next THEN
        IF v_xid - p_next < (1::bigint << 31) THEN
            RETURN true;
        END IF;
        v_xid := v_xid - (1::bigint << 32);
    END IF;
    RETURN v_xid > 0 AND pg_xact_status(v_xid::text::xid8) IS NOT DISTINCT FROM 'in progress';
END $$;
