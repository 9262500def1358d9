-- Turns: polls under a condition and polls of batches take one task of an identifier at a time.
--
-- In a topic, the turn of an identifier belongs to its ACTIVE task. Without one it belongs to the attempted task with
-- the lowest sequence, and otherwise to the first due task in polled order. A poll finds turns without a lock. It then
-- locks the identifiers (rows of taskq_internal.identifier_lock, SKIP LOCKED) and checks again in a new statement. If
-- another poll of an identifier has committed, the check sees its result. If it still holds the lock, this poll leaves
-- the identifier out. So polls never hand out two tasks of an identifier at once, no poll waits, and no task overtakes
-- another.
--
-- A poll looks for turns among the first due tasks of the topic, in growing windows. If a few identifiers have more
-- tasks than a window holds, the poll goes from identifier to identifier. Either way the cost grows with the number of
-- identifiers, not with the number of tasks of one identifier.
--
-- Many identifiers may be blocked at once: each has a failed task, or a task that is held or not due. A poll has to
-- pass all of them. So it reads identifiers with few tasks in bulk: a thousand READY tasks in the order of identifiers,
-- and the tasks that block identifiers in the same range. Only the remaining identifiers cost index probes of their
-- own.
--
-- A check for another task of an identifier is written as (SELECT ... ORDER BY ... LIMIT 1) IS NULL, not as NOT EXISTS.
-- The planner may turn NOT EXISTS into a hash of every attempted or blocking task of the topic.

-- Returns the states that block a whole identifier under a condition.
CREATE FUNCTION taskq_internal.blocking_states(p_condition text) RETURNS smallint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT (CASE p_condition
        WHEN 'SINGULAR_BY_IDENTIFIER' THEN '{}'
        WHEN 'SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE' THEN ARRAY[:EXPIRED, :FAILED]::smallint[]
        WHEN 'SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS' THEN ARRAY[:EXPIRED, :FAILED, :SUSPENDED]::smallint[]
        WHEN 'BATCH' THEN ARRAY[:FAILED]::smallint[] END)::smallint[]
$$;

-- Finds up to p_size turns among the first p_window due tasks, in polled order, without the identifiers in p_missed.
-- seen is the number of due tasks in the window. identifier_count is the number of their identifiers. seen_at is the
-- snapshot of the query.
CREATE FUNCTION taskq_internal.turns_among_first(
    p_topic_id int, p_now timestamptz, p_lifo boolean, p_condition text, p_window int, p_size int, p_missed text[],
    OUT sequences bigint[], OUT identifiers text[], OUT seen int, OUT identifier_count int, OUT seen_at text
) LANGUAGE plpgsql AS $$
DECLARE
    v_any      boolean := taskq_internal.has_identifier_fronts(p_topic_id);  -- whether there are fronts of identifiers
    v_blocking smallint[] := taskq_internal.blocking_states(p_condition);
