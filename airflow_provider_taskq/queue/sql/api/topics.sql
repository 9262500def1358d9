-- Topics: a topic has a name and a policy, and may be paused.

CREATE FUNCTION taskq.policy(p_topic text) RETURNS taskq_internal.topic LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN taskq_internal.accessible_topic(p_topic, 'SELECT, INSERT, UPDATE');
END $$;
COMMENT ON FUNCTION taskq.policy IS
'Returns a topic with its policy and its number. The columns paused, paused_by and paused_since describe its pause.
Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.create_topic(
    p_topic text, p_max_attempts int DEFAULT 1, p_base interval DEFAULT '1 minute', p_factor double precision DEFAULT 2,
    p_max_delay interval DEFAULT '180 minutes', p_horizon interval DEFAULT NULL, p_max_elapsed interval DEFAULT NULL,
    p_jitter double precision DEFAULT 0, p_probe boolean DEFAULT false, p_on_expiry text DEFAULT 'redeliver',
    p_max_crashes int DEFAULT 3, p_max_payload_bytes int DEFAULT 262144, p_ttl interval DEFAULT NULL,
    p_notify boolean DEFAULT false, p_keep_succeeded interval DEFAULT NULL, p_keep_failed interval DEFAULT NULL,
    p_own_tables boolean DEFAULT false
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int;
BEGIN
    PERFORM taskq_internal.check_policy(
        p_topic, p_base, p_max_delay, p_horizon, p_max_elapsed, p_ttl, p_keep_succeeded, p_keep_failed);
    IF EXISTS (SELECT FROM taskq_internal.topic WHERE name = p_topic) THEN
        RETURN false;  -- before it draws a number
    END IF;
    INSERT INTO taskq_internal.topic (topic_id, name, max_attempts, base, factor, max_delay, horizon, max_elapsed,
        jitter, probe, on_expiry, max_crashes, max_payload_bytes, ttl, notify, keep_succeeded, keep_failed)
    VALUES (CASE WHEN p_own_tables THEN nextval('taskq_internal.own_topic_id')
                 ELSE nextval('taskq_internal.shared_topic_id') END, p_topic, p_max_attempts, p_base, p_factor, p_max_delay, p_horizon, p_max_elapsed, p_jitter, p_probe,
            p_on_expiry, p_max_crashes, p_max_payload_bytes, p_ttl, p_notify, p_keep_succeeded, p_keep_failed)
    ON CONFLICT (name) DO NOTHING RETURNING topic_id INTO v_topic_id;
    IF v_topic_id IS NULL THEN
        RETURN false;
    END IF;
    PERFORM taskq_internal.add_fronts(v_topic_id, '{0}');
    IF p_own_tables THEN
        PERFORM taskq_internal.create_own_tables(v_topic_id);
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION taskq.create_topic IS
'Creates a topic with a policy, for example taskq.create_topic(''orders'', p_max_attempts => 3, p_base => ''30 s''). If
no policy is given, a task has one attempt. With p_own_tables true the topic has tables of its own. Returns false and
changes nothing if the topic exists. Raises TQ008 for an invalid duration, and check_violation for an invalid name or
another invalid field.';

CREATE FUNCTION taskq.alter_topic(p_topic text, p_changes jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_topic   taskq_internal.topic := taskq_internal.find_topic(p_topic);
    v_altered taskq_internal.topic;
BEGIN
    PERFORM taskq_internal.check_policy_fields(p_topic, p_changes);
    SELECT * INTO v_topic FROM taskq_internal.topic WHERE topic_id = v_topic.topic_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_error('TQ001', format('topic %L was dropped at this moment', p_topic));
    END IF;
    v_altered := jsonb_populate_record(v_topic, p_changes);
    PERFORM taskq_internal.check_policy(
        p_topic, v_altered.base, v_altered.max_delay, v_altered.horizon, v_altered.max_elapsed, v_altered.ttl,
        v_altered.keep_succeeded, v_altered.keep_failed);
    UPDATE taskq_internal.topic SET
        max_attempts = v_altered.max_attempts, base = v_altered.base, factor = v_altered.factor,
            max_delay = v_altered.max_delay,
        horizon = v_altered.horizon, max_elapsed = v_altered.max_elapsed, jitter = v_altered.jitter,
            probe = v_altered.probe,
        on_expiry = v_altered.on_expiry, max_crashes = v_altered.max_crashes,
            max_payload_bytes = v_altered.max_payload_bytes,
        ttl = v_altered.ttl, notify = v_altered.notify, keep_succeeded = v_altered.keep_succeeded,
        keep_failed = v_altered.keep_failed
    WHERE topic_id = v_topic.topic_id;
    IF v_altered.probe AND NOT v_topic.probe THEN  -- tasks that wait for a retry now also wait for the probe
        UPDATE taskq_internal.live SET waits = :WAITS_PROBE WHERE topic_id = v_topic.topic_id AND holder IS NULL
            AND attempt > 0 AND waits <= :WAITS_NOTHING;
    END IF;
END $$;
COMMENT ON FUNCTION taskq.alter_topic IS
'Changes the fields of a topic''s policy that the JSON object p_changes names, for example {"max_attempts": 5, "ttl":
"90 s"}. Scheduled retries keep their time. Concurrent changes wait for each other. Raises TQ001 for an unknown topic,
TQ008 for an unknown field or an invalid duration, and check_violation or invalid_text_representation for another
invalid value.';

CREATE FUNCTION taskq.set_paused(p_topic text, p_paused boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
BEGIN
    PERFORM FROM taskq_internal.topic WHERE topic_id = v_topic_id FOR NO KEY UPDATE;
    UPDATE taskq_internal.topic t SET paused = p_paused,
        paused_by = CASE WHEN p_paused THEN coalesce(taskq_internal.current_actor(), session_user) END,
        paused_since = CASE WHEN p_paused THEN clock_timestamp() END
    WHERE t.topic_id = v_topic_id AND t.paused <> p_paused;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION taskq.set_paused IS
'Pauses or resumes a topic. A paused topic accepts pushes and completions, but polls get none of its tasks. Returns
false if the topic was already paused or running as requested. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.topics() RETURNS SETOF text LANGUAGE sql STABLE AS $$
    SELECT name FROM taskq_internal.topic
    WHERE (SELECT taskq_internal.may_access_all('SELECT, INSERT, UPDATE'))
        OR taskq_internal.may_access_topic(name, 'SELECT, INSERT, UPDATE')
    ORDER BY name
$$;
COMMENT ON FUNCTION taskq.topics IS
'Returns the names of all topics that the role may use, in alphabetical order.';

-- A transaction of several verbs may hold a lock that this function needs, and wait for a lock that this function
-- holds. PostgreSQL would end one of the two transactions. So this function waits for a lock only while it holds none.
-- It takes the free locks, sleeps and checks again. If a transaction that has changed rows waits for this function, the
-- function releases all its locks and begins again.
CREATE FUNCTION taskq.drop_topic(p_topic text, p_patience interval DEFAULT '1 minute') RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_until timestamptz := clock_timestamp()
                           + least(p_patience, nullif(current_setting('lock_timeout')::interval, interval '0'));
    v_holds boolean := pg_current_xact_id_if_assigned() IS NOT NULL;  -- this transaction has changed something before
BEGIN
    LOOP
        BEGIN
            RETURN taskq_internal.try_drop_topic(p_topic, v_until, v_holds);
        EXCEPTION WHEN lock_not_available THEN  -- the rollback has released the locks of this try
            IF clock_timestamp() >= v_until OR v_holds AND taskq_internal.blocks_writer('0') THEN
                PERFORM taskq_internal.raise_topic_in_use(p_topic);
            END IF;
        END;
        PERFORM pg_sleep(0.05 + 0.1 * random());
    END LOOP;
END $$;
COMMENT ON FUNCTION taskq.drop_topic IS
'Drops a topic with all its tasks. Waits up to p_patience for transactions that push to the topic or hold its tasks. If
the topic has its own tables, it waits for all transactions that use tasks of any topic, and then keeps them out until
its transaction ends. Returns false if the topic does not exist. Raises TQ000 if a session still uses the topic, and
names that session.';

-- Returns the topic with this name. Raises TQ001 if it does not exist.
CREATE FUNCTION taskq_internal.find_topic(p_topic text) RETURNS taskq_internal.topic LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic taskq_internal.topic;
BEGIN
    SELECT * INTO v_topic FROM taskq_internal.topic WHERE name = p_topic;
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_error('TQ001', format(
            'topic %L is not known; create it with create_topic', p_topic));
    END IF;
    RETURN v_topic;
END $$;

-- Raises TQ008 if the changes are not a JSON object of policy fields.
CREATE FUNCTION taskq_internal.check_policy_fields(p_topic text, p_changes jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_fields  text[] := ARRAY['max_attempts', 'base', 'factor', 'max_delay', 'horizon', 'max_elapsed', 'jitter',
                              'probe', 'on_expiry', 'max_crashes', 'max_payload_bytes', 'ttl', 'notify',
                              'keep_succeeded', 'keep_failed'];
    v_unknown text;
BEGIN
    IF jsonb_typeof(p_changes) IS DISTINCT FROM 'object' THEN
        PERFORM taskq_internal.raise_error('TQ008', format('topic %L: changes of a policy are a JSON object', p_topic));
    END IF;
    SELECT string_agg(quote_literal(k), ', ' ORDER BY k) INTO v_unknown FROM jsonb_object_keys(p_changes) k
        WHERE k <> ALL (v_fields);
    IF v_unknown IS NOT NULL THEN
        PERFORM taskq_internal.raise_error('TQ008', format(
            'topic %L: a policy has no field %s; it has %s', p_topic, v_unknown, array_to_string(v_fields, ', ')));
    END IF;
END $$;

-- Tries once to drop a topic, for taskq.drop_topic. Raises lock_not_available if the caller has to repeat the attempt.
CREATE FUNCTION taskq_internal.try_drop_topic(p_topic text, p_until timestamptz, p_holds boolean) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '10ms' AS $$
DECLARE
    v_topic_id int := (SELECT t.topic_id FROM taskq_internal.topic t WHERE t.name = p_topic);
    v_pause    double precision := 0.01;
BEGIN
    IF v_topic_id IS NULL THEN
        RETURN false;
    END IF;
    IF p_holds AND NOT pg_try_advisory_xact_lock(taskq_internal.topic_lock(v_topic_id)) THEN
        RAISE lock_not_available;
    END IF;
    PERFORM set_config('lock_timeout', taskq_internal.lock_timeout_setting(p_until - clock_timestamp()), true);
    PERFORM pg_advisory_xact_lock(taskq_internal.topic_lock(v_topic_id));
    PERFORM set_config('lock_timeout', '10ms', true);  -- the statements below must not wait
    PERFORM FROM taskq_internal.topic WHERE topic_id = v_topic_id FOR UPDATE NOWAIT;
    IF NOT FOUND THEN  -- another session has dropped it, and may have created it again
        RAISE lock_not_available;
    END IF;
    WHILE NOT taskq_internal.delete_unlocked_rows(v_topic_id) LOOP
        IF clock_timestamp() >= p_until OR taskq_internal.blocks_writer('0.5 seconds') THEN
            RAISE lock_not_available;
        END IF;
        PERFORM pg_sleep(v_pause);
        v_pause := least(2 * v_pause, 0.2);
    END LOOP;
    PERFORM taskq_internal.delete_waits(v_topic_id);
    IF v_topic_id >= :FIRST_OWN_TOPIC THEN
        PERFORM taskq_internal.drop_own_tables(v_topic_id);
    ELSE
        DELETE FROM taskq_internal.task WHERE topic_id = v_topic_id;
    END IF;
    DELETE FROM taskq_internal.topic WHERE topic_id = v_topic_id;
    RETURN true;
END $$;

-- Deletes the rows of a topic that no other transaction holds. Returns whether these were all rows. Never waits. It
-- keeps the rows of taskq_internal.task: a transaction that changes such a row also holds the task's row in live or
-- ended. It keeps own tables, which drop_own_tables drops.
CREATE FUNCTION taskq_internal.delete_unlocked_rows(p_topic_id int) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_table text;
    v_left  boolean;
BEGIN
    FOREACH v_table IN ARRAY CASE WHEN p_topic_id < :FIRST_OWN_TOPIC THEN ARRAY['live', 'ended'] ELSE '{}' END
        || ARRAY['probe', 'probe_result', 'group_release', 'handling', 'progress', 'consumer_partition',
                 'consumer_group', 'retention_walk', 'front', 'identifier_front'] LOOP
        EXECUTE format('DELETE FROM taskq_internal.%I d USING ('  -- the rows are in one partition: a ctid is unique
                       'SELECT r.ctid FROM taskq_internal.%1$I r WHERE r.topic_id = $1 FOR UPDATE SKIP LOCKED) free'
                       ' WHERE d.topic_id = $1 AND d.ctid = free.ctid', v_table) USING p_topic_id;
        EXECUTE format('SELECT EXISTS (SELECT FROM taskq_internal.%I WHERE topic_id = $1)', v_table) INTO v_left
            USING p_topic_id;
        EXIT WHEN v_left;
    END LOOP;
    RETURN NOT v_left;
END $$;

-- Returns whether another transaction has waited for this session for longer than p_for, and has written to the tables
-- of the queue or locked rows.
CREATE FUNCTION taskq_internal.blocks_writer(p_for interval) RETURNS boolean LANGUAGE sql AS $$
    SELECT EXISTS (
        SELECT FROM taskq_internal.transactions_blocked_by_this() w JOIN pg_locks l USING (pid, virtualtransaction)
            JOIN pg_class c ON c.oid = l.relation
        WHERE w.since < clock_timestamp() - p_for AND l.granted AND l.mode <> 'AccessShareLock'
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND c.relnamespace IN ('taskq'::regnamespace, 'taskq_internal'::regnamespace)
          AND c.oid <> 'taskq_internal.offer_lock'::regclass
          -- If a transaction waits for the topic's row in its first verb, it holds this lock and has written nothing.
          AND (c.oid <> 'taskq_internal.topic'::regclass OR l.mode <> 'RowShareLock'))
$$;

-- Raises TQ000 for a topic that other sessions use. The error names the session whose transaction began first. Sessions
-- with a push to the topic come before sessions that use any task.
CREATE FUNCTION taskq_internal.raise_topic_in_use(p_topic text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (SELECT t.topic_id FROM taskq_internal.topic t WHERE t.name = p_topic);
    v_pid      int := (
        SELECT l.pid FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation LEFT JOIN pg_stat_activity a
            ON a.pid = l.pid
        WHERE l.granted AND l.pid <> pg_backend_pid()
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND (l.locktype = 'advisory' AND l.objsubid = 1
               AND (l.classid::bigint << 32 | l.objid::bigint) = taskq_internal.topic_lock(v_topic_id)
               OR c.relnamespace IN ('taskq'::regnamespace, 'taskq_internal'::regnamespace)
               AND c.oid <> 'taskq_internal.offer_lock'::regclass
               AND (l.mode <> 'AccessShareLock'
                    OR v_topic_id >= :FIRST_OWN_TOPIC AND c.relname IN ('task', 'live', 'ended')))
        ORDER BY l.locktype = 'advisory' DESC, a.xact_start LIMIT 1);
BEGIN
    PERFORM taskq_internal.raise_error('TQ000', format(
        'topic %L cannot be dropped: other transactions use it, session %s among them. Pause the topic,'
        ' and repeat this when they have ended', p_topic, coalesce(v_pid::text, '(ended just now)')));
END $$;

-- Deletes the dependencies and the history of a topic's removed tasks, and wakes the tasks that depend on them.
CREATE FUNCTION taskq_internal.delete_waits(p_topic_id int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM taskq_internal.dependency WHERE topic_id = p_topic_id;
    DELETE FROM taskq_internal.history WHERE topic_id = p_topic_id;
    PERFORM taskq_internal.wake_dependents(p_topic_id, ARRAY(
        SELECT DISTINCT d.on_identifier FROM taskq_internal.dependency d WHERE d.on_topic_id = p_topic_id
            AND d.waiting));
END $$;

-- Returns the transactions that wait for this session, directly or through another session, and since when. A caller
-- joins them with pg_locks by transaction. The session alone is not enough: two reads of pg_locks in a query see
-- different moments, and the session may have used a table in one transaction and wait in the next.
CREATE FUNCTION taskq_internal.transactions_blocked_by_this()
RETURNS TABLE (pid int, virtualtransaction text, since timestamptz) LANGUAGE sql AS $$
    WITH RECURSIVE blocked AS MATERIALIZED (
        SELECT l.pid, l.virtualtransaction, min(l.waitstart) AS since, pg_blocking_pids(l.pid) AS blockers
        FROM pg_locks l WHERE NOT l.granted GROUP BY l.pid, l.virtualtransaction
    ), waiting AS (
        SELECT b.* FROM blocked b WHERE pg_backend_pid() = ANY (b.blockers)
        UNION
        SELECT b.* FROM waiting w JOIN blocked b ON w.pid = ANY (b.blockers))
    SELECT w.pid, w.virtualtransaction, w.since FROM waiting w
$$;

-- Returns a duration as a value for lock_timeout. The least value is 1 ms, because 0 would mean no limit.
CREATE FUNCTION taskq_internal.lock_timeout_setting(p_patience interval) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT least(greatest(ceil(extract(epoch FROM p_patience) * 1000), 1), 2147483647)::int || 'ms'
$$;
