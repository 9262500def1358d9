-- For a distributed engine: what an owner holds in equal slices, and decisions staged by many, committed by one.

-- Cuts what the owner holds (of a topic, or NULL: of all) into at most p_parts ranges of sequences of nearly equal length, with the
-- number of tasks in each. Refuses a lease that is gone (TQ005).
CREATE FUNCTION taskq.held_bounds(p_owner text, p_fence bigint, p_topic text, p_parts int)
RETURNS TABLE (low bigint, high bigint, size bigint) LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    v_owner_id bigint := taskq.hold_lease(p_owner, p_fence);
    v_topic_id int := CASE WHEN p_topic IS NOT NULL THEN (taskq.find_topic(p_topic)).topic_id END;
BEGIN
    RETURN QUERY
    SELECT min(n.sequence), max(n.sequence), count(*)
    FROM (SELECT l.sequence, ntile(p_parts) OVER (ORDER BY l.sequence) AS part
          FROM taskq.live l WHERE l.holder = v_owner_id AND (v_topic_id IS NULL OR l.topic_id = v_topic_id)) n
    GROUP BY n.part ORDER BY 1;
END $$;

-- The tasks that the owner holds (of a topic, or NULL: of all) in one range of sequences, in their order. Pure: read it as often as
-- you like, it is the same until the tasks are completed. Refuses a lease that is gone (TQ005).
CREATE FUNCTION taskq.held_slice(p_owner text, p_fence bigint, p_topic text, p_low bigint, p_high bigint)
RETURNS TABLE (sequence bigint, topic text, identifier text, payload text, reference text, attempt int,
               redelivered boolean, priority int, created timestamptz)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_owner_id bigint;
    v_topics   int[];
BEGIN
    SELECT owner_id INTO v_owner_id FROM taskq.owner WHERE name = p_owner AND fence = p_fence;
    IF NOT FOUND THEN
        PERFORM taskq.refuse_lease(p_owner, p_fence);
    END IF;
    v_topics := CASE WHEN p_topic IS NOT NULL THEN ARRAY[(taskq.find_topic(p_topic)).topic_id]
                     ELSE ARRAY(SELECT DISTINCT topic_id FROM taskq.live WHERE holder = v_owner_id) END;
    RETURN QUERY
    SELECT t.sequence, p.name, t.identifier, t.payload::text, t.reference, l.attempt, l.redelivered,
           t.priority::int, t.created
    FROM (SELECT * FROM taskq.live
          WHERE holder = v_owner_id AND sequence BETWEEN p_low AND p_high AND topic_id = ANY (v_topics)) l
    JOIN (SELECT * FROM taskq.task WHERE topic_id = ANY (v_topics) AND sequence BETWEEN p_low AND p_high) t
        USING (sequence)
    JOIN taskq.topic p ON p.topic_id = t.topic_id
    ORDER BY t.sequence;
END $$;

-- The number of a new stage. It is a UUID of version 8 that begins with the fence of the owner it serves, so that
-- what is left of a job that was killed can be told from what a living one stages. Refuses a lease that is gone (TQ005).
CREATE FUNCTION taskq.open_stage(p_owner text, p_fence bigint) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_random text := replace(gen_random_uuid()::text, '-', '');
BEGIN
    PERFORM taskq.hold_lease(p_owner, p_fence);
    RETURN (lpad(to_hex(p_fence), 12, '0') || '8' || substr(v_random, 14))::uuid;
END $$;

-- The fence of the owner that a stage of taskq.open_stage serves; NULL for a number that was made elsewhere.
CREATE FUNCTION taskq.stage_fence(p_stage uuid) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN substr(p_stage::text, 15, 1) = '8'
                THEN ('x0000' || substr(replace(p_stage::text, '-', ''), 1, 12))::bit(64)::bigint END
$$;

-- Refuses to stage more where nobody will come for it: the stage was committed (TQ007) or its owner's lease is gone
-- (TQ005). For executors, in the transaction that stages: tries that outlived their job leave nothing behind.
CREATE FUNCTION taskq.check_stage(p_owner text, p_fence bigint, p_stage uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM taskq.owner WHERE name = p_owner AND fence = p_fence) THEN
        PERFORM taskq.refuse_lease(p_owner, p_fence);
    END IF;
    IF EXISTS (SELECT FROM taskq.stage WHERE stage = p_stage) THEN
        PERFORM taskq.refuse('TQ007', format('stage %s was committed: it takes no more decisions', p_stage));
    END IF;
