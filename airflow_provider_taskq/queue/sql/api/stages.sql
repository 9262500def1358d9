-- Stages of drains: stages of decisions and of pushes, committed once.

CREATE FUNCTION taskq.commit_stage(
    p_stage uuid, p_parts int[], p_attempts bigint[], p_counts bigint[], p_owner text DEFAULT NULL,
    p_fence bigint DEFAULT NULL, p_topic text DEFAULT NULL, p_insertion text DEFAULT 'APPEND'
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_stage taskq_internal.stage := taskq_internal.lock_stage(p_stage, p_fence);
BEGIN
    IF v_stage.completed IS NOT NULL THEN
        RETURN v_stage.completed;
    ELSIF v_stage.closed IS NOT NULL THEN
        PERFORM taskq_internal.raise_error('TQ007', format('stage %s was abandoned: run the job again', p_stage));
    END IF;
    PERFORM taskq_internal.keep_successful_attempts(p_stage, p_parts, p_attempts, p_counts);
    IF v_stage.fence IS NULL THEN
        v_stage.completed := taskq_internal.push_staged(p_stage, p_topic, p_insertion);
    ELSE
        v_stage := taskq_internal.apply_decisions(v_stage, p_owner);
    END IF;
    UPDATE taskq_internal.stage s SET
        completed = v_stage.completed, results = v_stage.results, pushed = v_stage.pushed,
        returned = v_stage.returned, closed = clock_timestamp()
    WHERE s.stage = p_stage;
    RETURN v_stage.completed;
END $$;
COMMENT ON FUNCTION taskq.commit_stage IS
'Commits the staged rows of the successful attempt of each part in this transaction: decisions with their follow-ups, or
a push. The arrays p_parts, p_attempts and p_counts name, for each part, its successful attempt and the number of
decisions or tasks that this attempt reported. If a task has several decisions, the first of FAILURE, SUSPENSION, FILTER
and SUCCESS applies. A push goes to p_topic, in the order of part and place. With p_topic NULL each task names its own
topic. Returns how many tasks it completed or pushed. A repeated call returns the same number and changes nothing.
Raises TQ005 if the owner has no lease under p_fence, TQ004 for tasks that the owner does not hold, and TQ007 if the
counts differ. Also raises the errors of taskq.push.';

CREATE FUNCTION taskq.close_stage(p_stage uuid)
RETURNS TABLE (completed bigint, pushed bigint, results bigint[], returned bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM taskq_internal.lock_stage(p_stage, NULL);
    UPDATE taskq_internal.stage s SET closed = clock_timestamp() WHERE s.stage = p_stage AND s.closed IS NULL;
    IF NOT FOUND THEN
        PERFORM taskq.notify(f.topic)
        FROM (SELECT DISTINCT topic FROM taskq.staged_task WHERE stage = p_stage AND topic IS NOT NULL) f;
    END IF;
    PERFORM taskq_internal.delete_staged(ARRAY[p_stage]);
    RETURN QUERY SELECT s.completed, s.pushed, s.results, s.returned FROM taskq_internal.stage s
                 WHERE s.stage = p_stage;
END $$;
COMMENT ON FUNCTION taskq.close_stage IS
'Removes the rows of a stage, which then accepts no more rows. If the stage was committed, it calls taskq.notify for
each topic that its rows name, and returns how many tasks the stage completed and how many follow-ups it pushed, how
many tasks it completed with FAILURE, SUSPENSION, FILTER and SUCCESS, in this order, and how many decisions it dropped.
A repeated call returns the same numbers. Waits for a transaction that commits or prunes the stage.';

CREATE FUNCTION taskq.open_stage(
    p_owner text DEFAULT NULL, p_fence bigint DEFAULT NULL, p_condition text DEFAULT 'NONE',
    p_rounds boolean DEFAULT false
) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_stage uuid := gen_random_uuid();
BEGIN
    PERFORM taskq_internal.check_order_and_condition('FIRST_IN_FIRST_OUT', p_condition);
    IF p_fence IS NOT NULL THEN
        PERFORM taskq_internal.require_lease(p_owner, p_fence);
    END IF;
    INSERT INTO taskq_internal.stage (stage, fence, condition, rounds, opened_by)
    VALUES (v_stage, p_fence, p_condition, p_rounds, taskq_internal.acting_role());
    RETURN v_stage;
END $$;
COMMENT ON FUNCTION taskq.open_stage IS
'Opens a stage for the decisions of an owner''s job, or without an owner for a push, and returns its number. p_condition
is the condition of the claim. Under a condition, the commit drops decisions that overtake a task of the same
identifier. With p_rounds true the owner claims again after the commit, and a task that would be READY at once stays
held: after a failure within its ttl, or a snooze of less than a second. Raises TQ005 if the owner has no lease under
p_fence, and TQ000 for an unknown condition.';

CREATE FUNCTION taskq.check_stage(p_stage uuid, p_owner text DEFAULT NULL, p_fence bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM taskq_internal.ensure_stage(p_stage, p_fence);
    PERFORM FROM taskq_internal.stage WHERE stage = p_stage AND closed IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_error('TQ007', format(
            'stage %s was committed or abandoned: it accepts no more rows', p_stage));
    END IF;
    IF p_fence IS NOT NULL AND NOT EXISTS (
            SELECT FROM taskq_internal.owner
            WHERE name = p_owner AND fence = p_fence AND taskq_internal.may_act_as(registered_by)) THEN
        PERFORM taskq_internal.raise_lease_lost(p_owner, p_fence);
    END IF;
END $$;
COMMENT ON FUNCTION taskq.check_stage IS
'Checks that a stage still accepts rows. An executor that stages rows calls it as its last statement. Raises TQ007 if
the stage was committed or abandoned, and TQ005 if the owner has no lease under p_fence.';

CREATE FUNCTION taskq.count_staged(p_stage uuid) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM taskq_internal.check_stage_access(p_stage);
    RETURN (SELECT count(*) FROM taskq.staged WHERE stage = p_stage);
END $$;
COMMENT ON FUNCTION taskq.count_staged IS
'Returns how many decisions a stage has so far.';

CREATE FUNCTION taskq.begin_stream_batch(p_stream text, p_batch bigint, p_query text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM taskq_internal.require_read_committed('begin_stream_batch()');
    PERFORM taskq_internal.check_name('a stream', p_stream);
    INSERT INTO taskq_internal.stream AS s (name, query, batch, committed)
        VALUES (p_stream, coalesce(p_query, ''), p_batch, clock_timestamp())
    ON CONFLICT (name, query) DO UPDATE SET batch = p_batch, committed = clock_timestamp() WHERE s.batch < p_batch;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION taskq.begin_stream_batch IS
'Records in this transaction that a stream commits a batch. p_query is the ID of the query in Spark''s checkpoint: each
checkpoint numbers its own batches. Waits for another run of the same stream. Returns false if the stream has already
committed this batch or a later one. Raises TQ008 for an invalid name.';
