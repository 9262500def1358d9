-- Reading: one task, the latest of an identifier, pages, counts. None of these change or lock anything.

-- One row a task, whichever tables it is in, with the names of things.
CREATE VIEW taskq.task_info AS
SELECT t.sequence, p.name AS topic, t.identifier, t.payload, t.reference,
       coalesce(l.attempt, e.attempt) AS attempt,
       coalesce(l.redelivered, e.redelivered) AS redelivered,
       CASE WHEN l.sequence IS NULL THEN e.state WHEN l.holder IS NULL THEN 1 ELSE 0 END AS state,
       e.descent,
       CASE WHEN l.holder IS NOT NULL THEN 'active'
            WHEN l.sequence IS NOT NULL THEN CASE
                WHEN p.paused THEN 'paused'
                WHEN l.attempt > 0 THEN 'retrying'
                WHEN l.available_at > clock_timestamp() THEN 'scheduled'
                ELSE 'ready' END
            WHEN e.state = 3 AND e.attempt >= p.max_attempts THEN 'exhausted'
            ELSE (ARRAY['expired', 'failed', 'suspended', 'filtered', 'succeeded', 'recreated', 'redundant'])[e.state - 1]
            END AS status,
       o.name AS owner,
       coalesce(l.crashes, e.crashes) AS crashes,
       t.priority, t.created,
       coalesce(l.available_at, e.available_at) AS available_at,
       e.completed, e.output,
       coalesce(l.error, e.error) AS error,
       t.topic_id
FROM taskq.task t
JOIN taskq.topic p ON p.topic_id = t.topic_id
LEFT JOIN taskq.live l ON l.topic_id = t.topic_id AND l.sequence = t.sequence
LEFT JOIN taskq.ended e ON e.topic_id = t.topic_id AND e.sequence = t.sequence
LEFT JOIN taskq.owner o ON o.owner_id = coalesce(l.holder, e.holder);

-- One task with everything about it; no row where the topic has none of that sequence.
CREATE FUNCTION taskq.task(p_topic text, p_sequence bigint) RETURNS SETOF taskq.task_info LANGUAGE plpgsql STABLE
SET enable_seqscan = off AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
BEGIN
    RETURN QUERY SELECT * FROM taskq.task_info i WHERE i.topic_id = v_topic_id AND i.sequence = p_sequence;
END $$;

-- The task with the highest sequence of each identifier that has any.
CREATE FUNCTION taskq.latest(p_topic text, p_identifiers text[]) RETURNS SETOF taskq.task_info LANGUAGE plpgsql STABLE
SET enable_seqscan = off AS $$
DECLARE
    v_topic_id  int := (taskq.find_topic(p_topic)).topic_id;
    v_sequences bigint[];
BEGIN
    v_sequences := ARRAY(
        SELECT n.sequence FROM (SELECT DISTINCT u.identifier FROM unnest(p_identifiers) AS u (identifier)) d
        CROSS JOIN LATERAL (SELECT t.sequence FROM taskq.task t
                            WHERE t.identifier = d.identifier AND t.topic_id = v_topic_id
                            ORDER BY t.sequence DESC LIMIT 1) n);
    RETURN QUERY SELECT * FROM taskq.task_info i WHERE i.topic_id = v_topic_id AND i.sequence = ANY (v_sequences);
END $$;

-- A page of tasks beyond a sequence: ascending after p_after, or descending before p_before; every filter may be NULL.
-- The tables that can hold such tasks are walked in order, so that a page costs its length, not the topic's.
CREATE FUNCTION taskq.page(
    p_topic text, p_after bigint, p_before bigint, p_size int, p_state int, p_identifier text, p_reference text
) RETURNS SETOF taskq.task_info LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_topic_id  int := (taskq.find_topic(p_topic)).topic_id;
    v_down      boolean := p_before IS NOT NULL;
    v_source    text := CASE WHEN p_state IN (0, 1) THEN 'live' WHEN p_state >= 2 THEN 'ended' ELSE 'task' END;
    v_where     text := 's.topic_id = $1';
    v_sequences bigint[];
