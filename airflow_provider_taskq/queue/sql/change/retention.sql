-- Upkeep: ends lapsed leases, and removes ended tasks whose retention is over. Workers, drains and waiting gates call
-- taskq.maintain. Every call is short, waits for no other session, and leaves remaining work to the next call.
--
-- keep_succeeded applies to SUCCEEDED and FILTERED tasks, and keep_failed to FAILED tasks. For a RECREATED or REDUNDANT
-- task, keep_failed applies if the task was FAILED or EXPIRED before, and keep_succeeded otherwise. No call removes
-- ACTIVE, READY, EXPIRED or SUSPENDED tasks: they have not ended, or an operator or a junction has to act.
--
-- The retention of a task starts at its end (ended.completed). A task that was displaced or recreated before it ended
-- has no such time. Its retention starts at the next push of its identifier.
--
-- No removal changes which tasks run later. These tasks stay, however old they are:
--
--   - tasks that a consumer group of the topic has not passed yet: no group skips a task;
--   - tasks that a dependent waits for: it must not start because the failure that blocks it is gone;
--   - a FAILED task while it may block READY tasks of its identifier under some conditions of a poll;
--   - the latest task of an identifier while an older one stays: the older one would count as the latest.
--
-- No index has the tasks of a topic in the order of their ends, because every completion would have to maintain it. A
-- walk follows the sequences, which have nearly that order. It stops at the first task that would be too young even if
-- it had ended at its push, and continues there after a thousandth of the retention (a minute to an hour, as each pause
-- writes a row). The walk passes tasks that ended later or that had to stay. The next walk finds them, and begins after
-- a twentieth of the retention.

-- Continues the walks over the topics with a retention for about 50 ms. Does nothing if the last run ended less than a
-- minute ago, or if another session is continuing the run. The walk that has waited longest comes first, so that no
-- topic has to wait long. The first call of a run removes old rows of fronts. Returns how many tasks it removed, and
-- whether the run has work left.
CREATE FUNCTION taskq_internal.run_retention(OUT count bigint, OUT more boolean) LANGUAGE plpgsql AS $$
DECLARE
    v_began timestamptz := clock_timestamp();
    v_run   taskq_internal.upkeep;
    v_walk  taskq_internal.retention_walk;
    v_until timestamptz;
BEGIN
    count := 0;
    more := false;
    SELECT * INTO v_run FROM taskq_internal.upkeep
    WHERE due <= v_began OR due > v_began + interval '1 minute'  -- the clock was set back
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        IF NOT EXISTS (SELECT FROM taskq_internal.upkeep) THEN
            PERFORM taskq_internal.create_rows();
            more := true;
        END IF;
        RETURN;
    END IF;
    IF NOT v_run.more THEN
        PERFORM taskq_internal.remove_old_fronts(50000);
        PERFORM taskq_internal.recall_early_tasks(f.topic_id, v_began)
        FROM (SELECT DISTINCT w.topic_id FROM taskq_internal.front w WHERE w.pushed > v_began) f;
        INSERT INTO taskq_internal.retention_walk (topic_id) SELECT p.topic_id FROM taskq_internal.topic p
        WHERE (p.keep_succeeded IS NOT NULL OR p.keep_failed IS NOT NULL)
          AND NOT EXISTS (SELECT FROM taskq_internal.retention_walk w WHERE w.topic_id = p.topic_id);
    END IF;
    v_until := clock_timestamp() + interval '50 milliseconds';
    FOR v_walk IN
        SELECT * FROM taskq_internal.retention_walk w WHERE w.due <= v_began OR w.due > v_began + interval '1 hour'
        ORDER BY w.due, w.topic_id FOR UPDATE SKIP LOCKED
    LOOP
        count := count + taskq_internal.walk_topic(v_walk, least(500, 2000 - count)::int);
        EXIT WHEN count >= 2000 OR clock_timestamp() >= v_until;
    END LOOP;
    more := EXISTS (SELECT FROM taskq_internal.retention_walk w WHERE w.due <= clock_timestamp());
    UPDATE taskq_internal.upkeep u SET called = v_began, more = run_retention.more,
        ended = CASE WHEN run_retention.more THEN u.ended ELSE v_began END,
        due = CASE WHEN run_retention.more THEN v_began ELSE v_began + interval '1 minute' END;
