-- Failures grouped by error: tasks that failed for the same reason, whatever their identifiers and numbers.

-- The group of an error: its summary, with # in the place of what differs from task to task. That is the task's own identifier, a
-- UUID, and a word with a digit in it, together with further such words behind - . : , or /. The type of the exception stays, and so
-- does a number from 100 to 599 that stands alone: it may be the status of an answer, and to retry a 404 helps less than a 503.
CREATE FUNCTION taskq.error_group(p_summary text, p_identifier text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
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
        v_message := regexp_replace(v_message, '(?<=[-.:,/])\m\w*\d\w*([-.:,/]\w*\d\w*)*|\m(?![1-5]\d\d\M(?![-.:,/]\w*\d))\w*\d\w*([-.:,/]\w*\d\w*)*', '#', 'g');
    END IF;
    RETURN v_kind || v_message;
END $$;

-- The errors of a topic's FAILED tasks in groups, the largest first: how many FAILED, how many more are READY to be tried again, how
-- many different summaries there are and the newest of them, the newest task, and when the last one failed. Looks at the newest
-- p_budget tasks of each kind; looked_at: how many FAILED ones these were.
CREATE FUNCTION taskq.error_groups(p_topic text, p_size int DEFAULT 100, p_budget int DEFAULT 10000)
RETURNS TABLE (error_group text, failed bigint, retrying bigint, messages bigint, example text, newest bigint, last_failed timestamptz,
               looked_at bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
BEGIN
    RETURN QUERY
    SELECT coalesce(f.error_group, r.error_group), coalesce(f.failed, 0), coalesce(r.retrying, 0), coalesce(f.messages, r.messages),
           coalesce(f.example, r.example), coalesce(f.newest, r.newest), f.last_failed, coalesce(sum(f.failed) OVER (), 0)::bigint
    FROM taskq.failed_groups(v_topic_id, '-infinity', p_budget) f
    FULL JOIN taskq.retrying_groups(v_topic_id, p_budget) r ON r.error_group = f.error_group
    ORDER BY 2 DESC, 3 DESC, 1 LIMIT greatest(p_size, 0);
END $$;

-- The groups of the newest p_budget FAILED tasks of a topic, those of them that failed since a moment.
CREATE FUNCTION taskq.failed_groups(p_topic_id int, p_since timestamptz, p_budget int)
RETURNS TABLE (error_group text, failed bigint, messages bigint, example text, newest bigint, last_failed timestamptz)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT taskq.error_group(n.error_summary, n.identifier), count(*), count(DISTINCT n.error_summary),
           (array_agg(n.error_summary ORDER BY n.sequence DESC))[1], max(n.sequence), taskq.clamp_moment(max(n.completed))
    FROM (SELECT e.sequence, e.identifier, e.error_summary, e.completed FROM taskq.ended e
          WHERE e.topic_id::bigint = p_topic_id AND e.state::int = 3 AND e.state::int IN (2, 3, 4)
          ORDER BY e.sequence DESC LIMIT greatest(p_budget, 0)) n
    WHERE n.completed >= p_since GROUP BY 1;
END $$;

-- The groups of the newest p_budget READY tasks of a topic that are to be tried again.
CREATE FUNCTION taskq.retrying_groups(p_topic_id int, p_budget int)
RETURNS TABLE (error_group text, retrying bigint, messages bigint, example text, newest bigint) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT taskq.error_group(n.error_summary, n.identifier), count(*), count(DISTINCT n.error_summary),
           (array_agg(n.error_summary ORDER BY n.sequence DESC))[1], max(n.sequence)
    FROM (SELECT l.sequence, l.identifier, l.error_summary FROM taskq.live l
          WHERE l.topic_id::bigint = p_topic_id AND l.holder IS NULL AND l.attempt > 0
          ORDER BY l.sequence DESC LIMIT greatest(p_budget, 0)) n
    GROUP BY 1;
END $$;
