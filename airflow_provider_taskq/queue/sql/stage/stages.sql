-- Stages: the executors of a distributed job stage decisions or new tasks, and its driver commits all of them at once.
-- A stage of decisions belongs to the lease of an owner. A stage of a push has no fence.
--
-- Follow-ups are the new tasks and the groups to release in taskq.staged_task, with the decided task as their parent.
-- The commit applies them if each decision on the parent is continued.
--
-- The row in taskq_internal.stage is the only lock of a stage. An executor locks it FOR KEY SHARE after it has staged
-- rows, so each staged row has a stage. A commit and an end of the stage lock it FOR UPDATE. Pruning skips locked rows,
-- so it never waits.

-- Completes the decisions of a stage in chunks that limit the server's memory, and returns how many.
CREATE FUNCTION taskq_internal.complete_decisions(p_owner text, p_fence bigint, p_stage uuid) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_done   bigint := 0;
    v_chunk  record;
    v_chunks CURSOR FOR
        SELECT array_agg(n.sequence) AS sequences, array_agg(n.result) AS results, array_agg(n.output) AS outputs,
               array_agg(n.error) AS errors, CASE WHEN count(n.delay) > 0 THEN array_agg(n.delay) END AS delays
        FROM (SELECT s.*, (row_number() OVER w - 1) / 50000 AS nth,
                     sum(coalesce(octet_length(s.output), 0) + coalesce(octet_length(s.error), 0)) OVER w / 33554432
                         AS bulk
              FROM taskq.staged s WHERE s.stage = p_stage
              WINDOW w AS (ORDER BY s.sequence ROWS UNBOUNDED PRECEDING)) n
        GROUP BY n.nth, n.bulk ORDER BY n.nth, n.bulk;
BEGIN
    OPEN v_chunks;
    LOOP
        FETCH v_chunks INTO v_chunk;  -- one by one: a FOR loop would prefetch fifty chunks
        EXIT WHEN NOT FOUND;
        v_done := v_done + taskq.complete(p_owner, p_fence, v_chunk.sequences, v_chunk.results, v_chunk.outputs,
                                          v_chunk.errors, v_chunk.delays);
    END LOOP;
    CLOSE v_chunks;
    RETURN v_done;
END $$;

