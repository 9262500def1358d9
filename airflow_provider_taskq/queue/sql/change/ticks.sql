-- Ticks: recurring tasks, which schedulers install ahead of their time. Each moment has one tick, even if several
-- schedulers install it.
--
-- The identifier of a tick is prefix/hash/moment. The hash stands for the configuration and has no slash. The moment is
-- the tick's nominal time in UTC, as 20261121T103000.000000Z, whose bytes sort in the order of time. So no tick of
-- prefix a is taken for a tick of prefix a/b.

-- Returns the hash in the identifier of a tick of a prefix, and NULL for any other identifier.
CREATE FUNCTION taskq_internal.tick_hash(p_identifier text, p_prefix text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN starts_with(p_identifier, p_prefix || '/')
                THEN substring(substr(p_identifier, length(p_prefix) + 2)
                               FROM '^([^/]+)/[0-9]{8}T[0-9]{6}\.[0-9]{6}Z$') END
$$;

-- Locks the ticks of a prefix until this transaction ends. Another transaction that changes these ticks waits until
-- then, and sees the result. Raises TQ000 above READ COMMITTED, and TQ002 for a blank prefix, a blank hash or a hash
-- with a slash.
CREATE FUNCTION taskq_internal.lock_ticks(p_topic taskq_internal.topic, p_prefix text, p_config_hash text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM taskq_internal.require_read_committed('an installation of ticks');
    IF p_prefix IS NULL OR p_prefix !~ '\S' THEN
        PERFORM taskq_internal.raise_error('TQ002', format('topic %L: the prefix of ticks is blank', p_topic.name));
    END IF;
    IF p_config_hash IS NULL OR p_config_hash !~ '\S' OR strpos(p_config_hash, '/') > 0 THEN
        PERFORM taskq_internal.raise_error('TQ002', format(
            'topic %L: the hash %L of ticks is blank or has a slash in it', p_topic.name, p_config_hash));
    END IF;
    PERFORM pg_advisory_xact_lock(taskq_internal.mutex(:LOCK_TICKS, p_topic.topic_id || '/' || p_prefix));
END $$;

-- Removes ticks of a prefix and returns how many: those with this hash if p_this is true, those with another hash if it
-- is false. It removes ticks that are READY, and ticks that were pushed SUSPENDED and never claimed. It keeps held
-- ticks and ended ticks: an ended tick proves that a scheduler has installed it.
CREATE FUNCTION taskq_internal.remove_ticks(p_topic_id int, p_prefix text, p_config_hash text, p_this boolean)
RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_waiting   bigint[];
    v_suspended bigint[];
BEGIN
    v_waiting := ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id::bigint = p_topic_id AND l.identifier >= p_prefix || '/' AND l.identifier < p_prefix || '0'
          AND l.holder IS NULL AND (taskq_internal.tick_hash(l.identifier, p_prefix) = p_config_hash) = p_this
        FOR UPDATE SKIP LOCKED);
    v_suspended := ARRAY(
        SELECT e.sequence FROM taskq_internal.ended e
        WHERE e.topic_id = p_topic_id AND e.identifier >= p_prefix || '/' AND e.identifier < p_prefix || '0'
          AND e.state = :SUSPENDED AND e.attempt = 0
          AND (taskq_internal.tick_hash(e.identifier, p_prefix) = p_config_hash) = p_this
        FOR UPDATE SKIP LOCKED);
    RETURN taskq_internal.delete_tasks(p_topic_id, v_waiting || v_suspended, false);
END $$;
