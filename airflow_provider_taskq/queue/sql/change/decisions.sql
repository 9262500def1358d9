-- Complete: a decision ends a task, or makes it READY again for a retry. A call applies all its decisions or none.
-- Exchange: completes and polls in one call.
--
-- The server may carry out a call after its caller has lost the session, has repeated the decision, and has claimed the
-- task again under the same fence. So a decision names the attempt that it is for.
--
-- Before PostgreSQL 17, a server that has never analyzed held tasks looks for the holder only, and reads the entries of
-- all tasks that the owner has held while a snapshot keeps them. So statements that look for tasks of a holder by an
-- array of sequences also give the range of the array.

CREATE FUNCTION taskq.complete(
    p_owner text, p_fence bigint, p_sequences bigint[], p_results smallint[], p_outputs text[] DEFAULT NULL,
    p_errors text[] DEFAULT NULL, p_delays interval[] DEFAULT NULL, p_summaries text[] DEFAULT NULL,
    p_attempts int[] DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_owner_id  bigint := taskq_internal.require_lease(p_owner, p_fence);
    v_done      bigint[] := '{}';
    v_topics    int[];
    v_topic_id  int;
    v_summaries text[];
BEGIN
    PERFORM taskq_internal.check_decisions(p_sequences, p_results, p_outputs);
    -- All dependencies, because an index of those that wait has dead entries.
    IF EXISTS (SELECT FROM taskq_internal.dependency) OR EXISTS (SELECT FROM taskq_internal.topic WHERE probe) THEN
        v_topics := taskq_internal.held_topics(v_owner_id, p_sequences);
    END IF;
    IF p_errors IS NOT NULL THEN
        v_summaries := taskq_internal.error_summaries(p_errors, p_summaries);
    END IF;
    IF :FAILURE = ANY (p_results) OR p_delays IS NOT NULL THEN
        v_done := taskq_internal.return_to_ready(v_owner_id, p_sequences, p_results, p_errors, v_summaries, p_delays,
                                                 p_attempts);
    END IF;
    v_done := v_done || taskq_internal.end_tasks(v_owner_id, p_sequences, p_results, p_outputs, p_errors, v_summaries,
                                                 p_attempts);
    IF cardinality(v_done) <> cardinality(p_sequences) THEN
        PERFORM taskq_internal.raise_not_held(p_owner, p_fence, p_sequences, v_done);
    END IF;
    IF v_topics IS NOT NULL THEN
        FOREACH v_topic_id IN ARRAY v_topics LOOP
            PERFORM taskq_internal.update_waiting(v_topic_id, p_sequences, p_results);
        END LOOP;
    END IF;
    RETURN cardinality(v_done);
END $$;
COMMENT ON FUNCTION taskq.complete IS
'Completes tasks that the owner holds under p_fence, all of them or none. Returns how many tasks it completed. The
arrays have one element for each task. p_results has 0 for FAILURE, 1 for SUSPENSION, 2 for FILTER and 3 for SUCCESS.
p_outputs has JSON texts, and p_errors has the texts of errors. A delay in p_delays snoozes a SUSPENSION. With a delay
before -3650 days the task is READY again in its old place. A FAILURE with a negative delay is not retried. p_summaries
has one line for each error. With a NULL summary the call takes the line from the error. p_attempts has the attempts
that the decisions are for, as the polls returned them. With a NULL attempt a decision is for any attempt. After another
FAILURE with attempts left the task is READY again. Raises TQ005 if the owner has no lease under p_fence, TQ004 for
tasks that the owner does not hold in the given attempt, and TQ002 for an invalid result or output.';

-- Returns the topics, in order, of those of the given tasks that the owner holds.
CREATE FUNCTION taskq_internal.held_topics(p_owner_id bigint, p_sequences bigint[]) RETURNS int[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT DISTINCT topic_id FROM taskq_internal.live
        WHERE holder = p_owner_id AND sequence = ANY (p_sequences)
          AND sequence BETWEEN (SELECT min(s) FROM unnest(p_sequences) s) AND (SELECT max(s) FROM unnest(p_sequences) s)
        ORDER BY 1);
END $$;

-- Raises TQ002 for invalid decisions: a result outside 0 to 3, a missing result, two decisions for a task, or an output
-- that a client could not read.
CREATE FUNCTION taskq_internal.check_decisions(p_sequences bigint[], p_results smallint[], p_outputs text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_reason text;
BEGIN
    -- One cheap test for all; the query below finds the task for the error.
    IF :FAILURE <= ALL (p_results) AND :SUCCESS >= ALL (p_results) AND cardinality(p_results) = cardinality(p_sequences)
       AND (SELECT count(DISTINCT u.sequence) = count(*) FROM (SELECT unnest(p_sequences) AS sequence) u)
       AND NOT EXISTS (SELECT FROM unnest(p_outputs) AS u (output)
                       WHERE taskq_internal.has_unstorable_escape(u.output)) THEN
        RETURN;
    END IF;
    SELECT format(u.reason, u.sequence) INTO v_reason FROM (
        SELECT n.sequence, CASE
            WHEN (n.sequence IS NOT NULL AND n.result BETWEEN :FAILURE AND :SUCCESS) IS NOT TRUE
                THEN 'the decision on sequence %s has an invalid result: expected 0 to 3'
            WHEN count(*) OVER (PARTITION BY n.sequence) > 1 THEN 'the task of sequence %s is decided twice in one call'
            WHEN taskq_internal.has_unstorable_escape(n.output)
                THEN 'the message of the decision on sequence %s holds a NUL or a lone surrogate' END AS reason
        FROM unnest(p_sequences, p_results, p_outputs) AS n (sequence, result, output)) u
    WHERE u.reason IS NOT NULL ORDER BY u.sequence LIMIT 1;
    IF FOUND THEN
        PERFORM taskq_internal.raise_error('TQ002', v_reason);
    END IF;
END $$;

-- Moves held tasks to their end state, with output and error. Returns their sequences. The caller raises an error if
-- there are fewer of them, because a task in another attempt than the given one is lost otherwise.
CREATE FUNCTION taskq_internal.end_tasks(
    p_owner_id bigint, p_sequences bigint[], p_results smallint[], p_outputs text[], p_errors text[],
    p_summaries text[], p_attempts int[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_ended bigint[];
BEGIN
    WITH gone AS (
        DELETE FROM taskq_internal.live
        WHERE holder = p_owner_id AND sequence = ANY (p_sequences)
          AND sequence BETWEEN (SELECT min(s) FROM unnest(p_sequences) s) AND (SELECT max(s) FROM unnest(p_sequences) s)
        RETURNING *
    ), moved AS (
    INSERT INTO taskq_internal.ended (sequence, completed, available_at, holder, polled, topic_id, attempt, state,
        crashes, redelivered, identifier, output, error, error_summary)
    SELECT g.sequence, clock_timestamp(), g.available_at, g.holder, g.polled, g.topic_id, g.attempt,
           d.result + :RESULT_TO_STATE, g.crashes, g.redelivered, g.identifier, d.output::json,
           coalesce(left(d.error, 10000), g.error),
           CASE WHEN d.error IS NULL THEN g.error_summary ELSE d.summary END
    FROM gone g
    JOIN unnest(p_sequences, p_results, p_outputs, p_errors, p_summaries, p_attempts)
        AS d (sequence, result, output, error, summary, attempt)
        ON d.sequence = g.sequence AND coalesce(d.attempt, g.attempt) = g.attempt
    RETURNING sequence)
    SELECT coalesce(array_agg(m.sequence), '{}') INTO v_ended FROM moved m;
    RETURN v_ended;
END $$;

-- Makes tasks READY again that have a next attempt, and returns their sequences. These are snoozed tasks, failures
-- within the ttl, and recorded failures with attempts left. Snoozes and failures within the ttl do not count as
-- attempts. Leaves out tasks in another attempt than the given one.
CREATE FUNCTION taskq_internal.return_to_ready(
    p_owner_id bigint, p_sequences bigint[], p_results smallint[], p_errors text[], p_summaries text[],
    p_delays interval[], p_attempts int[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_now    timestamptz;
    v_late_before timestamptz;
    v_tasks  bigint[];
    v_topics int[];
    v_back   bigint[];
BEGIN
    v_tasks := ARRAY(SELECT d.sequence FROM unnest(p_sequences, p_results, p_delays) AS d (sequence, result, delay)
                     WHERE d.result = :FAILURE AND coalesce(d.delay, interval '0') >= interval '0'
                        OR d.result = :SUSPENSION AND d.delay IS NOT NULL);
    v_topics := taskq_internal.held_topics(p_owner_id, v_tasks);
    v_late_before := taskq_internal.announce_retry(v_topics);
    v_now := clock_timestamp();
    WITH judged AS MATERIALIZED (
        SELECT l.sequence, l.topic_id, l.attempt, l.available_at AS was_due, l.polled,
               d.result = :FAILURE AND NOT f.young AS recorded, p.probe, d.error, d.summary, f.delay,
               EXISTS (SELECT FROM taskq_internal.dependency n WHERE n.topic_id = l.topic_id
                       AND n.sequence = l.sequence OFFSET 0) AS depends,
               CASE WHEN d.result = :SUSPENSION AND d.delay < interval '-3650 days' THEN l.available_at  -- no decision
                    WHEN d.result = :SUSPENSION THEN taskq_internal.snoozed_until(v_now, d.delay)
                    WHEN f.young THEN l.available_at
                    ELSE least(v_now + f.delay * (1 - p.jitter * random()), t.created + p.horizon,
                               timestamptz '9999-12-31 00:00Z') END AS due
        FROM (SELECT * FROM taskq_internal.live
              WHERE holder = p_owner_id AND sequence = ANY (v_tasks)
                AND sequence BETWEEN (SELECT min(s) FROM unnest(v_tasks) s)
                             AND (SELECT max(s) FROM unnest(v_tasks) s)) l
        JOIN (SELECT * FROM taskq_internal.task WHERE topic_id = ANY (v_topics) AND sequence = ANY (v_tasks)) t
            USING (sequence)
        JOIN unnest(p_sequences, p_results, p_errors, p_summaries, p_delays, p_attempts)
            AS d (sequence, result, error, summary, delay, attempt)
            ON d.sequence = l.sequence AND coalesce(d.attempt, l.attempt) = l.attempt
        JOIN taskq_internal.topic p ON p.topic_id = l.topic_id
        CROSS JOIN LATERAL (SELECT coalesce(t.created + coalesce(t.ttl, p.ttl) > v_now, false) AS young,
                                   taskq_internal.retry_delay(p, l.attempt, l.elapsed) AS delay) f
        WHERE d.result = :SUSPENSION OR f.young OR f.delay IS NOT NULL
    ), events AS (
        INSERT INTO taskq_internal.history (happened, due, polled, topic_id, sequence, kind, state, attempt, holder,
            error, error_summary)
        SELECT v_now, j.was_due, j.polled, j.topic_id, j.sequence, :HISTORY_FAILED, :ACTIVE, j.attempt,
            (SELECT o.name FROM taskq_internal.owner o WHERE o.owner_id = p_owner_id),
               right(j.error, 2000), j.summary
        FROM judged j
        WHERE j.recorded
          -- A task with endless retries must not fill the disk.
          AND (j.attempt <= 100 OR j.attempt % 100 = 0)
    ), back AS (
        UPDATE taskq_internal.live l SET
            holder = NULL,
            polled = NULL,
            available_at = j.due,
            late = j.depends OR j.due < v_late_before,
            attempt = CASE WHEN j.recorded THEN l.attempt ELSE l.attempt - 1 END,
            waits = CASE WHEN j.probe AND (j.recorded OR l.attempt > 1) THEN :WAITS_PROBE
                         WHEN j.depends THEN :WAITS_DEPENDENCIES ELSE :WAITS_NOTHING END,
            failed_at = CASE WHEN j.recorded THEN v_now ELSE l.failed_at END,
            elapsed = CASE WHEN j.recorded THEN coalesce(l.elapsed, interval '0') + j.delay ELSE l.elapsed END,
            error = CASE WHEN j.recorded THEN left(j.error, 10000) ELSE l.error END,
            error_summary = CASE WHEN j.recorded THEN j.summary ELSE l.error_summary END
        FROM judged j
        WHERE l.holder = p_owner_id AND l.sequence = ANY (v_tasks) AND l.sequence = j.sequence
          AND l.sequence BETWEEN (SELECT min(s) FROM unnest(v_tasks) s) AND (SELECT max(s) FROM unnest(v_tasks) s)
        RETURNING l.sequence)
    SELECT coalesce(array_agg(b.sequence), '{}') INTO v_back FROM back b;
    RETURN v_back;
END $$;

-- Returns the delay after p_attempts recorded failures, without jitter: min(base * factor ^ (attempts - 1), max_delay).
-- Returns NULL if no attempts are left, or if p_elapsed, the sum of the delays so far, has reached max_elapsed: the
-- task then fails. Compares logarithms first, because the power may overflow.
CREATE FUNCTION taskq_internal.retry_delay(p_topic taskq_internal.topic, p_attempts int, p_elapsed interval)
RETURNS interval LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_base float8;
    v_log  float8;
BEGIN
    IF p_attempts >= p_topic.max_attempts OR coalesce(p_elapsed, interval '0') >= p_topic.max_elapsed THEN
        RETURN NULL;
    END IF;
    v_base := extract(epoch FROM p_topic.base);
    v_log := (p_attempts - 1) * ln(p_topic.factor);
    RETURN CASE
        WHEN v_base = 0 OR v_log < -700 THEN interval '0'
        WHEN v_log > ln(greatest(extract(epoch FROM p_topic.max_delay), 1e-6) / v_base) THEN p_topic.max_delay
        ELSE least(make_interval(secs => v_base * power(p_topic.factor, p_attempts - 1)), p_topic.max_delay) END;
END $$;

-- Raises TQ004 for tasks that the owner does not hold now. The error names the first few of these tasks.
CREATE FUNCTION taskq_internal.raise_not_held(p_owner text, p_fence bigint, p_sequences bigint[], p_done bigint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_missing bigint[];
BEGIN
    v_missing := ARRAY(SELECT unnest(p_sequences) EXCEPT SELECT unnest(p_done) ORDER BY 1);
    PERFORM taskq_internal.raise_error('TQ004',
            format('owner %L under fence %s does not hold %s of %s tasks: sequence %s%s',
        p_owner, p_fence, cardinality(v_missing), cardinality(p_sequences), array_to_string(v_missing[:10], ', '),
        CASE WHEN cardinality(v_missing) > 10 THEN ', ...' ELSE '' END));
END $$;
