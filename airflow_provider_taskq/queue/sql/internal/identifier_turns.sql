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
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_any      boolean := taskq_internal.has_identifier_fronts(p_topic_id);  -- whether there are fronts of identifiers
    v_blocking smallint[] := taskq_internal.blocking_states(p_condition);
BEGIN
    WITH first_tasks AS MATERIALIZED (
        SELECT row_number() OVER () AS place, f.sequence, f.identifier FROM (
            SELECT d.sequence, d.identifier FROM taskq_internal.due_fronts(p_topic_id, 101, p_now) v CROSS JOIN LATERAL (
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
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off AS $$
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
) RETURNS bigint LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off AS $$
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
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
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

-- Returns up to p_size turns of the next identifiers after p_after and up to p_until, in polled order. last is the last
-- identifier that the call read, or NULL if there are no more. With p_hop true it reads a thousand identifiers by one
-- index probe each, which suits identifiers with many tasks. Otherwise it reads a thousand READY tasks in bulk, which
-- suits identifiers with few tasks. hop tells which p_hop suits the next call.
CREATE FUNCTION taskq_internal.turns_beyond(
    p_topic_id int, p_now timestamptz, p_lifo boolean, p_condition text, p_after text, p_until text, p_hop boolean,
    p_size int, p_missed text[], OUT sequences bigint[], OUT identifiers text[], OUT last text, OUT hop boolean,
    OUT seen_at text
) LANGUAGE plpgsql AS $$
DECLARE
    v_identifiers text[];
    v_count int;
BEGIN
    IF p_hop THEN
        SELECT n.identifiers, n.last INTO v_identifiers, last
        FROM taskq_internal.identifiers_after(p_topic_id, p_after, p_until, 1000) n;
        hop := false;
    ELSE
        SELECT o.identifiers, o.last, o.identifier_count INTO v_identifiers, last, v_count
        FROM taskq_internal.open_identifiers(p_topic_id, p_now, p_condition, p_after, p_until, 1000) o;
        hop := v_count < 250;
    END IF;
    sequences := '{}';
    identifiers := '{}';
    IF cardinality(v_identifiers) > 0 THEN
        SELECT t.sequences, t.identifiers, t.seen_at INTO sequences, identifiers, seen_at
        FROM taskq_internal.turns_of_identifiers(
            p_topic_id, p_now, p_lifo, p_condition, v_identifiers, p_size, p_missed) t;
    END IF;
END $$;

-- Returns the identifiers of the next p_tasks READY tasks in the order of identifiers, without the blocked identifiers.
-- An identifier is blocked if it has a task in a blocking state, or if its turn belongs to a task that is held or not
-- due. identifier_count includes the blocked identifiers. last is that of turns_beyond.
--
-- The scans for blocking tasks end after a bounded number of rows, so an identifier with many failed or attempted tasks
-- costs no more than that. A blocked identifier may therefore remain, and turns_of_identifiers checks each one again.
-- The scans read only indexes, if the visibility map allows it: rows of neighboring identifiers are far apart in the
-- table, and reading each row costs five times as much.
CREATE FUNCTION taskq_internal.open_identifiers(
    p_topic_id int, p_now timestamptz, p_condition text, p_after text, p_until text, p_tasks int,
    OUT identifiers text[], OUT last text, OUT identifier_count int
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off AS $$
DECLARE
    v_most     int := 4 * p_tasks;
    v_blocking smallint[] := taskq_internal.blocking_states(p_condition);
    v_identifiers    text[];
    v_blocked  text[] := '{}';
    v_held     text[];
    v_undue    text[];
    v_next     text;
BEGIN
    v_identifiers := ARRAY(
        SELECT DISTINCT ON (r.identifier) r.identifier FROM (
            SELECT l.identifier FROM taskq_internal.live l
            WHERE l.topic_id::bigint = p_topic_id AND l.topic_id = p_topic_id AND l.holder IS NULL
              AND l.identifier > p_after
            ORDER BY l.identifier, l.priority DESC, l.available_at, l.sequence LIMIT p_tasks) r
        WHERE p_until IS NULL OR r.identifier <= p_until
        ORDER BY r.identifier);
    identifier_count := cardinality(v_identifiers);
    last := v_identifiers[identifier_count];
    IF cardinality(v_blocking) > 0 THEN
        v_blocked := ARRAY(
            SELECT e.identifier FROM taskq_internal.ended e
            WHERE e.identifier > p_after AND e.identifier <= last AND e.topic_id = p_topic_id
              AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED) AND e.state = ANY (v_blocking)
            ORDER BY e.identifier LIMIT v_most);
    END IF;
    v_held := ARRAY(
        SELECT a.identifier FROM taskq_internal.live a
        WHERE a.identifier > p_after AND a.identifier <= last AND a.topic_id = p_topic_id AND a.attempt > 0
            AND a.holder IS NOT NULL
        ORDER BY a.identifier LIMIT v_most);
    v_undue := ARRAY(
        SELECT t.identifier FROM (
            SELECT DISTINCT ON (r.identifier) r.identifier, r.available_at, r.waits FROM (
                SELECT a.identifier, a.available_at, a.waits FROM taskq_internal.live a
                WHERE a.identifier > p_after AND a.identifier <= last AND a.topic_id = p_topic_id AND a.attempt > 0
                    AND a.holder IS NULL
                ORDER BY a.identifier, a.sequence LIMIT v_most) r
            ORDER BY r.identifier) t
        WHERE t.available_at > p_now OR t.waits > :WAITS_NOTHING);
    identifiers := ARRAY(SELECT unnest(v_identifiers) EXCEPT SELECT unnest(v_blocked || v_held || v_undue));
    v_next := (SELECT l.identifier FROM taskq_internal.live l
               WHERE l.topic_id::bigint = p_topic_id AND l.topic_id = p_topic_id AND l.holder IS NULL
                 AND l.identifier > last
               ORDER BY l.identifier, l.priority DESC, l.available_at, l.sequence LIMIT 1);
    IF v_next IS NULL OR v_next > p_until THEN
        last := NULL;
    END IF;
END $$;

-- Returns up to p_most identifiers after p_after and up to p_until that have READY tasks, in order. last is the last
-- one, or NULL if there are no more.
CREATE FUNCTION taskq_internal.identifiers_after(
    p_topic_id int, p_after text, p_until text, p_most int, OUT identifiers text[], OUT last text
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_any      boolean := taskq_internal.has_identifier_fronts(p_topic_id);  -- whether there are fronts of identifiers
    v_front    taskq_internal.front := taskq_internal.only_front(p_topic_id, false);
BEGIN
    WITH RECURSIVE hop AS (
        SELECT n.identifier, n.ready, n.ready::int AS nth
        FROM taskq_internal.next_identifier(p_topic_id, p_after, v_any, v_front) n
        UNION ALL
        SELECT n.identifier, n.ready, v.nth + n.ready::int
        FROM hop v CROSS JOIN LATERAL taskq_internal.next_identifier(p_topic_id, v.identifier, v_any, v_front) n
        WHERE v.nth <= p_most AND (p_until IS NULL OR v.identifier < p_until))
    SELECT coalesce(array_agg(h.identifier ORDER BY h.nth), '{}') INTO identifiers FROM hop h
    WHERE h.ready AND (p_until IS NULL OR h.identifier <= p_until);
    IF cardinality(identifiers) > p_most THEN
        identifiers := identifiers[:p_most];
        last := identifiers[p_most];
    END IF;
END $$;

-- Returns up to p_size turns of p_identifiers, in polled order.
CREATE FUNCTION taskq_internal.turns_of_identifiers(
    p_topic_id int, p_now timestamptz, p_lifo boolean, p_condition text, p_identifiers text[], p_size int,
    p_missed text[], OUT sequences bigint[], OUT identifiers text[], OUT seen_at text
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_any      boolean := taskq_internal.has_identifier_fronts(p_topic_id);  -- whether there are fronts of identifiers
    v_blocking smallint[] := taskq_internal.blocking_states(p_condition);
    v_sign     int := CASE WHEN p_lifo THEN -1 ELSE 1 END;
    v_front    taskq_internal.front := taskq_internal.only_front(p_topic_id, p_lifo);
BEGIN
    WITH per_identifier AS MATERIALIZED (
        SELECT u.identifier, i.* FROM unnest(p_identifiers) AS u (identifier)
        LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, u.identifier, v_any) i ON true
        WHERE u.identifier <> ALL (p_missed)
    ), turn AS MATERIALIZED (  -- the task that has the turn of its identifier, or else the identifier's first due task
        SELECT n.identifier, coalesce(o.sequence, h.sequence, b.sequence) AS sequence,
               coalesce(o.priority, h.priority, b.priority) AS priority,
               coalesce(o.available_at, h.available_at, b.available_at) AS available_at,
               coalesce(o.waits, b.waits, :WAITS_NOTHING) AS waits
        FROM per_identifier n
        LEFT JOIN LATERAL taskq_internal.turn_of_identifier(p_topic_id, n.identifier, n.claimed_at) t ON true
        LEFT JOIN LATERAL (  -- without a front of the identifier: its first READY task
            SELECT l.sequence, l.priority, l.available_at, l.waits FROM taskq_internal.live l
            WHERE n.claimed_at IS NULL AND l.topic_id::bigint = p_topic_id AND l.topic_id = p_topic_id
              AND l.holder IS NULL AND l.identifier = n.identifier
            ORDER BY l.priority DESC, l.available_at, l.sequence LIMIT 1) b ON true
        LEFT JOIN LATERAL (  -- with a front
            SELECT h.* FROM taskq_internal.head_of_identifier(
                p_topic_id, CASE WHEN n.claimed_at IS NOT NULL THEN n.identifier END, p_now, v_front.priority,
                CASE WHEN (n.available_at, n.sequence) > (v_front.available_at, v_front.sequence) THEN n.available_at
                    ELSE v_front.available_at END,
                CASE WHEN (n.available_at, n.sequence) > (v_front.available_at, v_front.sequence) THEN n.sequence
                    ELSE v_front.sequence END) h) h ON true
        LEFT JOIN LATERAL (
            SELECT l.sequence, l.priority, l.available_at, l.waits FROM taskq_internal.live l
            WHERE l.topic_id = p_topic_id AND l.sequence = CASE
                WHEN t.sequence IS NOT NULL AND p_condition <> 'BATCH' THEN t.sequence
                WHEN p_lifo OR b.waits > :WAITS_NOTHING OR b.available_at > p_now
                    OR n.claimed_at IS NOT NULL AND v_front.number IS NULL
                    THEN taskq_internal.first_due_of_identifier(p_topic_id, n.identifier, p_now, p_lifo) END) o ON true
        WHERE t.holder IS NULL
          AND (cardinality(v_blocking) = 0 OR (
              SELECT e.sequence FROM taskq_internal.ended e WHERE e.identifier = n.identifier
                AND e.topic_id = p_topic_id AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED)
                AND e.state = ANY (v_blocking)
              ORDER BY e.state, e.sequence LIMIT 1) IS NULL)
          AND (p_condition <> 'BATCH' OR NOT taskq_internal.has_undue_retry(p_topic_id, n.identifier, p_now)))
    SELECT coalesce(array_agg(c.sequence ORDER BY c.place), '{}'),
        coalesce(array_agg(c.identifier ORDER BY c.place), '{}'), pg_current_snapshot()::text
    INTO sequences, identifiers, seen_at
    FROM (SELECT t.sequence, t.identifier, row_number() OVER (
              ORDER BY t.priority DESC, extract(epoch FROM t.available_at) * v_sign, t.sequence * v_sign) AS place
          FROM turn t WHERE t.waits <= :WAITS_NOTHING AND t.available_at <= p_now
          ORDER BY place LIMIT p_size) c;
END $$;

-- Returns a random text between the first and the last identifier, at which a poll begins to go from identifier to
-- identifier. Otherwise polls that find enough tasks on the way would always serve the same identifiers. The function
-- draws two letters after the common prefix.
CREATE FUNCTION taskq_internal.random_identifier(p_topic_id int) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_first  text := (SELECT l.identifier FROM taskq_internal.live l
                      WHERE l.topic_id::bigint = p_topic_id AND l.topic_id = p_topic_id
                        AND l.holder IS NULL
                      ORDER BY l.identifier LIMIT 1);
    v_last   text := (SELECT l.identifier FROM taskq_internal.live l
                      WHERE l.topic_id::bigint = p_topic_id AND l.topic_id = p_topic_id
                        AND l.holder IS NULL
                      ORDER BY l.identifier DESC LIMIT 1);
    v_common int := 0;
    v_letter int;
BEGIN
    WHILE v_common < length(v_first) AND substr(v_first, v_common + 1, 1) = substr(v_last, v_common + 1, 1) LOOP
        v_common := v_common + 1;
    END LOOP;
    v_letter := coalesce(nullif(ascii(substr(v_first, v_common + 1, 1)), 0), 32);
    v_letter := v_letter + floor(random() * (ascii(substr(v_last, v_common + 1, 1)) - v_letter + 1))::int;
    IF v_letter < 32 OR v_letter BETWEEN 55296 AND 57343 THEN
        RETURN v_first;
    END IF;
    RETURN left(v_first, v_common) || chr(v_letter) || chr(32 + floor(random() * 95)::int);
END $$;

-- Locks the identifiers of turns that a query found in a snapshot, checks the turns again, and claims the remaining
-- ones. claimed has their sequences in the given order. identifier_count is the number of their identifiers. missed has
-- the identifiers that other transactions hold or have changed.
CREATE FUNCTION taskq_internal.claim_identifiers(
    p_topic_id int, p_holder bigint, p_now timestamptz, p_lifo boolean, p_condition text, p_sequences bigint[],
    p_identifiers text[], p_seen_at text, OUT claimed bigint[], OUT identifier_count int, OUT missed text[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_mine  bigint[] := taskq_internal.lock_identifiers(p_topic_id, p_sequences, p_identifiers);
    v_found bigint[] := taskq_internal.recheck_turns(p_topic_id, p_now, p_lifo, p_condition, v_mine, p_seen_at);
BEGIN
    missed := '{}';
    IF cardinality(v_found) < cardinality(p_sequences) THEN
        missed := ARRAY(SELECT u.identifier FROM unnest(p_sequences, p_identifiers) AS u (sequence, identifier)
                        WHERE u.sequence <> ALL (v_found));
        v_found := ARRAY(SELECT u.sequence FROM unnest(p_sequences) WITH ORDINALITY AS u (sequence, place)
                         WHERE u.sequence = ANY (v_found) ORDER BY u.place);
    ELSE
        v_found := p_sequences;
    END IF;
    claimed := taskq_internal.claim_locked(p_topic_id, p_holder, v_found);
    identifier_count := cardinality(claimed);
END $$;

-- Does the same for batches: claims all due tasks, up to p_each, of each identifier that still has the turn.
CREATE FUNCTION taskq_internal.claim_groups(
    p_topic_id int, p_holder bigint, p_now timestamptz, p_each int, p_sequences bigint[], p_identifiers text[],
    OUT claimed bigint[], OUT identifier_count int, OUT missed text[]
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_mine  bigint[] := taskq_internal.lock_identifiers(p_topic_id, p_sequences, p_identifiers);
    v_found bigint[];
    v_of    text[];
BEGIN
    v_found := taskq_internal.lock_groups(p_topic_id, p_now, ARRAY(
        SELECT u.identifier FROM unnest(p_sequences, p_identifiers) WITH ORDINALITY AS u (sequence, identifier, place)
        WHERE u.sequence = ANY (v_mine) ORDER BY u.place), p_each);
    v_of := ARRAY(SELECT DISTINCT l.identifier FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
                  AND l.sequence = ANY (v_found));
    missed := ARRAY(SELECT u.identifier FROM unnest(p_identifiers) AS u (identifier) WHERE u.identifier <> ALL (v_of));
    claimed := taskq_internal.claim_locked(p_topic_id, p_holder, v_found);
    identifier_count := cardinality(v_of);
END $$;

-- Locks identifiers until the transaction ends. Returns the sequences of the identifiers that it could lock.
CREATE FUNCTION taskq_internal.lock_identifiers(p_topic_id int, p_sequences bigint[], p_identifiers text[])
RETURNS bigint[] LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off AS $$
DECLARE
    v_buckets int[] := ARRAY(SELECT taskq_internal.identifier_bucket(p_topic_id, u.identifier)
                             FROM unnest(p_identifiers) AS u (identifier));
    v_locked  int[] := ARRAY(SELECT b.bucket FROM taskq_internal.identifier_lock b WHERE b.bucket = ANY (v_buckets)
                             FOR UPDATE SKIP LOCKED);
BEGIN
    IF cardinality(v_locked) = 0 AND NOT EXISTS (SELECT FROM taskq_internal.identifier_lock) THEN
        PERFORM taskq_internal.create_rows();
        v_locked := ARRAY(SELECT b.bucket FROM taskq_internal.identifier_lock b WHERE b.bucket = ANY (v_buckets)
                          FOR UPDATE SKIP LOCKED);
    END IF;
    IF cardinality(v_locked) = cardinality(v_buckets) THEN  -- all identifiers are locked, and no two share a bucket
        RETURN p_sequences;
    END IF;
    RETURN ARRAY(SELECT u.sequence FROM unnest(p_sequences, v_buckets) AS u (sequence, bucket)
                 JOIN unnest(v_locked) AS b (bucket) USING (bucket));
END $$;

-- Locks and returns the tasks among p_sequences that still have the turn of their identifiers, which this transaction
-- has locked. If no transaction has committed since the snapshot p_seen_at, all of them have.
CREATE FUNCTION taskq_internal.recheck_turns(
    p_topic_id int, p_now timestamptz, p_lifo boolean, p_condition text, p_sequences bigint[], p_seen_at text
) RETURNS bigint[] LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_blocking smallint[] := taskq_internal.blocking_states(p_condition);
    v_any      boolean;
    v_front    taskq_internal.front;
    v_locked   bigint[];
    v_same     boolean;
BEGIN
    SELECT array_agg(l.sequence), bool_and(l.same) INTO v_locked, v_same FROM (
        SELECT l.sequence, pg_current_snapshot()::text = p_seen_at AS same FROM taskq_internal.live l
        -- num_nulls and + 0 keep the planner from the indexes of READY tasks.
        WHERE l.topic_id = p_topic_id AND l.sequence = ANY (p_sequences) AND num_nulls(l.holder) = 1
            AND l.waits + 0 <= :WAITS_NOTHING
        FOR UPDATE SKIP LOCKED) l;
    IF v_same IS NOT FALSE THEN
        RETURN coalesce(v_locked, '{}');
    END IF;
    v_any := taskq_internal.has_identifier_fronts(p_topic_id);
    v_front := taskq_internal.only_front(p_topic_id, p_lifo);
    RETURN ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, l.identifier, v_any) i ON true
        WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_locked)
          AND coalesce((
                SELECT t.sequence FROM taskq_internal.turn_of_identifier(p_topic_id, l.identifier, i.claimed_at) t),
              l.sequence) = l.sequence
          AND CASE WHEN l.attempt > 0 THEN true
              -- Most identifiers have no front, and their first READY task is due: one index probe.
              WHEN i.claimed_at IS NULL AND NOT p_lifo AND l.sequence = (
                  SELECT b.sequence FROM taskq_internal.live b
                  WHERE b.topic_id::bigint = p_topic_id AND b.topic_id = p_topic_id
                    AND b.identifier = l.identifier AND b.holder IS NULL
                  ORDER BY b.priority DESC, b.available_at, b.sequence LIMIT 1) THEN true
              WHEN i.claimed_at IS NULL OR v_front.number IS NULL
                  THEN l.sequence = taskq_internal.first_due_of_identifier(p_topic_id, l.identifier, p_now, p_lifo)
              ELSE l.sequence = (
                  SELECT h.sequence FROM taskq_internal.head_of_identifier(
                      p_topic_id, l.identifier, p_now, v_front.priority,
                      CASE WHEN (i.available_at, i.sequence) > (v_front.available_at, v_front.sequence)
                          THEN i.available_at ELSE v_front.available_at END,
                      CASE WHEN (i.available_at, i.sequence) > (v_front.available_at, v_front.sequence)
                          THEN i.sequence ELSE v_front.sequence END) h) END
          AND (cardinality(v_blocking) = 0 OR (
              SELECT e.sequence FROM taskq_internal.ended e WHERE e.identifier = l.identifier
                AND e.topic_id = p_topic_id AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED)
                AND e.state = ANY (v_blocking)
              ORDER BY e.state, e.sequence LIMIT 1) IS NULL));
END $$;

-- Finds up to p_size turns among all identifiers of a topic, with the results of turns_among_first. complete is false
-- if the topic has more than a thousand identifiers. It then returns no turns.
CREATE FUNCTION taskq_internal.turns_of_few(
    p_topic_id int, p_now timestamptz, p_lifo boolean, p_condition text, p_size int, p_missed text[],
    OUT sequences bigint[], OUT identifiers text[], OUT seen int, OUT identifier_count int, OUT seen_at text,
    OUT complete boolean
) LANGUAGE plpgsql AS $$
DECLARE
    v_all   record := taskq_internal.identifiers_after(p_topic_id, '', NULL, 1000);
    v_turns record;
BEGIN
    complete := v_all.last IS NULL;
    IF complete THEN
        v_turns := taskq_internal.turns_of_identifiers(
            p_topic_id, p_now, p_lifo, p_condition, v_all.identifiers, p_size, p_missed);
        sequences := v_turns.sequences;
        identifiers := v_turns.identifiers;
        seen := 0;
        identifier_count := cardinality(identifiers);
        seen_at := v_turns.seen_at;
    END IF;
END $$;

-- Claims up to p_size turns for a holder and returns the tasks' sequences. They are in polled order if the first tasks
-- of the topic suffice. Under BATCH it claims the groups of up to p_size identifiers, up to p_each tasks of each. With
-- p_each NULL it claims all their tasks.
CREATE FUNCTION taskq_internal.claim_turns(
    p_topic_id int, p_holder bigint, p_size int, p_lifo boolean, p_condition text, p_each int DEFAULT 1
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_window int := p_size + 16;
    v_widest int := greatest(1000, 2 * p_size);
    v_wanted int := p_size;
    v_many   boolean := false;  -- whether the topic has more than a thousand identifiers
    v_turns  record;
    v_all    record;
    v_got    record;
    v_claimed  bigint[] := '{}';
    v_missed text[] := '{}';
BEGIN
    IF p_size = 1 AND NOT p_lifo AND p_condition <> 'BATCH' THEN
        v_turns := taskq_internal.first_turn(p_topic_id, v_now, p_condition);
        v_got := taskq_internal.claim_found_turns(p_topic_id, p_holder, v_now, p_lifo, p_condition, p_each,
                                                  v_turns.sequences, v_turns.identifiers, v_turns.seen_at);
        IF v_got.identifier_count = 1 THEN
            RETURN v_got.claimed;
        END IF;
    END IF;
    LOOP
        v_turns := taskq_internal.turns_among_first(
            p_topic_id, v_now, p_lifo, p_condition, v_window, v_wanted, v_missed);
        IF cardinality(v_turns.sequences) < v_wanted AND v_turns.seen = v_window
            AND v_turns.identifier_count * 4 < v_turns.seen AND v_window < v_widest THEN
            -- The first identifiers have many tasks. If the topic has few identifiers, examine all of them.
            v_all := taskq_internal.turns_of_few(p_topic_id, v_now, p_lifo, p_condition, v_wanted, v_missed);
            IF v_all.complete THEN
                v_turns := v_all;
            ELSE
                v_many := true;
            END IF;
        END IF;
        v_got := taskq_internal.claim_found_turns(p_topic_id, p_holder, v_now, p_lifo, p_condition, p_each,
                                                  v_turns.sequences, v_turns.identifiers, v_turns.seen_at);
        v_claimed := v_claimed || v_got.claimed;
        v_missed := v_missed || v_got.missed;
        EXIT WHEN v_got.identifier_count >= v_wanted;
        IF cardinality(v_turns.sequences) < v_wanted THEN
            IF v_turns.seen < v_window THEN  -- the window has all due tasks; another task may have the turn now
                EXIT WHEN v_got.identifier_count = cardinality(v_turns.sequences);
            ELSIF v_window >= v_widest THEN
                RETURN v_claimed || taskq_internal.claim_turns_beyond(
                    p_topic_id, p_holder, v_now, p_lifo, p_condition, p_each, v_wanted - v_got.identifier_count,
                    v_missed, v_many);
            ELSE
                v_window := CASE WHEN v_turns.identifier_count * 4 < v_turns.seen THEN v_widest
                    ELSE least(v_window * 4, v_widest) END;
            END IF;
        END IF;
        v_wanted := v_wanted - v_got.identifier_count;
    END LOOP;
    RETURN v_claimed;
END $$;

-- Claims the turns that a query found: one task for each identifier, or groups.
CREATE FUNCTION taskq_internal.claim_found_turns(
    p_topic_id int, p_holder bigint, p_now timestamptz, p_lifo boolean, p_condition text, p_each int,
    p_sequences bigint[], p_identifiers text[], p_seen_at text, OUT claimed bigint[], OUT identifier_count int,
    OUT missed text[]
) LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(p_sequences) = 0 THEN
        claimed := '{}'; identifier_count := 0; missed := '{}';
    ELSIF p_condition = 'BATCH' THEN
        SELECT * INTO claimed, identifier_count, missed
        FROM taskq_internal.claim_groups(p_topic_id, p_holder, p_now, p_each, p_sequences, p_identifiers);
    ELSE
        SELECT * INTO claimed, identifier_count, missed
        FROM taskq_internal.claim_identifiers(p_topic_id, p_holder, p_now, p_lifo, p_condition, p_sequences,
                p_identifiers, p_seen_at);
    END IF;
END $$;

-- Claims turns from identifier to identifier, a thousand at a time. If the topic has no more than a thousand
-- identifiers, it claims their turns in polled order. Otherwise it starts at a random identifier and goes around once,
-- until it has enough tasks. p_many is true if the topic is known to have more.
CREATE FUNCTION taskq_internal.claim_turns_beyond(
    p_topic_id int, p_holder bigint, p_now timestamptz, p_lifo boolean, p_condition text, p_each int, p_size int,
    p_missed text[], p_many boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_start text := CASE WHEN p_many THEN taskq_internal.random_identifier(p_topic_id) END;
    v_after text := coalesce(v_start, '');
    v_until text;
    v_hop   boolean := true;
    v_turns record;
    v_got   record;
    v_claimed bigint[] := '{}';
BEGIN
    LOOP
        v_turns := taskq_internal.turns_beyond(
            p_topic_id, p_now, p_lifo, p_condition, v_after, v_until, v_hop, p_size, p_missed);
        v_hop := v_turns.hop;
        IF v_start IS NULL AND v_turns.last IS NOT NULL THEN
            v_start := taskq_internal.random_identifier(p_topic_id);
            v_after := v_start;
            CONTINUE;
        END IF;
        v_got := taskq_internal.claim_found_turns(p_topic_id, p_holder, p_now, p_lifo, p_condition, p_each,
                                                  v_turns.sequences, v_turns.identifiers, v_turns.seen_at);
        p_missed := p_missed || v_got.missed;
        v_claimed := v_claimed || v_got.claimed;
        p_size := p_size - v_got.identifier_count;
        EXIT WHEN p_size <= 0;
        CONTINUE WHEN v_got.identifier_count < cardinality(v_turns.sequences);  -- another task may have the turn
        IF v_turns.last IS NOT NULL THEN
            v_after := v_turns.last;
        ELSE
            EXIT WHEN v_start IS NULL OR v_until IS NOT NULL;
            v_after := '';
            v_until := v_start;
        END IF;
    END LOOP;
    RETURN v_claimed;
END $$;

-- Returns the number of turns that a poll could hand out now, counted up to p_limit. It leaves out turns whose row
-- another transaction holds. Unless p_locked is true, it also leaves out turns whose identifier is locked.
CREATE FUNCTION taskq_internal.count_turns(p_topic_id int, p_limit int, p_condition text, p_locked boolean) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_window int := p_limit + 16;
    v_widest int := greatest(1000, 2 * p_limit);
    v_turns  record;
    v_after  text := '';
    v_hop    boolean := true;
    v_count  int := 0;
BEGIN
    LOOP
        v_turns := taskq_internal.turns_among_first(p_topic_id, v_now, false, p_condition, v_window, v_window, '{}');
        v_count := taskq_internal.count_unlocked(p_topic_id, v_turns.sequences, CASE WHEN p_locked THEN '{}'
                ELSE v_turns.identifiers END);
        IF v_count >= p_limit OR v_turns.seen < v_window THEN
            RETURN least(v_count, p_limit);
        END IF;
        EXIT WHEN v_window >= v_widest;
        v_window := v_widest;
    END LOOP;
    v_count := 0;
    WHILE v_count < p_limit AND v_after IS NOT NULL LOOP
        v_turns := taskq_internal.turns_beyond(p_topic_id, v_now, false, p_condition, v_after, NULL, v_hop, 1000, '{}');
        v_hop := v_turns.hop;
        v_count := v_count + taskq_internal.count_unlocked(p_topic_id, v_turns.sequences, CASE WHEN p_locked THEN '{}'
                ELSE v_turns.identifiers END);
        v_after := v_turns.last;
    END LOOP;
    RETURN least(v_count, p_limit);
END $$;

-- Returns the number of identifiers that would hand out one of these tasks, which are about to be promoted. Such an
-- identifier has no other due task, or its task here is an attempted one. No task blocks the identifier, and no other
-- task has its turn.
CREATE FUNCTION taskq_internal.count_turns_among(
    p_topic_id int, p_sequences bigint[], p_condition text, p_locked boolean
) RETURNS int LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_any      boolean := taskq_internal.has_identifier_fronts(p_topic_id);  -- whether there are fronts of identifiers
    v_now      timestamptz := clock_timestamp();
    v_blocking smallint[] := taskq_internal.blocking_states(p_condition);
    v_locked   text[] := '{}';
BEGIN
    IF NOT p_locked THEN
        v_locked := taskq_internal.locked_identifiers(p_topic_id, ARRAY(
            SELECT DISTINCT l.identifier FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
                AND l.sequence = ANY (p_sequences)));
    END IF;
    RETURN (
        SELECT count(DISTINCT l.identifier) FROM taskq_internal.live l
        LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, l.identifier, v_any) i ON true
        WHERE l.topic_id = p_topic_id AND l.sequence = ANY (p_sequences) AND l.identifier <> ALL (v_locked)
          AND (l.attempt > 0 OR taskq_internal.first_due_of_identifier(p_topic_id, l.identifier, v_now, false) IS NULL)
          AND coalesce((
                SELECT t.sequence FROM taskq_internal.turn_of_identifier(p_topic_id, l.identifier, i.claimed_at) t),
              l.sequence) = l.sequence
          AND (SELECT e.sequence FROM taskq_internal.ended e WHERE e.identifier = l.identifier
               AND e.topic_id = p_topic_id AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED) AND e.state = ANY (v_blocking)
               ORDER BY e.state, e.sequence LIMIT 1) IS NULL);
END $$;

-- Returns the number of these turns that no other transaction holds: neither the row, nor the identifier if it is in
-- p_identifiers. It takes no lock.
CREATE FUNCTION taskq_internal.count_unlocked(p_topic_id int, p_sequences bigint[], p_identifiers text[]) RETURNS int
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_next   bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_locked text[] := taskq_internal.locked_identifiers(p_topic_id, p_identifiers);
BEGIN
    RETURN (SELECT count(*) FROM taskq_internal.live l
            WHERE l.topic_id = p_topic_id AND l.sequence = ANY (p_sequences) AND l.identifier <> ALL (v_locked)
              AND NOT (taskq_internal.is_transaction_open(l.xmax, v_next)
                       AND NOT taskq_internal.is_transaction_open(l.xmin, v_next)));
END $$;

-- Returns the identifiers that another open transaction has locked, which a poll would leave out. It takes no lock.
-- Rows of identifier_lock are only locked, never changed, so xmax is the transaction that locked the row last. For most
-- rows it is older than every open transaction.
CREATE FUNCTION taskq_internal.locked_identifiers(p_topic_id int, p_identifiers text[]) RETURNS text[]
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_next   bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_oldest int := age(pg_snapshot_xmin(pg_current_snapshot())::xid);
BEGIN
    RETURN ARRAY(SELECT u.identifier FROM unnest(p_identifiers) AS u (identifier)
                 JOIN taskq_internal.identifier_lock b
                     ON b.bucket = taskq_internal.identifier_bucket(p_topic_id, u.identifier)
                 WHERE age(b.xmax) <= v_oldest AND taskq_internal.is_locked_elsewhere(b.xmax, v_next));
END $$;

-- Returns whether another open transaction has locked a row of identifier_lock, by the row's xmax. The lock may belong
-- to this transaction itself, under its own number or that of a savepoint. No function tells these numbers from those
-- of other transactions, but each other transaction holds a lock on its number.
CREATE FUNCTION taskq_internal.is_locked_elsewhere(p_locker xid, p_next bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT taskq_internal.is_transaction_open(p_locker, p_next) THEN
        RETURN false;
    END IF;
    RETURN pg_current_xact_id_if_assigned() IS NULL OR EXISTS (
        SELECT FROM pg_locks k WHERE k.locktype = 'transactionid' AND k.transactionid = p_locker
          AND k.mode = 'ExclusiveLock' AND k.pid IS DISTINCT FROM pg_backend_pid());
END $$;

-- Returns the number of the row of taskq_internal.identifier_lock that a poll locks for an identifier. The rows from
-- 65,536 on are those of offers.
CREATE FUNCTION taskq_internal.identifier_bucket(p_topic_id int, p_identifier text) RETURNS int
LANGUAGE sql IMMUTABLE AS $$
    SELECT (hashtextextended(p_identifier, p_topic_id) & 65535)::int
$$;
