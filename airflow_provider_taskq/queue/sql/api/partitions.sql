-- Own tables for a busy topic: they are named task_N, live_N and ended_N, where N is the topic's number, which no other
-- topic ever gets. Vacuum then runs for the topic alone, and the topic can be emptied or dropped instantly.
--
-- A move takes five transactions, because no verb may wait for it longer than a moment. (1) begin_partition_move pauses
-- the topic and stores the move in taskq_internal.topic_move. (2) create_own_tables creates the tables; no session
-- waits. (3) close_shared_tables adds a constraint, so that the shared tables take no more rows of this topic. It needs
-- an exclusive lock on these tables for a moment. From then on the topic stands still: it is paused, no owner holds its
-- tasks, and pushes are locked out. (4) move_to_own_tables moves the rows, validates the constraint while all other
-- sessions work, and attaches the tables. Because of the validated constraint, ATTACH does not scan the shared tables
-- under an exclusive lock. undo_partition_move undoes all steps.
--
-- lock_pushes and unlock_pushes keep pushes out during steps 3 and 4, by a lock of the session. The move locks a table
-- exclusively with a lock_timeout of 10 ms, and repeats this, because other sessions queue behind a session that waits
-- for such a lock. Each function needs a transaction of its own, because other sessions wait for its end.
--
-- A step locks in this order: taskq_internal.topic_move (lock_moves), the topic's row (lock_moving_topic), the tables.
-- set_paused and alter_topic hold the topic's row until their transaction ends. A step that waited for the row after it
-- had locked the tables would keep all sessions out for that long, and deadlock if that transaction needs the tables.
--
-- If the session of a move ends early, its row stays in taskq_internal.topic_move. begin_partition_move then takes the
-- move over and the caller repeats the steps, or move_to_shared_tables undoes the move. One session at a time changes
-- tables (taskq_internal.lock_moves).

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
    PERFORM taskq_internal.require_moving_topic(v_topic.topic_id, p_patience);
    v_paused := EXISTS (SELECT FROM taskq_internal.topic WHERE topic_id = v_topic.topic_id AND NOT paused)
                AND taskq_internal.record_pause(v_topic.topic_id, true, 'the move to its own tables');
    LOOP  -- another program may hold this key by chance
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
'Begins the move of a topic to its own tables, or takes over a move whose session has ended. Pauses the topic. Returns
the token that the next steps need, or NULL if the topic already has its own tables. Raises TQ001 for an unknown topic.
Raises TQ000 if another session is moving this topic, moves another topic for longer than p_patience, or has changed this
topic in a transaction that stays open for longer than p_patience.';