BEGIN
    WITH first_tasks AS MATERIALIZED (
        SELECT row_number() OVER () AS place, f.sequence, f.identifier FROM (
            SELECT d.sequence, d.identifier FROM taskq_internal.due_fronts(p_topic_id, 101, p_now) v
            CROSS JOIN LATERAL (
                (SELECT l.sequence, l.identifier FROM taskq_internal.live l
                 WHERE NOT p_lifo AND l.topic_id = p_topic_id AND l.holder IS NULL
                   AND l.waits <= :WAITS_NOTHING AND l.late AND l.priority + 0 = v.priority AND l.available_at <= p_now
                   AND (l.available_at, l.sequence) < (v.available_at, v.sequence)
                 ORDER BY l.available_at, l.sequence LIMIT p_window)
                UNION ALL
                (SELECT l.sequence, l.identifier FROM taskq_internal.live l
                 WHERE NOT p_lifo AND l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
                   AND l.priority = v.priority AND l.available_at <= p_now
                   AND (l.available_at, l.sequence) >= (v.available_at, v.sequence)
                 ORDER BY l.available_at, l.sequence LIMIT p_window)
                UNION ALL
                (SELECT l.sequence, l.identifier FROM taskq_internal.live l
                 WHERE p_lifo AND l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
                   AND l.priority = v.priority AND l.available_at <= p_now
                   AND (l.available_at, l.sequence) >= (
                       coalesce(v.gap_high_at, v.available_at), coalesce(v.gap_high_sequence, v.sequence))
                 ORDER BY l.available_at DESC, l.sequence DESC LIMIT p_window)
                UNION ALL
                (SELECT l.sequence, l.identifier FROM taskq_internal.live l
                 WHERE p_lifo AND l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
                   AND l.late AND l.priority + 0 = v.priority AND l.available_at <= p_now
                   AND (l.available_at, l.sequence) < (v.gap_high_at, v.gap_high_sequence)
                   AND (l.available_at, l.sequence) > (v.gap_low_at, v.gap_low_sequence)
                 ORDER BY l.available_at DESC, l.sequence DESC LIMIT p_window)
                UNION ALL
                (SELECT l.sequence, l.identifier FROM taskq_internal.live l
                 WHERE p_lifo AND l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
                   AND l.priority = v.priority AND l.available_at <= p_now
                   AND (l.available_at, l.sequence) <= (v.gap_low_at, v.gap_low_sequence)
                   AND (l.available_at, l.sequence) >= (v.available_at, v.sequence)
                 ORDER BY l.available_at DESC, l.sequence DESC LIMIT p_window)
                UNION ALL
                (SELECT l.sequence, l.identifier FROM taskq_internal.live l
                 WHERE p_lifo AND l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
                   AND l.late AND l.priority + 0 = v.priority AND l.available_at <= p_now
                   AND (l.available_at, l.sequence) < (v.available_at, v.sequence)
                 ORDER BY l.available_at DESC, l.sequence DESC LIMIT p_window)) d
            LIMIT p_window) f
    ), places AS MATERIALIZED (  -- the sequence at each place, as an array for fast lookups
        SELECT array_agg(f.sequence ORDER BY f.place) AS sequences FROM first_tasks f
    ), per_identifier AS MATERIALIZED (
        SELECT min(f.place)::int AS place, f.identifier FROM first_tasks f GROUP BY f.identifier
    ), turn AS (
        SELECT n.identifier, CASE WHEN t.sequence IS NULL OR p_condition = 'BATCH' THEN n.place
            ELSE array_position((SELECT p.sequences FROM places p), t.sequence) END AS place
        FROM per_identifier n
        LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, n.identifier, v_any) i ON true
        LEFT JOIN LATERAL taskq_internal.turn_of_identifier(p_topic_id, n.identifier, i.claimed_at) t ON true
        WHERE t.holder IS NULL AND n.identifier <> ALL (p_missed)
          AND (cardinality(v_blocking) = 0 OR (
              SELECT e.sequence FROM taskq_internal.ended e WHERE e.identifier = n.identifier
                AND e.topic_id = p_topic_id AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED)
                AND e.state = ANY (v_blocking)
              ORDER BY e.state, e.sequence LIMIT 1) IS NULL)
          AND (p_condition <> 'BATCH' OR NOT taskq_internal.has_undue_retry(p_topic_id, n.identifier, p_now)))
    SELECT coalesce(array_agg(((SELECT p.sequences FROM places p))[c.place] ORDER BY c.place), '{}'),
           coalesce(array_agg(c.identifier ORDER BY c.place), '{}'), (SELECT count(*) FROM first_tasks),
               (SELECT count(*) FROM per_identifier), pg_current_snapshot()::text
    INTO sequences, identifiers, seen, identifier_count, seen_at
    FROM (SELECT t.identifier, t.place FROM turn t WHERE t.place IS NOT NULL ORDER BY t.place LIMIT p_size) c;
END $$;

-- Returns the first task of the topic in polled order, if it is due and has the turn. A poll of one task usually finds
-- its task here, at a third of the cost of examining several. Empty arrays say nothing about the tasks behind it.
CREATE FUNCTION taskq_internal.first_turn(
    p_topic_id int, p_now timestamptz, p_condition text, OUT sequences bigint[], OUT identifiers text[],
    OUT seen_at text
) LANGUAGE plpgsql AS $$
DECLARE
    v_any      boolean := taskq_internal.has_identifier_fronts(p_topic_id);  -- whether there are fronts of identifiers
