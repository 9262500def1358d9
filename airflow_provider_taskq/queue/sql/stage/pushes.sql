-- Staged pushes: chunks of staged tasks, each pushed by one call.

-- Returns the next chunk of tasks after p_place as arrays for taskq.push, with one row for each topic: 10,000 tasks, or
-- 8 MB of payload. If tasks have dependencies, each run of tasks of the same topic has a row, so that every task comes
-- after the tasks before it. numbers has the positions of the tasks in the chunk, and last the last place.
CREATE FUNCTION taskq_internal.staged_chunk(p_stage uuid, p_part int, p_attempt bigint, p_place bigint, p_topic text)
RETURNS TABLE (topic text, last bigint, numbers bigint[], identifiers text[], payloads text[], refs text[],
               suspended boolean[], available_at timestamptz[], delays interval[], ttls interval[], priorities int[],
               depends json[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT n.target, max(n.place), array_agg(n.number), array_agg(n.identifier),
           CASE WHEN count(n.payload) > 0 THEN array_agg(n.payload) END,
           CASE WHEN count(n.reference) > 0 THEN array_agg(n.reference) END,
           CASE WHEN bool_or(n.suspended) THEN array_agg(n.suspended) END,
           CASE WHEN count(n.available_at) > 0 THEN array_agg(n.available_at) END,
           CASE WHEN count(n.delay) > 0 THEN array_agg(n.delay) END,
           CASE WHEN count(n.ttl) > 0 THEN array_agg(n.ttl) END,
           CASE WHEN count(n.priority) > 0 THEN array_agg(n.priority) END,
           CASE WHEN count(n.depends_on) > 0 THEN array_agg(n.depends_on) END
    FROM (SELECT m.*, CASE WHEN bool_or(m.depends_on IS NOT NULL) OVER () THEN sum(m.turn) OVER (ORDER BY m.number) END
                          AS run
          FROM (SELECT s.*, row_number() OVER w - 1 AS number, t.target,
                       (t.target IS DISTINCT FROM lag(t.target) OVER w)::int AS turn,
                       coalesce(sum(octet_length(s.payload)) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
                                0) AS bytes
                FROM (SELECT * FROM taskq.staged_task
                      WHERE stage = p_stage AND part = p_part AND attempt = p_attempt AND place > p_place
                        AND junction IS NULL
                      ORDER BY place LIMIT 10000) s
                CROSS JOIN LATERAL (SELECT coalesce(p_topic, s.topic) AS target) t
                WINDOW w AS (ORDER BY s.place)) m
          WHERE m.bytes < 8000000
          ORDER BY run, m.target, m.number) n
    GROUP BY n.run, n.target ORDER BY n.run, n.target;
END $$;

-- Pushes the tasks that these attempts have staged, in the order of part and place, in chunks that limit the server's
-- memory. Returns how many tasks it pushed. An error names an invalid task by its place among all tasks, and by its
-- identifier.
CREATE FUNCTION taskq_internal.push_staged(
    p_stage uuid, p_topic text, p_insertion text, p_parts int[], p_attempts bigint[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_done   bigint := 0;
    v_before bigint;
    v_since  bigint;
    v_place  bigint;
    v_last   bigint;
    v_try    record;
    v_chunk  record;
    v_depend record;
    v_number int;
BEGIN
    FOR v_try IN SELECT * FROM unnest(p_parts, p_attempts) AS w (part, attempt) ORDER BY w.part LOOP
        v_last := -1;
        WHILE v_last IS NOT NULL LOOP
            v_place := v_last;
            v_last := NULL;
            v_before := v_done;
            FOR v_chunk IN SELECT * FROM taskq_internal.staged_chunk(p_stage, v_try.part, v_try.attempt, v_place,
                                                                     p_topic) LOOP
                IF v_chunk.topic IS NULL THEN
                    PERFORM taskq_internal.raise_error('TQ002',
                        'task at position 0: it names no topic, and no option does');
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
                v_last := greatest(v_last, v_chunk.last);
            END LOOP;
        END LOOP;
    END LOOP;
    RETURN v_done;
EXCEPTION WHEN SQLSTATE 'TQ002' THEN
    v_number := substring(SQLERRM FROM '^(?:topic .*?, )?task at position (\d+): ')::int + 1;
    PERFORM taskq_internal.raise_error('TQ002', regexp_replace(
        SQLERRM, 'task at position \d+', format('task at position %s (identifier %L)',
            v_before + v_chunk.numbers[v_number], left(v_chunk.identifiers[v_number], 100))));
END $$;
