-- Advisory locks. A role that may connect is trusted not to take them. They end with the transaction. Their key has the
-- kind of the lock (LockKind in queue/models.py) in its upper 16 bits, and a number in the other 48.
--
-- A transaction that relies on a topic shares the lock of that topic, and taskq.drop_topic holds it alone. 1,024 locks
-- serve all topics, so that a transaction never takes more, whatever number of topics it pushes to. Topics whose
-- numbers are equal modulo 1,024 share a lock: an open push to one of them counts for the others too.

-- Returns the key of the lock for a name. Two names of a kind do not share a key, but for a chance of 1 in 2^48.
CREATE FUNCTION taskq_internal.mutex(p_kind bigint, p_name text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT (p_kind << 48) | (hashtextextended(p_name, 0) & ((1::bigint << 48) - 1))
$$;

-- Returns the key of the lock of a topic.
CREATE FUNCTION taskq_internal.topic_lock(p_topic_id int) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT (:LOCK_TOPIC::bigint << 48) | (p_topic_id & 1023)
$$;

-- Returns the advisory locks of the queue that are held in this database: their transactions, kinds and numbers. A
-- prepared transaction has no pid. The server lists its advisory locks all at one moment.
CREATE FUNCTION taskq_internal.held_locks()
RETURNS TABLE (virtualtransaction text, pid int, kind int, number bigint) LANGUAGE sql STABLE AS $$
    SELECT l.virtualtransaction, l.pid, (l.classid::bigint >> 16)::int,
           ((l.classid::bigint & 65535) << 32) | l.objid::bigint
    FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
$$;

-- Creates the rows that belong to the schema and are missing: the locks of identifiers, and the state of upkeep. A copy
-- of the schema without rows has none, nor has a database whose tables were truncated. Such rows are then created by
-- the first call that misses them. Never waits: does nothing while another transaction creates them.
CREATE FUNCTION taskq_internal.create_rows() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF pg_try_advisory_xact_lock(taskq_internal.mutex(:LOCK_ROWS, '')) THEN
        INSERT INTO taskq_internal.identifier_lock SELECT generate_series(0, 2 * 65536 - 1) ON CONFLICT DO NOTHING;
        INSERT INTO taskq_internal.upkeep DEFAULT VALUES ON CONFLICT DO NOTHING;
    END IF;
END $$;
