-- Own tables for a busy topic: task_N, live_N and ended_N, where N is the topic's number, which is never used again.
-- So its vacuum is its own, and emptying or dropping it is instant.
--
-- A move takes five transactions, as no verb may wait longer than a moment for it. (1) begin_partition_move pauses
-- the topic and stores the move in taskq_internal.topic_move. (2) create_own_tables creates the tables; no session
-- waits. (3) close_shared_tables adds a constraint: the shared tables take no more rows of this topic. It needs
-- these tables alone for a moment, and from then on the topic stands still: paused, nothing held, pushes locked out.
-- (4) move_to_own_tables moves the rows, validates the constraint while all others work, and attaches the tables.
-- The validated constraint spares the scan of the shared tables that ATTACH makes under an exclusive lock.
-- undo_partition_move takes all of it back.
--
-- lock_pushes and unlock_pushes keep pushes out during steps 3 and 4, by a lock of the session. A table is locked
-- exclusively with a lock_timeout of 10 ms, again and again, because others wait behind a session that waits for
-- such a lock. Each function has to be a transaction of its own, as others wait for its end.
--
-- A session that ends on the way leaves its row in taskq_internal.topic_move. begin_partition_move then takes the
-- move over, and the steps are repeated; move_to_shared_tables undoes it. One session at a time changes tables:
-- taskq_internal.lock_moves.