END $$;

-- Carries out a stage: of each part the decisions of its winning try, all of them in this transaction. The arrays
-- name those tries and how many decisions each staged. Decisions of one task are merged to the result that stands
-- first in FAILURE, SUSPENSION, FILTER, SUCCESS, with all that belongs to it. Refuses a lease that is gone (TQ005),
-- tasks not held (TQ004), and a stage that is not whole (TQ007). Asked again after its commit, it answers the same and
-- changes nothing. What it carried out stays readable in taskq.stage_results until taskq.abandon_stage.
CREATE FUNCTION taskq.complete_staged(
    p_owner text, p_fence bigint, p_stage uuid, p_parts int[], p_attempts bigint[], p_counts bigint[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_done bigint := 0;
BEGIN
    INSERT INTO taskq.stage (stage, completed, committed) VALUES (p_stage, 0, clock_timestamp())
    ON CONFLICT (stage) DO NOTHING;
    IF NOT FOUND THEN
        RETURN (SELECT completed FROM taskq.stage WHERE stage = p_stage);
    END IF;
    PERFORM taskq.hold_lease(p_owner, p_fence);
    PERFORM taskq.check_staged(p_stage, p_parts, p_attempts, p_counts);
    PERFORM taskq.merge_staged(p_stage, p_parts, p_attempts);
    v_done := taskq.carry_out(p_owner, p_fence, p_stage);
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

-- Leaves of a stage one decision a task: drops the tries that did not win, then all but the first decision of a task.
CREATE FUNCTION taskq.merge_staged(p_stage uuid, p_parts int[], p_attempts bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM taskq.staged s WHERE s.stage = p_stage AND NOT EXISTS (
        SELECT FROM unnest(p_parts, p_attempts) AS w (part, attempt) WHERE w.part = s.part AND w.attempt = s.attempt);
    DELETE FROM taskq.staged s USING (
        SELECT ctid, row_number() OVER (PARTITION BY sequence ORDER BY result, part, output, error, delay) AS place
        FROM taskq.staged WHERE stage = p_stage) d
    WHERE d.place > 1 AND s.ctid = d.ctid;
END $$;

-- Completes what is staged, in chunks that bound the server's memory, and returns how many tasks that was.
CREATE FUNCTION taskq.carry_out(p_owner text, p_fence bigint, p_stage uuid) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_done   bigint := 0;
    v_chunk  record;
    v_chunks CURSOR FOR
        SELECT array_agg(n.sequence) AS sequences, array_agg(n.result) AS results, array_agg(n.output) AS outputs,
               array_agg(n.error) AS errors, CASE WHEN bool_or(n.delay IS NOT NULL) THEN array_agg(n.delay) END AS delays
        FROM (SELECT s.*, (row_number() OVER w - 1) / 50000 AS nth,
                     sum(coalesce(octet_length(s.output), 0) + coalesce(octet_length(s.error), 0)) OVER w / 33554432 AS bulk
              FROM taskq.staged s WHERE s.stage = p_stage
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

-- What a committed stage carried out: how many tasks a result, until the stage is abandoned.
CREATE FUNCTION taskq.stage_results(p_stage uuid) RETURNS TABLE (result int, count bigint) LANGUAGE sql STABLE AS $$
    SELECT s.result::int, count(*) FROM taskq.staged s
    WHERE s.stage = p_stage AND EXISTS (SELECT FROM taskq.stage c WHERE c.stage = p_stage)
    GROUP BY s.result ORDER BY s.result
$$;

-- Forgets what was staged, and returns how many decisions that was. A committed stage stays committed.
CREATE FUNCTION taskq.abandon_stage(p_stage uuid) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    DELETE FROM taskq.staged WHERE stage = p_stage;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Forgets the stages whose owners' leases are gone: what jobs that were killed left behind. Returns how many stages.
-- The index is walked from stage to stage, so that it costs their number and not that of their decisions.
CREATE FUNCTION taskq.prune_stages() RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    v_dead uuid[];
BEGIN
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
    RETURN cardinality(v_dead);
END $$;
