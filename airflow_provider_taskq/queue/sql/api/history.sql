-- History: how a task came to its state, and why it does not run.

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
'The history of a task, the oldest entry first: its push, the last 200 entries, and its end. what: pushed, failed,
lapsed, reset, recreated, reassigned, paused, resumed, due set, attempts set, priority set, canceled, held,
ended. state: the state before the entry, or now (held, ended). waited and ran: times of the attempt. Errors: TQ001.';

CREATE FUNCTION taskq.explain(p_topic text, p_sequence bigint, OUT reason text, OUT waits_normally boolean)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    v_topic taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'SELECT');
    v_live  taskq_internal.live;
    v_ended record;
BEGIN
    SELECT * INTO v_live FROM taskq_internal.live l WHERE l.topic_id = v_topic.topic_id AND l.sequence = p_sequence;
    IF FOUND THEN
        IF v_live.holder IS NULL THEN
            SELECT w.reason, w.waits_normally INTO reason, waits_normally
            FROM taskq_internal.explain_waiting(v_topic, v_live) w;
        ELSE
            reason := taskq_internal.explain_held(v_live.holder);
        END IF;
        RETURN;
    END IF;
    SELECT taskq.explain_ended(e.state, e.descent, e.attempt, v_topic.max_attempts, o.name) AS why, e.state,
        e.completed, e.error_summary
    INTO v_ended FROM taskq_internal.ended e LEFT JOIN taskq_internal.owner o ON o.owner_id = e.holder
    WHERE e.topic_id = v_topic.topic_id AND e.sequence = p_sequence;
    IF FOUND THEN
        reason := concat_ws(': ',
            format('it is %s%s', taskq.state_name(v_ended.state), ' since ' || taskq.format_duration(
                statement_timestamp() - taskq_internal.clamp_moment(v_ended.completed))),
            v_ended.why, CASE WHEN v_ended.state = :FAILED THEN v_ended.error_summary END);
    END IF;
END $$;
COMMENT ON FUNCTION taskq.explain IS
'reason: why a task is not running, or that it runs or has ended, as one sentence; NULL for an unknown task.
waits_normally: true for a READY task that waits only for its first due time, or for tasks before it in a topic that
workers poll; false for another READY task; NULL for a task that is not READY. Errors: TQ001.';

CREATE FUNCTION taskq.throughput(p_span interval, p_spans int, p_topic text DEFAULT NULL, p_pages int DEFAULT 2000)
RETURNS TABLE (topic text, span int, state int, count bigint, sampled double precision) LANGUAGE plpgsql
SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_table record;
    v_pages bigint;
    v_share double precision;
    v_reach interval;
BEGIN
    PERFORM taskq_internal.check_duration('throughput: the span', p_span);
    v_reach := CASE WHEN p_spans * extract(epoch FROM p_span) < 31536000000 THEN p_spans * p_span
        ELSE interval '365000 days' END;
    FOR v_table IN SELECT c.oid::regclass AS name, pg_relation_size(c.oid) / current_setting('block_size')::int AS pages
                   FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid
                       WHERE h.inhparent = 'taskq_internal.ended'::regclass LOOP
        v_share := least(100, 100.0 * p_pages / greatest(v_table.pages, 1));
        RETURN QUERY EXECUTE format(
            'SELECT p.name, n.span, n.state, round(n.count * 100 / $1)::bigint, $1 / 100 FROM (
                 SELECT e.topic_id, e.state::int, floor(extract(epoch FROM $2 - e.completed) / $3)::int AS span,
                        count(*) AS count
                 FROM %s e %s
                 WHERE e.completed > $2 - $4 AND e.completed <= $2 AND e.state BETWEEN :FAILED AND :SUCCEEDED
                 GROUP BY 1, 2, 3) n
             JOIN taskq_internal.topic p ON p.topic_id = n.topic_id WHERE $5 IS NULL OR p.name = $5',
            v_table.name, CASE WHEN v_share < 100 THEN format('TABLESAMPLE SYSTEM (%s)', v_share) ELSE '' END)
        USING v_share, v_now, extract(epoch FROM p_span), v_reach, p_topic;
    END LOOP;
END $$;
COMMENT ON FUNCTION taskq.throughput IS
'How many tasks of each topic ended in each state from FAILED to SUCCEEDED, in p_spans spans of time up to now; span 0
is the last. Reads at most p_pages pages, a random share of a longer history, and multiplies; sampled is that share.
p_topic: only this topic. Errors: TQ008 for an invalid p_span.';