CREATE FUNCTION taskq.begin_partition_move(p_topic text, p_patience interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic  taskq_internal.topic;
    v_paused boolean;
    v_token  bigint;
BEGIN
    PERFORM taskq_internal.lock_moves(p_patience);
    v_topic := taskq_internal.find_topic(p_topic);
    PERFORM taskq_internal.raise_if_moving(v_topic);
    IF taskq_internal.has_own_tables(v_topic.topic_id) THEN
        RETURN NULL;
    END IF;
    -- Waits for an open transaction that has called taskq.set_paused.
    PERFORM FROM taskq_internal.topic WHERE topic_id = v_topic.topic_id FOR NO KEY UPDATE;
    v_paused := EXISTS (SELECT FROM taskq_internal.topic WHERE topic_id = v_topic.topic_id AND NOT paused)
                AND taskq_internal.record_pause(v_topic.topic_id, true, 'the move to its own tables');
    LOOP  -- another program may hold the same key by chance
        v_token := ('x' || replace(gen_random_uuid()::text, '-', ''))::bit(64)::bigint;
        EXIT WHEN pg_try_advisory_lock(v_token);
    END LOOP;
    INSERT INTO taskq_internal.topic_move AS m (topic_id, token, pid, since, step, resumes)
    VALUES (v_topic.topic_id, v_token, pg_backend_pid(), clock_timestamp(), 'the topic was paused', v_paused)
    ON CONFLICT (topic_id) DO UPDATE SET token = v_token, pid = pg_backend_pid(), since = clock_timestamp(),
        resumes = m.resumes OR v_paused;
    RETURN v_token;
END $$;
COMMENT ON FUNCTION taskq.begin_partition_move IS
'Begins the move of a topic to its own tables, or takes over one whose session has ended. Pauses the topic. Returns the
token for the next steps; NULL if the topic has its own tables. Errors: TQ001; TQ000 if another session moves it.';

CREATE FUNCTION taskq.end_move_session(p_token bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT pg_advisory_unlock(p_token)
$$;
COMMENT ON FUNCTION taskq.end_move_session IS
'Releases the lock that marks this session as the one of the move.';

CREATE FUNCTION taskq.create_own_tables(p_topic text, p_token bigint, p_patience interval) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := taskq_internal.require_move(p_topic, p_token, p_patience);
    v_table    text;
    v_options  text;
BEGIN
    FOREACH v_table IN ARRAY ARRAY['task', 'live', 'ended'] LOOP
        v_options := (SELECT array_to_string(c.reloptions, ', ') FROM pg_class c
                      WHERE c.oid = format('taskq_internal.%I_default', v_table)::regclass);
        EXECUTE format('DROP TABLE IF EXISTS taskq_internal.%I', v_table || '_' || v_topic_id);
        EXECUTE format('CREATE TABLE taskq_internal.%I'
                       ' (LIKE taskq_internal.%I INCLUDING ALL, CONSTRAINT apart CHECK (topic_id = %s))%s',
                       v_table || '_' || v_topic_id, v_table, v_topic_id, coalesce(' WITH (' || v_options || ')', ''));
    END LOOP;
    UPDATE taskq_internal.topic_move SET step = 'its tables were made' WHERE topic_id = v_topic_id
        AND step = 'the topic was paused';
END $$;
COMMENT ON FUNCTION taskq.create_own_tables IS
'Step 2 of a move: creates the topic''s tables with the columns, indexes and storage parameters of the shared ones.
Errors: TQ000 if the move has ended.';

CREATE FUNCTION taskq.lock_pushes(p_topic text, p_patience interval) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
BEGIN
    PERFORM set_config('lock_timeout', least(ceil(extract(epoch FROM p_patience) * 1000), 2147483647) || 'ms', true);
    PERFORM taskq_internal.lock_topic_exclusive(v_topic_id);
    -- The session gets the lock at once, because this transaction holds it.
    PERFORM pg_advisory_lock(taskq_internal.topic_lock_class(), v_topic_id);
    RETURN v_topic_id;
EXCEPTION WHEN lock_not_available THEN
    PERFORM taskq_internal.raise_error('TQ000', format(
        'pushes to topic %L have been open for longer than %s', p_topic, taskq.format_duration(p_patience)));
END $$;
COMMENT ON FUNCTION taskq.lock_pushes IS
'Keeps pushes to a topic out for this session until unlock_pushes, over several transactions, and returns the topic''s
number. Needs a session that no pooler shares. Errors: TQ001; TQ000 if a push stays open for longer than p_patience.';

CREATE FUNCTION taskq.unlock_pushes(p_topic_id int) RETURNS boolean LANGUAGE sql AS $$
    SELECT pg_advisory_unlock(taskq_internal.topic_lock_class(), p_topic_id)
$$;
COMMENT ON FUNCTION taskq.unlock_pushes IS
'Ends lock_pushes for the topic of this number.';

CREATE FUNCTION taskq.has_held_tasks(p_topic text) RETURNS boolean LANGUAGE sql AS $$
    SELECT taskq_internal.topic_has_held_tasks(p.topic_id) FROM taskq_internal.find_topic(p_topic) p
$$;
COMMENT ON FUNCTION taskq.has_held_tasks IS
'Whether any owner holds tasks of the topic. Errors: TQ001.';

CREATE FUNCTION taskq.close_shared_tables(p_topic text, p_token bigint, p_patience interval) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := taskq_internal.require_move(p_topic, p_token, p_patience);
    v_table    text;
BEGIN
    IF NOT taskq_internal.lock_tables_exclusively(ARRAY['live', 'task_default', 'live_default', 'ended_default'],
            p_patience)
       OR taskq_internal.topic_has_held_tasks(v_topic_id) THEN
        RETURN false;
    END IF;
    FOREACH v_table IN ARRAY ARRAY['task', 'live', 'ended'] LOOP
        EXECUTE format('ALTER TABLE taskq_internal.%1$I_default DROP CONSTRAINT IF EXISTS %2$I,'
                       ' ADD CONSTRAINT %2$I CHECK (topic_id <> %3$s) NOT VALID', v_table, 'topic_moves_' || v_topic_id,
                           v_topic_id);
    END LOOP;
    UPDATE taskq_internal.topic_move SET step = 'the shared tables were closed' WHERE topic_id = v_topic_id;
    RETURN true;
END $$;
COMMENT ON FUNCTION taskq.close_shared_tables IS
'Step 3 of a move: the shared tables take no more rows of the topic. Returns false, and changes nothing, if its tasks
are held, or a session that uses the tables waits for this one: repeat it. Errors: TQ000 if the move has ended, or the
tables stay in use for longer than p_patience.';

CREATE FUNCTION taskq.move_to_own_tables(p_topic text, p_token bigint, p_patience interval) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := taskq_internal.require_move(p_topic, p_token, p_patience);
    v_table    text;
    v_own      text;
BEGIN
    FOREACH v_table IN ARRAY ARRAY['live', 'ended', 'task'] LOOP
        v_own := v_table || '_' || v_topic_id;
        EXECUTE format('WITH moved AS (DELETE FROM taskq_internal.%1$I_default WHERE topic_id = %2$s RETURNING *)'
                       ' INSERT INTO taskq_internal.%3$I SELECT * FROM moved', v_table, v_topic_id, v_own);
        EXECUTE format('ALTER TABLE taskq_internal.%I_default VALIDATE CONSTRAINT %I', v_table,
                       'topic_moves_' || v_topic_id);
        EXECUTE format('ANALYZE taskq_internal.%I', v_own);
    END LOOP;
    IF NOT taskq_internal.lock_tables_exclusively(ARRAY['task', 'live', 'ended', 'task_default', 'live_default',
                                                        'ended_default'], p_patience) THEN
        RAISE lock_not_available;
    END IF;
    FOREACH v_table IN ARRAY ARRAY['task', 'live', 'ended'] LOOP
        v_own := v_table || '_' || v_topic_id;
        EXECUTE format('ALTER TABLE taskq_internal.%I ATTACH PARTITION taskq_internal.%I FOR VALUES IN (%s)', v_table,
                       v_own, v_topic_id);
        EXECUTE format('ALTER TABLE taskq_internal.%I DROP CONSTRAINT apart', v_own);
        EXECUTE format('ALTER TABLE taskq_internal.%I_default DROP CONSTRAINT %I', v_table,
                       'topic_moves_' || v_topic_id);
    END LOOP;
    PERFORM taskq_internal.end_move(v_topic_id);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN  -- rolls the move back
    RETURN false;
END $$;
COMMENT ON FUNCTION taskq.move_to_own_tables IS
'Step 4 of a move: moves the rows, attaches the tables and ends the move. Returns false, and changes nothing, if a
session that uses the tables waits for this one: repeat it. Errors: TQ000 as for close_shared_tables.';

CREATE FUNCTION taskq.undo_partition_move(p_topic text, p_token bigint, p_patience interval) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM taskq_internal.lock_moves(p_patience);
    IF NOT EXISTS (SELECT FROM taskq_internal.topic_move WHERE token = p_token) THEN
        RETURN false;
    END IF;
    PERFORM taskq_internal.reopen_shared_tables(taskq_internal.require_move(p_topic, p_token, p_patience), p_patience);
    RETURN true;
END $$;
COMMENT ON FUNCTION taskq.undo_partition_move IS
'Undoes a move, and resumes the topic if the move has paused it. Returns false if the move has ended. Errors: TQ000 as
for close_shared_tables.';

CREATE FUNCTION taskq.move_to_shared_tables(p_topic text, p_most bigint, p_patience interval) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_topic    taskq_internal.topic;
    v_topic_id int;
    v_table    text;
    v_own      text;
BEGIN
    PERFORM taskq_internal.lock_moves(p_patience);
    v_topic := taskq_internal.find_topic(p_topic);
    v_topic_id := v_topic.topic_id;
    PERFORM taskq_internal.raise_if_moving(v_topic);
    IF EXISTS (SELECT FROM taskq_internal.topic_move WHERE topic_id = v_topic_id) THEN
        PERFORM taskq_internal.reopen_shared_tables(v_topic_id, p_patience);
        RETURN true;
    ELSIF NOT taskq_internal.has_own_tables(v_topic_id) THEN
        RETURN false;
    END IF;
    IF NOT taskq_internal.lock_tables_exclusively(ARRAY['task', 'live', 'ended', 'task_default', 'live_default',
                                                        'ended_default']
                            || ARRAY(SELECT t || '_' || v_topic_id FROM unnest(ARRAY['task', 'live', 'ended']) AS t),
                                p_patience) THEN
        PERFORM taskq_internal.raise_error(
            'TQ000', 'a session that uses the tables of the queue waits for this one: repeat this after its end');
    END IF;
    IF (SELECT count(*) FROM (SELECT FROM taskq_internal.task WHERE topic_id = v_topic_id LIMIT p_most + 1) t) > p_most
        THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'topic %L has more than %s tasks, and all topics would wait while they move back:'
            ' purge the topic first, or raise the limit', p_topic, p_most));
    END IF;
    FOREACH v_table IN ARRAY ARRAY['task', 'live', 'ended'] LOOP
        v_own := v_table || '_' || v_topic_id;
        EXECUTE format('ALTER TABLE taskq_internal.%I DETACH PARTITION taskq_internal.%I', v_table, v_own);
        EXECUTE format('INSERT INTO taskq_internal.%I SELECT * FROM taskq_internal.%I', v_table, v_own);
        EXECUTE format('DROP TABLE taskq_internal.%I', v_own);
    END LOOP;
    RETURN true;
