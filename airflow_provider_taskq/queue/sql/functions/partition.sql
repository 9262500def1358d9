-- A partition of its own for a busy topic: its tasks in tables of their own, task_N, live_N and ended_N, N being the topic's
-- number, which is never used again. So its vacuum is its own, and to empty or drop it is instant.
--
-- Going there takes three transactions, as no verb may wait longer than a moment for it:
--   1. make_tables   makes the tables apart. Nobody waits.
--   2. close_shared  tells the shared tables, by a constraint, to take no more rows of this topic. For a moment it has to have
--                    these tables alone. From now on the topic has to stand still: paused, nothing held, pushes kept out.
--   3. move_rows     moves what the topic has, checks that constraint against what is left, while everybody else works on,
--                    and attaches the tables: that constraint spares the scan of the shared tables that an ATTACH makes while
--                    all wait. Only for the attaching, a change of the catalogue, it has to have the tables alone.
-- "Alone" is asked for with a lock_timeout of 10 ms a table, again and again: as others wait behind whoever waits for such a lock.
-- Each of these functions has to be a transaction of its own, as others wait for its end.

-- Whether a topic has tables of its own.
CREATE FUNCTION taskq.is_apart(p_topic_id int) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'taskq.live'::regclass AND inhrelid = to_regclass('taskq.live_' || p_topic_id))
$$;

-- The same by a topic's name.
CREATE FUNCTION taskq.topic_is_apart(p_topic text) RETURNS boolean LANGUAGE sql AS $$
    SELECT taskq.is_apart(p.topic_id) FROM taskq.find_topic(p_topic) p
$$;

