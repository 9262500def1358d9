-- History: how a task came to be what it is.

-- Who acts in this transaction, as the page and the command line say by the setting taskq.actor; NULL for programs. Any client may
-- set it, so history and audit keep session_user, the role that logged in, beside it.
CREATE FUNCTION taskq.actor() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT nullif(left(current_setting('taskq.actor', true), 200), '')
$$;

-- Notes what is about to happen to ended tasks: kind 3, 4 or 5. p_others goes with p_sequences where the kind has one.
CREATE FUNCTION taskq.note_ended(p_topic_id int, p_kind int, p_sequences bigint[], p_others bigint[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
BEGIN
    INSERT INTO taskq.history (happened, topic_id, sequence, kind, state, attempt, holder, other, actor, role, error, error_summary)
    SELECT clock_timestamp(), p_topic_id, e.sequence, p_kind, e.state, e.attempt,
           (SELECT o.name FROM taskq.owner o WHERE o.owner_id = e.holder), u.other, taskq.actor(), session_user,
           right(e.error, 2000), e.error_summary
    FROM unnest(p_sequences, p_others) AS u (sequence, other)
    JOIN (SELECT * FROM taskq.ended WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) e ON e.sequence = u.sequence;
END $$;

-- Whether the failure of an attempt is noted in the history: of the first hundred each, then every hundredth, so that a
-- task that is tried for ever does not fill the disk.
CREATE FUNCTION taskq.is_noted(p_attempt int) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_attempt <= 100 OR p_attempt % 100 = 0
$$;

-- How long an attempt waited in the queue: from when the task was due, or from its push if that was later, to the poll that
-- claimed it; NULL if it was not claimed.
CREATE FUNCTION taskq.queue_time(p_created timestamptz, p_due timestamptz, p_polled timestamptz) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_polled IS NOT NULL
                THEN greatest(taskq.clamp_moment(p_polled) - taskq.clamp_moment(greatest(p_created, p_due)), interval '0') END
$$;

-- How long an attempt ran: from the poll that claimed it to its end; NULL if it was not claimed or has no end.
CREATE FUNCTION taskq.run_time(p_polled timestamptz, p_end timestamptz) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_polled IS NOT NULL AND p_end IS NOT NULL
                THEN greatest(taskq.clamp_moment(p_end) - taskq.clamp_moment(p_polled), interval '0') END
$$;

-- The history of a task, the last 200 happenings and of errors their ends, the oldest first, with its push and its end. what: pushed, failed, lapsed, started anew, recreated,
-- reassigned, paused, resumed, due set, attempts set, priority set, canceled, held, ended; state: the state that it had before, or has now (held, ended).
-- waited and ran: taskq.queue_time and taskq.run_time of the attempt that failed, lapsed or ended, or is held, until now.
CREATE FUNCTION taskq.timeline(p_topic text, p_sequence bigint)
RETURNS TABLE (happened timestamptz, what text, state int, attempt int, holder text, actor text, role text, other bigint, error text,
               error_summary text, waited interval, ran interval)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_created  timestamptz := (SELECT t.created FROM taskq.task t WHERE t.topic_id = v_topic_id AND t.sequence = p_sequence);
BEGIN
    RETURN QUERY
    SELECT n.happened, n.what, n.state::int, n.attempt, n.holder, n.actor, n.role, n.other, n.error,
           n.error_summary, taskq.queue_time(v_created, n.due, n.polled), taskq.run_time(n.polled, n.until) FROM (
        SELECT t.created AS happened, 'pushed' AS what, NULL::int AS state, 0 AS attempt, NULL::text AS holder, NULL::text AS actor,
               NULL::text AS role, NULL::bigint AS other, NULL::text AS error,
               NULL::text AS error_summary, NULL::timestamptz AS due, NULL::timestamptz AS polled, NULL::timestamptz AS until, 0 AS place
        FROM taskq.task t WHERE t.topic_id = v_topic_id AND t.sequence = p_sequence
        UNION ALL
        SELECT h.happened, (ARRAY['failed', 'lapsed', 'started anew', 'recreated', 'reassigned', 'paused', 'resumed', 'due set', 'attempts set', 'priority set', 'canceled'])[h.kind], h.state, h.attempt, h.holder,
               h.actor, h.role, h.other, h.error, h.error_summary, h.due, h.polled, h.happened, 1
        FROM (SELECT * FROM taskq.history m WHERE m.sequence = p_sequence AND m.topic_id = v_topic_id
              ORDER BY m.happened DESC LIMIT 200) h
        UNION ALL
        SELECT l.polled, 'held', 0, l.attempt, (SELECT o.name FROM taskq.owner o WHERE o.owner_id = l.holder), NULL, NULL, NULL, NULL, NULL,
               l.available_at, l.polled, statement_timestamp(), 2
        FROM taskq.live l WHERE l.topic_id = v_topic_id AND l.sequence = p_sequence AND l.holder IS NOT NULL
        UNION ALL
        SELECT e.completed, 'ended', e.state, e.attempt, (SELECT o.name FROM taskq.owner o WHERE o.owner_id = e.holder), NULL, NULL, NULL,
               e.error, e.error_summary, e.available_at, e.polled, e.completed, 2
        FROM taskq.ended e WHERE e.topic_id = v_topic_id AND e.sequence = p_sequence) n
    ORDER BY n.place, n.happened;
END $$;