END $$;
COMMENT ON FUNCTION taskq.move_to_shared_tables IS
'Moves a topic back to the shared tables, or undoes an interrupted move. Returns false if it is there already. All
topics wait while the rows move. Errors: TQ001; TQ000 for more than p_most tasks, or if another session moves the
topic.';

CREATE FUNCTION taskq.drop_vacant_tables(p_patience interval) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_vacant   int[];
    v_topic_id int;
BEGIN
    PERFORM taskq_internal.lock_moves(p_patience);
    v_vacant := ARRAY(SELECT * FROM taskq_internal.dropped_topics_with_tables());
    IF cardinality(v_vacant) > 0
       AND NOT taskq_internal.lock_tables_exclusively(ARRAY['task', 'live', 'ended', 'task_default', 'live_default',
                                                            'ended_default'], p_patience) THEN
        PERFORM taskq_internal.raise_error(
            'TQ000', 'a session that uses the tables of the queue waits for this one: repeat this after its end');
    END IF;
    FOREACH v_topic_id IN ARRAY v_vacant LOOP
        PERFORM taskq_internal.reopen_shared_tables(v_topic_id, p_patience);
    END LOOP;
    RETURN cardinality(v_vacant);
END $$;
COMMENT ON FUNCTION taskq.drop_vacant_tables IS
'Drops the empty tables that dropped topics have left. Returns how many topics that were. Errors: TQ000 if they stay in
use for longer than p_patience.';

