-- Statistics: the errors of tasks in groups.

-- Returns the group of an error: its summary with # in the place of all that differs from task to task. This is the
-- task's identifier, a UUID, and a word with a digit, together with further such words after - . : , or /. The type of
-- the exception stays. A number from 100 to 599 that stands alone stays too, because it may be a status code: to retry
-- a 404 helps less than to retry a 503.
CREATE FUNCTION taskq_internal.error_group(p_summary text, p_identifier text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_kind    text := coalesce(substring(p_summary FROM '^[[:alpha:]_][[:alnum:]_.]*(?:: |$)'), '');
    v_message text := substr(p_summary, length(v_kind) + 1);
BEGIN
    IF p_summary IS NULL THEN
        RETURN 'no error given';
    END IF;
    IF length(p_identifier) >= 3 THEN
        v_message := replace(v_message, p_identifier, '#');
    END IF;
    IF v_message ~ '\d' THEN
        v_message := regexp_replace(v_message, '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}', '#', 'g');
        v_message := regexp_replace(v_message, '(?<=[-.:,/])\m\w*\d\w*([-.:,/]\w*\d\w*)*'
                                    '|\m(?![1-5]\d\d\M(?![-.:,/]\w*\d))\w*\d\w*([-.:,/]\w*\d\w*)*', '#', 'g');
    END IF;
    RETURN v_kind || v_message;
END $$;

-- Returns the groups of the errors of a topic: of those of the newest p_budget FAILED tasks that failed since p_since,
-- and with p_since NULL of the newest p_budget FAILED tasks, and of as many tasks that wait for a retry.
CREATE FUNCTION taskq_internal.error_groups(p_topic_id int, p_since timestamptz, p_budget int)
RETURNS TABLE (error text, failed bigint, retrying bigint, messages bigint, example text, newest bigint,
               last_failed timestamptz)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT taskq_internal.error_group(n.error_summary, n.identifier), count(*) FILTER (WHERE n.failed),
           count(*) FILTER (WHERE NOT n.failed), count(DISTINCT n.error_summary),
           (array_agg(n.error_summary ORDER BY n.failed DESC, n.sequence DESC))[1], max(n.sequence),
           taskq_internal.clamp_moment(max(n.completed))
    FROM ((SELECT e.sequence, e.identifier, e.error_summary, e.completed, true AS failed FROM taskq_internal.ended e
           WHERE e.topic_id::bigint = p_topic_id AND e.state::int = :FAILED
             AND e.state::int IN (:EXPIRED, :FAILED, :SUSPENDED)
           ORDER BY e.sequence DESC LIMIT greatest(p_budget, 0))
          UNION ALL
          (SELECT l.sequence, l.identifier, l.error_summary, NULL, false FROM taskq_internal.live l
           WHERE p_since IS NULL AND l.topic_id::bigint = p_topic_id AND l.holder IS NULL AND l.attempt > 0
           ORDER BY l.sequence DESC LIMIT greatest(p_budget, 0))) n
    WHERE p_since IS NULL OR n.completed >= p_since GROUP BY 1;
END $$;
