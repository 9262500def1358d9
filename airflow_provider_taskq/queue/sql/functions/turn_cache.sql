-- Turn cache: how many turns the last long look of this session found, valid while the database does not change.
--
-- A look for turns that passes many closed lanes costs milliseconds even if nothing changes between two looks. Such a look
-- therefore leaves its answer in a setting of the session, with its snapshot. If a later look has the same snapshot, no
-- transaction of the server has ended in between, and the answer can differ only by time: the answer is also invalid as soon
-- as the next task of the topic is due. The cache is not used
--
--   after this transaction has written: the snapshot does not tell of the transaction's own changes;
--   if the look left out rows or lanes that another transaction has locked: a rollback to a savepoint unlocks them, and the
--     snapshot does not tell of that either;
--   on a standby: snapshots there do not list the transactions that are in progress.
--
-- A poll locks the row of its owner, which takes a transaction number and so changes the snapshot of every session. After a long
-- poll that found nothing, the next poll of the session therefore looks first, as `ready` does, and writes nothing.

-- The name of the setting for a topic and a condition.
CREATE FUNCTION taskq.turn_cache(p_topic_id int, p_condition text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'taskq.turns_' || p_topic_id || '_' || p_condition
$$;

-- The snapshot of this moment, if it tells of all changes that this transaction sees; else NULL.
CREATE FUNCTION taskq.whole_snapshot() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF pg_is_in_recovery() OR pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RETURN NULL;
    END IF;
    RETURN pg_current_snapshot()::text;
END $$;

-- How many turns the topic has by the cache; NULL if the cache does not tell.
CREATE FUNCTION taskq.cached_turns(p_topic_id int, p_condition text) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_cached text[] := string_to_array(current_setting(taskq.turn_cache(p_topic_id, p_condition), true), ' ');
BEGIN
    IF cardinality(v_cached) = 3 AND v_cached[1] = taskq.whole_snapshot()
       AND extract(epoch FROM clock_timestamp()) < v_cached[2]::numeric THEN
        RETURN v_cached[3]::int;
    END IF;
    RETURN NULL;
END $$;

-- Caches how many turns a look found that began at p_now in the snapshot p_snapshot. Without a snapshot, or if it changed during
-- the look, remembers only that the last look was a long one.
CREATE FUNCTION taskq.cache_turns(p_topic_id int, p_condition text, p_now timestamptz, p_snapshot text, p_turns int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_cached text := 'long';
BEGIN
    IF p_snapshot = taskq.whole_snapshot() THEN
        v_cached := concat_ws(' ', p_snapshot, extract(epoch FROM coalesce(taskq.next_due(p_topic_id, p_now), 'infinity')), p_turns);
    END IF;
    PERFORM set_config(taskq.turn_cache(p_topic_id, p_condition), v_cached, false);
END $$;

-- When the next READY task of the topic is due that is not due yet; NULL if there is none.
CREATE FUNCTION taskq.next_due(p_topic_id int, p_now timestamptz) RETURNS timestamptz LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_priority smallint := 101;
    v_next     timestamptz;
BEGIN
    LOOP
        SELECT l.priority INTO v_priority FROM taskq.live l
        WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0 AND l.priority < v_priority
        ORDER BY l.priority DESC LIMIT 1;
        EXIT WHEN NOT FOUND;
        v_next := least(v_next, (SELECT l.available_at FROM taskq.live l
                                 WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0 AND l.priority = v_priority
                                   AND l.available_at > p_now
                                 ORDER BY l.available_at, l.sequence LIMIT 1));
    END LOOP;
    RETURN v_next;
END $$;

-- Whether the last look of this session was a long one.
CREATE FUNCTION taskq.looked_long(p_topic_id int, p_condition text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(current_setting(taskq.turn_cache(p_topic_id, p_condition), true), '') <> ''
$$;

-- Whether a poll of this owner would find nothing, asked without writing anything, after a long look. False also if the poll would
-- first let out tasks that wait, if it would be refused, and if the look left something out that is locked.
CREATE FUNCTION taskq.finds_nothing(p_topic_id int, p_owner text, p_fence bigint, p_condition text) RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_seen int;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed'
       OR NOT EXISTS (SELECT FROM taskq.owner WHERE name = p_owner AND fence = p_fence AND lease_until > clock_timestamp())
       OR EXISTS (SELECT FROM taskq.live l WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits > 0) THEN
        RETURN false;
    END IF;
    v_seen := (taskq.count_turns(p_topic_id, 1, p_condition)).seen;
    IF v_seen > 0 THEN
        PERFORM set_config(taskq.turn_cache(p_topic_id, p_condition), '', false);
    END IF;
    RETURN v_seen = 0;
END $$;
