-- Turns beyond the first due tasks of a topic: from identifier to identifier, and many blocked ones in bulk.

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
) LANGUAGE plpgsql AS $$
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
) LANGUAGE plpgsql AS $$
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
) LANGUAGE plpgsql AS $$
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
CREATE FUNCTION taskq_internal.random_identifier(p_topic_id int) RETURNS text LANGUAGE plpgsql AS $$
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
