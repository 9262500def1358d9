-- Locks of identifiers: a poll that holds one has the turn of the identifier alone, and checks it again.

-- Locks identifiers until the transaction ends. Returns the sequences of the identifiers that it could lock.
CREATE FUNCTION taskq_internal.lock_identifiers(p_topic_id int, p_sequences bigint[], p_identifiers text[])
RETURNS bigint[] LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off AS $$
DECLARE
    v_buckets int[] := ARRAY(SELECT taskq_internal.identifier_bucket(p_topic_id, u.identifier)
                             FROM unnest(p_identifiers) AS u (identifier));
    v_locked  int[] := ARRAY(SELECT b.bucket FROM taskq_internal.identifier_lock b WHERE b.bucket = ANY (v_buckets)
                             FOR UPDATE SKIP LOCKED);
BEGIN
    IF cardinality(v_locked) = 0 AND NOT EXISTS (SELECT FROM taskq_internal.identifier_lock) THEN
        PERFORM taskq_internal.create_rows();
        v_locked := ARRAY(SELECT b.bucket FROM taskq_internal.identifier_lock b WHERE b.bucket = ANY (v_buckets)
                          FOR UPDATE SKIP LOCKED);
    END IF;
    IF cardinality(v_locked) = cardinality(v_buckets) THEN  -- all identifiers are locked, and no two share a bucket
        RETURN p_sequences;
    END IF;
    RETURN ARRAY(SELECT u.sequence FROM unnest(p_sequences, v_buckets) AS u (sequence, bucket)
                 JOIN unnest(v_locked) AS b (bucket) USING (bucket));
END $$;

-- Locks and returns the tasks among p_sequences that still have the turn of their identifiers, which this transaction
-- has locked. If no transaction has committed since the snapshot p_seen_at, all of them have.
CREATE FUNCTION taskq_internal.recheck_turns(
    p_topic_id int, p_now timestamptz, p_lifo boolean, p_condition text, p_sequences bigint[], p_seen_at text
) RETURNS bigint[] LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_blocking smallint[] := taskq_internal.blocking_states(p_condition);
    v_any      boolean;
    v_front    taskq_internal.front;
    v_locked   bigint[];
    v_same     boolean;
BEGIN
    SELECT array_agg(l.sequence), bool_and(l.same) INTO v_locked, v_same FROM (
        SELECT l.sequence, pg_current_snapshot()::text = p_seen_at AS same FROM taskq_internal.live l
        -- num_nulls and + 0 keep the planner from the indexes of READY tasks.
        WHERE l.topic_id = p_topic_id AND l.sequence = ANY (p_sequences) AND num_nulls(l.holder) = 1
            AND l.waits + 0 <= :WAITS_NOTHING
        FOR UPDATE SKIP LOCKED) l;
    IF v_same IS NOT FALSE THEN
        RETURN coalesce(v_locked, '{}');
    END IF;
    v_any := taskq_internal.has_identifier_fronts(p_topic_id);
    v_front := taskq_internal.only_front(p_topic_id, p_lifo);
    RETURN ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, l.identifier, v_any) i ON true
        WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_locked)
          AND coalesce((
                SELECT t.sequence FROM taskq_internal.turn_of_identifier(p_topic_id, l.identifier, i.claimed_at) t),
              l.sequence) = l.sequence
          AND CASE WHEN l.attempt > 0 THEN true
              -- Most identifiers have no front, and their first READY task is due: one index probe.
              WHEN i.claimed_at IS NULL AND NOT p_lifo AND l.sequence = (
                  SELECT b.sequence FROM taskq_internal.live b
                  WHERE b.topic_id::bigint = p_topic_id AND b.topic_id = p_topic_id
                    AND b.identifier = l.identifier AND b.holder IS NULL
                  ORDER BY b.priority DESC, b.available_at, b.sequence LIMIT 1) THEN true
              WHEN i.claimed_at IS NULL OR v_front.number IS NULL
                  THEN l.sequence = taskq_internal.first_due_of_identifier(p_topic_id, l.identifier, p_now, p_lifo)
              ELSE l.sequence = (
                  SELECT h.sequence FROM taskq_internal.head_of_identifier(
                      p_topic_id, l.identifier, p_now, v_front.priority,
                      CASE WHEN (i.available_at, i.sequence) > (v_front.available_at, v_front.sequence)
                          THEN i.available_at ELSE v_front.available_at END,
                      CASE WHEN (i.available_at, i.sequence) > (v_front.available_at, v_front.sequence)
                          THEN i.sequence ELSE v_front.sequence END) h) END
          AND (cardinality(v_blocking) = 0 OR (
              SELECT e.sequence FROM taskq_internal.ended e WHERE e.identifier = l.identifier
                AND e.topic_id = p_topic_id AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED)
                AND e.state = ANY (v_blocking)
              ORDER BY e.state, e.sequence LIMIT 1) IS NULL));
END $$;

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
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
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
