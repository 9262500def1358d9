-- Consumers: poll, count what is ready, and exchange. complete is in change/decisions.sql, because stages use it.

CREATE FUNCTION taskq.poll(
    p_topic text, p_owner text, p_fence bigint, p_size int DEFAULT 1, p_order text DEFAULT 'FIRST_IN_FIRST_OUT',
    p_condition text DEFAULT 'NONE'
) RETURNS TABLE (sequence bigint, identifier text, payload json, reference text, attempt int, redelivered boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_topic   taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'UPDATE');
    v_claimed bigint[] := taskq_internal.claim_for_owner(v_topic, p_owner, p_fence, p_size, p_order, p_condition);
BEGIN
    IF cardinality(v_claimed) = 1 THEN  -- saves the joins of claimed_tasks
        RETURN QUERY
        SELECT t.sequence, t.identifier, t.payload, t.reference, l.attempt, l.redelivered
        FROM taskq_internal.task t, taskq_internal.live l
        WHERE t.topic_id = v_topic.topic_id AND t.sequence = v_claimed[1]
          AND l.topic_id = v_topic.topic_id AND l.sequence = v_claimed[1];
    ELSIF cardinality(v_claimed) > 1 THEN
        RETURN QUERY SELECT * FROM taskq_internal.claimed_tasks(v_topic.topic_id, v_claimed);
    END IF;
END $$;
COMMENT ON FUNCTION taskq.poll IS
'Claims up to p_size due tasks for the owner and returns them. After a crash, it claims the tasks of the crashed owner
in smaller groups, and no others with them. p_order is FIRST_IN_FIRST_OUT or LAST_IN_FIRST_OUT. p_condition is NONE,
SINGULAR_BY_IDENTIFIER, or one of its variants that suspend. A poll that finds nothing first ends the lapsed leases of
owners that hold tasks of the topic, as taskq.expire does. Never waits. Raises TQ001 for an unknown topic, and TQ005 if
the lease has lapsed or no longer exists. Raises TQ000 for an unknown order or condition, and for a poll under a
condition above READ COMMITTED.';

CREATE FUNCTION taskq.claim(p_topic text, p_owner text, p_fence bigint, p_size int, p_order text, p_condition text)
RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_chunk int := 50000;  -- limits the server's memory for a claim of millions
    v_got   int;
    v_all   int := 0;
BEGIN
    LOOP
        v_got := cardinality(taskq_internal.claim_for_owner(
            taskq_internal.accessible_topic(p_topic, 'UPDATE'), p_owner, p_fence, least(v_chunk, p_size - v_all),
            p_order, p_condition));
        v_all := v_all + v_got;
        EXIT WHEN v_got < v_chunk OR v_all >= p_size;
    END LOOP;
    RETURN v_all;
END $$;
COMMENT ON FUNCTION taskq.claim IS
'Claims tasks like taskq.poll, but does not return them. Returns how many tasks it claimed. Raises the errors of
taskq.poll, such as TQ001 for an unknown topic.';

CREATE FUNCTION taskq.ready(
    p_topic text, p_limit int DEFAULT 1, p_condition text DEFAULT 'NONE', p_locked boolean DEFAULT false
) RETURNS int LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM taskq_internal.check_order_and_condition('FIRST_IN_FIRST_OUT', p_condition);
    RETURN taskq_internal.count_ready(taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE'),
                                      least(p_limit, :MAX_TASKS), p_condition, p_locked);
END $$;
COMMENT ON FUNCTION taskq.ready IS
'Returns how many tasks a poll could claim now, counted up to p_limit. It does not count rows that open transactions
hold. Under a condition it also leaves out identifiers that open transactions hold, unless p_locked is true: an open
poll holds all identifiers that it examines, so an empty poll does not prove that the topic is empty, and 0 with
p_locked does. Returns 0 for a paused topic. Takes no locks. Raises TQ001 for an unknown topic, and TQ000 for an unknown
condition.';

CREATE FUNCTION taskq.poll_batch(p_topic text, p_owner text, p_fence bigint, p_identifiers int, p_size int)
RETURNS TABLE (sequence bigint, identifier text, payload json, reference text, attempt int, redelivered boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_topic taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'UPDATE');
BEGIN
    IF p_size < -1 THEN
        PERFORM taskq_internal.raise_error('TQ008', format(
            'topic %L: invalid group size %s: expected -1 for all tasks, or 0 or more', p_topic, p_size));
    END IF;
    RETURN QUERY SELECT * FROM taskq_internal.claimed_tasks(v_topic.topic_id, taskq_internal.claim_for_owner(
        v_topic, p_owner, p_fence, CASE WHEN p_size <> 0 THEN coalesce(p_identifiers, 0) ELSE 0 END,
        'FIRST_IN_FIRST_OUT', 'BATCH', nullif(p_size, -1)));
END $$;
COMMENT ON FUNCTION taskq.poll_batch IS
'Claims the due tasks of up to p_identifiers identifiers, in polled order, and returns them. It claims at most p_size
tasks of each identifier. With p_size -1 it claims all of them. The groups come in the order of their first tasks. In a
group, retries come first, by sequence. It leaves out an identifier with an ACTIVE or a FAILED task, or with a retry
that is not due. Never waits. Raises TQ001 for
an unknown topic, TQ005 if the lease has lapsed or no longer exists, TQ008 for an invalid size, and TQ000 above READ
COMMITTED.';

CREATE FUNCTION taskq.exchange(
    p_owner text, p_fence bigint, p_sequences bigint[], p_results smallint[], p_outputs text[], p_errors text[],
    p_delays interval[], p_summaries text[], p_topic text, p_size int, p_order text, p_condition text,
    p_attempts int[] DEFAULT NULL
) RETURNS TABLE (sequence bigint, identifier text, payload json, reference text, attempt int, redelivered boolean)
LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(p_sequences) > 0 THEN
        PERFORM taskq.complete(p_owner, p_fence, p_sequences, p_results, p_outputs, p_errors, p_delays, p_summaries,
                               p_attempts);
    END IF;
    RETURN QUERY SELECT * FROM taskq.poll(p_topic, p_owner, p_fence, p_size, p_order, p_condition);
END $$;
COMMENT ON FUNCTION taskq.exchange IS
'Completes tasks like taskq.complete and then polls like taskq.poll, in one call. It does both or neither. Raises the
errors of both functions: TQ001 for an unknown topic, TQ002, TQ004, TQ005 and TQ000.';