BEGIN
    v_where := v_where
        || CASE WHEN p_after IS NOT NULL THEN ' AND s.sequence > $2' ELSE '' END
        || CASE WHEN v_down THEN ' AND s.sequence < $3' ELSE '' END
        || CASE WHEN p_identifier IS NOT NULL THEN ' AND s.identifier = $4' ELSE '' END
        || CASE p_state WHEN 0 THEN ' AND s.holder IS NOT NULL' WHEN 1 THEN ' AND s.holder IS NULL' ELSE '' END
        || CASE WHEN p_state >= 2 THEN ' AND s.state = $5' ELSE '' END
        || CASE WHEN p_reference IS NULL THEN ''
                WHEN v_source = 'task' THEN ' AND s.reference = $6'
                ELSE ' AND EXISTS (SELECT FROM taskq.task t WHERE t.topic_id = s.topic_id AND t.sequence = s.sequence'
                     ' AND t.reference = $6)' END;
    EXECUTE format('SELECT ARRAY(SELECT s.sequence FROM taskq.%I s WHERE %s ORDER BY s.sequence %s LIMIT $7)',
                   v_source, v_where, CASE WHEN v_down THEN 'DESC' ELSE 'ASC' END)
        INTO v_sequences
        USING v_topic_id, p_after, p_before, p_identifier, p_state, p_reference, greatest(p_size, 0);
    RETURN QUERY EXECUTE format(
        'SELECT * FROM taskq.task_info i WHERE i.topic_id = $1 AND i.sequence = ANY ($2) ORDER BY i.sequence %s',
        CASE WHEN v_down THEN 'DESC' ELSE 'ASC' END) USING v_topic_id, v_sequences;
END $$;

-- How many tasks per topic and state, with the highest sequence among them; every filter may be NULL.
-- p_recent counts only the newest task of each identifier in the range; the state is looked at after that choice.
CREATE FUNCTION taskq.count(
    p_topic text, p_recent boolean, p_state int, p_identifier text, p_reference text, p_from bigint, p_to bigint
) RETURNS TABLE (topic text, state int, count bigint, last bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (SELECT topic_id FROM taskq.topic WHERE name = p_topic);
    v_where    text := 's.sequence >= $2'
        || CASE WHEN p_topic IS NOT NULL THEN ' AND s.topic_id = $1' ELSE '' END
        || CASE WHEN p_to IS NOT NULL THEN ' AND s.sequence <= $3' ELSE '' END
        || CASE WHEN p_identifier IS NOT NULL THEN ' AND s.identifier = $4' ELSE '' END
        || CASE WHEN p_reference IS NOT NULL
                THEN ' AND EXISTS (SELECT FROM taskq.task t WHERE t.topic_id = s.topic_id AND t.sequence = s.sequence'
                     ' AND t.reference = $5)' ELSE '' END;
    v_rows     text := format(
        'SELECT s.topic_id, s.sequence, s.identifier, CASE WHEN s.holder IS NULL THEN 1 ELSE 0 END AS state
         FROM taskq.live s WHERE %1$s
         UNION ALL SELECT s.topic_id, s.sequence, s.identifier, s.state FROM taskq.ended s WHERE %1$s', v_where);
BEGIN
    IF p_recent THEN
        v_rows := format('SELECT DISTINCT ON (r.topic_id, r.identifier) r.* FROM (%s) r
                          ORDER BY r.topic_id, r.identifier, r.sequence DESC', v_rows);
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT p.name, c.state::int, c.count, c.last FROM taskq.topic p
         LEFT JOIN (SELECT n.topic_id, n.state, count(*), max(n.sequence) AS last FROM (%s) n
                    WHERE $6 IS NULL OR n.state = $6 GROUP BY n.topic_id, n.state) c ON c.topic_id = p.topic_id
         WHERE $7 IS NULL OR p.name = $7 ORDER BY p.name, c.state', v_rows)
        USING v_topic_id, p_from, p_to, p_identifier, p_reference, p_state, p_topic;
END $$;
