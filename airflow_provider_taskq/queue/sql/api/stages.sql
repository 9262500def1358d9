-- For a distributed engine: what an owner holds in equal slices, and decisions staged by many, committed by one.

-- Cuts what the owner holds (of a topic, or NULL: of all) into at most p_parts ranges of sequences of nearly equal length, with the
-- number of tasks in each. What was laid aside (see rounds.sql) is left out. Refuses a lease that is gone (TQ005).
CREATE FUNCTION taskq.held_bounds(p_owner text, p_fence bigint, p_topic text, p_parts int)
RETURNS TABLE (low bigint, high bigint, size bigint) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_owner_id bigint := taskq.hold_lease(p_owner, p_fence);
    v_topic_id int := CASE WHEN p_topic IS NOT NULL THEN (taskq.find_topic(p_topic)).topic_id END;
    v_aside    uuid := taskq.aside(p_fence);
BEGIN
    RETURN QUERY
    SELECT min(n.sequence), max(n.sequence), count(*)
    FROM (SELECT l.sequence, ntile(p_parts) OVER (ORDER BY l.sequence) AS part
          FROM taskq.live l
          WHERE l.holder = v_owner_id AND (v_topic_id IS NULL OR l.topic_id = v_topic_id)
            AND NOT EXISTS (SELECT FROM taskq.staged s WHERE s.stage = v_aside AND s.sequence = l.sequence)) n
    GROUP BY n.part ORDER BY 1;
END $$;

-- The tasks that the owner holds (of a topic, or NULL: of all) in one range of sequences, topic by topic in their order. Pure: read it
-- as often as you like, it is the same until the tasks are completed. What was laid aside (see rounds.sql) is left out. Refuses a
-- lease that is gone (TQ005). Both tables are walked in the order of their sequences and merged, which needs neither a sort of
-- payloads nor a hash of them: this was half of what a read cost.
CREATE FUNCTION taskq.held_slice(p_owner text, p_fence bigint, p_topic text, p_low bigint, p_high bigint)
RETURNS TABLE (sequence bigint, topic text, identifier text, payload text, reference text, attempt int,
               redelivered boolean, priority int, created timestamptz, available_at timestamptz)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_hashjoin = off SET enable_sort = off
SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
DECLARE
    v_owner_id bigint;
    v_topic    record;
    v_aside    bigint[];
BEGIN
    SELECT owner_id INTO v_owner_id FROM taskq.owner WHERE name = p_owner AND fence = p_fence;
    IF NOT FOUND THEN
        PERFORM taskq.refuse_lease(p_owner, p_fence);
    END IF;
    IF p_topic IS NOT NULL THEN
        PERFORM taskq.find_topic(p_topic);
    END IF;
    v_aside := ARRAY(SELECT s.sequence FROM taskq.staged s
                     WHERE s.stage = taskq.aside(p_fence) AND s.sequence BETWEEN p_low AND p_high);
    FOR v_topic IN SELECT p.topic_id, p.name FROM taskq.topic p
                   WHERE p.name = p_topic
                      OR p_topic IS NULL AND p.topic_id IN (SELECT l.topic_id FROM taskq.live l WHERE l.holder = v_owner_id)
                   ORDER BY p.topic_id LOOP
        RETURN QUERY
        SELECT t.sequence, v_topic.name, t.identifier, t.payload::text, t.reference, l.attempt, l.redelivered,
               t.priority::int, t.created, l.available_at
        FROM (SELECT * FROM taskq.live
              WHERE holder = v_owner_id AND sequence BETWEEN p_low AND p_high AND topic_id = v_topic.topic_id
                AND (cardinality(v_aside) = 0 OR sequence <> ALL (v_aside))) l
        JOIN (SELECT * FROM taskq.task WHERE topic_id = v_topic.topic_id AND sequence BETWEEN p_low AND p_high) t USING (sequence)
        ORDER BY t.sequence;
    END LOOP;
END $$;

