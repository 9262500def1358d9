-- Ticks: recurring tasks, which schedulers install ahead of their time. Each moment has one tick, even if several
-- schedulers install it.
--
-- The identifier of a tick is prefix/hash/moment. The hash stands for the configuration and has no slash. The moment is
-- the tick's nominal time in UTC, as 20261121T103000.000000Z, whose bytes sort in the order of time. So no tick of
-- prefix a is taken for a tick of prefix a/b.

CREATE FUNCTION taskq.install_ticks(
    p_topic text, p_prefix text, p_config_hash text, p_moments timestamptz[], p_payloads text[] DEFAULT NULL,
    p_references text[] DEFAULT NULL, p_suspended boolean[] DEFAULT NULL, p_available_at timestamptz[] DEFAULT NULL,
    p_delays interval[] DEFAULT NULL, p_ttls interval[] DEFAULT NULL, p_priorities int[] DEFAULT NULL,
    p_offset int DEFAULT 0, p_depend_places int[] DEFAULT NULL, p_depend_topics text[] DEFAULT NULL,
    p_depend_identifiers text[] DEFAULT NULL
) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_topic       taskq_internal.topic := taskq_internal.lock_topic_shared(p_topic, 'INSERT');
    v_identifiers text[];
    v_due         timestamptz[];
    v_added       bigint[];
    v_depending   record;
BEGIN
    PERFORM taskq_internal.lock_ticks(v_topic, p_prefix, p_config_hash);
    PERFORM taskq_internal.check_moments(v_topic, p_moments, p_offset);
    v_identifiers := ARRAY(SELECT taskq_internal.tick_identifier(p_prefix, p_config_hash, u.moment)
                           FROM unnest(p_moments) WITH ORDINALITY AS u (moment, place) ORDER BY u.place);
    PERFORM taskq_internal.check_tasks(
        v_topic, v_identifiers, p_payloads, p_references, p_available_at, p_delays, p_ttls, p_priorities, p_offset);
    PERFORM taskq_internal.remove_ticks(v_topic.topic_id, p_prefix, p_config_hash, false);
    v_added := taskq_internal.missing_ticks(v_topic.topic_id, v_identifiers);
    IF cardinality(v_added) = 0 THEN
        RETURN 0;
    END IF;
    v_due := ARRAY(SELECT CASE WHEN u.delay IS NULL THEN coalesce(u.available_at, u.moment) END
                   FROM unnest(p_moments, p_available_at, p_delays) WITH ORDINALITY
                        AS u (moment, available_at, delay, place) ORDER BY u.place);
    SELECT array_agg((n.nth - 1)::int) AS places, array_agg(d.topic) AS topics, array_agg(d.identifier) AS identifiers
        INTO v_depending
    FROM unnest(p_depend_places, p_depend_topics, p_depend_identifiers) AS d (place, topic, identifier)
    JOIN unnest(v_added) WITH ORDINALITY AS n (place, nth) ON n.place = d.place + 1;
    PERFORM taskq.push(
        p_topic, 'APPEND', taskq_internal.pick_elements(v_identifiers, v_added),
        taskq_internal.pick_elements(p_payloads, v_added), taskq_internal.pick_elements(p_references, v_added),
        taskq_internal.pick_elements(p_suspended, v_added), taskq_internal.pick_elements(v_due, v_added),
        taskq_internal.pick_elements(p_delays, v_added), taskq_internal.pick_elements(p_ttls, v_added),
        taskq_internal.pick_elements(p_priorities, v_added), p_offset, NULL, v_depending.places, v_depending.topics,
        v_depending.identifiers);
    RETURN cardinality(v_added);
END $$;
COMMENT ON FUNCTION taskq.install_ticks IS
'Installs the ticks of a prefix for a configuration with the hash p_config_hash. Removes the ticks of the prefix with
another hash, except held and ended ticks, and then adds the missing ticks. A stored tick stays as it is. p_moments has
the nominal times. The other arrays are those of taskq.push. Concurrent calls for a prefix run one after the other.
Returns how many ticks it added. Raises TQ001 for an unknown topic, TQ002 for an invalid task, prefix, hash or moment,
and TQ000 above READ COMMITTED.';