-- Whether a topic has own tables.
CREATE FUNCTION taskq_internal.has_own_tables(p_topic_id int) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'taskq_internal.live'::regclass
                   AND inhrelid = to_regclass('taskq_internal.live_' || p_topic_id))
$$;

-- Locks out other sessions that change tables, until this transaction ends. It comes before any other lock: two of
-- them would wait for each other's tables. Roles have no rights on this table, so no other session can hold the
-- lock.
CREATE FUNCTION taskq_internal.lock_moves(p_patience interval) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '1min' AS $$
BEGIN
    PERFORM taskq_internal.require_read_committed('topics move');
    PERFORM set_config('lock_timeout', taskq_internal.lock_timeout_setting(p_patience), true);
    -- it conflicts with itself, and with no reading or writing of rows
    LOCK TABLE taskq_internal.topic_move IN SHARE UPDATE EXCLUSIVE MODE;
EXCEPTION WHEN lock_not_available THEN
    PERFORM taskq_internal.raise_error('TQ000',
            format('session %s has been moving another topic for longer than %s: repeat this when it is done',
        (SELECT l.pid FROM pg_locks l
         WHERE l.relation = 'taskq_internal.topic_move'::regclass AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted
             LIMIT 1),
        taskq.format_duration(p_patience)));
