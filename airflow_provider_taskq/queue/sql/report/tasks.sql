-- Tasks as rows: one query and one filter for the page, the command line, programs and Spark.

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
       CASE WHEN l.holder IS NOT NULL THEN o.lease_until END AS lease_until,
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
'All tasks with all their columns, except the history. taskq.task and taskq.latest return these rows. The columns state
and descent are numbers, which taskq.state_name names. The column status is ready, scheduled, retrying, blocked, paused,
running, exhausted, or the name of the state.';

-- Returns, in no order, the held tasks of a topic, or with p_waits its READY tasks that wait for this. Returns NULL if
-- they are more than p_budget. It counts the held tasks of all topics.
CREATE FUNCTION taskq_internal.few_sequences(p_topic_id int, p_waits int, p_budget int) RETURNS bigint[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_limit bigint := greatest(p_budget, 0)::bigint + 1;
BEGIN
    RETURN (SELECT CASE WHEN count(*) <= p_budget
            THEN coalesce(array_agg(n.sequence) FILTER (WHERE n.topic_id = p_topic_id), '{}') END
            FROM ((SELECT l.topic_id, l.sequence FROM taskq_internal.live l
                   WHERE p_waits IS NULL AND l.holder IS NOT NULL ORDER BY l.holder, l.sequence LIMIT v_limit)
                  UNION ALL
                  (SELECT l.topic_id, l.sequence FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
                     AND l.holder IS NULL AND l.waits > :WAITS_NOTHING AND l.waits = p_waits
                   ORDER BY l.available_at, l.sequence LIMIT v_limit)) n);
END $$;

-- Returns how long an attempt ran, from the poll that claimed it to its end. Returns NULL if no poll claimed the
-- attempt, or if it has not ended.
CREATE FUNCTION taskq_internal.run_time(p_polled timestamptz, p_end timestamptz) RETURNS interval
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_polled IS NOT NULL AND p_end IS NOT NULL
                THEN greatest(taskq_internal.clamp_moment(p_end) - taskq_internal.clamp_moment(p_polled),
                              interval '0') END
$$;

-- Returns two queries for the tasks of a topic that match a filter: for find_tasks and for the slices of Spark. scan
-- returns the rows of the narrowest table, or part of a table, that has all these tasks. With p_budget it returns only
-- that many of them, in the order p_order. matches returns the sequences of the rows of scan that match. A condition of
-- NULL matches every task. If p_states has states of live and of ended tasks, the caller compares them.
CREATE FUNCTION taskq_internal.filter_queries(
    p_topic taskq_internal.topic, p_low bigint, p_high bigint, p_states int[], p_identifiers text[],
    p_reference text DEFAULT NULL, p_status text DEFAULT NULL, p_since timestamptz DEFAULT NULL,
    p_until timestamptz DEFAULT NULL, p_error text DEFAULT NULL, p_error_group text DEFAULT NULL,
    p_pushed_with bigint DEFAULT NULL, p_order text DEFAULT NULL, p_budget int DEFAULT NULL,
    OUT scan text, OUT matches text
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_states  int[] := CASE WHEN p_states IS NULL AND coalesce(p_error, p_error_group) IS NOT NULL
        THEN ARRAY[:EXPIRED, :FAILED, :SUSPENDED] ELSE p_states END;
    v_table   text := CASE WHEN v_states <@ ARRAY[:ACTIVE, :READY] THEN 'live'
        WHEN NOT v_states && ARRAY[:ACTIVE, :READY] THEN 'ended' END;
    v_named   boolean := p_identifiers IS NOT NULL OR p_reference IS NOT NULL;
    v_few     bigint[] := CASE
        WHEN NOT v_named AND v_states = ARRAY[:ACTIVE]
            THEN taskq_internal.few_sequences(p_topic.topic_id, NULL, p_budget)
        WHEN NOT v_named AND NOT p_topic.paused AND p_status IN ('paused', 'blocked')
            THEN taskq_internal.few_sequences(p_topic.topic_id, CASE p_status WHEN 'paused' THEN :WAITS_RESUME
                                              ELSE :WAITS_DEPENDENCIES END, p_budget) END;
    -- The name of the scanned rows: s of the table of the states, t of task, f of few sequences.
    v_alias   text := CASE WHEN v_few IS NOT NULL THEN 'f' WHEN v_named OR v_table IS NULL THEN 't' ELSE 's' END;
    v_of_task text := concat_ws(' AND ', 't.reference = ' || quote_literal(p_reference),
        't.created >= ' || quote_literal(p_since), 't.created <= ' || quote_literal(p_until),
        't.pushed_in = (SELECT w.pushed_in FROM taskq_internal.task w WHERE w.topic_id = ' || p_topic.topic_id
        || ' AND w.sequence = ' || p_pushed_with || ')');
    v_of_row  text := concat_ws(' AND ',
        CASE v_table WHEN 'live' THEN format('(s.holder IS NULL)::int = ANY (%L)', v_states)
                     WHEN 'ended' THEN format('s.state = ANY (%L)', v_states) END,
        CASE WHEN p_status = 'exhausted' THEN 's.attempt >= ' || p_topic.max_attempts
             WHEN v_states = ARRAY[:READY] THEN format('CASE WHEN %L OR s.waits = :WAITS_RESUME THEN ''paused'''
                 ' WHEN s.waits = :WAITS_DEPENDENCIES THEN ''blocked'' WHEN s.attempt > 0 THEN ''retrying'''
                 ' WHEN s.available_at > clock_timestamp() THEN ''scheduled'' ELSE ''ready'' END = ', p_topic.paused)
                 || quote_literal(p_status) END,
        'strpos(lower(s.error), lower(' || quote_literal(p_error) || ')) > 0',
        'taskq_internal.error_group(s.error_summary, s.identifier) = ' || quote_literal(p_error_group));
    v_troubled text := 'taskq_internal.ended r WHERE r.topic_id::bigint = %s AND r.state::int = %s'
        ' AND r.state::int IN (:EXPIRED, :FAILED, :SUSPENDED)';
    v_end     text := format(' AND sequence BETWEEN %L AND %L', p_low, p_high)
        || CASE WHEN p_budget IS NULL THEN '' ELSE format(' ORDER BY sequence %s LIMIT %s', p_order, p_budget) END;
BEGIN
    scan := CASE
        WHEN v_few IS NOT NULL THEN format('unnest(%L::bigint[]) r (sequence) WHERE true', v_few)
        WHEN v_named THEN format('taskq_internal.task r WHERE %s AND r.topic_id = %s',
            CASE WHEN cardinality(p_identifiers) = 1 THEN 'r.identifier = ' || quote_literal(p_identifiers[1])
                 WHEN p_identifiers IS NOT NULL THEN format('r.identifier = ANY (%L)', p_identifiers)
                 ELSE 'r.reference = ' || quote_literal(p_reference) END, p_topic.topic_id)
        WHEN p_status = 'retrying' THEN format('taskq_internal.live r WHERE r.topic_id::bigint = %s'
            ' AND r.holder IS NULL AND r.attempt > 0', p_topic.topic_id)
        WHEN v_states = ARRAY[v_states[1]] AND v_states <@ ARRAY[:EXPIRED, :FAILED, :SUSPENDED]
            THEN format(v_troubled, p_topic.topic_id, v_states[1])
        WHEN v_states <@ ARRAY[:EXPIRED, :FAILED, :SUSPENDED] THEN (
            -- Each state ends at the budget, too: a sort of their union would read all of them first.
            SELECT format('(%s) r WHERE true', string_agg(format(
                '(SELECT * FROM ' || v_troubled || '%s)', p_topic.topic_id, u.state, v_end), ' UNION ALL '))
            FROM unnest(v_states) AS u (state))
        ELSE format('taskq_internal.%I r WHERE r.topic_id = %s', coalesce(v_table, 'task'), p_topic.topic_id) END;
    scan := format('SELECT r.* FROM %s%s', scan, v_end);
    -- Conditions on another table are subqueries, so that the planner never reads that table first.
    matches := format('SELECT %1$s.sequence FROM (%2$s) %1$s WHERE true', v_alias, scan)
        || CASE WHEN v_of_row = '' THEN '' WHEN v_alias = 's' THEN ' AND ' || v_of_row ELSE format(
            ' AND (SELECT %s FROM taskq_internal.%I s WHERE topic_id = %s AND sequence = %s.sequence)', v_of_row,
            v_table, p_topic.topic_id, v_alias) END
        || CASE WHEN v_of_task = '' THEN '' WHEN v_alias = 't' THEN ' AND ' || v_of_task ELSE format(
            ' AND (SELECT %s FROM taskq_internal.task t WHERE topic_id = %s AND sequence = %s.sequence)', v_of_task,
            p_topic.topic_id, v_alias) END;
END $$;
