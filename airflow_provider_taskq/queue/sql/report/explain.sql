-- Explain: tells in one sentence why a task is not running.

-- Describes the first dependency of a task that is not fulfilled.
CREATE FUNCTION taskq_internal.explain_dependency(p_topic_id int, p_sequence bigint) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_first taskq_internal.dependency_state;
BEGIN
    SELECT * INTO v_first FROM taskq_internal.dependency_state d
    WHERE d.topic_id = p_topic_id AND d.sequence = p_sequence AND d.state IS DISTINCT FROM :SUCCEEDED
      AND (d.on_sequence IS NOT NULL OR d.waiting) LIMIT 1;
    RETURN CASE WHEN NOT FOUND THEN 'waits for the next poll: its dependencies are fulfilled'
                WHEN v_first.on_sequence IS NULL THEN format('waits for %s of %s, whose tasks were removed',
                    v_first.on_identifier, coalesce('topic ' || v_first.on_topic, 'a topic that was dropped'))
                ELSE format('waits for %s of topic %s (sequence %s, %s)', v_first.on_identifier, v_first.on_topic,
                            v_first.on_sequence, coalesce(taskq.state_name(v_first.state), 'not ended')) END;
END $$;

-- Explains why a poll that takes one task per identifier at a time does not return a READY task. Returns NULL if no
-- other task of the identifier blocks the task.
CREATE FUNCTION taskq_internal.explain_turn(p_topic_id int, p_sequence bigint) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_identifier text := (SELECT l.identifier FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
                          AND l.sequence = p_sequence);
    v_other      record;
BEGIN
    SELECT l.sequence, o.name, o.lease_until INTO v_other FROM taskq_internal.live l LEFT JOIN taskq_internal.owner o
        ON o.owner_id = l.holder
    WHERE l.topic_id = p_topic_id AND l.sequence <> p_sequence AND l.sequence = (
        SELECT t.sequence
        FROM (SELECT) one
        LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, v_identifier, true) i ON true
        CROSS JOIN LATERAL taskq_internal.turn_of_identifier(p_topic_id, v_identifier, i.claimed_at) t);
    IF FOUND THEN
        RETURN format('one at a time per identifier, it comes after sequence %s, %s', v_other.sequence,
            CASE WHEN v_other.name IS NULL THEN 'which is to be tried again'
                 WHEN v_other.lease_until < clock_timestamp()
                     THEN format('held by %L, whose lease has lapsed', v_other.name)
                 ELSE format('held by %L', v_other.name) END);
    END IF;
    SELECT e.sequence, taskq.state_name(e.state) AS state INTO v_other FROM taskq_internal.ended e
    WHERE e.identifier = v_identifier AND e.topic_id = p_topic_id AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED)
        ORDER BY e.state, e.sequence LIMIT 1;
    IF FOUND THEN
        RETURN format('under the conditions that suspend an identifier, sequence %s of its identifier blocks it,'
                      ' which is %s', v_other.sequence, v_other.state);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION taskq.explain_task(p_topic_id int, p_sequence bigint) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_now  timestamptz := statement_timestamp();
    v_task record;
BEGIN
    SELECT p.paused, p.max_attempts, l.holder, l.waits, coalesce(l.attempt, e.attempt) AS attempt, e.state, e.descent,
           e.completed, taskq_internal.clamp_moment(l.available_at) - v_now AS due_in, o.name AS owner,
           taskq_internal.clamp_moment(o.lease_until) - v_now AS lease,
           coalesce(l.error_summary, e.error_summary) AS error
    INTO v_task FROM taskq_internal.topic p
    LEFT JOIN taskq_internal.live l ON l.topic_id = p_topic_id AND l.sequence = p_sequence
    LEFT JOIN taskq_internal.ended e ON e.topic_id = p_topic_id AND e.sequence = p_sequence
    LEFT JOIN taskq_internal.owner o ON o.owner_id = coalesce(l.holder, e.holder)
    WHERE p.topic_id = p_topic_id;
    RETURN CASE
        WHEN v_task.holder IS NOT NULL AND v_task.lease < '0' THEN
            format('it was claimed by %s, whose lease lapsed %s ago: the next upkeep gives it back', v_task.owner,
                   taskq.format_duration(-v_task.lease))
        WHEN v_task.holder IS NOT NULL THEN format(
            'it is running: held by %s, whose lease goes on for another %s', v_task.owner,
            taskq.format_duration(v_task.lease))
        WHEN v_task.state IS NOT NULL THEN concat_ws(': ',
            format('it is %s%s', taskq.state_name(v_task.state),
                   ' since ' || taskq.format_duration(v_now - taskq_internal.clamp_moment(v_task.completed))),
            CASE WHEN v_task.state = :EXPIRED
                     THEN format('the lease of %s ran out; it waits to be revived', v_task.owner)
                 WHEN v_task.state = :FAILED
                     THEN format('given up after %s of %s attempts', v_task.attempt, v_task.max_attempts)
                 WHEN v_task.state = :SUSPENDED THEN 'waits to be released or revived'
                 WHEN v_task.descent IS NOT NULL THEN 'was ' || taskq.state_name(v_task.descent) END,
            CASE WHEN v_task.state = :FAILED THEN v_task.error END)
        WHEN v_task.waits IS NULL THEN NULL
        WHEN v_task.paused THEN 'its topic is paused'
        WHEN v_task.waits = :WAITS_RESUME THEN 'it is paused until it is resumed'
        WHEN v_task.waits = :WAITS_DEPENDENCIES
            THEN 'it ' || taskq_internal.explain_dependency(p_topic_id, p_sequence)
        WHEN v_task.due_in > '0' THEN concat_ws(': ',
            format('it is %s in %s', CASE WHEN v_task.attempt > 0 THEN 'to be tried again' ELSE 'due' END,
                   taskq.format_duration(v_task.due_in)), v_task.error)
        WHEN v_task.waits = :WAITS_PROBE THEN 'retries of its topic fail, and another one is tried first'
        ELSE taskq_internal.explain_turn(p_topic_id, p_sequence) END;
END $$;
COMMENT ON FUNCTION taskq.explain_task IS
'Explains in one sentence why a task is not running, or how it ended, for the view taskq.tasks. Returns NULL for an
unknown task, and if a poll may return the task. Programs call taskq.explain.';

-- Returns the topics of tasks that owners with a running lease hold, of a thousand owners and the newest hundred tasks
-- of each.
CREATE FUNCTION taskq_internal.served_topics() RETURNS int[] LANGUAGE sql STABLE AS $$
    SELECT ARRAY(SELECT DISTINCT h.topic_id
                 FROM (SELECT o.owner_id FROM taskq_internal.owner o WHERE o.fence IS NOT NULL
                       AND o.lease_until >= clock_timestamp() LIMIT 1000) w
                 CROSS JOIN LATERAL (SELECT l.topic_id FROM taskq_internal.live l WHERE l.holder = w.owner_id
                                     ORDER BY l.sequence DESC LIMIT 100) h)
$$;