CREATE FUNCTION taskq.explain_dependency(p_topic_id int, p_sequence bigint) RETURNS text
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_first record;
BEGIN
    SELECT p.name, d.on_identifier, n.sequence, coalesce(e.state, :READY) AS state INTO v_first
    FROM taskq_internal.dependency d
    CROSS JOIN LATERAL (SELECT t.sequence FROM taskq_internal.task t WHERE t.identifier = d.on_identifier
                        AND t.topic_id = d.on_topic_id
                        ORDER BY t.sequence DESC LIMIT 1) n
    LEFT JOIN taskq_internal.ended e ON e.topic_id = d.on_topic_id AND e.sequence = n.sequence
    LEFT JOIN taskq_internal.topic p ON p.topic_id = d.on_topic_id
    WHERE d.topic_id = p_topic_id AND d.sequence = p_sequence AND e.state IS DISTINCT FROM :SUCCEEDED LIMIT 1;
    RETURN CASE WHEN NOT FOUND THEN 'its dependencies are fulfilled: the next poll checks them again'
                ELSE format('waits for %s of topic %s (sequence %s, %s)', v_first.on_identifier, v_first.name,
                            v_first.sequence,
                            CASE WHEN v_first.state = :READY THEN 'not ended'
                                ELSE taskq.state_name(v_first.state) END) END;
END $$;
COMMENT ON FUNCTION taskq.explain_dependency IS
'The first dependency that is not fulfilled, as a sentence.';

CREATE FUNCTION taskq.explain_ready(
    p_paused boolean, p_topic_id int, p_sequence bigint, p_waits smallint, p_attempt int, p_due timestamptz
) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN p_paused THEN 'the topic is paused'
                WHEN p_waits = :WAITS_RESUME THEN 'paused until it is resumed'
                WHEN p_waits = :WAITS_DEPENDENCIES THEN taskq.explain_dependency(p_topic_id, p_sequence)
                WHEN p_waits = :WAITS_PROBE THEN 'waits for the retry that its topic tries first'
                WHEN p_due > statement_timestamp() THEN
                    format('%s in %s', CASE WHEN p_attempt > 0 THEN 'tried again' ELSE 'due' END,
                           taskq.format_duration(taskq_internal.clamp_moment(p_due) - statement_timestamp()))
                ELSE concat_ws('; ', 'may be polled', taskq.explain_turn(p_topic_id, p_sequence)) END;
END $$;
COMMENT ON FUNCTION taskq.explain_ready IS
'Why a READY task is not running, from its columns. Used by the view taskq.tasks.';

CREATE FUNCTION taskq.explain_ended(
    p_state smallint, p_descent smallint, p_attempt int, p_max_attempts int, p_owner text
) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_state = :EXPIRED THEN format('the lease of %s ran out; it waits to be revived', p_owner)
                WHEN p_state = :FAILED AND p_attempt < p_max_attempts THEN
                    format('given up at attempt %s; now its topic allows %s', p_attempt, p_max_attempts)
                WHEN p_state = :FAILED THEN format('given up after %s of %s attempts', p_attempt, p_max_attempts)
                WHEN p_state = :SUSPENDED THEN 'waits to be released or revived'
                WHEN p_descent IS NOT NULL THEN 'was ' || taskq.state_name(p_descent) END
$$;
COMMENT ON FUNCTION taskq.explain_ended IS
'Why an ended task is in its state; NULL if it ended without a failure. Used by the view taskq.tasks.';

-- The person that acts in this transaction, as the page and the command line set it in taskq.actor; NULL for
-- programs. Any client may set it, so history and audit also keep session_user, the role that logged in.
CREATE FUNCTION taskq_internal.current_actor() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT nullif(left(current_setting('taskq.actor', true), 200), '')
$$;

