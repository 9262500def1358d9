-- Staged pushes: chunks of staged tasks, each pushed by one call.

-- Pushes the tasks of a stage in the order of part and place, in chunks of 10,000 tasks or 8 MB of payload, which limit
-- the server's memory, with a call for each topic of a chunk. If tasks have dependencies, each run of tasks of the same
-- topic has a call, so that every task comes after the tasks before it. Returns how many tasks it pushed. An error
-- names an invalid task by its place among all tasks, and by its identifier.
CREATE FUNCTION taskq_internal.push_staged(p_stage uuid, p_topic text, p_insertion text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_runs   boolean := EXISTS (SELECT FROM taskq.staged_task WHERE stage = p_stage AND depends_on IS NOT NULL);
    v_done   bigint := 0;
    v_since  bigint;
    v_depend record;
    v_number int;
    v_chunk  record;
    v_chunks CURSOR FOR
        SELECT n.target AS topic, array_agg(n.number) AS numbers, array_agg(n.identifier) AS identifiers,
               CASE WHEN count(n.payload) > 0 THEN array_agg(n.payload) END AS payloads,
               CASE WHEN count(n.reference) > 0 THEN array_agg(n.reference) END AS refs,
               CASE WHEN bool_or(n.suspended) THEN array_agg(n.suspended) END AS suspended,
               CASE WHEN count(n.available_at) > 0 THEN array_agg(n.available_at) END AS available_at,
               CASE WHEN count(n.delay) > 0 THEN array_agg(n.delay) END AS delays,
               CASE WHEN count(n.ttl) > 0 THEN array_agg(n.ttl) END AS ttls,
               CASE WHEN count(n.priority) > 0 THEN array_agg(n.priority) END AS priorities,
               CASE WHEN count(n.depends_on) > 0 THEN array_agg(n.depends_on) END AS depends
        FROM (SELECT m.*, m.number / 10000 AS nth, CASE WHEN v_runs THEN sum(m.turn) OVER w END AS run
              FROM (SELECT s.*, t.target, row_number() OVER w - 1 AS number,
                           sum(octet_length(s.payload)) OVER w / 8000000 AS bulk,
                           (t.target IS DISTINCT FROM lag(t.target) OVER w)::int AS turn
                    FROM taskq.staged_task s CROSS JOIN LATERAL (SELECT coalesce(p_topic, s.topic) AS target) t
                    WHERE s.stage = p_stage AND s.junction IS NULL
                    -- This is the order of the index. A part has one successful attempt.
                    WINDOW w AS (ORDER BY s.part, s.attempt, s.place ROWS UNBOUNDED PRECEDING)) m
              WINDOW w AS (ORDER BY m.part, m.attempt, m.place ROWS UNBOUNDED PRECEDING)
              ORDER BY nth, m.bulk, run, m.target, m.number) n
        GROUP BY n.nth, n.bulk, n.run, n.target ORDER BY n.nth, n.bulk, n.run, n.target;
BEGIN
    OPEN v_chunks;
    LOOP
        FETCH v_chunks INTO v_chunk;  -- one by one: a FOR loop would prefetch fifty chunks
        EXIT WHEN NOT FOUND;
        IF v_chunk.topic IS NULL THEN
            PERFORM taskq_internal.raise_error('TQ002', 'task at position 0: it names no topic, and no option does');
        END IF;
        SELECT array_agg(u.place - 1) AS places, array_agg(d.pair ->> 0) AS topics,
               array_agg(d.pair ->> 1) AS identifiers INTO v_depend
        FROM unnest(v_chunk.depends) WITH ORDINALITY AS u (list, place)
        CROSS JOIN LATERAL json_array_elements(u.list) AS d (pair);
        v_since := least(v_since, (SELECT min(u.sequence) FROM unnest(taskq.push(
            v_chunk.topic, p_insertion, v_chunk.identifiers, v_chunk.payloads, v_chunk.refs, v_chunk.suspended,
            v_chunk.available_at, v_chunk.delays, v_chunk.ttls, v_chunk.priorities, 0, v_since,
            v_depend.places::int[], v_depend.topics, v_depend.identifiers)) AS u (sequence)));
        v_done := v_done + cardinality(v_chunk.identifiers);
    END LOOP;
    CLOSE v_chunks;
    RETURN v_done;
EXCEPTION WHEN SQLSTATE 'TQ002' THEN
    v_number := substring(SQLERRM FROM '^(?:topic .*?, )?task at position (\d+): ')::int + 1;
    PERFORM taskq_internal.raise_error('TQ002', regexp_replace(
        SQLERRM, 'task at position \d+', format('task at position %s (identifier %L)',
            v_chunk.numbers[v_number], left(v_chunk.identifiers[v_number], 100))));
END $$;