BEGIN
    SELECT ARRAY[f.sequence], ARRAY[f.identifier], pg_current_snapshot()::text INTO sequences, identifiers, seen_at
    FROM (SELECT d.* FROM taskq_internal.due_fronts(p_topic_id, 101, p_now) v CROSS JOIN LATERAL (
              (SELECT l.sequence, l.identifier, l.available_at, l.attempt FROM taskq_internal.live l
               WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING AND l.late
                 AND l.priority + 0 = v.priority AND (l.available_at, l.sequence) < (v.available_at, v.sequence)
               ORDER BY l.available_at, l.sequence LIMIT 1)
              UNION ALL
              (SELECT l.sequence, l.identifier, l.available_at, l.attempt FROM taskq_internal.live l
               WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
                 AND l.priority = v.priority AND (l.available_at, l.sequence) >= (v.available_at, v.sequence)
               ORDER BY l.available_at, l.sequence LIMIT 1)) d LIMIT 1) f
    WHERE f.available_at <= p_now AND f.attempt = 0
      AND (SELECT t.sequence FROM (SELECT) one
           LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, f.identifier, v_any) i ON true
           CROSS JOIN LATERAL taskq_internal.turn_of_identifier(p_topic_id, f.identifier, i.claimed_at) t) IS NULL
      AND (SELECT e.sequence FROM taskq_internal.ended e WHERE e.identifier = f.identifier AND e.topic_id = p_topic_id
           AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED)
           AND e.state = ANY (taskq_internal.blocking_states(p_condition))
           ORDER BY e.state, e.sequence LIMIT 1) IS NULL;
    sequences := coalesce(sequences, '{}');
    identifiers := coalesce(identifiers, '{}');
END $$;

-- Returns whether an identifier has an attempted task that is not due or that waits. Such a task blocks the
-- identifier's batch. The condition on polled passes the entries of tasks that were ACTIVE.
CREATE FUNCTION taskq_internal.has_undue_retry(p_topic_id int, p_identifier text, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM taskq_internal.live a WHERE a.identifier = p_identifier AND a.topic_id = p_topic_id
                   AND a.attempt > 0 AND coalesce(a.polled, 'infinity') = 'infinity' AND a.holder IS NULL
                   AND (a.available_at > p_now OR a.waits > :WAITS_NOTHING));
END $$;

-- Returns the first due task of an identifier in polled order. It reads priority by priority. Returns NULL if no task
-- is due.
CREATE FUNCTION taskq_internal.first_due_of_identifier(
    p_topic_id int, p_identifier text, p_now timestamptz, p_lifo boolean
) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_priority smallint := 101;
    v_head     bigint;
BEGIN
    LOOP
        SELECT b.priority INTO v_priority FROM taskq_internal.live b
        WHERE b.topic_id::bigint = p_topic_id AND b.topic_id = p_topic_id AND b.identifier = p_identifier
          AND b.holder IS NULL AND b.priority < v_priority
        ORDER BY b.priority DESC LIMIT 1;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        IF p_lifo THEN
            SELECT b.sequence INTO v_head FROM taskq_internal.live b
            WHERE b.topic_id::bigint = p_topic_id AND b.topic_id = p_topic_id AND b.identifier = p_identifier
              AND b.holder IS NULL AND b.priority = v_priority AND b.available_at <= p_now
              AND b.waits + 0 <= :WAITS_NOTHING
            ORDER BY b.available_at DESC, b.sequence DESC LIMIT 1;
        ELSE
            SELECT b.sequence INTO v_head FROM taskq_internal.live b
            WHERE b.topic_id::bigint = p_topic_id AND b.topic_id = p_topic_id AND b.identifier = p_identifier
              AND b.holder IS NULL AND b.priority = v_priority AND b.available_at <= p_now
              AND b.waits + 0 <= :WAITS_NOTHING
            ORDER BY b.available_at, b.sequence LIMIT 1;
        END IF;
        IF FOUND THEN
            RETURN v_head;
        END IF;
    END LOOP;
END $$;

-- Returns the newest front of a topic that has only one priority, for the heads of identifiers (head_of_identifier).
-- Returns NULL for LAST_IN_FIRST_OUT and for a topic of more priorities. There a poll calls first_due_of_identifier.
CREATE FUNCTION taskq_internal.only_front(p_topic_id int, p_lifo boolean) RETURNS taskq_internal.front
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_front taskq_internal.front;
BEGIN
    SELECT * INTO v_front FROM taskq_internal.front f WHERE f.topic_id = p_topic_id
    ORDER BY f.priority DESC, f.number DESC LIMIT 1;
    IF p_lifo OR EXISTS (SELECT FROM taskq_internal.front f WHERE f.topic_id = p_topic_id
                         AND f.priority < v_front.priority) THEN
        RETURN NULL;
    END IF;
    RETURN v_front;
END $$;