END $$;

-- Continues a walk, whose row this transaction has locked, for about 10 ms, or until it has removed p_most tasks. A
-- walk that ends after the time of its restart begins again. Returns how many tasks it removed.
CREATE FUNCTION taskq_internal.walk_topic(p_walk taskq_internal.retention_walk, p_most int) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_began   timestamptz := clock_timestamp();
    v_topic   taskq_internal.topic;
    v_kept    interval;
    v_end     bigint := least((SELECT s.last_value FROM taskq_internal.task_sequence s),
                              (taskq_internal.slowest_group(p_walk.topic_id)).handled);
    v_step    bigint := 1000;  -- sequences
    v_passed  bigint := p_walk.position;
    v_ended   boolean := v_passed >= v_end;
    v_again   boolean;
    v_from    timestamptz;
    v_part    record;
    v_count   bigint := 0;
BEGIN
    SELECT * INTO v_topic FROM taskq_internal.topic WHERE topic_id = p_walk.topic_id;
    v_kept := least(v_topic.keep_succeeded, v_topic.keep_failed);
    WHILE NOT v_ended LOOP
        v_from := clock_timestamp();
        v_part := taskq_internal.purge_range(v_topic, v_passed, least(v_passed + v_step, v_end),
                                             (p_most - v_count)::int);
        v_count := v_count + v_part.count;
        v_passed := v_part.passed;
        v_ended := v_part.too_young OR v_passed >= v_end;
        EXIT WHEN v_count >= p_most OR clock_timestamp() >= v_began + interval '10 milliseconds';
        -- A part without rows costs almost nothing. Dead rows cost as much as live rows, and no query counts them.
        v_step := CASE WHEN clock_timestamp() < v_from + interval '1 millisecond' THEN least(2 * v_step, 1000000)
                       ELSE greatest(v_step / 4, 1000) END;
    END LOOP;
    v_again := v_ended AND p_walk.restarts <= v_began;
    UPDATE taskq_internal.retention_walk SET
        position = CASE WHEN v_again THEN 0 ELSE v_passed END,
        due = CASE WHEN v_ended AND NOT v_again
                   THEN v_began + least(greatest(v_kept / 1000, interval '1 minute'), interval '1 hour')
                   ELSE clock_timestamp() END,
        restarts = CASE WHEN v_again OR v_ended AND p_walk.restarts = 'infinity'
            THEN v_began + greatest(v_kept / 20, interval '1 minute')
            ELSE p_walk.restarts END
    WHERE topic_id = p_walk.topic_id;
    RETURN v_count;
END $$;

-- Returns the consumer group of a topic that is furthest behind, and the sequence up to which it has handled all tasks.
-- Returns NULLs if the topic has no group.
CREATE FUNCTION taskq_internal.slowest_group(p_topic_id int, OUT group_name text, OUT handled bigint)
LANGUAGE sql STABLE AS $$
    SELECT h.group_name, taskq_internal.place_of(h.group_name, h.topic_id, h.partition)
    FROM taskq_internal.consumer_partition h
    WHERE h.topic_id = p_topic_id ORDER BY 2, 1 LIMIT 1
$$;

-- Removes up to p_most tasks of a topic after p_low, up to p_high, whose retention is over and that do not have to
-- stay. Returns the sequence that it reached in passed. Returns too_young true if it reached tasks that cannot have
-- ended early enough, because their push was too late.
CREATE FUNCTION taskq_internal.purge_range(
    p_topic taskq_internal.topic, p_low bigint, p_high bigint, p_most int, OUT count bigint, OUT passed bigint,
    OUT too_young boolean
) LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id  int := p_topic.topic_id;
    v_succeeded timestamptz := clock_timestamp() - p_topic.keep_succeeded;
    v_failed    timestamptz := clock_timestamp() - p_topic.keep_failed;
    v_rows      bigint;
    v_last      bigint;
    v_found     bigint[];
