-- Locks of topics: transactions that rely on a topic, and those that close it (drop_topic, own_partition), exclude
-- each other.
--
-- A transaction that relies on a topic takes the shared advisory lock (topic_lock_class, topic_id), the fast path.
-- Any role that can connect can take that lock too, so a push never waits for it. If the lock is not available, the
-- push locks the topic's row FOR KEY SHARE, which no outsider can take or block, and announces to the log that it
-- counts for all topics.
--
-- A transaction that closes a topic takes both: the advisory lock exclusively, and the row FOR UPDATE. It waits for
-- transactions that prove by a lock in taskq_internal that they rely on a topic, and raises TQ000 if another session
-- is in the way.

-- The tables that exist only to be locked. A lock on one of them does not mean that a transaction uses tasks.
CREATE FUNCTION taskq_internal.lock_only_tables() RETURNS oid[] LANGUAGE sql STABLE AS $$
    SELECT ARRAY['taskq_internal.push'::regclass, 'taskq_internal.unplaced_push'::regclass,
                 'taskq_internal.topic_use'::regclass,
                 'taskq_internal.prune'::regclass, 'taskq_internal.mutex'::regclass,
                     'taskq_internal.offer_lock'::regclass]::oid[]
$$;

-- The class of these advisory locks.
CREATE FUNCTION taskq_internal.topic_lock_class() RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT 8275717  -- 0x7E4705
$$;

-- The topic of this name, which no transaction can drop until this one ends; for a push, which calls announce_push
-- next. If the topic was dropped and created again during the wait, the new one. Above READ COMMITTED the snapshot
-- cannot tell, so there the row is locked as well: a topic that was dropped since is a serialization failure.
CREATE FUNCTION taskq_internal.lock_topic_shared(p_topic text, p_rights text) RETURNS taskq_internal.topic
LANGUAGE plpgsql AS $$
DECLARE
    v_kept  int;
    v_topic taskq_internal.topic;
BEGIN
    IF NOT taskq_internal.may_access(p_topic, p_rights) THEN
        PERFORM taskq_internal.check_access(p_topic, p_rights);
    END IF;
    LOOP
        -- Inlined: a call of find_topic costs 2 us.
        SELECT * INTO v_topic FROM taskq_internal.topic WHERE name = p_topic;
        IF NOT FOUND THEN
            v_topic := taskq_internal.find_topic(p_topic);
        END IF;
        EXIT WHEN v_topic.topic_id = v_kept;
        v_kept := v_topic.topic_id;
        IF NOT pg_try_advisory_xact_lock_shared(taskq_internal.topic_lock_class(), v_kept) THEN
            PERFORM taskq_internal.lock_topic_row(v_kept);
        END IF;
    END LOOP;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM FROM taskq_internal.topic WHERE topic_id = v_kept FOR KEY SHARE;
    END IF;
    RETURN v_topic;
END $$;

-- The same for a transaction that relies on a topic and may draw no sequences.
CREATE FUNCTION taskq_internal.lock_topic_for_use(p_topic text, p_rights text) RETURNS taskq_internal.topic
LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE taskq_internal.topic_use IN ROW SHARE MODE;
    RETURN taskq_internal.lock_topic_shared(p_topic, p_rights);
END $$;