END $$;

-- A duration as a lock_timeout, for which 0 would mean no limit.
CREATE FUNCTION taskq_internal.lock_timeout_setting(p_patience interval) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT least(greatest(ceil(extract(epoch FROM p_patience) * 1000), 1), 2147483647)::int || 'ms'
$$;

-- Whether the session of a move is still connected.
CREATE FUNCTION taskq_internal.is_move_connected(p_move taskq_internal.topic_move) RETURNS boolean LANGUAGE sql AS $$
    SELECT EXISTS (
        SELECT FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid = p_move.pid
          AND l.classid::bigint << 32 | l.objid::bigint = p_move.token
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
$$;

-- Raises TQ000 for a topic that another session is moving.
CREATE FUNCTION taskq_internal.raise_if_moving(p_topic taskq_internal.topic) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_move taskq_internal.topic_move;
BEGIN
    SELECT * INTO v_move FROM taskq_internal.topic_move WHERE topic_id = p_topic.topic_id;
    IF FOUND AND v_move.pid <> pg_backend_pid() AND taskq_internal.is_move_connected(v_move) THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'topic %L is being moved to its own tables by session %s since %s: wait until the move has'
            ' ended, or end it with pg_terminate_backend(%s) and repeat this', p_topic.name, v_move.pid,
            to_char(v_move.since, 'YYYY-MM-DD HH24:MI:SS TZ'), v_move.pid));
    END IF;
END $$;

-- The number of the topic that moves under a token; TQ000 for a move that has ended or that another session has
-- taken over.
CREATE FUNCTION taskq_internal.require_move(p_topic text, p_token bigint, p_patience interval) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int;
BEGIN
    PERFORM taskq_internal.lock_moves(p_patience);
    SELECT m.topic_id INTO v_topic_id FROM taskq_internal.topic_move m WHERE m.token = p_token;
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'this move of topic %L has ended: another session has finished, undone or replaced it,'
            ' or the topic was dropped', p_topic));
    END IF;
    RETURN v_topic_id;
END $$;

