-- Read: single tasks, pages, counts, and slices of tasks for parallel readers.

-- One row for each task, from any of the tables, with the names of its topic and owner.
CREATE VIEW taskq.task_info AS
SELECT t.sequence, p.name AS topic, t.identifier, t.payload, t.reference,
       coalesce(l.attempt, e.attempt) AS attempt,
       coalesce(l.redelivered, e.redelivered) AS redelivered,
       CASE WHEN l.sequence IS NULL THEN e.state WHEN l.holder IS NULL THEN :READY ELSE :ACTIVE END AS state,
       e.descent,
       CASE WHEN l.holder IS NOT NULL THEN 'running'
            WHEN l.sequence IS NOT NULL THEN CASE
                WHEN p.paused OR l.waits = :WAITS_RESUME THEN 'paused'
                WHEN l.waits = :WAITS_DEPENDENCIES THEN 'blocked'
                WHEN l.attempt > 0 THEN 'retrying'
                WHEN l.available_at > clock_timestamp() THEN 'scheduled'
                ELSE 'ready' END
            WHEN e.state = :FAILED AND e.attempt >= p.max_attempts THEN 'exhausted'
            ELSE CASE e.state WHEN :EXPIRED THEN 'expired' WHEN :FAILED THEN 'failed' WHEN :SUSPENDED THEN 'suspended'
                WHEN :FILTERED THEN 'filtered'
                WHEN :SUCCEEDED THEN 'succeeded' WHEN :RECREATED THEN 'recreated' WHEN :REDUNDANT THEN 'redundant' END
            END AS status,
       o.name AS owner,
       coalesce(l.crashes, e.crashes) AS crashes,
       coalesce(l.priority, t.priority) AS priority, t.created,
       coalesce(l.available_at, e.available_at) AS available_at,
       e.completed, e.output,
       coalesce(l.error, e.error) AS error,
       coalesce(l.error_summary, e.error_summary) AS error_summary,
       coalesce(l.polled, e.polled) AS polled,
       t.topic_id
FROM taskq_internal.task t
JOIN taskq_internal.topic p ON p.topic_id = t.topic_id
LEFT JOIN taskq_internal.live l ON l.topic_id = t.topic_id AND l.sequence = t.sequence
LEFT JOIN taskq_internal.ended e ON e.topic_id = t.topic_id AND e.sequence = t.sequence
LEFT JOIN taskq_internal.owner o ON o.owner_id = coalesce(l.holder, e.holder);
COMMENT ON VIEW taskq.task_info IS
'All tasks with all their columns, except the history. taskq.task, taskq.latest and taskq.page return these rows. The
columns state and descent are numbers, which taskq.state_name names. The column status is ready, scheduled, retrying,
blocked, paused, running, exhausted, or the name of the state.';

CREATE FUNCTION taskq.task(p_topic text, p_sequence bigint) RETURNS SETOF taskq.task_info
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE')).topic_id;
BEGIN
    RETURN QUERY SELECT * FROM taskq.task_info i WHERE i.topic_id = v_topic_id AND i.sequence = p_sequence;
END $$;
COMMENT ON FUNCTION taskq.task IS
'Returns one task with all its columns, except the history. Returns no row if the topic has no such task. Raises TQ001
for an unknown topic.';

CREATE FUNCTION taskq.latest(p_topic text, p_identifiers text[]) RETURNS SETOF taskq.task_info
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    v_topic_id  int := (taskq_internal.accessible_topic(p_topic, 'SELECT')).topic_id;
    v_sequences bigint[];
BEGIN
    v_sequences := ARRAY(
        SELECT n.sequence FROM (SELECT DISTINCT u.identifier FROM unnest(p_identifiers) AS u (identifier)) d
        CROSS JOIN LATERAL (SELECT t.sequence FROM taskq_internal.task t
                            WHERE t.identifier = d.identifier AND t.topic_id = v_topic_id
                            ORDER BY t.sequence DESC LIMIT 1) n);
    RETURN QUERY SELECT * FROM taskq.task_info i WHERE i.topic_id = v_topic_id AND i.sequence = ANY (v_sequences);
END $$;
COMMENT ON FUNCTION taskq.latest IS
'Returns the task with the highest sequence of each identifier. An identifier without tasks has no row. Raises TQ001 for
an unknown topic.';