-- Creates the row of a stage that was not opened: the driver of a stream opens none, so its first executor does.
CREATE FUNCTION taskq_internal.ensure_stage(p_stage uuid, p_fence bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO taskq_internal.stage (stage, fence, opened_by) VALUES (p_stage, p_fence, taskq_internal.acting_role())
    ON CONFLICT DO NOTHING;
    PERFORM taskq_internal.check_stage_access(p_stage);
END $$;

-- Locks a stage and returns it. Waits for its commit, and up to 5 s for executors that have passed taskq.check_stage:
-- one that hangs does not block the commit, and pruning removes what it stages. An executor that comes later waits for
-- this transaction, and is refused.
CREATE FUNCTION taskq_internal.lock_stage(p_stage uuid, p_fence bigint) RETURNS taskq_internal.stage
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    v_stage taskq_internal.stage;
BEGIN
    PERFORM taskq_internal.ensure_stage(p_stage, p_fence);
    BEGIN
        SELECT * INTO v_stage FROM taskq_internal.stage WHERE stage = p_stage FOR UPDATE;
    EXCEPTION WHEN lock_not_available THEN
        SET LOCAL lock_timeout = 0;
        SELECT * INTO v_stage FROM taskq_internal.stage WHERE stage = p_stage FOR NO KEY UPDATE;
    END;
    RETURN v_stage;
END $$;

-- Deletes the staged rows of the given stages, whose rows this transaction has locked.
CREATE FUNCTION taskq_internal.delete_staged(p_stages uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM taskq.staged WHERE stage = ANY (p_stages);
    DELETE FROM taskq.staged_task WHERE stage = ANY (p_stages);
END $$;

-- Deletes the rows that unsuccessful attempts staged. Raises TQ007 if the stage has more or fewer decisions, or tasks
-- of a push, of a successful attempt than the attempt reported. The server has then crashed and lost them.
CREATE FUNCTION taskq_internal.keep_successful_attempts(
    p_stage uuid, p_parts int[], p_attempts bigint[], p_counts bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_short record;
BEGIN
    SELECT w.part, coalesce(f.count, 0) AS found, w.count AS reported INTO v_short
    FROM unnest(p_parts, p_attempts, p_counts) AS w (part, attempt, count)
    LEFT JOIN (SELECT r.part, r.attempt, count(*)
               FROM (SELECT part, attempt FROM taskq.staged WHERE stage = p_stage
                     UNION ALL SELECT part, attempt FROM taskq.staged_task WHERE stage = p_stage AND parent IS NULL) r
               GROUP BY r.part, r.attempt) f USING (part, attempt)
    WHERE coalesce(f.count, 0) <> w.count LIMIT 1;
    IF FOUND THEN
        PERFORM taskq_internal.raise_error('TQ007', format(
            'stage %s has %s of the %s rows that part %s reported: run the job again', p_stage, v_short.found,
            v_short.reported, v_short.part));
    END IF;
    DELETE FROM taskq.staged s WHERE s.stage = p_stage AND NOT EXISTS (
        SELECT FROM unnest(p_parts, p_attempts) AS w (part, attempt) WHERE w.part = s.part AND w.attempt = s.attempt);
    DELETE FROM taskq.staged_task s WHERE s.stage = p_stage AND NOT EXISTS (
        SELECT FROM unnest(p_parts, p_attempts) AS w (part, attempt) WHERE w.part = s.part AND w.attempt = s.attempt);
END $$;

-- Completes the tasks of a stage, pushes the follow-ups of continued tasks and releases their groups. If a task has
-- several decisions, the first one counts, in the order of results, parts and rows. Returns the stage with the numbers
-- of what it did.
CREATE FUNCTION taskq_internal.apply_decisions(p_stage taskq_internal.stage, p_owner text)
RETURNS taskq_internal.stage LANGUAGE plpgsql AS $$
DECLARE
    v_owner_id bigint := taskq_internal.require_lease(p_owner, p_stage.fence);
    v_followed boolean := EXISTS (SELECT FROM taskq.staged_task WHERE stage = p_stage.stage);
BEGIN
    IF v_followed THEN  -- before the merge, because all decisions of a task count
        DELETE FROM taskq.staged_task t USING taskq.staged s
        WHERE t.stage = p_stage.stage AND s.stage = p_stage.stage AND s.sequence = t.parent
          AND NOT coalesce(s.continued, s.result = :SUCCESS);
    END IF;
    DELETE FROM taskq.staged WHERE ctid = ANY (ARRAY(
        SELECT d.ctid FROM (
            SELECT s.ctid, row_number() OVER (PARTITION BY s.sequence ORDER BY s.result, s.part, s.ctid) AS place
            FROM taskq.staged s WHERE s.stage = p_stage.stage) d
        WHERE d.place > 1));
    p_stage.returned := CASE WHEN p_stage.rounds
            THEN taskq_internal.skip_immediate_returns(v_owner_id, p_stage.stage) ELSE 0 END
        + CASE WHEN p_stage.condition <> 'NONE'
            THEN taskq_internal.drop_overtaking_decisions(v_owner_id, p_stage.stage, p_stage.condition) ELSE 0 END;
    p_stage.results := ARRAY(
        SELECT coalesce(n.count, 0) FROM generate_series(:FAILURE, :SUCCESS) AS r (result)
        LEFT JOIN (SELECT s.result, count(*) FROM taskq.staged s WHERE s.stage = p_stage.stage GROUP BY s.result) n
            USING (result) ORDER BY r.result);
    p_stage.completed := taskq_internal.complete_decisions(p_owner, p_stage.fence, p_stage.stage);
    p_stage.pushed := 0;
    IF v_followed THEN
        DELETE FROM taskq.staged_task t WHERE t.stage = p_stage.stage AND NOT EXISTS (
            SELECT FROM taskq.staged s WHERE s.stage = p_stage.stage AND s.sequence = t.parent);
        p_stage.pushed := taskq_internal.push_staged(p_stage.stage, NULL, 'APPEND');
        PERFORM taskq_internal.release_staged_groups(p_stage.stage);
    END IF;
    RETURN p_stage;
END $$;

-- Releases each group of a stage once, in chunks of about ten thousand groups of a topic.
CREATE FUNCTION taskq_internal.release_staged_groups(p_stage uuid) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_chunk record;
BEGIN
    FOR v_chunk IN
        SELECT n.topic, n.junction, array_agg(m.identifier) AS identifiers, array_agg(n.nth::int) AS groups
        FROM (SELECT g.*, row_number() OVER (PARTITION BY g.topic, g.junction ORDER BY g.members) AS nth
              FROM (SELECT DISTINCT j.topic, j.junction, e.members::text
                    FROM taskq.staged_task j CROSS JOIN LATERAL json_array_elements(j.payload::json) AS e (members)
                    WHERE j.stage = p_stage AND j.junction IS NOT NULL) g) n
        CROSS JOIN LATERAL json_array_elements_text(n.members::json) AS m (identifier)
        GROUP BY n.topic, n.junction, n.nth / 10000 ORDER BY n.topic, n.junction, n.nth / 10000
    LOOP
        PERFORM taskq.junction(v_chunk.topic, v_chunk.identifiers, v_chunk.groups, v_chunk.junction);
    END LOOP;
END $$;

-- Deletes from a stage of rounds the failures of tasks within their ttl, without recording them, and the snoozes of
-- less than a second, and returns how many. Such a task would be READY at once, and the next round would claim it
-- before all tasks that were pushed later, without an end. The tasks stay held until the lease ends. The plan looks
-- each failed task up.
CREATE FUNCTION taskq_internal.skip_immediate_returns(p_owner_id bigint, p_stage uuid) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_count bigint;
BEGIN
    DELETE FROM taskq.staged s
    WHERE s.stage = p_stage
      AND CASE s.result WHEN :SUSPENSION THEN s.delay < interval '1 second'
                        WHEN :FAILURE THEN coalesce(s.delay, interval '0') >= interval '0' AND (
              SELECT (SELECT t.created + coalesce(t.ttl, (SELECT p.ttl FROM taskq_internal.topic p
                                                          WHERE p.topic_id = l.topic_id)) > v_now
                      FROM taskq_internal.task t WHERE t.topic_id = l.topic_id AND t.sequence = l.sequence)
              FROM taskq_internal.live l WHERE l.holder = p_owner_id AND l.sequence = s.sequence) END;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Deletes the overtaking decisions from a stage that was opened under a condition, and returns how many. A decision
-- overtakes if an earlier task of its identifier failed, is snoozed, has no decision, or is suspended under a condition
-- that blocks. The owner gives the tasks of deleted decisions back.
CREATE FUNCTION taskq_internal.drop_overtaking_decisions(p_owner_id bigint, p_stage uuid, p_condition text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    DELETE FROM taskq.staged s USING (
        SELECT l.sequence,
               bool_or(d.result IS NULL OR d.result = :FAILURE OR d.result = :SUSPENSION
                       AND (d.delay IS NOT NULL OR p_condition = 'SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS')) OVER (
                   PARTITION BY l.topic_id, l.identifier
                   ORDER BY (l.attempt > 1) DESC, CASE WHEN l.attempt > 1 THEN l.sequence END,
                            l.priority DESC, l.available_at, l.sequence
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS stopped
        FROM taskq_internal.live l
        LEFT JOIN (SELECT sequence, result, delay FROM taskq.staged WHERE stage = p_stage) d ON d.sequence = l.sequence
        WHERE l.holder = p_owner_id) t
    WHERE t.stopped AND s.stage = p_stage AND s.sequence = t.sequence;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- A dead stage has no executors once its row is locked, so it gets no more rows. The row stays for a day without its
-- fence: a driver that repeats its commit has to get the same answer.
CREATE FUNCTION taskq.prune_stages() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_dead uuid[] := ARRAY(
        SELECT s.stage FROM taskq_internal.stage s
        WHERE CASE WHEN s.fence IS NULL THEN coalesce(s.closed, s.opened) < clock_timestamp() - interval '1 day'
                   ELSE NOT EXISTS (SELECT FROM taskq_internal.owner o WHERE o.fence = s.fence) END
        FOR UPDATE OF s SKIP LOCKED);
BEGIN
    IF cardinality(v_dead) > 0 THEN
        PERFORM taskq_internal.delete_staged(v_dead);
        DELETE FROM taskq_internal.stage WHERE stage = ANY (v_dead) AND fence IS NULL;
        UPDATE taskq_internal.stage SET fence = NULL, closed = coalesce(closed, clock_timestamp())
        WHERE stage = ANY (v_dead);
    END IF;
    RETURN cardinality(v_dead);
END $$;
COMMENT ON FUNCTION taskq.prune_stages IS
'Removes the rows that dead drivers have staged: of owners that no longer have the lease under which the stage was
opened, and of pushes after a day. A job that stages for longer than a day fails at its commit. Never waits: a stage
that another transaction uses stays for a later call.';
