-- History: the rows that the changes of a task leave.

-- Returns the name of a task's state, or a text that the topic does not have the task.
CREATE FUNCTION taskq_internal.task_state_name(p_topic_id int, p_sequence bigint) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce(
        (SELECT CASE WHEN l.holder IS NULL THEN 'READY' ELSE 'ACTIVE' END FROM taskq_internal.live l
         WHERE l.topic_id = p_topic_id AND l.sequence = p_sequence),
        (SELECT taskq.state_name(e.state) FROM taskq_internal.ended e WHERE e.topic_id = p_topic_id
         AND e.sequence = p_sequence),
        'unknown');
END $$;

-- Records a change of tasks that are READY or have ended, before it happens. p_others has one element for each element
-- of p_sequences, if the kind needs one.
CREATE FUNCTION taskq_internal.record_change(
    p_topic_id int, p_kind int, p_sequences bigint[], p_others bigint[] DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO taskq_internal.history (happened, topic_id, sequence, kind, state, attempt, holder, other, actor, role,
        error, error_summary)
    SELECT clock_timestamp(), p_topic_id, u.sequence, p_kind, e.state, e.attempt,
           (SELECT o.name FROM taskq_internal.owner o WHERE o.owner_id = e.holder), u.other,
           taskq_internal.current_actor(), session_user, right(e.error, 2000), e.error_summary
    FROM unnest(p_sequences, p_others) AS u (sequence, other)
    CROSS JOIN LATERAL (SELECT state, attempt, holder, error, error_summary FROM taskq_internal.ended
                        WHERE topic_id = p_topic_id AND sequence = u.sequence
                        UNION ALL
                        SELECT :READY, attempt, NULL, NULL, NULL FROM taskq_internal.live
                        WHERE topic_id = p_topic_id AND sequence = u.sequence OFFSET 0) e;
END $$;