CREATE FUNCTION taskq.page(
    p_topic text, p_after bigint, p_before bigint, p_size int, p_state int, p_identifier text, p_reference text,
    p_from bigint DEFAULT 0, p_to bigint DEFAULT NULL
) RETURNS SETOF taskq.task_info LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_topic     taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'SELECT');
    v_order     text := CASE WHEN p_before IS NOT NULL THEN 'DESC' ELSE 'ASC' END;
    v_low       bigint := CASE WHEN p_from IS NOT NULL THEN
        greatest(p_from, p_after + (p_after < 9223372036854775807)::int) END;
    v_high      bigint := least(p_to, p_before - (p_before > 0)::int, 9223372036854775807);
    v_sequences bigint[];
BEGIN
    EXECUTE format('SELECT ARRAY(%s ORDER BY sequence %s LIMIT %s)', (taskq_internal.filter_queries(
        v_topic, v_low, v_high, CASE WHEN p_state IS NOT NULL THEN ARRAY[p_state] END, NULL,
        CASE WHEN p_identifier IS NOT NULL THEN ARRAY[p_identifier] END, p_reference, NULL, NULL, NULL, NULL, NULL,
        NULL)).matches, v_order, greatest(p_size, 0)) INTO v_sequences;
    RETURN QUERY EXECUTE format(
        'SELECT * FROM taskq.task_info i WHERE i.topic_id = $1 AND i.sequence = ANY ($2) ORDER BY i.sequence %s',
        v_order) USING v_topic.topic_id, v_sequences;
END $$;
COMMENT ON FUNCTION taskq.page IS
'Returns up to p_size tasks: ascending after p_after, or descending before p_before. p_from and p_to bound the
sequences. A filter of NULL matches every task. With p_from NULL the page is empty. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.count(
    p_topic text, p_recent boolean, p_state int, p_identifier text, p_reference text, p_from bigint, p_to bigint
) RETURNS TABLE (topic text, state int, count bigint, last bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (SELECT topic_id FROM taskq_internal.topic WHERE name = p_topic);
    v_where    text := 's.sequence >= $2'
        || CASE WHEN p_topic IS NOT NULL THEN ' AND s.topic_id = $1' ELSE '' END
        || CASE WHEN p_to IS NOT NULL THEN ' AND s.sequence <= $3' ELSE '' END
        || CASE WHEN p_identifier IS NOT NULL THEN ' AND s.identifier = $4' ELSE '' END
        || CASE WHEN p_reference IS NOT NULL THEN ' AND s.reference = $5' ELSE '' END;
    v_rows     text := format(
        CASE WHEN coalesce(p_identifier, p_reference) IS NULL THEN
            'SELECT s.topic_id, s.sequence, s.identifier,
                    CASE WHEN s.holder IS NULL THEN :READY ELSE :ACTIVE END AS state
             FROM taskq_internal.live s WHERE %1$s
             UNION ALL SELECT s.topic_id, s.sequence, s.identifier, s.state FROM taskq_internal.ended s WHERE %1$s'
        ELSE
            'SELECT s.topic_id, s.sequence, s.identifier, coalesce(
                 (SELECT CASE WHEN l.holder IS NULL THEN :READY ELSE :ACTIVE END FROM taskq_internal.live l
                  WHERE l.topic_id = s.topic_id AND l.sequence = s.sequence),
                 (SELECT e.state FROM taskq_internal.ended e
                  WHERE e.topic_id = s.topic_id AND e.sequence = s.sequence)) AS state
             FROM taskq_internal.task s WHERE %1$s' END, v_where);
BEGIN
    PERFORM taskq_internal.check_access(p_topic, 'SELECT');
    IF p_recent THEN
        v_rows := format('SELECT DISTINCT ON (r.topic_id, r.identifier) r.* FROM (%s) r
                          ORDER BY r.topic_id, r.identifier, r.sequence DESC', v_rows);
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT p.name, c.state::int, c.count, c.last FROM taskq_internal.topic p
         LEFT JOIN (SELECT n.topic_id, n.state, count(*), max(n.sequence) AS last FROM (%s) n
                    WHERE $6 IS NULL OR n.state = $6 GROUP BY n.topic_id, n.state) c ON c.topic_id = p.topic_id
         WHERE $7 IS NULL OR p.name = $7 ORDER BY p.name, c.state', v_rows)
        USING v_topic_id, p_from, p_to, p_identifier, p_reference, p_state, p_topic;
END $$;
COMMENT ON FUNCTION taskq.count IS
'Returns how many tasks of a topic are in each state, with the highest sequence of each count. With p_topic NULL it
returns the counts of all topics. A filter of NULL matches every task. With p_recent true it counts only the newest task
of each identifier in the range. Returns no row for an unknown topic.';

CREATE FUNCTION taskq.results(p_since timestamptz, p_until timestamptz)
RETURNS TABLE (topic text, result int, count bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.name, taskq_internal.result_of_state(c.state), c.count FROM taskq_internal.topic p
    LEFT JOIN taskq_internal.count_completed(coalesce(p_since, '-infinity'), coalesce(p_until, 'infinity')) c
        ON c.topic_id = p.topic_id
    ORDER BY p.name, c.state;
END $$;
COMMENT ON FUNCTION taskq.results IS
'Returns how many tasks completed from p_since to p_until, both included, by topic and result. A bound of NULL is open.
A topic without such tasks has one row with NULLs.';

CREATE FUNCTION taskq.resolve(p_moment timestamptz, p_preceding boolean) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT taskq_internal.resolve(ARRAY(SELECT topic_id FROM taskq_internal.topic), p_moment, p_preceding)
$$;
COMMENT ON FUNCTION taskq.resolve IS
'Returns the first sequence of all topics that was created at or after a moment. With p_preceding true it returns the
last sequence that was created at or before the moment. Returns NULL if there is none. After a clock was set back by
more than ten seconds, the same times occur in two places, and the result may be at either.';

CREATE FUNCTION taskq.task_bounds(
    p_topic text, p_low bigint, p_high bigint, p_states int[], p_identifiers text[], p_since timestamptz,
    p_until timestamptz, p_parts int
) RETURNS TABLE (low bigint, high bigint, size bigint) LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    v_topic    taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'SELECT');
    v_low      bigint := greatest(p_low, 0);
    v_high     bigint := least(p_high, (SELECT s.last_value FROM taskq_internal.task_sequence s));
BEGIN
    IF p_since IS NOT NULL THEN
        v_low := greatest(v_low, coalesce(taskq_internal.resolve(ARRAY[v_topic.topic_id], p_since, false), v_high + 1));
    END IF;
    IF p_until IS NOT NULL THEN
        v_high := least(v_high, coalesce(taskq_internal.resolve(ARRAY[v_topic.topic_id], p_until, true), v_low - 1));
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT min(n.sequence), max(n.sequence), count(*)
         FROM (SELECT f.sequence, ntile(%s) OVER (ORDER BY f.sequence) AS part FROM (%s) f) n
         GROUP BY n.part ORDER BY 1', greatest(p_parts, 1), (taskq_internal.filter_queries(
            v_topic, v_low, v_high, p_states, NULL, p_identifiers, NULL, NULL, NULL, NULL, NULL, NULL, NULL)).matches);