CREATE FUNCTION taskq.end_move_session(p_token bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT pg_advisory_unlock(p_token)
$$;
COMMENT ON FUNCTION taskq.end_move_session IS
'Releases the advisory lock that marks this session as the session of a move. Returns false if this session does not
hold it.';

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
'Creates the own tables of a topic, as step 2 of its move. They get the columns, indexes and storage parameters of the
shared tables. Raises TQ000 if the move has ended, or if another session moves a topic for longer than p_patience.';

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
'Locks out pushes to a topic until this session calls unlock_pushes, over several transactions. Waits up to p_patience
for open pushes. Returns the topic''s number, which unlock_pushes needs. The session must not go through a pooler that
shares it. Raises TQ001 for an unknown topic, and TQ000 if a push stays open for longer than p_patience.';

CREATE FUNCTION taskq.unlock_pushes(p_topic_id int) RETURNS boolean LANGUAGE sql AS $$
    SELECT pg_advisory_unlock(taskq_internal.topic_lock_class(), p_topic_id)
$$;
COMMENT ON FUNCTION taskq.unlock_pushes IS
'Ends lock_pushes for the topic with this number. Returns false if this session has not locked its pushes.';

CREATE FUNCTION taskq.has_held_tasks(p_topic text) RETURNS boolean LANGUAGE sql AS $$
    SELECT taskq_internal.topic_has_held_tasks(p.topic_id) FROM taskq_internal.find_topic(p_topic) p
$$;
COMMENT ON FUNCTION taskq.has_held_tasks IS
'Returns whether any owner holds tasks of the topic. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.close_shared_tables(p_topic text, p_token bigint, p_patience interval) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := taskq_internal.require_move(p_topic, p_token, p_patience);
    v_table    text;
BEGIN
    IF NOT taskq_internal.lock_moving_topic(v_topic_id, p_patience)
       OR NOT taskq_internal.lock_tables_exclusively(ARRAY['live', 'task_default', 'live_default', 'ended_default'],
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
'Closes the shared tables to new rows of a topic, as step 3 of its move. Returns false and changes nothing if an owner
holds tasks of the topic, or if a session that uses the tables waits for this session. The caller then repeats the step.
Raises TQ000 if the move has ended, or if the tables stay in use, or the topic stays locked, for longer than
p_patience.';

-- Another transaction may hold rows of the topic and wait for the lock of pushes, which this session holds. So the
-- function waits for such rows for a shorter time than deadlock_timeout.
CREATE FUNCTION taskq.move_to_own_tables(p_topic text, p_token bigint, p_patience interval) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '1min' AS $$
DECLARE
    v_topic_id int := taskq_internal.require_move(p_topic, p_token, p_patience);
    v_limit    text := taskq_internal.lock_timeout_setting(p_patience);
    v_table    text;
    v_own      text;
BEGIN
    IF NOT taskq_internal.lock_moving_topic(v_topic_id, p_patience) THEN
        RETURN false;
    END IF;
    FOREACH v_table IN ARRAY ARRAY['live', 'ended', 'task'] LOOP
        v_own := v_table || '_' || v_topic_id;
        PERFORM set_config('lock_timeout', '100ms', true);
        EXECUTE format('WITH moved AS (DELETE FROM taskq_internal.%1$I_default WHERE topic_id = %2$s RETURNING *)'
                       ' INSERT INTO taskq_internal.%3$I SELECT * FROM moved', v_table, v_topic_id, v_own);
        PERFORM set_config('lock_timeout', v_limit, true);
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
EXCEPTION WHEN lock_not_available THEN  -- the error has rolled the block back
    RETURN false;
END $$;
COMMENT ON FUNCTION taskq.move_to_own_tables IS
'Moves the rows of a topic to its own tables, attaches these tables and ends the move, as step 4 of the move. Returns
false and changes nothing if another transaction holds tasks of the topic, or if a session that uses the tables waits for
this session. The caller then repeats the step. Raises TQ000 if the move has ended, or if the tables stay in use, or the
topic stays locked, for longer than p_patience.';

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
'Undoes the move with the token p_token, and resumes the topic if the move paused it. Returns false if the move has
ended. Raises TQ000 if the tables stay in use, or the topic stays locked, for longer than p_patience, or if a session that
uses the tables waits for this session.';

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
'Moves a topic from its own tables back to the shared tables, or undoes an interrupted move. All topics wait while the
rows move. Returns false if the topic is in the shared tables already. Raises TQ001 for an unknown topic. Raises TQ000
if the topic has more than p_most tasks, if another session moves a topic, if the tables stay in use for longer than
p_patience, or if a session that uses the tables waits for this session.';

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
'Drops the empty tables that dropped topics have left. Returns the number of these topics. Raises TQ000 if the tables
stay in use for longer than p_patience, or if a session that uses the tables waits for this session.';

-- Returns whether a topic has its own tables.
CREATE FUNCTION taskq_internal.has_own_tables(p_topic_id int) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'taskq_internal.live'::regclass
                   AND inhrelid = to_regclass('taskq_internal.live_' || p_topic_id))
$$;

-- Locks out other sessions that change tables until this transaction ends. A caller takes this lock before any other
-- lock, because two sessions could wait for each other's tables. Roles have no rights on the locked table, so no other
-- session can hold the lock.
CREATE FUNCTION taskq_internal.lock_moves(p_patience interval) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '1min' AS $$
BEGIN
    PERFORM taskq_internal.require_read_committed('a move of a topic');
    PERFORM set_config('lock_timeout', taskq_internal.lock_timeout_setting(p_patience), true);
    -- this mode conflicts with itself, but not with statements that read or write rows
    LOCK TABLE taskq_internal.topic_move IN SHARE UPDATE EXCLUSIVE MODE;
EXCEPTION WHEN lock_not_available THEN
    PERFORM taskq_internal.raise_error('TQ000',
            format('session %s has been moving another topic for longer than %s: repeat this when it is done',
        (SELECT l.pid FROM pg_locks l
         WHERE l.relation = 'taskq_internal.topic_move'::regclass AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted
             LIMIT 1),
        taskq.format_duration(p_patience)));
END $$;

-- Returns a duration as a value for lock_timeout. The least value is 1 ms, because 0 would mean no limit.
CREATE FUNCTION taskq_internal.lock_timeout_setting(p_patience interval) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT least(greatest(ceil(extract(epoch FROM p_patience) * 1000), 1), 2147483647)::int || 'ms'
$$;

-- Returns whether the session of a move is still connected.
CREATE FUNCTION taskq_internal.is_move_connected(p_move taskq_internal.topic_move) RETURNS boolean LANGUAGE sql AS $$
    SELECT EXISTS (
        SELECT FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid = p_move.pid
          AND l.classid::bigint << 32 | l.objid::bigint = p_move.token
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
$$;

-- Raises TQ000 if another session is moving the topic.
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

-- Returns the number of the topic that moves under p_token. Raises TQ000 if the move has ended, or if another session
-- has taken it over.
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

-- Locks the topic's row for a step of a move, as taskq.set_paused does. Returns false if another transaction holds the
-- row and waits for this session. Raises TQ000 after p_patience, and names a session that holds the row.
CREATE FUNCTION taskq_internal.lock_moving_topic(p_topic_id int, p_patience interval) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_until timestamptz := clock_timestamp() + p_patience;
BEGIN
    LOOP
        BEGIN
            PERFORM FROM taskq_internal.topic WHERE topic_id = p_topic_id FOR NO KEY UPDATE NOWAIT;
            RETURN true;
        EXCEPTION WHEN lock_not_available THEN
            IF taskq_internal.blocks_writer('0') THEN
                RETURN false;
            ELSIF clock_timestamp() > v_until THEN
                PERFORM taskq_internal.raise_error('TQ000', (
                    SELECT format('session %s has changed topic %L, and its transaction is still open after %s:'
                                  ' repeat this when it has ended',
                                  coalesce(taskq_internal.locker_of_topic(p_topic_id)::text, '(unknown)'), t.name,
                                  taskq.format_duration(p_patience))
                    FROM taskq_internal.topic t WHERE t.topic_id = p_topic_id));
            END IF;
        END;
        PERFORM pg_sleep(0.05 + 0.1 * random());
    END LOOP;
END $$;

-- Returns the session that has locked or changed the topic's row. Returns NULL if there are several such sessions: xmax
-- is then the number of a group of transactions.
CREATE FUNCTION taskq_internal.locker_of_topic(p_topic_id int) RETURNS int LANGUAGE sql VOLATILE AS $$
    SELECT l.pid FROM taskq_internal.topic t JOIN pg_locks l ON l.transactionid = t.xmax
    WHERE t.topic_id = p_topic_id AND l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
      AND EXISTS (SELECT FROM pg_locks m WHERE m.virtualtransaction = l.virtualtransaction
                  AND m.relation = 'taskq_internal.topic'::regclass)
    LIMIT 1
$$;

-- Locks the topic's row for a step of a move. Raises TQ000 if another transaction holds the row and waits for this
-- session, or holds it for longer than p_patience.
CREATE FUNCTION taskq_internal.require_moving_topic(p_topic_id int, p_patience interval) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT taskq_internal.lock_moving_topic(p_topic_id, p_patience) THEN
        PERFORM taskq_internal.raise_error(
            'TQ000', 'a session that uses the tables of the queue waits for this one: repeat this after its end');
    END IF;
END $$;

-- Ends a move, and resumes the topic if the move paused it. The caller has locked the topic's row.
CREATE FUNCTION taskq_internal.end_move(p_topic_id int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_resumes boolean;
BEGIN
    DELETE FROM taskq_internal.topic_move WHERE topic_id = p_topic_id RETURNING resumes INTO v_resumes;
    IF v_resumes THEN
        PERFORM taskq_internal.record_pause(p_topic_id, false, NULL);
    END IF;
END $$;

-- Locks tables exclusively for a change of the catalog. The first lock keeps other maintenance out: it ends an
-- autovacuum after deadlock_timeout, and no verb waits for it. The second lock keeps all sessions out. Each attempt at
-- it makes other sessions wait for at most a few times 10 ms. Raises TQ000 after p_patience and names a session that
-- uses the tables. Returns false, with no table locked, if a session that uses these tables waits for this session,
-- because PostgreSQL would end one of the two. The loop checks this before each attempt, and an attempt is shorter than
-- deadlock_timeout.
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

-- Returns whether a transaction that uses any of these tables waits for this session.
CREATE FUNCTION taskq_internal.blocks_session_using(p_tables text[]) RETURNS boolean LANGUAGE sql AS $$
    SELECT EXISTS (
        SELECT FROM taskq_internal.transactions_blocked_by_this() w JOIN pg_locks l USING (pid, virtualtransaction)
        WHERE l.relation = ANY (ARRAY(SELECT ('taskq_internal.' || quote_ident(t))::regclass::oid FROM unnest(p_tables)
                                      AS t)) AND l.granted
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
$$;

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

-- Returns the pid of the session that uses any of these tables and has the oldest transaction.
CREATE FUNCTION taskq_internal.session_using(p_tables text[]) RETURNS int LANGUAGE sql AS $$
    SELECT l.pid FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.relation = ANY (ARRAY(SELECT ('taskq_internal.' || quote_ident(t))::regclass::oid FROM unnest(p_tables)
                                  AS t))
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND l.pid <> pg_backend_pid()
    ORDER BY a.xact_start LIMIT 1
$$;

-- Returns whether an owner holds any task of a topic. The query reads the held tasks of all topics: they are few, and
-- they have an index.
CREATE FUNCTION taskq_internal.topic_has_held_tasks(p_topic_id int) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN EXISTS (SELECT FROM (SELECT l.topic_id FROM taskq_internal.live l WHERE l.holder IS NOT NULL
                                ORDER BY l.holder, l.sequence) h
                   WHERE h.topic_id = p_topic_id);
END $$;

-- Undoes an unfinished move of the topic with this number, and ends the move. It also cleans up after a dropped topic.
CREATE FUNCTION taskq_internal.reopen_shared_tables(p_topic_id int, p_patience interval) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_table text;
BEGIN
    PERFORM taskq_internal.require_moving_topic(p_topic_id, p_patience);
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

-- Empties the own tables of a topic at once, and returns how many tasks they had. Returns NULL and changes nothing if
-- the topic has no own tables, if these stay in use for longer than a second, or if a push to the topic is open. The
-- caller then deletes row by row. The transaction has to end soon, because all users of these tables wait for it. With
-- p_drops the call also locks the rows that are removed with the topic, and does not wait for them either.
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
        -- Another session may have moved the topic back in the meantime. From here on this transaction locks
        -- taskq_internal.task, so no session can move the topic.
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

-- Locks the rows that taskq.drop_topic removes with a topic and that other sessions write while they use its tasks.
-- Raises 55P03 if another session holds one of these rows now.
CREATE FUNCTION taskq_internal.lock_related_rows(p_topic_id int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM taskq_internal.consumer_group WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq_internal.consumer_partition WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq_internal.progress WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq_internal.handling WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq_internal.probe WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq_internal.probe_result WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
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

-- Returns the numbers of dropped topics that have left a table, or the constraint of an unfinished move.
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