-- Records what is about to happen to ended tasks: RESET, RECREATED or REASSIGNED. p_others goes with p_sequences if
-- the kind has one.
CREATE FUNCTION taskq_internal.record_ended_change(
    p_topic_id int, p_kind int, p_sequences bigint[], p_others bigint[] DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
BEGIN
    INSERT INTO taskq_internal.history (happened, topic_id, sequence, kind, state, attempt, holder, other, actor, role,
        error, error_summary)
    SELECT clock_timestamp(), p_topic_id, e.sequence, p_kind, e.state, e.attempt,
           (SELECT o.name FROM taskq_internal.owner o WHERE o.owner_id = e.holder), u.other,
               taskq_internal.current_actor(), session_user,
           right(e.error, 2000), e.error_summary
    FROM unnest(p_sequences, p_others) AS u (sequence, other)
    JOIN (SELECT * FROM taskq_internal.ended WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) e
        ON e.sequence = u.sequence;
END $$;

-- Whether the failure of an attempt is recorded: of the first hundred each, then every hundredth, so that a task
-- with endless retries does not fill the disk.
CREATE FUNCTION taskq_internal.is_attempt_recorded(p_attempt int) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_attempt <= 100 OR p_attempt % 100 = 0
$$;

-- How long an attempt waited: from its due time, or from the push if that was later, to the poll that claimed it;
-- NULL if no poll did.
CREATE FUNCTION taskq_internal.queue_time(p_created timestamptz, p_due timestamptz, p_polled timestamptz)
RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_polled IS NOT NULL
                THEN greatest(taskq_internal.clamp_moment(p_polled) - taskq_internal.clamp_moment(greatest(p_created,
                        p_due)), interval '0') END
$$;

-- How long an attempt ran, from the poll that claimed it to its end; NULL if it was not claimed or has no end.
CREATE FUNCTION taskq_internal.run_time(p_polled timestamptz, p_end timestamptz) RETURNS interval
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_polled IS NOT NULL AND p_end IS NOT NULL
                THEN greatest(taskq_internal.clamp_moment(p_end) - taskq_internal.clamp_moment(p_polled),
                              interval '0') END
$$;

-- The holder of a task, and the end of its lease, as a sentence.
CREATE FUNCTION taskq_internal.explain_held(p_holder bigint) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN o.lease_until < statement_timestamp()
        THEN format('it was claimed by %s, whose lease lapsed %s ago: the next expire() takes it back', o.name,
                    taskq.format_duration(statement_timestamp() - taskq_internal.clamp_moment(o.lease_until)))
        ELSE format('it is running: held by %s, whose lease goes on for another %s', o.name,
                    taskq.format_duration(taskq_internal.clamp_moment(o.lease_until) - statement_timestamp())) END
    FROM taskq_internal.owner o WHERE o.owner_id = p_holder
$$;

-- The first thing that keeps a READY task, or else its position, as a sentence; waits_normally as in taskq.explain.
CREATE FUNCTION taskq_internal.explain_waiting(
    p_topic taskq_internal.topic, p_task taskq_internal.live, OUT reason text, OUT waits_normally boolean
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_way      text;
    v_unserved text;
BEGIN
    waits_normally := false;
    IF p_topic.paused THEN
        reason := 'its topic is paused';
    ELSIF p_task.waits = :WAITS_RESUME THEN
        reason := 'it is paused until it is resumed';
    ELSIF p_task.waits = :WAITS_DEPENDENCIES THEN
        reason := format('it %s', taskq.explain_dependency(p_topic.topic_id, p_task.sequence));
    ELSIF p_task.waits = :WAITS_PROBE AND p_task.available_at <= statement_timestamp() THEN
        reason := 'retries of its topic fail, and another one is tried first';
    ELSIF p_task.available_at > statement_timestamp() THEN
        waits_normally := p_task.attempt = 0;
        reason := concat_ws(': ',
            format('it is %s in %s', CASE WHEN p_task.attempt > 0 THEN 'to be tried again' ELSE 'due' END,
                   taskq.format_duration(taskq_internal.clamp_moment(p_task.available_at) - statement_timestamp())),
            CASE WHEN p_task.attempt > 0 THEN p_task.error_summary END);
    ELSE
        v_way := taskq.explain_turn(p_topic.topic_id, p_task.sequence);
        v_unserved := taskq_internal.explain_unserved(p_topic.topic_id);
        waits_normally := v_way IS NULL AND v_unserved IS NULL;
        reason := concat_ws('; ', v_way, v_unserved, CASE WHEN v_way IS NULL
            THEN taskq_internal.queue_position(p_topic.topic_id, p_task.sequence) END);
    END IF;
END $$;

-- That no worker seems to poll a topic: no owner holds its tasks and none has ended for a minute; else NULL.
CREATE FUNCTION taskq_internal.explain_unserved(p_topic_id int) RETURNS text
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_last timestamptz := (SELECT taskq_internal.clamp_moment(max(n.completed))
                           FROM (SELECT e.completed FROM taskq_internal.ended e WHERE e.topic_id = p_topic_id
                                                         ORDER BY e.sequence DESC LIMIT 100) n);
BEGIN
    IF v_last > statement_timestamp() - interval '1 minute' OR p_topic_id = ANY (taskq_internal.served_topics()) THEN
        RETURN NULL;
    END IF;
    RETURN 'no worker seems to poll its topic: ' || coalesce(
        'the last task of it ended ' || taskq.format_duration(statement_timestamp() - v_last) || ' ago',
            'none of its tasks has ended yet');
END $$;

-- The position of a READY task among the first thousand that may be polled, as a sentence.
CREATE FUNCTION taskq_internal.queue_position(p_topic_id int, p_sequence bigint) RETURNS text
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_place bigint;
BEGIN
    SELECT f.place INTO v_place FROM (
        SELECT l.sequence, row_number() OVER () AS place FROM (
            SELECT n.sequence FROM taskq_internal.live n WHERE n.topic_id = p_topic_id AND n.holder IS NULL
                AND n.waits <= :WAITS_NOTHING
            ORDER BY n.priority DESC, n.available_at, n.sequence LIMIT 1000) l) f
    WHERE f.sequence = p_sequence;
    RETURN CASE WHEN v_place = 1 THEN 'it is ready, and the next in line'
                WHEN v_place IS NULL THEN 'it is ready, with 1,000 or more before it'
                ELSE format('it is ready, with %s before it', v_place - 1) END;
END $$;