END $$;
COMMENT ON FUNCTION taskq.task_bounds IS
'Splits the tasks that match the filters into at most p_parts ranges of sequences of nearly equal size. A filter of NULL
matches every task. Returns the lowest and highest sequence and the number of tasks of each range. Raises TQ001 for an
unknown topic.';

-- Each range has a snapshot of its own: tasks may change between the reads of two ranges.
CREATE FUNCTION taskq.task_slice(
    p_topic text, p_low bigint, p_high bigint, p_states int[], p_identifiers text[], p_since timestamptz,
    p_until timestamptz, p_bulky boolean
) RETURNS TABLE (sequence bigint, topic text, identifier text, payload text, reference text, attempt int,
                 redelivered boolean, state text, descent text, status text, owner text, crashes int, priority int,
                 created timestamptz, available_at timestamptz, completed timestamptz, output text, error text)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET work_mem = '32MB' AS $$
DECLARE
    v_topic    taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'SELECT');
BEGIN
    RETURN QUERY EXECUTE format(
        'SELECT i.sequence, i.topic, i.identifier, CASE WHEN $8 THEN i.payload::text END, i.reference, i.attempt,
                i.redelivered, taskq.state_name(i.state), taskq.state_name(i.descent::int), i.status, i.owner,
                i.crashes::int, i.priority::int, i.created, i.available_at, i.completed,
                CASE WHEN $8 THEN i.output::text END, i.error
         FROM taskq.task_info i
         WHERE i.topic_id = $1 AND i.sequence BETWEEN $2 AND $3 AND ($4 IS NULL OR i.state = ANY ($4))
           AND ($5 IS NULL OR i.identifier = ANY ($5))
           AND ($6 IS NULL OR i.created >= $6) AND ($7 IS NULL OR i.created <= $7)
           %s ORDER BY i.sequence',
        CASE WHEN coalesce(p_identifiers::text, p_states::text) IS NOT NULL
             THEN format('AND i.sequence IN (%s)', (taskq_internal.filter_queries(v_topic, p_low, p_high, p_states, NULL,
                 p_identifiers, NULL, NULL, NULL, NULL, NULL, NULL, NULL)).matches) END)
        USING v_topic.topic_id, p_low, p_high, p_states, p_identifiers, p_since, p_until, p_bulky;