CREATE FUNCTION taskq.uninstall_ticks(p_topic text, p_prefix text, p_config_hash text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    v_topic taskq_internal.topic := taskq_internal.find_topic(p_topic);
BEGIN
    PERFORM taskq_internal.lock_ticks(v_topic, p_prefix, p_config_hash);
    RETURN taskq_internal.remove_ticks(v_topic.topic_id, p_prefix, p_config_hash, true);
END $$;
COMMENT ON FUNCTION taskq.uninstall_ticks IS
'Removes the ticks of a prefix and a configuration hash, except held and ended ticks. Returns how many ticks it removed.
Raises TQ001 for an unknown topic, TQ002 for an invalid prefix or hash, and TQ000 above READ COMMITTED.';

CREATE FUNCTION taskq.last_tick(p_topic text, p_prefix text, p_config_hash text) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'INSERT')).topic_id;
BEGIN
    RETURN (SELECT right(t.identifier, 23)::timestamptz FROM taskq_internal.task t
            WHERE t.topic_id = v_topic_id AND t.identifier > p_prefix || '/' || p_config_hash || '/'
              AND t.identifier < p_prefix || '/' || p_config_hash || '0'
              AND taskq_internal.tick_hash(t.identifier, p_prefix) = p_config_hash
            ORDER BY t.identifier DESC LIMIT 1);
END $$;
COMMENT ON FUNCTION taskq.last_tick IS
'Returns the nominal time of the latest tick of a prefix and a configuration hash, in any state. Returns NULL if there is
none. Raises TQ001 for an unknown topic.';

-- Returns the identifier of a tick.
CREATE FUNCTION taskq_internal.tick_identifier(p_prefix text, p_config_hash text, p_moment timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT p_prefix || '/' || p_config_hash || '/' || to_char(p_moment AT TIME ZONE 'UTC', 'YYYYMMDD"T"HH24MISS.US"Z"')
$$;

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

-- Raises TQ002 if a moment is missing or outside the years 1 to 9999. The error names the position of the task.
CREATE FUNCTION taskq_internal.check_moments(p_topic taskq_internal.topic, p_moments timestamptz[], p_offset int)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_place bigint;
BEGIN
    SELECT u.place INTO v_place FROM unnest(p_moments) WITH ORDINALITY AS u (moment, place)
    WHERE u.moment IS NULL OR NOT taskq_internal.is_moment(u.moment) OR u.moment = '9999-12-31 00:00Z'
    ORDER BY u.place LIMIT 1;
    IF FOUND THEN
        PERFORM taskq_internal.raise_error('TQ002', format(
            'topic %L, task at position %s: its nominal time is outside the years 1 to 9999', p_topic.name,
            p_offset + v_place - 1));
    END IF;
END $$;

-- Removes ticks of a prefix and returns how many: those with this hash if p_this is true, those with another hash if it
-- is false. It removes ticks that are READY, and ticks that were pushed SUSPENDED and never claimed. It keeps held
-- ticks and ended ticks: an ended tick proves that a scheduler has installed it.
CREATE FUNCTION taskq_internal.remove_ticks(p_topic_id int, p_prefix text, p_config_hash text, p_this boolean)
RETURNS int LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
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

-- Returns the places, from 1, of the identifiers that have no task. For equal identifiers it returns the first place.
CREATE FUNCTION taskq_internal.missing_ticks(p_topic_id int, p_identifiers text[]) RETURNS bigint[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_known text[] := ARRAY(SELECT t.identifier FROM taskq_internal.task t
                            WHERE t.identifier = ANY (p_identifiers) AND t.topic_id = p_topic_id);
BEGIN
    RETURN ARRAY(SELECT min(u.place) FROM unnest(p_identifiers) WITH ORDINALITY AS u (identifier, place)
                 LEFT JOIN unnest(v_known) AS k (identifier) USING (identifier)
                 WHERE k.identifier IS NULL GROUP BY u.identifier ORDER BY 1);
END $$;

-- Returns the values at the given places, which count from 1. Returns NULL if p_values is NULL.
CREATE FUNCTION taskq_internal.pick_elements(p_values anyarray, p_places bigint[]) RETURNS anyarray
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_values IS NOT NULL THEN ARRAY(
        SELECT u.value FROM unnest(p_values) WITH ORDINALITY AS u (value, place)
        JOIN unnest(p_places) AS p (place) USING (place) ORDER BY u.place) END
$$;