-- Locks the row of a topic whose advisory lock is not available. Waits for a transaction that drops, closes or moves
-- the topic.
CREATE FUNCTION taskq_internal.lock_topic_row(p_topic_id int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_limit interval := current_setting('lock_timeout')::interval;
    v_since timestamptz := clock_timestamp();
BEGIN
    LOOP
        PERFORM FROM taskq_internal.topic WHERE topic_id = p_topic_id FOR KEY SHARE;
        IF NOT FOUND OR pg_try_advisory_xact_lock_shared(taskq_internal.topic_lock_class(), p_topic_id) THEN
            RETURN;
        END IF;
        IF NOT taskq_internal.is_closing(p_topic_id) THEN
            LOCK TABLE taskq_internal.unplaced_push IN ROW SHARE MODE;
            RETURN;
        END IF;
        PERFORM taskq_internal.await_topic_lock(p_topic_id, true, v_limit);
        PERFORM taskq_internal.check_lock_timeout(v_since, v_limit);
    END LOOP;
END $$;

-- Locks a topic without waiting; false while it is dropped or moved.
CREATE FUNCTION taskq_internal.try_lock_topic_shared(p_topic_id int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE taskq_internal.topic_use IN ROW SHARE MODE;
    IF pg_try_advisory_xact_lock_shared(taskq_internal.topic_lock_class(), p_topic_id) THEN
        RETURN true;
    END IF;
    PERFORM FROM taskq_internal.topic WHERE topic_id = p_topic_id FOR KEY SHARE SKIP LOCKED;
    RETURN FOUND AND NOT taskq_internal.is_closing(p_topic_id);
END $$;

-- Closes a topic to all that rely on it, until this transaction ends. Waits for open pushes to it. A push without
-- the advisory lock holds the topic's row, and may wait for that lock. So this function does not wait for the row
-- while it holds the lock: it releases the lock, sleeps, and tries again.
CREATE FUNCTION taskq_internal.lock_topic_exclusive(p_topic_id int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_limit interval := current_setting('lock_timeout')::interval;
    v_since timestamptz := clock_timestamp();
BEGIN
    LOOP
        BEGIN
            PERFORM taskq_internal.take_topic_lock_exclusive(p_topic_id);
            PERFORM FROM taskq_internal.topic WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM taskq_internal.check_lock_timeout(v_since, v_limit);
        END;
        PERFORM pg_sleep(0.05 + 0.1 * random());
    END LOOP;
END $$;

-- Takes the advisory lock of a topic exclusively. Raises TQ000, naming the session, if a session outside of the
-- queue holds it. The caller locks the topic's row: drop_topic must not wait for it while it holds this lock.
CREATE FUNCTION taskq_internal.take_topic_lock_exclusive(p_topic_id int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_limit    interval := current_setting('lock_timeout')::interval;
    v_since    timestamptz := clock_timestamp();
    v_stranger text;
    v_last     text;
BEGIN
    WHILE NOT pg_try_advisory_xact_lock(taskq_internal.topic_lock_class(), p_topic_id) LOOP
        v_last := v_stranger;
        v_stranger := taskq_internal.topic_lock_outsider(p_topic_id);
        -- Only the second sight counts: a push takes its two locks one after the other.
        IF v_stranger IS NOT NULL AND v_last IS NOT NULL THEN
            PERFORM taskq_internal.raise_error('TQ000',
                    format('topic %L cannot be dropped or moved: %s holds the advisory lock (%s, %s) and is not'
                ' using the queue; try again when it has released the lock',
                (SELECT name FROM taskq_internal.topic WHERE topic_id = p_topic_id), v_stranger,
                    taskq_internal.topic_lock_class(), p_topic_id));
        END IF;
        EXIT WHEN taskq_internal.await_topic_lock(p_topic_id, false, v_limit);
        PERFORM taskq_internal.check_lock_timeout(v_since, v_limit);
    END LOOP;
END $$;

-- Waits for the advisory lock of a topic, shared or exclusively, for at most 2 seconds, or p_limit if that is shorter
-- and not 0; false if it did not become available. The time is longer than the server's usual deadlock_timeout, so
-- that a deadlock is found.
CREATE FUNCTION taskq_internal.await_topic_lock(p_topic_id int, p_shared boolean, p_limit interval) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
BEGIN
    IF p_limit > interval '0' AND p_limit < interval '2 seconds' THEN
        PERFORM set_config('lock_timeout', ceil(extract(epoch FROM p_limit) * 1000)::text, true);
    END IF;
    IF p_shared THEN
        PERFORM pg_advisory_xact_lock_shared(taskq_internal.topic_lock_class(), p_topic_id);
    ELSE
        PERFORM pg_advisory_xact_lock(taskq_internal.topic_lock_class(), p_topic_id);
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Ends a wait in several steps as the caller's lock_timeout (0: none) would end a single one.
CREATE FUNCTION taskq_internal.check_lock_timeout(p_since timestamptz, p_limit interval) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_limit > interval '0' AND clock_timestamp() >= p_since + p_limit THEN
        RAISE lock_not_available USING MESSAGE = 'canceling statement due to lock timeout';
    END IF;
END $$;

-- The sessions and prepared transactions that hold or await the advisory lock of a topic. The caller clears the
-- snapshot of statistics first: a transaction sees the same pg_stat_activity from its first read to its end.
CREATE FUNCTION taskq_internal.topic_lockers(p_topic_id int)
RETURNS TABLE (virtualtransaction text, pid int, holder text, usesysid oid, granted boolean, exclusive boolean)
LANGUAGE sql STABLE AS $$
    SELECT l.virtualtransaction, l.pid,
           CASE WHEN l.pid IS NULL THEN format('prepared transaction %L', x.gid)
                ELSE format('session %s of role %L', l.pid, coalesce(a.usename, '')) END,
           coalesce(a.usesysid, r.oid), l.granted, l.mode = 'ExclusiveLock'
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    LEFT JOIN (SELECT o.virtualtransaction, p.gid, p.owner FROM pg_prepared_xacts p
               JOIN pg_locks o ON o.locktype = 'transactionid' AND o.transactionid = p.transaction) x
        ON l.pid IS NULL AND x.virtualtransaction = l.virtualtransaction
    LEFT JOIN pg_roles r ON r.rolname = x.owner
    WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid::bigint = taskq_internal.topic_lock_class()
      AND l.objid::bigint = p_topic_id
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;

-- Whether a session that may close the topic holds its advisory lock exclusively, or waits for it.
CREATE FUNCTION taskq_internal.is_closing(p_topic_id int) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT pg_stat_clear_snapshot();
    SELECT EXISTS (SELECT FROM taskq_internal.topic_lockers(p_topic_id) k WHERE k.exclusive
                   AND taskq_internal.may_close(k.usesysid))
$$;

-- Whether a role, or one that it is a member of, may close topics. Such a role could also drop the topic.
CREATE FUNCTION taskq_internal.may_close(p_role oid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(bool_or(has_function_privilege(r.oid, 'taskq.lock_pushes(text, interval)', 'EXECUTE')), false)
    FROM pg_roles r WHERE pg_has_role(p_role, r.oid, 'MEMBER')
$$;

-- Another session or prepared transaction that holds the advisory lock of a topic, and neither relies on a topic nor
-- may close one; NULL if there is none.
CREATE FUNCTION taskq_internal.topic_lock_outsider(p_topic_id int) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT pg_stat_clear_snapshot();
    SELECT k.holder FROM taskq_internal.topic_lockers(p_topic_id) k
    WHERE k.granted AND k.pid IS DISTINCT FROM pg_backend_pid()
        AND (k.exclusive AND taskq_internal.may_close(k.usesysid)) IS NOT TRUE
      AND NOT EXISTS (SELECT FROM pg_locks m
                      WHERE m.virtualtransaction = k.virtualtransaction AND m.granted AND m.mode = 'RowShareLock'
                        AND m.relation IN ('taskq_internal.push'::regclass, 'taskq_internal.topic_use'::regclass))
    ORDER BY k.pid LIMIT 1
$$;
