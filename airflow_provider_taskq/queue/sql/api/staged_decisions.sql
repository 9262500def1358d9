-- Stages: the executors of a distributed job stage decisions, and its driver commits all of them at once.
--
-- Follow-ups are new tasks and junctions in taskq.staged_task and taskq.staged_junction, with the decided task as their
-- parent. The commit applies them if each decision of the parent is continued. A decision is continued if it is
-- SUCCESS, unless it overrides this by a row of taskq.staged_task without topic and identifier. The column suspended of
-- that row then tells whether the decision is continued.
--
-- A transaction that removes staged rows locks the row of their stage in taskq_internal.stage first. If the stage is a
-- push that was not committed, it has no such row, and the transaction takes the advisory lock of the stage. Pruning
-- skips the stages that another transaction has locked, so it never waits.
--
-- In rounds, an owner claims, works and commits several times under one lease. A drain is a program that works until a
-- topic has no more tasks. Its row tells when it began, and has its report.

-- Each range takes one scan of the index from the end of the last range. This is half the work of sorting and numbering
-- all tasks.
CREATE FUNCTION taskq.held_bounds(
    p_owner text, p_fence bigint, p_topic text, p_parts int, p_until timestamptz DEFAULT NULL
)
RETURNS TABLE (low bigint, high bigint, size bigint) LANGUAGE plpgsql SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_owner_id bigint := taskq_internal.require_lease(p_owner, p_fence);
    v_topic_id int := CASE WHEN p_topic IS NOT NULL THEN (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id END;
    v_deferred bigint[] := ARRAY(SELECT d.sequence FROM taskq_internal.deferred_task d WHERE d.fence = p_fence);
    v_left     bigint;
    v_size     bigint;
BEGIN
    SELECT count(*) INTO v_left FROM taskq_internal.live l
    WHERE l.holder = v_owner_id AND (v_topic_id IS NULL OR l.topic_id = v_topic_id)
      AND (p_until IS NULL OR l.polled <= p_until)
      AND (cardinality(v_deferred) = 0 OR l.sequence <> ALL (v_deferred));
    high := -1;
    FOR v_parts IN REVERSE p_parts .. 1 LOOP
        EXIT WHEN v_left <= 0;
        v_size := (v_left + v_parts - 1) / v_parts;
        SELECT min(n.sequence), max(n.sequence), count(*) INTO low, high, size
        FROM (SELECT l.sequence FROM taskq_internal.live l
              WHERE l.holder = v_owner_id AND l.sequence > high AND (v_topic_id IS NULL OR l.topic_id = v_topic_id)
                AND (p_until IS NULL OR l.polled <= p_until)
                AND (cardinality(v_deferred) = 0 OR l.sequence <> ALL (v_deferred))
              ORDER BY l.sequence LIMIT v_size) n;
        EXIT WHEN size = 0;
        RETURN NEXT;
        v_left := v_left - size;
    END LOOP;
END $$;
COMMENT ON FUNCTION taskq.held_bounds IS
'Splits the tasks that an owner holds into at most p_parts ranges of sequences of nearly equal size. With p_topic NULL
it splits the tasks of all topics. With p_until it leaves out the tasks that the owner claimed later. Leaves out deferred
tasks. Returns the lowest and highest sequence and the number of tasks of each range. Raises TQ005 if the owner has no
lease under p_fence, and TQ001 for an unknown topic.';

-- The plan reads both tables in the order of their sequences and merges them. This needs neither a sort nor a hash of
-- the payloads, which took half of the time of a read.
-- work_mem keeps the rows of 50,000 tasks out of temporary files.
CREATE FUNCTION taskq.held_slice(
    p_owner text, p_fence bigint, p_topic text, p_low bigint, p_high bigint, p_until timestamptz DEFAULT NULL
)
RETURNS TABLE (sequence bigint, topic text, identifier text, payload text, reference text, attempt int,
               redelivered boolean, priority int, created timestamptz, available_at timestamptz)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_hashjoin = off SET enable_sort = off SET plan_cache_mode = force_custom_plan SET work_mem = '32MB' AS $$
#variable_conflict use_column
DECLARE
    v_owner_id bigint;
    v_topic    record;
    v_deferred bigint[];
BEGIN
    SELECT owner_id INTO v_owner_id FROM taskq_internal.owner
    WHERE name = p_owner AND fence = p_fence AND taskq_internal.may_act_as(registered_by);
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_lease_lost(p_owner, p_fence);
    END IF;
    IF p_topic IS NOT NULL THEN
        PERFORM taskq_internal.accessible_topic(p_topic, 'UPDATE');
    END IF;
    v_deferred := ARRAY(SELECT d.sequence FROM taskq_internal.deferred_task d
                        WHERE d.fence = p_fence AND d.sequence BETWEEN p_low AND p_high);
    FOR v_topic IN SELECT p.topic_id, p.name FROM taskq_internal.topic p
                   WHERE p.name = p_topic
                      OR p_topic IS NULL AND p.topic_id IN (SELECT l.topic_id FROM taskq_internal.live l
                              WHERE l.holder = v_owner_id)
                   ORDER BY p.topic_id LOOP
        RETURN QUERY
        SELECT t.sequence, v_topic.name, t.identifier, t.payload::text, t.reference, l.attempt, l.redelivered,
               t.priority::int, t.created, l.available_at
        FROM (SELECT * FROM taskq_internal.live
              WHERE holder = v_owner_id AND sequence BETWEEN p_low AND p_high AND topic_id = v_topic.topic_id
                AND (p_until IS NULL OR polled <= p_until)
                AND (cardinality(v_deferred) = 0 OR sequence <> ALL (v_deferred))) l
        JOIN (SELECT * FROM taskq_internal.task WHERE topic_id = v_topic.topic_id AND sequence BETWEEN p_low
              AND p_high) t USING (sequence)
        ORDER BY t.sequence;
    END LOOP;
END $$;
COMMENT ON FUNCTION taskq.held_slice IS
'Returns the tasks that an owner holds between the sequences p_low and p_high, topic by topic, in the order of their
sequences. With p_topic NULL it returns the tasks of all topics. With p_until it leaves out the tasks that the owner
claimed later. Leaves out deferred tasks. Every call returns the same tasks until the owner completes them. Raises TQ005
if the owner has no lease under p_fence, and TQ001 for an unknown topic.';

CREATE FUNCTION taskq.open_stage(
    p_owner text, p_fence bigint, p_condition text DEFAULT 'NONE', p_rounds boolean DEFAULT false
) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_stage uuid := gen_random_uuid();
BEGIN
    PERFORM taskq_internal.check_order_and_condition('FIRST_IN_FIRST_OUT', p_condition);
    PERFORM taskq_internal.require_lease(p_owner, p_fence);
    INSERT INTO taskq_internal.stage (stage, fence, condition, rounds, opened_by)
    VALUES (v_stage, p_fence, p_condition, p_rounds, taskq_internal.acting_role());
    RETURN v_stage;
END $$;
COMMENT ON FUNCTION taskq.open_stage IS
'Opens a stage for the decisions of an owner''s job, and returns its number. p_condition is the condition of the claim.
Under a condition, the commit drops decisions that overtake a task of the same identifier. With p_rounds true the owner
claims again after the commit, and a task that would be READY at once stays held: after a failure within its ttl, or a
snooze of less than a second. Raises TQ005 if the owner has no lease
under p_fence, and TQ000 for an unknown condition.';

-- The commit waits for the end of the transactions that have passed this check (taskq_internal.await_executors). So an
-- attempt that outlives its job leaves no rows in the stage, and the commit does not count it.
CREATE FUNCTION taskq.check_stage(p_owner text, p_fence bigint, p_stage uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- The driver of a stream opens no stage, so the first executor opens it.
    IF NOT EXISTS (SELECT FROM taskq_internal.stage WHERE stage = p_stage) THEN
        INSERT INTO taskq_internal.stage (stage, fence, opened_by)
        VALUES (p_stage, p_fence, taskq_internal.acting_role()) ON CONFLICT DO NOTHING;
    END IF;
    PERFORM taskq_internal.check_stage_access(p_stage, 'UPDATE');
    PERFORM pg_advisory_xact_lock_shared(taskq_internal.mutex(:LOCK_STAGE, p_stage::text));
    IF NOT EXISTS (SELECT FROM taskq_internal.owner
                   WHERE name = p_owner AND fence = p_fence AND taskq_internal.may_act_as(registered_by)) THEN
        PERFORM taskq_internal.raise_lease_lost(p_owner, p_fence);
    END IF;
    IF EXISTS (SELECT FROM taskq_internal.stage WHERE stage = p_stage AND committed IS NOT NULL) THEN
        PERFORM taskq_internal.raise_error('TQ007', format(
            'stage %s was committed: it accepts no more decisions', p_stage));
    END IF;
END $$;
COMMENT ON FUNCTION taskq.check_stage IS
'Checks that a stage still accepts decisions. An executor that stages decisions calls it as its last statement. Raises
TQ007 if the stage was committed, and TQ005 if the owner has no lease under p_fence.';

CREATE FUNCTION taskq.complete_staged(
    p_owner text, p_fence bigint, p_stage uuid, p_parts int[], p_attempts bigint[], p_counts bigint[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_stage    taskq_internal.stage;
    v_counts   record;
    v_merged   bigint;
    v_returned bigint := 0;
    v_results  bigint[];
    v_done     bigint;
    v_pushed   bigint := 0;
    v_owner_id bigint;
    v_followed boolean;
BEGIN
    INSERT INTO taskq_internal.stage (stage, fence, opened_by) VALUES (p_stage, p_fence, taskq_internal.acting_role())
    ON CONFLICT DO NOTHING;
    PERFORM taskq_internal.check_stage_access(p_stage, 'UPDATE');
    SELECT * INTO v_stage FROM taskq_internal.stage WHERE stage = p_stage FOR NO KEY UPDATE;  -- one commit at a time
    IF v_stage.committed IS NOT NULL THEN
        RETURN v_stage.completed;
    END IF;
    PERFORM taskq_internal.await_executors(p_stage);
    v_owner_id := taskq_internal.require_lease(p_owner, p_fence);
    SELECT * INTO v_counts FROM taskq_internal.check_stage_counts(p_stage, p_parts, p_attempts, p_counts);
    PERFORM taskq_internal.drop_failed_attempts(p_stage, p_parts, p_attempts, v_counts.failed);
    v_followed := EXISTS (SELECT FROM taskq.staged_task WHERE stage = p_stage)
        OR EXISTS (SELECT FROM taskq.staged_junction WHERE stage = p_stage);
    IF v_followed THEN
        PERFORM taskq_internal.drop_not_continued(p_stage);
    END IF;
    v_merged := taskq_internal.merge_decisions(p_stage);
    IF v_stage.rounds THEN
        v_returned := taskq_internal.skip_immediate_returns(v_owner_id, p_stage);
    END IF;
    IF v_stage.condition <> 'NONE' THEN
        v_returned := v_returned + taskq_internal.drop_overtaking_decisions(v_owner_id, p_stage, v_stage.condition);
    END IF;
    v_results := CASE WHEN v_merged + v_returned = 0 THEN v_counts.results
                      ELSE taskq_internal.count_results(p_stage) END;
    v_done := taskq_internal.complete_decisions(p_owner, p_fence, p_stage,
                                                (SELECT sum(r.count)::bigint FROM unnest(v_results) AS r (count)),
                                                v_counts.may_return);
    IF v_followed THEN
        v_pushed := taskq_internal.apply_follow_ups(p_stage, p_parts, p_attempts);
    END IF;
    UPDATE taskq_internal.stage
    SET completed = v_done, results = v_results, pushed = v_pushed, returned = v_returned, committed = clock_timestamp()
    WHERE stage = p_stage;
    RETURN v_done;
END $$;
COMMENT ON FUNCTION taskq.complete_staged IS
'Commits the staged decisions of the successful attempt of each part, with their follow-ups, in this transaction. The
arrays p_parts, p_attempts and p_counts name, for each part, its successful attempt and the number of decisions that
this attempt reported. If a task has several decisions, the first of FAILURE, SUSPENSION, FILTER and SUCCESS applies.
Returns how many tasks it completed. A repeated call returns the same number and changes nothing. Raises TQ005 if the
owner has no lease under p_fence, TQ004 for tasks that the owner does not hold, and TQ007 if the counts differ. Also
raises the errors of taskq.push.';

CREATE FUNCTION taskq.completed_in_stage(p_stage uuid, p_sequences bigint[]) RETURNS bigint[]
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM taskq_internal.check_stage_access(p_stage, 'UPDATE');
    RETURN ARRAY(SELECT s.sequence FROM taskq.staged s WHERE s.stage = p_stage AND s.sequence = ANY (p_sequences));
END $$;
COMMENT ON FUNCTION taskq.completed_in_stage IS
'Returns the sequences among p_sequences whose decision a committed stage applied: the task has ended or is READY again.
Leaves out the tasks whose decision the commit dropped.';

CREATE FUNCTION taskq.abandon_stage(p_stage uuid) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    PERFORM taskq_internal.check_stage_access(p_stage, 'UPDATE');
    PERFORM FROM taskq_internal.stage WHERE stage = p_stage FOR UPDATE;  -- waits for complete_staged and prune_stages
    DELETE FROM taskq.staged WHERE stage = p_stage;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    DELETE FROM taskq.staged_task WHERE stage = p_stage;
    DELETE FROM taskq.staged_junction WHERE stage = p_stage;
    RETURN v_count;
END $$;
COMMENT ON FUNCTION taskq.abandon_stage IS
'Removes the decisions and follow-ups of a stage. Returns how many decisions it removed. A committed stage stays
committed. Waits for a transaction that completes or prunes the stage.';

CREATE FUNCTION taskq.finish_stage(p_stage uuid)
RETURNS TABLE (completed bigint, pushed bigint, results bigint[], returned bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_stage taskq_internal.stage;
BEGIN
    PERFORM taskq_internal.check_stage_access(p_stage, 'UPDATE');
    SELECT * INTO v_stage FROM taskq_internal.stage WHERE stage = p_stage AND fence IS NOT NULL;
    IF v_stage.committed IS NULL THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM taskq.notify(f.topic)
        FROM (SELECT topic FROM taskq.staged_task WHERE stage = p_stage AND topic IS NOT NULL
              UNION SELECT topic FROM taskq.staged_junction WHERE stage = p_stage) f;
    EXCEPTION WHEN OTHERS THEN
        NULL;  -- without a notification, consumers find the tasks by polling
    END;
    PERFORM taskq.abandon_stage(p_stage);
    RETURN QUERY SELECT v_stage.completed, v_stage.pushed, v_stage.results, v_stage.returned;
END $$;
COMMENT ON FUNCTION taskq.finish_stage IS
'Removes the rows of a committed stage. Calls taskq.notify for each topic to which the stage pushed tasks or in which it
released groups. Returns how many tasks the stage completed and how many it pushed, how many it completed with FAILURE,
SUSPENSION, FILTER and SUCCESS, in this order, and how many decisions the commit dropped. A repeated call returns the same numbers. Returns no row and
changes nothing before the commit.';

-- The query walks the index from stage to stage, so its cost grows with the stages and not with their decisions.
CREATE FUNCTION taskq.prune_stages() RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_dead uuid[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(taskq_internal.mutex(:LOCK_PRUNE, '')) THEN
        RETURN 0;
    END IF;
    v_dead := ARRAY(
        WITH RECURSIVE known AS (
            (SELECT s.stage FROM taskq.staged s ORDER BY s.stage LIMIT 1)
            UNION ALL
            SELECT (SELECT s.stage FROM taskq.staged s WHERE s.stage > k.stage ORDER BY s.stage LIMIT 1)
            FROM known k WHERE k.stage IS NOT NULL)
        SELECT k.stage FROM known k WHERE k.stage IS NOT NULL);
    v_dead := taskq_internal.lock_dead_stages(v_dead);
    DELETE FROM taskq.staged WHERE stage = ANY (v_dead);
    PERFORM taskq_internal.prune_deferred_tasks();
    PERFORM taskq_internal.prune_staged_tasks();
    -- Keeps the row for a day: an executor that has passed taskq.check_stage may still commit what it staged.
    DELETE FROM taskq_internal.stage WHERE stage = ANY (ARRAY(
        SELECT s.stage FROM taskq_internal.stage s
        WHERE coalesce(s.committed, s.opened) < clock_timestamp() - interval '1 day' AND s.fence IS NOT NULL
          AND NOT EXISTS (SELECT FROM taskq_internal.owner o WHERE o.fence = s.fence)
          AND NOT EXISTS (SELECT FROM taskq.staged d WHERE d.stage = s.stage)
          AND NOT EXISTS (SELECT FROM taskq.staged_junction j WHERE j.stage = s.stage)
        FOR UPDATE OF s SKIP LOCKED));
    RETURN cardinality(v_dead);
END $$;
COMMENT ON FUNCTION taskq.prune_stages IS
'Removes the stages whose owner no longer has the lease under which they were opened. Returns how many stages it
removed. One session prunes at a time. The call returns 0 if another session prunes. Never waits: a stage that another
transaction completes or abandons stays for a later call.';

CREATE FUNCTION taskq.defer_held_tasks(p_owner text, p_fence bigint, p_until timestamptz DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_owner_id bigint := taskq_internal.require_lease(p_owner, p_fence);
    v_count    bigint;
BEGIN
    INSERT INTO taskq_internal.deferred_task (fence, sequence)
    SELECT p_fence, l.sequence FROM taskq_internal.live l
    WHERE l.holder = v_owner_id AND (p_until IS NULL OR l.polled <= p_until)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
COMMENT ON FUNCTION taskq.defer_held_tasks IS
'Defers the tasks that an owner holds: they stay held until the lease ends, and later reads leave them out. So the owner
reads a task without a decision once in a lease. With p_until it leaves out the tasks that the owner claimed later.
Returns how many tasks it newly deferred. Raises TQ005 if the owner has no lease under p_fence.';

CREATE FUNCTION taskq.claim_batch(p_topic text, p_owner text, p_fence bigint, p_size int, p_condition text) RETURNS int
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_topic    taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'UPDATE');
    v_owner_id bigint := taskq_internal.require_running_lease(p_owner, p_fence);
    v_limit    int;
    v_heads    bigint[];
    v_all      int := 0;
    v_advanced boolean;
BEGIN
    PERFORM taskq_internal.check_order_and_condition('FIRST_IN_FIRST_OUT', p_condition);
    IF v_topic.paused OR v_owner_id IS NULL OR p_condition = 'NONE' THEN
        RETURN 0;
    END IF;
    PERFORM taskq_internal.require_read_committed('a claim under a condition');
    WHILE v_all < p_size LOOP
        v_limit := least(10000, p_size - v_all);  -- chunks limit the server's memory
        PERFORM taskq_internal.promote_waiting(v_topic, v_limit, false, p_condition);
        v_heads := taskq_internal.claim_turns(v_topic.topic_id, v_owner_id, v_limit, false, p_condition);
        v_heads := taskq_internal.cut_claim(v_topic.topic_id, v_owner_id, v_heads);
        v_all := v_all + cardinality(v_heads);
        EXIT WHEN taskq_internal.max_claim(v_owner_id) IS NOT NULL;  -- the later tasks would exceed it
        v_all := v_all + taskq_internal.claim_remaining_tasks(v_topic.topic_id, v_owner_id, v_heads, p_size - v_all);
        v_advanced := taskq_internal.advance_fronts_at_random(v_topic.topic_id, v_heads, false, true);
        EXIT WHEN cardinality(v_heads) < v_limit;
    END LOOP;
    RETURN v_all;
END $$;
COMMENT ON FUNCTION taskq.claim_batch IS
'Claims up to p_size due tasks of the identifiers that have the turn under p_condition, identifier by identifier. If the
claim reaches p_size within an identifier, the later tasks of that identifier stay unclaimed. If an identifier has
another attempted task, the call claims only the first task of the identifier. Returns how many tasks it claimed. Never
waits. Raises TQ001 for an unknown topic, TQ005 if the lease has lapsed or no longer exists, and TQ000 for an unknown
condition or above READ COMMITTED.';

CREATE FUNCTION taskq.count_staged(p_stage uuid) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    PERFORM taskq_internal.check_stage_access(p_stage, 'UPDATE');
    RETURN coalesce((SELECT completed FROM taskq_internal.stage WHERE stage = p_stage),
                    (SELECT count(*) FROM taskq.staged WHERE stage = p_stage));
END $$;
COMMENT ON FUNCTION taskq.count_staged IS
'Returns how many decisions a stage has so far, or how many tasks it completed if it is committed.';

CREATE FUNCTION taskq.begin_drain(p_name text, p_fence bigint, p_topic text) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    v_began timestamptz;
BEGIN
    PERFORM taskq_internal.accessible_topic(p_topic, 'UPDATE');
    PERFORM taskq_internal.check_name('a drain', p_name);
    INSERT INTO taskq_internal.drain AS d (name, topic, fence, began)
        VALUES (p_name, p_topic, p_fence, clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET
        began = CASE WHEN d.finished IS NULL AND d.topic = p_topic THEN d.began ELSE clock_timestamp() END,
        topic = p_topic, fence = p_fence, finished = NULL, report = NULL
    WHERE taskq_internal.may_access(d.topic, 'UPDATE')
    RETURNING d.began INTO v_began;
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_error('42501', format(
            'drain %L is one of another topic, which role %I may not consume', p_name, taskq_internal.acting_role()));
    END IF;
    RETURN v_began;
END $$;
COMMENT ON FUNCTION taskq.begin_drain IS
'Stores the start of a drain. Returns the moment from which its tasks count. If an earlier drain of this name and topic
left no report, this is the start of the earlier drain. p_fence is the fence of the drain''s owner. It is NULL for a
drain with several owners. Raises TQ001 for an unknown topic, and TQ008 for an invalid name.';

CREATE FUNCTION taskq.end_drain(p_name text, p_fence bigint, p_report text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF octet_length(p_report) > 65536 OR taskq_internal.has_unstorable_escape(p_report) THEN
        PERFORM taskq_internal.raise_error('TQ008', format(
            'the report of drain %L is not JSON of at most 64 KiB', p_name));
    END IF;
    UPDATE taskq_internal.drain SET finished = clock_timestamp(), report = p_report::json
    WHERE name = p_name AND fence IS NOT DISTINCT FROM p_fence AND finished IS NULL
        AND taskq_internal.may_access(topic, 'UPDATE');
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION taskq.end_drain IS
'Stores the report of a drain. Returns false and stores nothing if the drain has a report already, or if a later drain
of this name has started under another fence. Raises TQ008 for a report that is not JSON or is larger than 64 KiB.';

CREATE FUNCTION taskq.find_drain(p_name text)
RETURNS TABLE (topic text, began timestamptz, finished timestamptz, report json) LANGUAGE sql STABLE AS $$
    SELECT d.topic, d.began, d.finished, d.report FROM taskq_internal.drain d
    WHERE d.name = p_name AND taskq_internal.may_access(d.topic, 'SELECT, UPDATE')
$$;
COMMENT ON FUNCTION taskq.find_drain IS
'Returns the latest drain with this name. The columns finished and report are NULL until the drain ends. Returns no row
if no drain has this name.';

-- The query finds the tasks that have ended since p_since by the block range index of `completed`. The expressions with
-- `+ 0` keep the planner from other indexes, with which it would read the whole history of the topic.
CREATE FUNCTION taskq.count_ended_by(p_topic text, p_owner text, p_since timestamptz)
RETURNS TABLE (state int, count bigint) LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_indexscan = off
SET enable_nestloop = off AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE')).topic_id;
BEGIN
    RETURN QUERY
    SELECT e.state::int, count(*) FROM taskq_internal.ended e JOIN taskq_internal.owner o ON o.owner_id = e.holder
    WHERE e.topic_id + 0 = v_topic_id AND e.completed >= p_since AND e.state BETWEEN :FAILED AND :SUCCEEDED
      AND (o.name = p_owner OR starts_with(o.name, p_owner || '/'))
    GROUP BY e.state ORDER BY 1;
END $$;
COMMENT ON FUNCTION taskq.count_ended_by IS
'Returns how many tasks of a topic an owner has ended since a moment, for each state. It includes the tasks of owners
whose names begin with p_owner and a slash. A task that waits for its retry has not ended. Raises TQ001 for an unknown
topic.';

CREATE FUNCTION taskq.find_failed_by(p_topic text, p_owner text, p_since timestamptz, p_size int)
RETURNS TABLE (sequence bigint, identifier text, error text) LANGUAGE plpgsql STABLE SET enable_seqscan = off
SET enable_indexscan = off SET enable_nestloop = off AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE')).topic_id;
BEGIN
    RETURN QUERY
    SELECT e.sequence, e.identifier::text, e.error_summary FROM taskq_internal.ended e JOIN taskq_internal.owner o
        ON o.owner_id = e.holder
    WHERE e.topic_id + 0 = v_topic_id AND e.completed >= p_since AND e.state + 0 = :FAILED
      AND (o.name = p_owner OR starts_with(o.name, p_owner || '/'))
    ORDER BY e.sequence LIMIT p_size;
END $$;
COMMENT ON FUNCTION taskq.find_failed_by IS
'Returns up to p_size FAILED tasks of a topic that an owner has ended since a moment, in the order of their sequences.
It includes the tasks of owners whose names begin with p_owner and a slash. Raises TQ001 for an unknown topic.';

-- Waits until the executors that have passed taskq.check_stage have committed. Executors that come later wait for the
-- end of this transaction. The wait is limited to the lock_timeout below, so an executor that hangs does not block the
-- commit. taskq.prune_stages removes what such an executor stages.
CREATE FUNCTION taskq_internal.await_executors(p_stage uuid) RETURNS void LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(taskq_internal.mutex(:LOCK_STAGE, p_stage::text));
EXCEPTION WHEN lock_not_available THEN
    NULL;
END $$;

-- Raises TQ007 if the stage has more or fewer decisions of a successful attempt than the attempt reported. The server
-- has then crashed and lost them, or a session has abandoned the stage. Returns how many decisions of the successful
-- attempts have each result, whether one of them may return its task to READY, and whether the stage has decisions of
-- other attempts. All of this takes one pass over the stage.
CREATE FUNCTION taskq_internal.check_stage_counts(
    p_stage uuid, p_parts int[], p_attempts bigint[], p_counts bigint[],
    OUT results bigint[], OUT may_return boolean, OUT failed boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_short bigint[];
BEGIN
    WITH counted AS MATERIALIZED (
        SELECT s.part, s.attempt, s.result, count(*) AS count,
               bool_or(taskq_internal.may_return_to_ready(s.result, s.delay)) AS may_return
        FROM taskq.staged s WHERE s.stage = p_stage GROUP BY s.part, s.attempt, s.result
    ), reported AS MATERIALIZED (
        SELECT * FROM unnest(p_parts, p_attempts, p_counts) AS w (part, attempt, count)
    ), won AS (
        SELECT c.* FROM counted c WHERE EXISTS (SELECT FROM reported w WHERE w.part = c.part AND w.attempt = c.attempt)
    )
    SELECT ARRAY[coalesce(sum(w.count) FILTER (WHERE w.result = :FAILURE), 0),
                 coalesce(sum(w.count) FILTER (WHERE w.result = :SUSPENSION), 0),
                 coalesce(sum(w.count) FILTER (WHERE w.result = :FILTER), 0),
                 coalesce(sum(w.count) FILTER (WHERE w.result = :SUCCESS), 0)],
           coalesce(bool_or(w.may_return), false),
           coalesce(sum(w.count), 0) < (SELECT coalesce(sum(c.count), 0) FROM counted c),
           (SELECT ARRAY[r.part, coalesce(f.count, 0), r.count]
            FROM reported r
            LEFT JOIN (SELECT c.part, c.attempt, sum(c.count) AS count FROM counted c GROUP BY c.part, c.attempt) f
                USING (part, attempt)
            WHERE coalesce(f.count, 0) <> r.count LIMIT 1)
    INTO results, may_return, failed, v_short FROM won w;
    IF v_short IS NOT NULL THEN
        PERFORM taskq_internal.raise_error('TQ007', format(
            'stage %s has %s of the %s decisions that part %s reported: run the job again', p_stage, v_short[2],
            v_short[3], v_short[1]));
    END IF;
END $$;

-- Deletes the rows that unsuccessful attempts staged. p_decisions tells whether there are decisions among them.
CREATE FUNCTION taskq_internal.drop_failed_attempts(
    p_stage uuid, p_parts int[], p_attempts bigint[], p_decisions boolean
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_decisions THEN
        DELETE FROM taskq.staged s WHERE s.stage = p_stage AND NOT EXISTS (
            SELECT FROM unnest(p_parts, p_attempts) AS w (part, attempt)
            WHERE w.part = s.part AND w.attempt = s.attempt);
    END IF;
    DELETE FROM taskq.staged_task s WHERE s.stage = p_stage AND NOT EXISTS (
        SELECT FROM unnest(p_parts, p_attempts) AS w (part, attempt) WHERE w.part = s.part AND w.attempt = s.attempt);
    DELETE FROM taskq.staged_junction s WHERE s.stage = p_stage AND NOT EXISTS (
        SELECT FROM unnest(p_parts, p_attempts) AS w (part, attempt) WHERE w.part = s.part AND w.attempt = s.attempt);
END $$;

-- Leaves one decision for each task of a stage: deletes all but the first in the order of the results. Returns how many
-- decisions it deleted.
CREATE FUNCTION taskq_internal.merge_decisions(p_stage uuid) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    DELETE FROM taskq.staged s USING (
        SELECT ctid, row_number() OVER (PARTITION BY sequence ORDER BY result, part, output, error, delay) AS place
        FROM taskq.staged WHERE stage = p_stage) d
    WHERE d.place > 1 AND s.ctid = d.ctid;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Returns how many decisions of a stage have each result, from FAILURE on.
CREATE FUNCTION taskq_internal.count_results(p_stage uuid) RETURNS bigint[] LANGUAGE sql STABLE AS $$
    SELECT ARRAY[count(*) FILTER (WHERE s.result = :FAILURE), count(*) FILTER (WHERE s.result = :SUSPENSION),
                 count(*) FILTER (WHERE s.result = :FILTER), count(*) FILTER (WHERE s.result = :SUCCESS)]
    FROM taskq.staged s WHERE s.stage = p_stage
$$;

-- Completes the p_count staged decisions, and returns how many tasks it completed. For more than 50,000 decisions, one
-- statement ends the tasks whose decisions cannot return them to READY, and taskq.complete handles the rest. There is
-- no rest if p_may_return is false. If any task waits for other tasks, taskq.complete handles all decisions. Raises the
-- errors of taskq.complete.
CREATE FUNCTION taskq_internal.complete_decisions(
    p_owner text, p_fence bigint, p_stage uuid, p_count bigint, p_may_return boolean
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_done bigint := 0;
BEGIN
    IF p_count <= 50000 OR taskq_internal.has_waiting_tasks() THEN
        RETURN taskq_internal.complete_in_chunks(p_owner, p_fence, p_stage, true);
    END IF;
    IF p_may_return THEN
        v_done := taskq_internal.complete_in_chunks(p_owner, p_fence, p_stage, false);
    END IF;
    RETURN v_done + taskq_internal.end_staged_tasks(p_owner, p_fence, p_stage);
END $$;

-- Completes decisions of a stage, and returns how many. With p_all false it completes only the decisions that may
-- return their task to READY. It works in chunks, which limit the server's memory.
CREATE FUNCTION taskq_internal.complete_in_chunks(p_owner text, p_fence bigint, p_stage uuid, p_all boolean)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_done   bigint := 0;
    v_chunk  record;
    v_chunks CURSOR FOR
        SELECT array_agg(n.sequence) AS sequences, array_agg(n.result) AS results, array_agg(n.output) AS outputs,
               array_agg(n.error) AS errors, CASE WHEN bool_or(n.delay IS NOT NULL) THEN array_agg(n.delay) END
                   AS delays
        FROM (SELECT s.*, (row_number() OVER w - 1) / 50000 AS nth,
                     sum(coalesce(octet_length(s.output), 0) + coalesce(octet_length(s.error), 0)) OVER w / 33554432
                         AS bulk
              FROM taskq.staged s WHERE s.stage = p_stage
                  AND (p_all OR taskq_internal.may_return_to_ready(s.result, s.delay))
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

-- Returns whether a decision may return its task to READY. Returns true for an invalid decision, which taskq.complete
-- then rejects.
CREATE FUNCTION taskq_internal.may_return_to_ready(p_result smallint, p_delay interval) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_result NOT BETWEEN :SUSPENSION AND :SUCCESS OR p_delay IS NOT NULL
$$;

-- Ends the tasks of a stage whose decisions cannot return them to READY, and returns how many. It does the work of
-- end_tasks for millions of tasks: the plan reads both tables in the order of their sequences and merges them, without
-- arrays. Raises the errors of taskq.complete.
CREATE FUNCTION taskq_internal.end_staged_tasks(p_owner text, p_fence bigint, p_stage uuid) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_hashjoin = off AS $$
DECLARE
    v_owner_id bigint := taskq_internal.require_lease(p_owner, p_fence);
    v_began    timestamptz := clock_timestamp();
    v_bad      taskq.staged;
    v_ended    bigint;
BEGIN
    SELECT * INTO v_bad FROM taskq.staged s
    WHERE s.stage = p_stage AND taskq_internal.has_unstorable_escape(s.output)
    ORDER BY s.sequence LIMIT 1;
    IF FOUND THEN
        PERFORM taskq_internal.check_outputs(ARRAY[v_bad.sequence], ARRAY[v_bad.output]);
    END IF;
    WITH gone AS (
        DELETE FROM taskq_internal.live l USING taskq.staged s
        WHERE s.stage = p_stage AND NOT taskq_internal.may_return_to_ready(s.result, s.delay) AND l.holder = v_owner_id
            AND l.sequence = s.sequence
        RETURNING l.*, s.result, s.output, s.error AS reason)
    INSERT INTO taskq_internal.ended (sequence, completed, available_at, holder, polled, topic_id, attempt, state,
        crashes, redelivered, identifier, output, error, error_summary)
    SELECT g.sequence, clock_timestamp(), g.available_at, g.holder, g.polled, g.topic_id, g.attempt,
        taskq_internal.state_of_result(g.result), g.crashes,
           g.redelivered, g.identifier, g.output::json, coalesce(left(g.reason, 10000), g.error),
           coalesce(taskq_internal.error_summary(g.reason), g.error_summary)
    FROM gone g;
    GET DIAGNOSTICS v_ended = ROW_COUNT;
    IF v_ended < (SELECT count(*) FROM taskq.staged s WHERE s.stage = p_stage
                  AND NOT taskq_internal.may_return_to_ready(s.result, s.delay)) THEN
        PERFORM taskq_internal.raise_not_held(p_owner, p_fence,
            ARRAY(SELECT s.sequence FROM taskq.staged s WHERE s.stage = p_stage
                  AND NOT taskq_internal.may_return_to_ready(s.result, s.delay)),
            ARRAY(SELECT e.sequence FROM taskq_internal.ended e JOIN taskq.staged s USING (sequence)
                  WHERE s.stage = p_stage AND e.holder = v_owner_id AND e.completed >= v_began));
    END IF;
    RETURN v_ended;
END $$;

-- Deletes the follow-ups of tasks that are not continued. Runs before merge_decisions, because all decisions of a task
-- count.
CREATE FUNCTION taskq_internal.drop_not_continued(p_stage uuid) RETURNS void
LANGUAGE plpgsql SET enable_nestloop = off AS $$
BEGIN
    WITH said AS (
        SELECT t.parent, count(*) FILTER (WHERE t.suspended) AS yes, count(*) FILTER (WHERE NOT t.suspended) AS no
        FROM taskq.staged_task t WHERE t.stage = p_stage AND t.topic IS NULL AND t.identifier IS NULL GROUP BY t.parent
    ), continued AS (
        SELECT d.sequence
        FROM (SELECT s.sequence, count(*) FILTER (WHERE s.result <> :SUCCESS) AS others
              FROM taskq.staged s WHERE s.stage = p_stage GROUP BY s.sequence) d
        LEFT JOIN said m ON m.parent = d.sequence
        WHERE d.others <= coalesce(m.yes, 0) AND coalesce(m.no, 0) = 0
    ), not_pushed AS (
        DELETE FROM taskq.staged_task t WHERE t.stage = p_stage
          AND (t.topic IS NULL AND t.identifier IS NULL
               OR NOT EXISTS (SELECT FROM continued c WHERE c.sequence = t.parent)))
    DELETE FROM taskq.staged_junction j WHERE j.stage = p_stage
      AND NOT EXISTS (SELECT FROM continued c WHERE c.sequence = j.parent);
END $$;

-- Deletes the follow-ups of tasks whose decision the commit dropped. Pushes the tasks and releases the groups of the
-- others. Returns how many tasks it pushed.
CREATE FUNCTION taskq_internal.apply_follow_ups(p_stage uuid, p_parts int[], p_attempts bigint[]) RETURNS bigint
LANGUAGE plpgsql SET enable_nestloop = off AS $$
DECLARE
    v_pushed bigint;
BEGIN
    DELETE FROM taskq.staged_task t WHERE t.stage = p_stage
      AND NOT EXISTS (SELECT FROM taskq.staged s WHERE s.stage = p_stage AND s.sequence = t.parent);
    DELETE FROM taskq.staged_junction j WHERE j.stage = p_stage
      AND NOT EXISTS (SELECT FROM taskq.staged s WHERE s.stage = p_stage AND s.sequence = j.parent);
    v_pushed := taskq_internal.push_from_stage(p_stage, NULL, 'APPEND', p_parts, p_attempts);
    PERFORM taskq_internal.release_staged_groups(p_stage);
    RETURN v_pushed;
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
                    FROM taskq.staged_junction j CROSS JOIN LATERAL json_array_elements(j.groups::json) AS e (members)
                    WHERE j.stage = p_stage) g) n
        CROSS JOIN LATERAL json_array_elements_text(n.members::json) AS m (identifier)
        GROUP BY n.topic, n.junction, n.nth / 10000 ORDER BY n.topic, n.junction, n.nth / 10000
    LOOP
        PERFORM taskq.junction(v_chunk.topic, v_chunk.identifiers, v_chunk.groups, v_chunk.junction);
    END LOOP;
END $$;

-- Claims the due tasks that follow the first tasks of their identifiers. p_heads has these first tasks, which this
-- transaction has locked. Returns how many tasks it claimed.
CREATE FUNCTION taskq_internal.claim_remaining_tasks(p_topic_id int, p_holder bigint, p_heads bigint[], p_size int)
RETURNS int LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_identifiers text[];
    v_found bigint[];
    v_chunk int;
    v_room  int := p_size;
    v_all   int := 0;
BEGIN
    v_identifiers := ARRAY(SELECT l.identifier FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
                           AND l.sequence = ANY (p_heads)
                     AND (SELECT a.sequence FROM taskq_internal.live a
                          WHERE a.identifier = l.identifier AND a.topic_id = p_topic_id AND a.attempt > 0
                              AND coalesce(a.polled, 'infinity') = 'infinity'
                          ORDER BY a.sequence LIMIT 1) IS NULL
                     ORDER BY l.sequence);
    WHILE v_room > 0 AND cardinality(v_identifiers) > 0 LOOP
        v_chunk := least(50000, v_room);
        v_found := taskq_internal.lock_remaining_tasks(p_topic_id, v_now, v_identifiers, v_chunk);
        v_all := v_all + cardinality(taskq_internal.claim_locked(p_topic_id, p_holder, v_found));
        v_room := p_size - v_all;
        EXIT WHEN cardinality(v_found) < v_chunk;  -- no tasks are left, or a lock has cut an identifier
    END LOOP;
    RETURN v_all;
END $$;

-- Locks the first due tasks of the given identifiers, identifier by identifier, at most p_size in all. Returns their
-- sequences. If another transaction holds a task of an identifier, it returns only the tasks before that task.
CREATE FUNCTION taskq_internal.lock_remaining_tasks(p_topic_id int, p_now timestamptz, p_identifiers text[], p_size int)
RETURNS bigint[] LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_found  bigint[];
    v_locked bigint[];
BEGIN
    v_found := ARRAY(
        SELECT t.sequence FROM unnest(p_identifiers) AS u (identifier)
        CROSS JOIN LATERAL (
            SELECT b.sequence FROM taskq_internal.live b
            WHERE b.topic_id::bigint = p_topic_id AND b.identifier = u.identifier AND b.holder IS NULL
              -- + 0 keeps the planner from the index live_ready, which has the tasks of all identifiers.
              AND b.waits + 0 <= :WAITS_NOTHING AND b.available_at <= p_now
            ORDER BY b.priority DESC, b.available_at, b.sequence LIMIT p_size) t
        LIMIT p_size);
    v_locked := ARRAY(SELECT l.sequence FROM taskq_internal.live l
                      WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_found) AND l.holder IS NULL
                          FOR UPDATE SKIP LOCKED);
    IF cardinality(v_locked) = cardinality(v_found) THEN
        RETURN v_found;
    END IF;
    RETURN ARRAY(
        SELECT n.sequence FROM (
            SELECT u.sequence, bool_and(k.sequence IS NOT NULL) OVER (PARTITION BY l.identifier ORDER BY u.place)
                AS whole
            FROM unnest(v_found) WITH ORDINALITY AS u (sequence, place)
            JOIN taskq_internal.live l ON l.topic_id = p_topic_id AND l.sequence = u.sequence
            LEFT JOIN unnest(v_locked) AS k (sequence) ON k.sequence = u.sequence) n
        WHERE n.whole);
END $$;

-- Locks those of the given stages whose owner no longer has the lease under which they were opened, and returns them.
-- Never waits: leaves out the stages that another transaction has locked.
CREATE FUNCTION taskq_internal.lock_dead_stages(p_stages uuid[]) RETURNS uuid[]
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    RETURN ARRAY(
        SELECT s.stage FROM taskq_internal.stage s
        WHERE s.stage = ANY (p_stages) AND s.fence IS NOT NULL
          AND NOT EXISTS (SELECT FROM taskq_internal.owner o WHERE o.fence = s.fence)
        FOR UPDATE OF s SKIP LOCKED);
END $$;

-- Deletes the deferred tasks of leases that no longer exist. The query walks the index from fence to fence.
CREATE FUNCTION taskq_internal.prune_deferred_tasks() RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    DELETE FROM taskq_internal.deferred_task WHERE fence = ANY (ARRAY(
        WITH RECURSIVE known AS (
            (SELECT d.fence FROM taskq_internal.deferred_task d ORDER BY d.fence LIMIT 1)
            UNION ALL
            SELECT (SELECT d.fence FROM taskq_internal.deferred_task d WHERE d.fence > k.fence ORDER BY d.fence LIMIT 1)
            FROM known k WHERE k.fence IS NOT NULL)
        SELECT k.fence FROM known k
        WHERE k.fence IS NOT NULL AND NOT EXISTS (SELECT FROM taskq_internal.owner o WHERE o.fence = k.fence)));
END $$;

-- Deletes from a stage of rounds the failures of tasks within their ttl, without recording them, and the snoozes of
-- less than a second. Such a task would be READY at once, and the next round would claim it before all tasks that were
-- pushed later, without an end. The tasks stay held until the lease ends.
CREATE FUNCTION taskq_internal.skip_immediate_returns(p_owner_id bigint, p_stage uuid) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_failed bigint[];
    v_topics int[];
    v_short  bigint;
    v_count  bigint;
BEGIN
    DELETE FROM taskq.staged
    WHERE stage = p_stage AND result = :SUSPENSION AND delay < interval '1 second';
    GET DIAGNOSTICS v_short = ROW_COUNT;
    v_failed := ARRAY(SELECT sequence FROM taskq.staged
                      WHERE stage = p_stage AND result = :FAILURE AND coalesce(delay, interval '0') >= interval '0');
    v_topics := taskq_internal.held_topics(p_owner_id, v_failed);
    DELETE FROM taskq.staged s USING (
        SELECT t.sequence
        FROM (SELECT * FROM taskq_internal.task WHERE topic_id = ANY (v_topics) AND sequence = ANY (v_failed)) t
        JOIN (SELECT * FROM taskq_internal.live
              WHERE holder = p_owner_id AND sequence = ANY (v_failed)  -- for the range, see complete.sql
                AND sequence BETWEEN (SELECT min(s) FROM unnest(v_failed) s) AND (SELECT max(s) FROM unnest(v_failed) s)) l
            USING (topic_id, sequence)
        JOIN taskq_internal.topic p ON p.topic_id = t.topic_id
        WHERE t.created + coalesce(t.ttl, p.ttl) > v_now) y
    WHERE s.stage = p_stage AND s.sequence = y.sequence;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_short + v_count;
END $$;

-- Deletes the overtaking decisions from a stage that was opened under a condition. A decision overtakes if an earlier
-- task of its identifier failed, is snoozed, has no decision, or is suspended under a condition that blocks. The owner
-- gives the tasks of deleted decisions back.
CREATE FUNCTION taskq_internal.drop_overtaking_decisions(p_owner_id bigint, p_stage uuid, p_condition text)
RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
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