BEGIN
    SELECT n.rows, n.last, n.found INTO v_rows, v_last, v_found
    FROM (SELECT count(*) AS rows, max(w.sequence) AS last,
                 array_agg(w.sequence ORDER BY w.sequence) FILTER (WHERE w.is_over) AS found
          FROM (SELECT e.sequence, taskq_internal.keeps_until(e.state, e.descent, v_succeeded, v_failed)
                                   >= coalesce(e.completed, '-infinity') AS is_over
                FROM taskq_internal.ended e
                WHERE e.topic_id = v_topic_id AND e.sequence > p_low AND e.sequence <= p_high
                ORDER BY e.sequence LIMIT 5000) w) n;
    passed := CASE WHEN v_rows = 5000 THEN v_last ELSE p_high END;
    IF cardinality(v_found) > p_most THEN
        v_found := v_found[:p_most];
        v_last := v_found[p_most];
        passed := v_last;
    END IF;
    too_young := coalesce((SELECT t.created FROM taskq_internal.task t WHERE t.topic_id = v_topic_id
                           AND t.sequence = v_last) > greatest(v_succeeded, v_failed), false);
    IF too_young THEN
        passed := coalesce(v_found[cardinality(v_found)], p_low);
    END IF;
    -- OFFSET 0 keeps the planner from joining the conditions, so that each of them is a lookup by an index.
    v_found := ARRAY(
        SELECT e.sequence FROM taskq_internal.ended e
        WHERE e.topic_id = v_topic_id AND e.sequence = ANY (v_found)
          AND taskq_internal.keeps_until(e.state, e.descent, v_succeeded, v_failed) >= coalesce(e.completed, (
              SELECT t.created FROM taskq_internal.task t
              WHERE t.identifier = e.identifier AND t.topic_id = v_topic_id AND t.sequence > e.sequence
              ORDER BY t.sequence LIMIT 1), '-infinity')
          AND NOT EXISTS (  -- a dependent waits for a task of its identifier
              SELECT FROM taskq_internal.dependency d
              WHERE d.on_topic_id = v_topic_id AND d.on_identifier = e.identifier AND d.waiting OFFSET 0)
          AND (NOT EXISTS (  -- an older task of its identifier would become the latest
                  SELECT FROM taskq_internal.task t
                  WHERE t.identifier = e.identifier AND t.topic_id = v_topic_id AND t.sequence < e.sequence OFFSET 0)
               OR EXISTS (
                  SELECT FROM taskq_internal.task t
                  WHERE t.identifier = e.identifier AND t.topic_id = v_topic_id AND t.sequence > e.sequence OFFSET 0))
          -- Under a condition or in batches, the failure may block the tasks of its identifier until an operator acts.
          -- It does not block them if one of the next ten of them was claimed after the failure.
          AND (e.state <> :FAILED
               OR NOT EXISTS (
                  SELECT FROM taskq_internal.live l
                  WHERE l.topic_id::bigint = v_topic_id AND l.identifier = e.identifier AND l.holder IS NULL OFFSET 0)
               OR EXISTS (
                  SELECT FROM (SELECT t.sequence FROM taskq_internal.task t
                               WHERE t.identifier = e.identifier AND t.topic_id = v_topic_id AND t.sequence > e.sequence
                               ORDER BY t.sequence LIMIT 10) n
                  CROSS JOIN LATERAL (SELECT o.polled FROM taskq_internal.ended o
                                      WHERE o.topic_id = v_topic_id AND o.sequence = n.sequence OFFSET 0) o
                  WHERE o.polled > e.completed OFFSET 0))
        ORDER BY e.sequence FOR UPDATE OF e SKIP LOCKED);
    count := CASE WHEN v_found <> '{}' THEN taskq_internal.delete_tasks(v_topic_id, v_found, false) ELSE 0 END;
END $$;

-- Returns p_succeeded or p_failed, whichever applies to an ended task: the task may be removed if it ended no later.
-- Returns NULL if the task is never removed.
CREATE FUNCTION taskq_internal.keeps_until(
    p_state smallint, p_descent smallint, p_succeeded timestamptz, p_failed timestamptz
) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_state IN (:EXPIRED, :SUSPENDED) THEN NULL
                WHEN p_state = :FAILED OR p_state IN (:RECREATED, :REDUNDANT) AND p_descent IN (:EXPIRED, :FAILED)
                    THEN p_failed
                ELSE p_succeeded END
$$;