-- Makes the tables of a topic, apart from the shared ones, with the same columns, indexes and storage parameters; false where the
-- topic has tables of its own. What an earlier try left is made anew.
CREATE FUNCTION taskq.make_tables(p_topic text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_table    text;
    v_options  text;
BEGIN
    IF taskq.is_apart(v_topic_id) THEN
        RETURN false;
    END IF;
    FOREACH v_table IN ARRAY ARRAY['task', 'live', 'ended'] LOOP
        v_options := (SELECT array_to_string(c.reloptions, ', ') FROM pg_class c WHERE c.oid = format('taskq.%I_default', v_table)::regclass);
        EXECUTE format('DROP TABLE IF EXISTS taskq.%I', v_table || '_' || v_topic_id);
        EXECUTE format('CREATE TABLE taskq.%I (LIKE taskq.%I INCLUDING ALL, CONSTRAINT apart CHECK (topic_id = %s))%s',
                       v_table || '_' || v_topic_id, v_table, v_topic_id, coalesce(' WITH (' || v_options || ')', ''));
    END LOOP;
    RETURN true;
END $$;

-- Waits for the tables of the queue until nobody else is using any, and locks them: for changes of the catalogue that end at once.
-- First against other upkeep, which ends an autovacuum after the server's deadlock_timeout and makes nobody else wait; then against
-- all, where each try makes others wait for at most a few times 10 ms. Gives up after p_patience (TQ000), naming a session.
CREATE FUNCTION taskq.have_alone(p_tables text[], p_patience interval) RETURNS void LANGUAGE plpgsql
SET lock_timeout = '10ms' AS $$
DECLARE
    v_until timestamptz := clock_timestamp() + p_patience;
    v_lock  text := (SELECT format('LOCK TABLE %s IN %%s MODE', string_agg('ONLY taskq.' || quote_ident(t), ', ')) FROM unnest(p_tables) AS t);
BEGIN
    LOOP
        BEGIN
            PERFORM set_config('lock_timeout', '2s', true);
            EXECUTE format(v_lock, 'SHARE UPDATE EXCLUSIVE');
            PERFORM set_config('lock_timeout', '10ms', true);
            EXECUTE format(v_lock, 'ACCESS EXCLUSIVE');
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            IF clock_timestamp() > v_until THEN
                PERFORM taskq.refuse('TQ000', format('the tables of the queue are in use, by session %s among others: try again when'
                    ' it has ended, or with more patience', taskq.user_of(p_tables)));
            END IF;
        END;
        PERFORM pg_sleep(0.05 + 0.1 * random());
    END LOOP;
END $$;

-- The pid of the session with the oldest transaction of those that have any of these tables in use.
CREATE FUNCTION taskq.user_of(p_tables text[]) RETURNS int LANGUAGE sql AS $$
    SELECT l.pid FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.relation = ANY (ARRAY(SELECT ('taskq.' || quote_ident(t))::regclass::oid FROM unnest(p_tables) AS t))
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AND l.pid <> pg_backend_pid()
    ORDER BY a.xact_start LIMIT 1
$$;

-- Keeps pushes to a topic out, in this session until taskq.let_in, over several transactions; returns the topic's number. Gives up
-- (TQ000) where a push stays open for longer than p_patience. Needs a session that no pooler shares.
CREATE FUNCTION taskq.keep_out(p_topic text, p_patience interval) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
BEGIN
    PERFORM set_config('lock_timeout', least(ceil(extract(epoch FROM p_patience) * 1000), 2147483647) || 'ms', true);
    PERFORM taskq.close_topic(v_topic_id);
    PERFORM pg_advisory_lock(taskq.topic_lock_class(), v_topic_id);  -- granted at once: this transaction holds it
    RETURN v_topic_id;
EXCEPTION WHEN lock_not_available THEN
    PERFORM taskq.refuse('TQ000', format('pushes to topic %L have been open for longer than %s', p_topic, taskq.in_words(p_patience)));
END $$;

-- Lets pushes to a topic in again.
CREATE FUNCTION taskq.let_in(p_topic_id int) RETURNS boolean LANGUAGE sql AS $$
    SELECT pg_advisory_unlock(taskq.topic_lock_class(), p_topic_id)
$$;

-- Whether somebody holds tasks of a topic. What is held is few, and has an index.
CREATE FUNCTION taskq.any_held(p_topic_id int) RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN EXISTS (SELECT FROM (SELECT l.topic_id FROM taskq.live l WHERE l.holder IS NOT NULL ORDER BY l.holder, l.sequence) h
                   WHERE h.topic_id = p_topic_id);
END $$;

-- The same by a topic's name.
CREATE FUNCTION taskq.topic_is_held(p_topic text) RETURNS boolean LANGUAGE sql AS $$
    SELECT taskq.any_held(p.topic_id) FROM taskq.find_topic(p_topic) p
$$;

-- Lets the shared tables take no more rows of a topic that stands still; false where tasks of it are held.
CREATE FUNCTION taskq.close_shared(p_topic text, p_patience interval) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_table    text;
BEGIN
    PERFORM taskq.have_alone(ARRAY['live', 'task_default', 'live_default', 'ended_default'], p_patience);
    IF taskq.any_held(v_topic_id) THEN
        RETURN false;
    END IF;
    FOREACH v_table IN ARRAY ARRAY['task', 'live', 'ended'] LOOP
        EXECUTE format('ALTER TABLE taskq.%1$I_default DROP CONSTRAINT IF EXISTS %2$I,'
                       ' ADD CONSTRAINT %2$I CHECK (topic_id <> %3$s) NOT VALID', v_table, 'topic_moves_' || v_topic_id, v_topic_id);
    END LOOP;
    RETURN true;
END $$;

-- Moves a topic that stands still to its tables and attaches them. Returns how many tasks it has.
CREATE FUNCTION taskq.move_rows(p_topic text, p_patience interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_table    text;
    v_own      text;
    v_count    bigint;
    v_tasks    bigint;
BEGIN
    FOREACH v_table IN ARRAY ARRAY['live', 'ended', 'task'] LOOP
        v_own := v_table || '_' || v_topic_id;
        EXECUTE format('WITH moved AS (DELETE FROM taskq.%1$I_default WHERE topic_id = %2$s RETURNING *)'
                       ' INSERT INTO taskq.%3$I SELECT * FROM moved', v_table, v_topic_id, v_own);
        GET DIAGNOSTICS v_tasks = ROW_COUNT;
        EXECUTE format('ALTER TABLE taskq.%I_default VALIDATE CONSTRAINT %I', v_table, 'topic_moves_' || v_topic_id);
        EXECUTE format('ANALYZE taskq.%I', v_own);
    END LOOP;
    PERFORM taskq.have_alone(ARRAY['task', 'live', 'ended', 'task_default', 'live_default', 'ended_default'], p_patience);
    FOREACH v_table IN ARRAY ARRAY['task', 'live', 'ended'] LOOP
        v_own := v_table || '_' || v_topic_id;
        EXECUTE format('ALTER TABLE taskq.%I ATTACH PARTITION taskq.%I FOR VALUES IN (%s)', v_table, v_own, v_topic_id);
        EXECUTE format('ALTER TABLE taskq.%I DROP CONSTRAINT apart', v_own);
        EXECUTE format('ALTER TABLE taskq.%I_default DROP CONSTRAINT %I', v_table, 'topic_moves_' || v_topic_id);
    END LOOP;
    RETURN v_tasks;
END $$;

-- Undoes what make_tables and close_shared did to a topic that has not moved.
CREATE FUNCTION taskq.open_shared(p_topic text, p_patience interval) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_table    text;
BEGIN
    IF taskq.is_apart(v_topic_id) THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM pg_constraint WHERE conrelid = 'taskq.live_default'::regclass AND conname = 'topic_moves_' || v_topic_id) THEN
        PERFORM taskq.have_alone(ARRAY['task_default', 'live_default', 'ended_default'], p_patience);
        FOREACH v_table IN ARRAY ARRAY['task', 'live', 'ended'] LOOP
            EXECUTE format('ALTER TABLE taskq.%I_default DROP CONSTRAINT IF EXISTS %I', v_table, 'topic_moves_' || v_topic_id);
        END LOOP;
    END IF;
    FOREACH v_table IN ARRAY ARRAY['task', 'live', 'ended'] LOOP
        EXECUTE format('DROP TABLE IF EXISTS taskq.%I', v_table || '_' || v_topic_id);
    END LOOP;
END $$;

-- Moves a topic back to the shared tables; false where it is there. Everybody waits while that is done, as a detached table's
-- tasks are nowhere until they are back: so it is refused (TQ000) to a topic of more than p_most tasks.
CREATE FUNCTION taskq.move_back(p_topic text, p_most bigint, p_patience interval) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_table    text;
    v_own      text;
BEGIN
    IF NOT taskq.is_apart(v_topic_id) THEN
        RETURN false;
    END IF;
    PERFORM taskq.have_alone(ARRAY['task', 'live', 'ended', 'task_default', 'live_default', 'ended_default']
                             || ARRAY(SELECT t || '_' || v_topic_id FROM unnest(ARRAY['task', 'live', 'ended']) AS t), p_patience);
    IF (SELECT count(*) FROM (SELECT FROM taskq.task WHERE topic_id = v_topic_id LIMIT p_most + 1) t) > p_most THEN
        PERFORM taskq.refuse('TQ000', format('topic %L has more than %s tasks, and everybody would wait while they move back:'
                                             ' purge it first, or allow for more', p_topic, p_most));
    END IF;
    FOREACH v_table IN ARRAY ARRAY['task', 'live', 'ended'] LOOP
        v_own := v_table || '_' || v_topic_id;
        EXECUTE format('ALTER TABLE taskq.%I DETACH PARTITION taskq.%I', v_table, v_own);
        EXECUTE format('INSERT INTO taskq.%I SELECT * FROM taskq.%I', v_table, v_own);
        EXECUTE format('DROP TABLE taskq.%I', v_own);
    END LOOP;
    RETURN true;
END $$;

-- Empties a topic that has tables of its own, at once, and returns how many tasks it had; NULL, and nothing is changed, where it
-- has none, or where they are in use for longer than a second or a push to it is open: then it has to be done row by row. For a
-- transaction that ends at once, as all that meet these tables wait for its end: p_drops, that it removes the topic as well, and
-- with it rows that somebody may hold, which it is not to wait for either.
CREATE FUNCTION taskq.truncate_topic(p_topic_id int, p_drops boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    IF NOT taskq.is_apart(p_topic_id) THEN
        RETURN NULL;
    END IF;
    BEGIN  -- what is locked here is let go where it comes to nothing
        IF NOT pg_try_advisory_xact_lock(taskq.topic_lock_class(), p_topic_id) THEN
            RETURN NULL;
        END IF;
        v_count := (SELECT count(*) FROM taskq.task WHERE topic_id = p_topic_id);
        PERFORM taskq.have_alone(ARRAY(SELECT t || '_' || p_topic_id FROM unnest(ARRAY['task', 'live', 'ended']) AS t), interval '1 second');
        IF p_drops THEN
            PERFORM taskq.hold_what_goes_along(p_topic_id);
        END IF;
    EXCEPTION WHEN SQLSTATE 'TQ000' OR lock_not_available THEN
        RETURN NULL;
    END;
    EXECUTE format('TRUNCATE taskq.task_%1$s, taskq.live_%1$s, taskq.ended_%1$s', p_topic_id);
    PERFORM taskq.forget_waits(p_topic_id);
    RETURN v_count;
END $$;

-- Locks what is removed along with a topic and others write to while they use its tasks; an error (55P03) where they do just now.
CREATE FUNCTION taskq.hold_what_goes_along(p_topic_id int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM taskq.reader WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq.reader_partition WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq.progress WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
    PERFORM FROM taskq.handling WHERE topic_id = p_topic_id FOR UPDATE NOWAIT;
END $$;

-- Forgets what the tasks of a topic, which are gone, waited for and what happened to them, and wakes those that wait for them.
CREATE FUNCTION taskq.forget_waits(p_topic_id int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM taskq.dependency WHERE topic_id = p_topic_id;
    DELETE FROM taskq.history WHERE topic_id = p_topic_id;
    PERFORM taskq.wake_dependents(p_topic_id, ARRAY(
        SELECT DISTINCT d.on_identifier FROM taskq.dependency d WHERE d.on_topic_id = p_topic_id AND d.waiting));
END $$;

-- Drops the empty tables of topics that were dropped, and returns how many topics that were.
CREATE FUNCTION taskq.drop_vacant(p_patience interval) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_vacant int[] := ARRAY(
        SELECT n.topic_id FROM (SELECT substr(c.relname, 6)::int AS topic_id FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid
                                WHERE h.inhparent = 'taskq.live'::regclass AND c.relname ~ '^live_[0-9]+$') n
        WHERE NOT EXISTS (SELECT FROM taskq.topic p WHERE p.topic_id = n.topic_id));
    v_topic_id int;
BEGIN
    IF cardinality(v_vacant) > 0 THEN
        PERFORM taskq.have_alone(ARRAY['task', 'live', 'ended', 'task_default', 'live_default', 'ended_default'], p_patience);
    END IF;
    FOREACH v_topic_id IN ARRAY v_vacant LOOP
        EXECUTE format('DROP TABLE taskq.task_%1$s, taskq.live_%1$s, taskq.ended_%1$s', v_topic_id);
    END LOOP;
    RETURN cardinality(v_vacant);
END $$;