END $$;
COMMENT ON FUNCTION taskq.task_slice IS
'Returns the tasks that match the filters in the range of sequences from p_low to p_high, in order. A filter of NULL
matches every task. Returns payload and output only with p_bulky true. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.log_end(p_topic text, p_after bigint, p_size bigint) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE')).topic_id;
    v_horizon  bigint;
    v_end      bigint;
BEGIN
    PERFORM taskq_internal.check_log_read(0, 1, 0), taskq_internal.check_place(p_after);
    v_horizon := taskq_internal.log_horizon(v_topic_id);
    IF p_size IS NOT NULL THEN
        v_end := (SELECT t.sequence FROM taskq_internal.task t
                  WHERE t.topic_id = v_topic_id AND t.sequence > p_after AND t.sequence < v_horizon
                  ORDER BY t.sequence OFFSET greatest(p_size, 1) - 1 LIMIT 1);
    END IF;
    IF v_end IS NULL THEN
        v_end := (SELECT t.sequence FROM taskq_internal.task t WHERE t.topic_id = v_topic_id AND t.sequence < v_horizon
                  ORDER BY t.sequence DESC LIMIT 1);
    END IF;
    RETURN greatest(v_end, p_after);
END $$;
COMMENT ON FUNCTION taskq.log_end IS
'Returns the sequence of the last task of a topic''s log after p_after, at most p_size tasks further. With p_size NULL
there is no limit. Returns p_after if no task follows. No task appears later with a sequence up to the result. Raises
TQ001 for an unknown topic. Raises TQ000 above READ COMMITTED, on a standby, or for a place that this database has not
reached.';

CREATE FUNCTION taskq.log_bounds(p_topic text, p_after bigint, p_end bigint, p_parts int)
RETURNS TABLE (low bigint, high bigint, size bigint) LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE')).topic_id;
BEGIN
    PERFORM taskq_internal.check_place(p_after);
    RETURN QUERY
    SELECT min(n.sequence), max(n.sequence), count(*)
    FROM (SELECT t.sequence, ntile(greatest(p_parts, 1)) OVER (ORDER BY t.sequence) AS part FROM taskq_internal.task t
          WHERE t.topic_id = v_topic_id AND t.sequence > p_after AND t.sequence <= p_end) n
    GROUP BY n.part ORDER BY 1;
END $$;
COMMENT ON FUNCTION taskq.log_bounds IS
'Splits the tasks of a topic''s log after p_after, up to and including p_end, into at most p_parts ranges of nearly
equal size. Returns the lowest and the highest sequence and the number of tasks of each range. p_end must be a result of
log_end(): behind it, tasks may still appear in a range. Raises TQ001 for an unknown topic, and TQ000 for a place that
this database has not reached.';

CREATE FUNCTION taskq.log_slice(p_topic text, p_low bigint, p_high bigint)
RETURNS TABLE (sequence bigint, topic text, identifier text, payload text, reference text, priority int,
               created timestamptz)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET work_mem = '32MB' AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE')).topic_id;
BEGIN
    RETURN QUERY
    SELECT t.sequence, p_topic, t.identifier, t.payload::text, t.reference, t.priority::int, t.created
        FROM taskq_internal.task t
    WHERE t.topic_id = v_topic_id AND t.sequence BETWEEN p_low AND p_high ORDER BY t.sequence;
END $$;
COMMENT ON FUNCTION taskq.log_slice IS
'Returns the tasks of a topic''s log in a range of sequences, in order. Up to a result of taskq.log_end, every call
returns the same tasks, except for purged tasks. Raises TQ001 for an unknown topic.';

-- Returns the counts of taskq.results by topic number and state, without topics that have no such tasks.
CREATE FUNCTION taskq_internal.count_completed(p_since timestamptz, p_until timestamptz)
RETURNS TABLE (topic_id int, state int, count bigint) LANGUAGE plpgsql STABLE SET enable_seqscan = off
SET enable_indexscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT e.topic_id, e.state::int, count(*) FROM taskq_internal.ended e
    WHERE e.completed BETWEEN p_since AND p_until AND e.state BETWEEN :FAILED AND :SUCCEEDED GROUP BY e.topic_id,
        e.state;
END $$;