-- Ends a move, and resumes the topic if the move has paused it. Locks the topic's row first, as taskq.set_paused
-- does.
CREATE FUNCTION taskq_internal.end_move(p_topic_id int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_resumes boolean;
BEGIN
    PERFORM FROM taskq_internal.topic WHERE topic_id = p_topic_id FOR NO KEY UPDATE;
    DELETE FROM taskq_internal.topic_move WHERE topic_id = p_topic_id RETURNING resumes INTO v_resumes;
    IF v_resumes THEN
        PERFORM taskq_internal.record_pause(p_topic_id, false, NULL);
    END IF;
END $$;

-- Locks tables exclusively for a change of the catalog. First against other maintenance, which ends an autovacuum
-- after deadlock_timeout and makes no verb wait; then against all, where each try makes others wait for at most a
-- few times 10 ms. Raises TQ000 after p_patience, naming a session. Returns false, with nothing locked, if a session
-- that uses these tables waits for this one: PostgreSQL would end one of the two. It checks that before each try,
-- and a try is shorter than deadlock_timeout.
CREATE FUNCTION taskq_internal.lock_tables_exclusively(p_tables text[], p_patience interval) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '10ms' AS $$
DECLARE
    v_until timestamptz := clock_timestamp() + p_patience;
    v_lock  text := (SELECT format('LOCK TABLE %s IN %%s MODE',
                                   string_agg('ONLY taskq_internal.' || quote_ident(t), ', ')) FROM unnest(p_tables)
        AS t);
BEGIN
    LOOP
        BEGIN
            PERFORM set_config('lock_timeout', '2s', true);
            EXECUTE format(v_lock, 'SHARE UPDATE EXCLUSIVE');
            PERFORM set_config('lock_timeout', '10ms', true);
            IF taskq_internal.blocks_session_using(p_tables) THEN
                RETURN false;
            END IF;
            EXECUTE format(v_lock, 'ACCESS EXCLUSIVE');
            RETURN true;
        EXCEPTION WHEN lock_not_available THEN
            IF clock_timestamp() > v_until THEN
                PERFORM taskq_internal.raise_error('TQ000', format(
                    'the tables of the queue are in use, by session %s among others: try again when'
                    ' it has ended, or with more patience', taskq_internal.session_using(p_tables)));
            END IF;
        END;
        PERFORM pg_sleep(0.05 + 0.1 * random());
    END LOOP;
END $$;

-- Whether a session that uses any of these tables waits for this session.
CREATE FUNCTION taskq_internal.blocks_session_using(p_tables text[]) RETURNS boolean LANGUAGE sql AS $$
    SELECT EXISTS (
        SELECT FROM taskq_internal.sessions_blocked_by_this() w JOIN pg_locks l ON l.pid = w.pid
        WHERE l.relation = ANY (ARRAY(SELECT ('taskq_internal.' || quote_ident(t))::regclass::oid FROM unnest(p_tables)
                                      AS t)) AND l.granted
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
$$;

-- The sessions that wait for this session, directly or through another, and since when.
CREATE FUNCTION taskq_internal.sessions_blocked_by_this() RETURNS TABLE (pid int, since timestamptz) LANGUAGE sql AS $$
    WITH RECURSIVE blocked AS MATERIALIZED (
        SELECT l.pid, min(l.waitstart) AS since, pg_blocking_pids(l.pid) AS blockers FROM pg_locks l WHERE NOT l.granted
            GROUP BY l.pid
    ), waiting AS (
        SELECT b.pid, b.since FROM blocked b WHERE pg_backend_pid() = ANY (b.blockers)
        UNION
        SELECT b.pid, b.since FROM waiting w JOIN blocked b ON w.pid = ANY (b.blockers))
    SELECT * FROM waiting
$$;

-- The pid of the session with the oldest transaction that uses any of these tables.
CREATE FUNCTION taskq_internal.session_using(p_tables text[]) RETURNS int LANGUAGE sql AS $$
    SELECT l.pid FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.relation = ANY (ARRAY(SELECT ('taskq_internal.' || quote_ident(t))::regclass::oid FROM unnest(p_tables)
                                  AS t))
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND l.pid <> pg_backend_pid()
    ORDER BY a.xact_start LIMIT 1
$$;

-- Whether any task of a topic is held. Few tasks are held, and they have an index.
CREATE FUNCTION taskq_internal.topic_has_held_tasks(p_topic_id int) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN EXISTS (SELECT FROM (SELECT l.topic_id FROM taskq_internal.live l WHERE l.holder IS NOT NULL
                                ORDER BY l.holder, l.sequence) h
                   WHERE h.topic_id = p_topic_id);
END $$;

-- Undoes what is left of the move of a topic, by its number, and ends the move; also for a dropped topic.
CREATE FUNCTION taskq_internal.reopen_shared_tables(p_topic_id int, p_patience interval) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_table text;
BEGIN
    IF EXISTS (SELECT FROM pg_constraint
               WHERE conrelid = 'taskq_internal.live_default'::regclass AND conname = 'topic_moves_' || p_topic_id) THEN
        IF NOT taskq_internal.lock_tables_exclusively(ARRAY['task_default', 'live_default', 'ended_default'],
                p_patience) THEN
            PERFORM taskq_internal.raise_error(
                'TQ000', 'a session that uses the tables of the queue waits for this one: repeat this after its end');
        END IF;
        FOREACH v_table IN ARRAY ARRAY['task', 'live', 'ended'] LOOP
            EXECUTE format('ALTER TABLE taskq_internal.%I_default DROP CONSTRAINT IF EXISTS %I', v_table,
                           'topic_moves_' || p_topic_id);
        END LOOP;
    END IF;
    FOREACH v_table IN ARRAY ARRAY['task', 'live', 'ended'] LOOP
        EXECUTE format('DROP TABLE IF EXISTS taskq_internal.%I', v_table || '_' || p_topic_id);
    END LOOP;
    PERFORM taskq_internal.end_move(p_topic_id);
END $$;

-- Empties the own tables of a topic at once, and returns how many tasks they had. NULL, with nothing changed, if the
-- topic has none, if they are in use for longer than a second, or if a push to it is open: then the caller deletes
-- row by row. The transaction has to end at once, as all users of these tables wait for it. p_drops: it also removes
-- the topic and related rows, for which it does not wait either.
CREATE FUNCTION taskq_internal.truncate_topic(p_topic_id int, p_drops boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    IF NOT taskq_internal.has_own_tables(p_topic_id) THEN
        RETURN NULL;
    END IF;
    BEGIN  -- an error in this block releases its locks
        IF NOT pg_try_advisory_xact_lock(taskq_internal.topic_lock_class(), p_topic_id) THEN
            RETURN NULL;
        END IF;
        v_count := (SELECT count(*) FROM taskq_internal.task WHERE topic_id = p_topic_id);
        -- Another session has moved it back meanwhile. From here on this transaction locks taskq_internal.task, so no
        -- session can.
        IF NOT taskq_internal.has_own_tables(p_topic_id) THEN
            RETURN NULL;
        ELSIF NOT taskq_internal.lock_tables_exclusively(ARRAY(SELECT t || '_' || p_topic_id
                FROM unnest(ARRAY['task', 'live', 'ended']) AS t), '1 second') THEN
            RAISE lock_not_available;
        END IF;
        IF p_drops THEN
            PERFORM taskq_internal.lock_related_rows(p_topic_id);
        END IF;
    EXCEPTION WHEN SQLSTATE 'TQ000' OR lock_not_available THEN
        RETURN NULL;
    END;
    EXECUTE format('TRUNCATE taskq_internal.task_%1$s, taskq_internal.live_%1$s, taskq_internal.ended_%1$s',
                   p_topic_id);
    PERFORM taskq_internal.delete_waits(p_topic_id);
    RETURN v_count;
END $$;

-- Locks the rows that are removed with a topic and that others write while they use its tasks; raises 55P03 if they
-- do so now.
CREATE FUNCTION taskq_internal.lock_related_rows(p_topic_id int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM taskq_internal.consumer_group WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq_internal.consumer_partition WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq_internal.progress WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq_internal.handling WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq_internal.probe WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq_internal.group_release WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq_internal.retention_walk WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
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

-- The numbers of dropped topics of which a table, or the constraint of an unfinished move, is left.
CREATE FUNCTION taskq_internal.dropped_topics_with_tables() RETURNS SETOF int LANGUAGE sql STABLE AS $$
    SELECT n.topic_id FROM (
        SELECT substring(c.relname FROM '[0-9]+$')::int AS topic_id FROM pg_class c
        WHERE c.relnamespace = 'taskq_internal'::regnamespace AND c.relkind = 'r'
            AND c.relname ~ '^(task|live|ended)_[0-9]+$'
        UNION
        SELECT substring(o.conname FROM '[0-9]+$')::int FROM pg_constraint o
        WHERE o.conrelid = 'taskq_internal.live_default'::regclass AND o.conname ~ '^topic_moves_[0-9]+$') n
    WHERE NOT EXISTS (SELECT FROM taskq_internal.topic p WHERE p.topic_id = n.topic_id) ORDER BY 1
$$;