-- The number of a new stage. It is a UUID of version 8 that begins with the fence of the owner it serves, so that
-- what is left of a job that was killed can be told from what a living one stages. After the version it says how the stage is
-- carried out: under a condition, none of the decisions overtakes a task of its identifier (see taskq.keep_turns); with p_rounds, what
-- would be ready again at once stays held (see taskq.keep_young). Refuses a lease that is gone (TQ005).
CREATE FUNCTION taskq.open_stage(p_owner text, p_fence bigint, p_condition text DEFAULT 'NONE', p_rounds boolean DEFAULT false)
RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_random text := replace(gen_random_uuid()::text, '-', '');
    v_turns  int := CASE p_condition WHEN 'NONE' THEN 0 WHEN 'SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS' THEN 2 ELSE 1 END;
BEGIN
    PERFORM taskq.check_order('FIRST_IN_FIRST_OUT', p_condition);
    PERFORM taskq.hold_lease(p_owner, p_fence);
    RETURN (lpad(to_hex(p_fence), 12, '0') || '8' || v_turns + CASE WHEN p_rounds THEN 4 ELSE 0 END || substr(v_random, 15))::uuid;
END $$;

-- The fence of the owner that a stage of taskq.open_stage serves; NULL for a number that was made elsewhere.
CREATE FUNCTION taskq.stage_fence(p_stage uuid) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN substr(p_stage::text, 15, 1) = '8'
                THEN ('x0000' || substr(replace(p_stage::text, '-', ''), 1, 12))::bit(64)::bigint END
$$;

-- How a stage of taskq.open_stage is carried out: 1 or 2 under a condition, and 4 more in rounds; 0 for any other number.
CREATE FUNCTION taskq.stage_kind(p_stage uuid) RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN taskq.stage_fence(p_stage) IS NOT NULL AND substr(p_stage::text, 16, 1) ~ '[0-7]'
                THEN substr(p_stage::text, 16, 1)::int ELSE 0 END
$$;

