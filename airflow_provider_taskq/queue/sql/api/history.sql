-- History: the changes of a task up to its state, and the contents of the rows of the history.

CREATE FUNCTION taskq.timeline(p_topic text, p_sequence bigint)
RETURNS TABLE (happened timestamptz, what text, state int, attempt int, holder text, actor text, role text,
               other bigint, error text, error_summary text, waited interval, ran interval)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT')).topic_id;
    v_created  timestamptz := (SELECT t.created FROM taskq_internal.task t WHERE t.topic_id = v_topic_id
                               AND t.sequence = p_sequence);
BEGIN
    RETURN QUERY
    SELECT n.happened, n.what, n.state::int, n.attempt, n.holder, n.actor, n.role, n.other, n.error,
           n.error_summary, taskq_internal.queue_time(v_created, n.due, n.polled),
           taskq_internal.run_time(n.polled, n.until)
    FROM (
        SELECT t.created AS happened, 'pushed' AS what, NULL::int AS state, 0 AS attempt, NULL::text AS holder,
               NULL::text AS actor, NULL::text AS role, NULL::bigint AS other, NULL::text AS error,
               NULL::text AS error_summary, NULL::timestamptz AS due, NULL::timestamptz AS polled,
               NULL::timestamptz AS until, 0 AS place
        FROM taskq_internal.task t WHERE t.topic_id = v_topic_id AND t.sequence = p_sequence
        UNION ALL
        SELECT h.happened,
               CASE h.kind
                   WHEN :HISTORY_FAILED THEN 'failed' WHEN :HISTORY_LAPSED THEN 'lapsed'
                   WHEN :HISTORY_RESET THEN 'reset' WHEN :HISTORY_RECREATED THEN 'recreated'
                   WHEN :HISTORY_REASSIGNED THEN 'reassigned' WHEN :HISTORY_PAUSED THEN 'paused'
                   WHEN :HISTORY_RESUMED THEN 'resumed' WHEN :HISTORY_DUE_SET THEN 'due set'
                   WHEN :HISTORY_ATTEMPTS_SET THEN 'attempts set' WHEN :HISTORY_PRIORITY_SET THEN 'priority set'
                   WHEN :HISTORY_CANCELED THEN 'canceled' END,
               h.state, h.attempt, h.holder, h.actor, h.role, h.other, h.error, h.error_summary,
               h.due, h.polled, h.happened, 1
        FROM (SELECT * FROM taskq_internal.history m WHERE m.sequence = p_sequence AND m.topic_id = v_topic_id
              ORDER BY m.happened DESC LIMIT 200) h
        UNION ALL
        SELECT l.polled, 'held', :ACTIVE, l.attempt,
               (SELECT o.name FROM taskq_internal.owner o WHERE o.owner_id = l.holder), NULL, NULL, NULL, NULL, NULL,
               l.available_at, l.polled, statement_timestamp(), 2
        FROM taskq_internal.live l WHERE l.topic_id = v_topic_id AND l.sequence = p_sequence AND l.holder IS NOT NULL
        UNION ALL
        SELECT e.completed, 'ended', e.state, e.attempt,
               (SELECT o.name FROM taskq_internal.owner o WHERE o.owner_id = e.holder), NULL, NULL, NULL,
               e.error, e.error_summary, e.available_at, e.polled, e.completed, 2
        FROM taskq_internal.ended e WHERE e.topic_id = v_topic_id AND e.sequence = p_sequence) n
    ORDER BY n.place, n.happened;
END $$;
COMMENT ON FUNCTION taskq.timeline IS
'Returns the history of a task, the oldest entry first: its push, the last 200 entries, and its end. The column what is
pushed, failed, lapsed, reset, recreated, reassigned, paused, resumed, due set, attempts set, priority set, canceled,
held or ended. The column state has the state before the entry. For held and ended it has the current state. The columns
waited and ran have the times of the attempt. Raises TQ001 for an unknown topic.';

-- Returns the person that acts in this transaction, as the page and the command line set it in taskq.actor. Returns
-- NULL for programs. Any client may set it, so history and audit also store session_user, the role that logged in.
CREATE FUNCTION taskq_internal.current_actor() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT nullif(left(current_setting('taskq.actor', true), 200), '')
$$;

-- Records a change of tasks that are READY or have ended, before it happens. p_others has one element for each element
-- of p_sequences, if the kind needs one.
CREATE FUNCTION taskq_internal.record_change(
    p_topic_id int, p_kind int, p_sequences bigint[], p_others bigint[] DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
BEGIN
    INSERT INTO taskq_internal.history (happened, topic_id, sequence, kind, state, attempt, holder, other, actor, role,
        error, error_summary)
    SELECT clock_timestamp(), p_topic_id, e.sequence, p_kind, e.state, e.attempt,
           (SELECT o.name FROM taskq_internal.owner o WHERE o.owner_id = e.holder), u.other,
           taskq_internal.current_actor(), session_user, right(e.error, 2000), e.error_summary
    FROM unnest(p_sequences, p_others) AS u (sequence, other)
    JOIN (SELECT sequence, state, attempt, holder, error, error_summary FROM taskq_internal.ended
          WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)
          UNION ALL
          SELECT sequence, :READY, attempt, NULL, NULL, NULL FROM taskq_internal.live
          WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) e USING (sequence);
END $$;

-- Returns whether the queue records the failure of an attempt. It records the first hundred failures of a task and then
-- every hundredth, so that a task with endless retries does not fill the disk.
CREATE FUNCTION taskq_internal.is_attempt_recorded(p_attempt int) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_attempt <= 100 OR p_attempt % 100 = 0
$$;

-- Returns how long an attempt waited for the poll that claimed it. The wait begins at the due time, or at the push if
-- that was later. Returns NULL if no poll claimed the attempt.
CREATE FUNCTION taskq_internal.queue_time(p_created timestamptz, p_due timestamptz, p_polled timestamptz)
RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_polled IS NOT NULL
                THEN greatest(taskq_internal.clamp_moment(p_polled) - taskq_internal.clamp_moment(greatest(p_created,
                        p_due)), interval '0') END
$$;

-- Returns how long an attempt ran, from the poll that claimed it to its end. Returns NULL if no poll claimed the
-- attempt, or if it has not ended.
CREATE FUNCTION taskq_internal.run_time(p_polled timestamptz, p_end timestamptz) RETURNS interval
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_polled IS NOT NULL AND p_end IS NOT NULL
                THEN greatest(taskq_internal.clamp_moment(p_end) - taskq_internal.clamp_moment(p_polled),
                              interval '0') END
$$;