-- Returns the first sequence of these topics that was created at or after a moment, or the last one that was created
-- at or before it.
--
-- A push draws its sequences less than ten seconds after it has read the clock. So if a task was created ten seconds
-- or more before the moment, all tasks with lower sequences were created before the moment. If a task was created more
-- than ten seconds after it, all tasks with higher sequences were created after the moment. In each topic, a bisection
-- on the primary key finds such a task and the task nearest to the moment, and the answer is between the two. This
-- reads at most the tasks of half a minute, and of most topics only whether any task is within the limits found so far.
CREATE FUNCTION taskq_internal.resolve(p_topic_ids int[], p_moment timestamptz, p_preceding boolean) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_slack    interval := '10 seconds';
    v_moment   timestamptz := taskq_internal.clamp_moment(p_moment);
    v_after    timestamptz := v_moment + interval '1 microsecond';
    v_low      bigint := 0;
    v_high     bigint := 9223372036854775807;
    v_near     bigint;
    v_topic_id int;
BEGIN
    IF p_moment IS NULL THEN
        RETURN NULL;
    END IF;
    FOREACH v_topic_id IN ARRAY p_topic_ids LOOP
        CONTINUE WHEN (SELECT t.sequence FROM taskq_internal.task t
                       WHERE t.topic_id = v_topic_id AND t.sequence > v_low AND t.sequence < v_high
                       ORDER BY t.sequence DESC LIMIT 1) IS NULL;
        IF p_preceding THEN
            v_high := (taskq_internal.created_around(v_topic_id, v_after + v_slack, v_low, v_high)).following;
            v_near := (taskq_internal.created_around(v_topic_id, v_after, v_low, v_high)).preceding;
            v_low := coalesce((SELECT t.sequence FROM taskq_internal.task t
                               WHERE t.topic_id = v_topic_id AND t.sequence >= v_near AND t.sequence < v_high
                                   AND t.created <= v_moment
                               ORDER BY t.sequence DESC LIMIT 1), v_low);
        ELSE
            v_low := (taskq_internal.created_around(v_topic_id, v_moment - v_slack, v_low, v_high)).preceding;
            v_near := (taskq_internal.created_around(v_topic_id, v_moment, v_low, v_high)).following;
            v_high := coalesce((SELECT t.sequence FROM taskq_internal.task t
                                WHERE t.topic_id = v_topic_id AND t.sequence > v_low AND t.sequence <= v_near
                                    AND t.created >= v_moment
                                ORDER BY t.sequence LIMIT 1), v_high);
        END IF;
    END LOOP;
    RETURN CASE WHEN p_preceding THEN nullif(v_low, 0) ELSE nullif(v_high, 9223372036854775807) END;
END $$;

-- Returns two neighbors among a topic's tasks between p_low and p_high: one that was created before p_moment, or p_low,
-- and the next one, which was created at p_moment or later, or p_high. If the times are not in order, there are several
-- such pairs, and the function returns one of them. It reads at most two tasks each time it halves the range. Only
-- taskq_internal.resolve calls it, with the settings for its plans.
CREATE FUNCTION taskq_internal.created_around(
    p_topic_id int, p_moment timestamptz, p_low bigint, p_high bigint, OUT preceding bigint, OUT following bigint
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_end      bigint := p_high;  -- no task is from here on to the following one
    v_middle   bigint;
    v_sequence bigint;
    v_created  timestamptz;
BEGIN
    preceding := p_low;
    following := p_high;
    WHILE v_end - preceding > 1 LOOP
        v_middle := preceding + (v_end - preceding) / 2;
        SELECT t.sequence, t.created INTO v_sequence, v_created FROM taskq_internal.task t
        WHERE t.topic_id = p_topic_id AND t.sequence >= v_middle AND t.sequence < v_end ORDER BY t.sequence LIMIT 1;
        IF NOT FOUND THEN
            SELECT t.sequence, t.created INTO v_sequence, v_created FROM taskq_internal.task t
            WHERE t.topic_id = p_topic_id AND t.sequence > preceding AND t.sequence < v_middle
            ORDER BY t.sequence DESC LIMIT 1;
            EXIT WHEN NOT FOUND;
        END IF;
        IF v_created >= p_moment OR v_sequence < v_middle THEN
            v_end := least(v_middle, v_sequence);
        END IF;
        preceding := CASE WHEN v_created < p_moment THEN v_sequence ELSE preceding END;
        following := CASE WHEN v_created < p_moment THEN following ELSE v_sequence END;
    END LOOP;
END $$;