-- Refuses to stage more where nobody will come for it: the stage was committed (TQ007) or its owner's lease is gone
-- (TQ005). For executors, last in the transaction that stages: who carries the stage out waits for its end (see
-- taskq.await_tries), so that tries that outlived their job leave nothing behind and are not counted.
CREATE FUNCTION taskq.check_stage(p_owner text, p_fence bigint, p_stage uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM taskq_internal.mutex WHERE bucket = taskq.mutex_of(2, p_stage::text) FOR KEY SHARE;
    IF NOT EXISTS (SELECT FROM taskq.owner WHERE name = p_owner AND fence = p_fence) THEN
        PERFORM taskq.refuse_lease(p_owner, p_fence);
    END IF;
    IF EXISTS (SELECT FROM taskq.stage WHERE stage = p_stage) THEN
        PERFORM taskq.refuse('TQ007', format('stage %s was committed: it takes no more decisions', p_stage));
    END IF;
END $$;

-- Waits until the tries that have passed taskq.check_stage have come to their end; those that come to it later wait for the end of
-- this transaction. Not for long: one whose executor stands still holds nothing up, and what it stages goes with the lease.
CREATE FUNCTION taskq.await_tries(p_stage uuid) RETURNS void LANGUAGE plpgsql
SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM FROM taskq_internal.mutex WHERE bucket = taskq.mutex_of(2, p_stage::text) FOR UPDATE;
EXCEPTION WHEN lock_not_available THEN
    NULL;
END $$;

-- Carries out a stage: of each part the decisions of its winning try, all of them in this transaction, and what follows them
-- (see follow_ups.sql). The arrays name those tries and how many decisions each staged. Decisions of one task are merged to the
-- result that stands first in FAILURE, SUSPENSION, FILTER, SUCCESS, with all that belongs to it. Refuses a lease that is gone
-- (TQ005), tasks not held (TQ004), a stage that is not whole (TQ007), and what a push refuses. Asked again after its commit, it
-- answers the same and changes nothing. What it carried out stays readable in taskq.stage_results until taskq.abandon_stage.
CREATE FUNCTION taskq.complete_staged(
    p_owner text, p_fence bigint, p_stage uuid, p_parts int[], p_attempts bigint[], p_counts bigint[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_done     bigint := 0;
    v_owner_id bigint;
    v_followed boolean;
BEGIN
    INSERT INTO taskq.stage (stage, completed, committed) VALUES (p_stage, 0, clock_timestamp())
    ON CONFLICT (stage) DO NOTHING;
    IF NOT FOUND THEN
        RETURN (SELECT completed FROM taskq.stage WHERE stage = p_stage);
    END IF;
    PERFORM taskq.await_tries(p_stage);
    v_owner_id := taskq.hold_lease(p_owner, p_fence);
    PERFORM taskq.check_staged(p_stage, p_parts, p_attempts, p_counts);
    PERFORM taskq.keep_winners(p_stage, p_parts, p_attempts);
    v_followed := taskq.is_followed(p_stage);
    IF v_followed THEN
        PERFORM taskq.drop_not_continued(p_stage);
    END IF;
    PERFORM taskq.merge_staged(p_stage);
    PERFORM taskq.keep_young(v_owner_id, p_stage);
    PERFORM taskq.keep_turns(v_owner_id, p_stage);
    v_done := taskq.carry_out(p_owner, p_fence, p_stage);
    IF v_followed THEN
        PERFORM taskq.follow(p_stage, p_parts, p_attempts);
    END IF;
    UPDATE taskq.stage SET completed = v_done WHERE stage = p_stage;
    RETURN v_done;
END $$;

-- Refuses a stage in which a winning try has more or fewer decisions than it reported (TQ007): the server
-- crashed and lost them, or somebody abandoned it.
CREATE FUNCTION taskq.check_staged(p_stage uuid, p_parts int[], p_attempts bigint[], p_counts bigint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_short record;
BEGIN
    SELECT w.part, w.count AS reported, coalesce(s.count, 0) AS found INTO v_short
    FROM unnest(p_parts, p_attempts, p_counts) AS w (part, attempt, count)
    LEFT JOIN (SELECT part, attempt, count(*) FROM taskq.staged WHERE stage = p_stage GROUP BY part, attempt) s
        USING (part, attempt)
    WHERE coalesce(s.count, 0) <> w.count LIMIT 1;
    IF FOUND THEN
        PERFORM taskq.refuse('TQ007', format('stage %s has %s of the %s decisions that part %s reported: run the job again',
            p_stage, v_short.found, v_short.reported, v_short.part));
    END IF;
END $$;

-- Drops the tries that did not win.
CREATE FUNCTION taskq.keep_winners(p_stage uuid, p_parts int[], p_attempts bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM taskq.staged s WHERE s.stage = p_stage AND NOT EXISTS (
        SELECT FROM unnest(p_parts, p_attempts) AS w (part, attempt) WHERE w.part = s.part AND w.attempt = s.attempt);
    DELETE FROM taskq.staged_task s WHERE s.stage = p_stage AND NOT EXISTS (
        SELECT FROM unnest(p_parts, p_attempts) AS w (part, attempt) WHERE w.part = s.part AND w.attempt = s.attempt);
    DELETE FROM taskq.staged_junction s WHERE s.stage = p_stage AND NOT EXISTS (
        SELECT FROM unnest(p_parts, p_attempts) AS w (part, attempt) WHERE w.part = s.part AND w.attempt = s.attempt);
END $$;

-- Leaves of a stage one decision a task: drops all but the first.
CREATE FUNCTION taskq.merge_staged(p_stage uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM taskq.staged s USING (
        SELECT ctid, row_number() OVER (PARTITION BY sequence ORDER BY result, part, output, error, delay) AS place
        FROM taskq.staged WHERE stage = p_stage) d
    WHERE d.place > 1 AND s.ctid = d.ctid;
END $$;

-- Completes what is staged, and returns how many tasks that was. Where there are more than fit one chunk, those that can only end
-- their task go by one statement, which reads all that the owner holds. The rest, and all where anybody waits for what others decide,
-- goes the way of every completion. Refuses as taskq.complete does.
CREATE FUNCTION taskq.carry_out(p_owner text, p_fence bigint, p_stage uuid) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF taskq.anyone_waits() OR (SELECT count(*) FROM (SELECT FROM taskq.staged WHERE stage = p_stage LIMIT 50001) s) <= 50000 THEN
        RETURN taskq.complete_in_chunks(p_owner, p_fence, p_stage, true);
    END IF;
    RETURN taskq.complete_in_chunks(p_owner, p_fence, p_stage, false) + taskq.end_staged(p_owner, p_fence, p_stage);
END $$;

-- Completes decisions of a stage, all or those that may put their task back, in chunks that bound the server's memory, and returns
-- how many those were.
CREATE FUNCTION taskq.complete_in_chunks(p_owner text, p_fence bigint, p_stage uuid, p_all boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_done   bigint := 0;
    v_chunk  record;
    v_chunks CURSOR FOR
        SELECT array_agg(n.sequence) AS sequences, array_agg(n.result) AS results, array_agg(n.output) AS outputs,
               array_agg(n.error) AS errors, CASE WHEN bool_or(n.delay IS NOT NULL) THEN array_agg(n.delay) END AS delays
        FROM (SELECT s.*, (row_number() OVER w - 1) / 50000 AS nth,
                     sum(coalesce(octet_length(s.output), 0) + coalesce(octet_length(s.error), 0)) OVER w / 33554432 AS bulk
              FROM taskq.staged s WHERE s.stage = p_stage AND (p_all OR taskq.may_put_back(s.result, s.delay))
              WINDOW w AS (ORDER BY s.sequence ROWS UNBOUNDED PRECEDING)) n
        GROUP BY n.nth, n.bulk ORDER BY n.nth, n.bulk;
BEGIN
    OPEN v_chunks;
    LOOP
        FETCH v_chunks INTO v_chunk;  -- one at a time, where a FOR loop would read fifty ahead
        EXIT WHEN NOT FOUND;
        v_done := v_done + taskq.complete(p_owner, p_fence, v_chunk.sequences, v_chunk.results, v_chunk.outputs,
                                          v_chunk.errors, v_chunk.delays);
    END LOOP;
    CLOSE v_chunks;
    RETURN v_done;
END $$;

-- Whether a decision may put its task back, rather than end it; what is no decision counts as one that may, and is refused there.
CREATE FUNCTION taskq.may_put_back(p_result smallint, p_delay interval) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_result NOT BETWEEN 1 AND 3 OR p_delay IS NOT NULL
$$;

-- Ends the tasks of a stage whose decisions cannot put them back, and returns how many. This is taskq.end_tasks for millions: both
-- tables are walked in the order of their sequences and merged, and nothing is gathered into arrays. Refuses as taskq.complete does.
CREATE FUNCTION taskq.end_staged(p_owner text, p_fence bigint, p_stage uuid) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_hashjoin = off AS $$
DECLARE
    v_owner_id bigint := taskq.hold_lease(p_owner, p_fence);
    v_began    timestamptz := clock_timestamp();
    v_bad      taskq.staged;
    v_ended    bigint;
BEGIN
    SELECT * INTO v_bad FROM taskq.staged s
    WHERE s.stage = p_stage AND taskq.may_be_unreadable(s.output) AND taskq.json_defect(s.output) IS NOT NULL
    ORDER BY s.sequence LIMIT 1;
    IF FOUND THEN
        PERFORM taskq.check_outputs(ARRAY[v_bad.sequence], ARRAY[v_bad.output]);
    END IF;
    WITH gone AS (
        DELETE FROM taskq.live l USING taskq.staged s
        WHERE s.stage = p_stage AND NOT taskq.may_put_back(s.result, s.delay) AND l.holder = v_owner_id AND l.sequence = s.sequence
        RETURNING l.*, s.result, s.output, s.error AS reason
    ), moved AS (
        INSERT INTO taskq.ended (sequence, completed, available_at, holder, polled, topic_id, attempt, state, crashes, redelivered,
                                 identifier, output, error, error_summary)
        SELECT g.sequence, clock_timestamp(), g.available_at, g.holder, g.polled, g.topic_id, g.attempt, g.result + 3, g.crashes,
               g.redelivered, g.identifier, g.output::json, coalesce(left(g.reason, 10000), g.error),
               coalesce(taskq.error_summary(g.reason), g.error_summary)
        FROM gone g
        RETURNING 1)
    SELECT count(*) INTO v_ended FROM moved;
    IF v_ended < (SELECT count(*) FROM taskq.staged s WHERE s.stage = p_stage AND NOT taskq.may_put_back(s.result, s.delay)) THEN
        PERFORM taskq.refuse_not_held(p_owner, p_fence,
            ARRAY(SELECT s.sequence FROM taskq.staged s WHERE s.stage = p_stage AND NOT taskq.may_put_back(s.result, s.delay)),
            ARRAY(SELECT e.sequence FROM taskq.ended e JOIN taskq.staged s USING (sequence)
                  WHERE s.stage = p_stage AND e.holder = v_owner_id AND e.completed >= v_began));
    END IF;
    RETURN v_ended;
END $$;

-- What a committed stage carried out: how many tasks a result, until the stage is abandoned.
CREATE FUNCTION taskq.stage_results(p_stage uuid) RETURNS TABLE (result int, count bigint) LANGUAGE sql STABLE AS $$
    SELECT s.result::int, count(*) FROM taskq.staged s
    WHERE s.stage = p_stage AND EXISTS (SELECT FROM taskq.stage c WHERE c.stage = p_stage)
    GROUP BY s.result ORDER BY s.result
$$;

-- Which of these tasks a stage that was carried out has ended or put back: not those whose decisions it dropped.
CREATE FUNCTION taskq.carried_out(p_stage uuid, p_sequences bigint[]) RETURNS bigint[] LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN ARRAY(SELECT s.sequence FROM taskq.staged s WHERE s.stage = p_stage AND s.sequence = ANY (p_sequences));
END $$;

-- How many tasks a committed stage pushed, until the stage is abandoned.
CREATE FUNCTION taskq.stage_pushed(p_stage uuid) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT count(*) FROM taskq.staged_task s
    WHERE s.stage = p_stage AND EXISTS (SELECT FROM taskq.stage c WHERE c.stage = p_stage)
$$;

-- Tells who waits on the topics to which a committed stage pushed, or in which it released groups, until the stage is abandoned (see
-- taskq.wake).
CREATE FUNCTION taskq.wake_staged(p_stage uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM taskq.wake(f.topic)
    FROM (SELECT topic FROM taskq.staged_task WHERE stage = p_stage AND topic IS NOT NULL
          UNION SELECT topic FROM taskq.staged_junction WHERE stage = p_stage) f;
END $$;

-- Forgets what was staged, and returns how many decisions that was. A committed stage stays committed.
CREATE FUNCTION taskq.abandon_stage(p_stage uuid) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    DELETE FROM taskq.staged_task WHERE stage = p_stage;
    DELETE FROM taskq.staged_junction WHERE stage = p_stage;
    DELETE FROM taskq.staged WHERE stage = p_stage;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Forgets the stages whose owners' leases are gone: what jobs that were killed left behind. Returns how many stages.
-- The index is walked from stage to stage, so that it costs their number and not that of their decisions. One does it at a time,
-- and nobody waits: it is called as leases end.
CREATE FUNCTION taskq.prune_stages() RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    v_dead uuid[];
BEGIN
    IF NOT taskq.may_prune() THEN
        RETURN 0;
    END IF;
    v_dead := ARRAY(
        WITH RECURSIVE known AS (
            (SELECT s.stage FROM taskq.staged s ORDER BY s.stage LIMIT 1)
            UNION ALL
            SELECT (SELECT s.stage FROM taskq.staged s WHERE s.stage > k.stage ORDER BY s.stage LIMIT 1)
            FROM known k WHERE k.stage IS NOT NULL)
        SELECT k.stage FROM known k
        WHERE taskq.stage_fence(k.stage) IS NOT NULL
          AND NOT EXISTS (SELECT FROM taskq.owner o WHERE o.fence = taskq.stage_fence(k.stage)));
    DELETE FROM taskq.staged WHERE stage = ANY (v_dead);
    DELETE FROM taskq.stage s  -- a fence that is gone never comes back to ask again
    WHERE s.committed < clock_timestamp() - interval '1 day' AND taskq.stage_fence(s.stage) IS NOT NULL
      AND NOT EXISTS (SELECT FROM taskq.owner o WHERE o.fence = taskq.stage_fence(s.stage));
    PERFORM taskq.prune_staged_tasks();
    RETURN cardinality(v_dead);
END $$;
