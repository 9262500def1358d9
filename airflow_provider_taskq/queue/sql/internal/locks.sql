-- Locks of topics. Transactions that rely on a topic and a transaction that closes it (drop_topic) exclude each
-- other.
--
-- A transaction that relies on a topic takes the shared advisory lock (topic_lock_class, topic_id), the fast path. Any
-- role that can connect can take that lock too, so a push never waits for it. If the lock is not available, the push
-- locks the topic's row FOR KEY SHARE, which a role without access can neither take nor block. It then announces to the
-- log that it counts for all topics.
--
-- A transaction that closes a topic takes both: the advisory lock exclusively, and the row FOR UPDATE. It waits for
-- transactions that prove by a lock in taskq_internal that they rely on a topic. It raises TQ000 if another session
-- holds the lock.

-- Returns the tables that exist only to be locked. A lock on one of them does not mean that a transaction uses tasks.
CREATE FUNCTION taskq_internal.lock_only_tables() RETURNS oid[] LANGUAGE sql STABLE AS $$
    SELECT ARRAY['taskq_internal.push'::regclass, 'taskq_internal.unplaced_push'::regclass,
                 'taskq_internal.topic_use'::regclass, 'taskq_internal.prune'::regclass,
                 'taskq_internal.retry'::regclass, 'taskq_internal.claim'::regclass, 'taskq_internal.mutex'::regclass,
                 'taskq_internal.offer_lock'::regclass]::oid[]
$$;

-- Returns the class of the advisory locks of topics.
CREATE FUNCTION taskq_internal.topic_lock_class() RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT 8275717  -- 0x7E4705
$$;

-- Returns the topic with this name, which no transaction can drop until this one ends. For a push, which calls
-- announce_push next. If another session dropped the topic and created it again during the wait, it returns the new
-- topic. Above READ COMMITTED the snapshot does not show this, so there it locks the row as well: a topic that was
-- dropped in the meantime then causes a serialization failure.
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
        -- Inlined, because a call of find_topic costs 2 us.
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

-- Does the same for a transaction that relies on a topic and may draw no sequences.
CREATE FUNCTION taskq_internal.lock_topic_for_use(p_topic text, p_rights text) RETURNS taskq_internal.topic
LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE taskq_internal.topic_use IN ROW SHARE MODE;
    RETURN taskq_internal.lock_topic_shared(p_topic, p_rights);
END $$;

-- Locks the row of a topic whose advisory lock is not available. Waits for a transaction that drops the
-- topic.
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

-- Locks a topic without waiting. Returns false while another transaction drops the topic.
CREATE FUNCTION taskq_internal.try_lock_topic_shared(p_topic_id int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE taskq_internal.topic_use IN ROW SHARE MODE;
    IF pg_try_advisory_xact_lock_shared(taskq_internal.topic_lock_class(), p_topic_id) THEN
        RETURN true;
    END IF;
    PERFORM FROM taskq_internal.topic WHERE topic_id = p_topic_id FOR KEY SHARE SKIP LOCKED;
    RETURN FOUND AND NOT taskq_internal.is_closing(p_topic_id);
END $$;

-- Takes the advisory lock of a topic exclusively. Raises TQ000 if a session outside of the queue holds it, and names
-- that session. The caller locks the topic's row, because drop_topic must not wait for the row while it holds this
-- lock.
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
        -- The first sight of a session does not count: a push takes its two locks one after the other.
        IF v_stranger IS NOT NULL AND v_last IS NOT NULL THEN
            PERFORM taskq_internal.raise_error('TQ000',
                    format('topic %L cannot be dropped: %s holds the advisory lock (%s, %s) and is not'
                ' using the queue; try again when it has released the lock',
                (SELECT name FROM taskq_internal.topic WHERE topic_id = p_topic_id), v_stranger,
                    taskq_internal.topic_lock_class(), p_topic_id));
        END IF;
        EXIT WHEN taskq_internal.await_topic_lock(p_topic_id, false, v_limit);
        PERFORM taskq_internal.check_lock_timeout(v_since, v_limit);
    END LOOP;
END $$;

-- Waits for the advisory lock of a topic, shared or exclusive, for at most 2 seconds, or for p_limit if that is shorter
-- and not 0. Returns false if the lock did not become available. The wait is longer than the server's usual
-- deadlock_timeout, so that the server finds a deadlock.
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

-- Ends a wait in several steps like the caller's lock_timeout would end a single wait. A limit of 0 means no limit.
CREATE FUNCTION taskq_internal.check_lock_timeout(p_since timestamptz, p_limit interval) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_limit > interval '0' AND clock_timestamp() >= p_since + p_limit THEN
        RAISE lock_not_available USING MESSAGE = 'canceling statement due to lock timeout';
    END IF;
END $$;

-- Returns the sessions and prepared transactions that hold or await the advisory lock of a topic. The caller clears the
-- snapshot of statistics first, because a transaction sees the same pg_stat_activity from its first read to its end.
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

-- Returns whether a session that may close the topic holds its advisory lock exclusively, or waits for it.
CREATE FUNCTION taskq_internal.is_closing(p_topic_id int) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT pg_stat_clear_snapshot();
    SELECT EXISTS (SELECT FROM taskq_internal.topic_lockers(p_topic_id) k WHERE k.exclusive
                   AND taskq_internal.may_close(k.usesysid))
$$;

-- Returns whether a role, or a role that it is a member of, may close topics. Such a role could also drop the topic.
CREATE FUNCTION taskq_internal.may_close(p_role oid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(bool_or(has_function_privilege(r.oid, 'taskq.drop_topic(text, interval)', 'EXECUTE')), false)
    FROM pg_roles r WHERE pg_has_role(p_role, r.oid, 'MEMBER')
$$;

-- Returns another session or prepared transaction that holds the advisory lock of a topic, although it neither relies
-- on a topic nor may close one. Returns NULL if there is none.
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
