-- Status: how many tasks of a topic are in which state, and since when the oldest is due.

-- The first 10,000 held tasks.
CREATE VIEW taskq_internal.first_held AS
SELECT l.topic_id, l.holder FROM taskq_internal.live l WHERE l.holder IS NOT NULL ORDER BY l.holder, l.sequence
LIMIT 10000;

-- Returns how many tasks of a topic are EXPIRED, FAILED or SUSPENDED, up to p_cap.
CREATE FUNCTION taskq_internal.count_in_state(p_topic_id int, p_state int, p_cap int) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT count(*) FROM (
        SELECT FROM taskq_internal.ended e WHERE e.topic_id::bigint = p_topic_id AND e.state::int = p_state
            AND e.state::int IN (:EXPIRED, :FAILED, :SUSPENDED)
        ORDER BY e.sequence LIMIT greatest(p_cap, 0)) n);
END $$;

-- Returns the latest end among the newest hundred ended tasks of a topic.
CREATE FUNCTION taskq_internal.last_completed(p_topic_id int) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT taskq_internal.clamp_moment(max(n.completed))
            FROM (SELECT e.completed FROM taskq_internal.ended e WHERE e.topic_id = p_topic_id
                                          ORDER BY e.sequence DESC LIMIT 100) n);
END $$;

CREATE FUNCTION taskq.oldest_due(p_until timestamptz DEFAULT NULL, p_topic_id int DEFAULT NULL)
RETURNS TABLE (topic text, sequence bigint, since timestamptz, topic_id int) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_first int := coalesce(p_topic_id, 0);
    v_last  int := coalesce(p_topic_id, 2147483647);
BEGIN
    RETURN QUERY
    WITH RECURSIVE front AS (
        (SELECT f.* FROM taskq_internal.front f WHERE f.topic_id <= v_last AND f.topic_id >= v_first
         ORDER BY f.topic_id DESC, f.priority DESC, f.number DESC LIMIT 1)
        UNION ALL
        SELECT n.* FROM front v CROSS JOIN LATERAL (
            SELECT f.* FROM taskq_internal.front f
            WHERE (f.topic_id, f.priority) < (v.topic_id, v.priority) AND f.topic_id >= v_first
            ORDER BY f.topic_id DESC, f.priority DESC, f.number DESC LIMIT 1) n)
    SELECT p.name, o.sequence, taskq_internal.clamp_moment(o.available_at), p.topic_id
    FROM (SELECT DISTINCT ON (f.topic_id) f.topic_id, l.sequence, l.available_at FROM front f CROSS JOIN LATERAL (
              (SELECT l.sequence, l.available_at FROM taskq_internal.live l
               WHERE l.topic_id = f.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING AND l.late
                 AND l.priority + 0 = f.priority AND (l.available_at, l.sequence) < (f.available_at, f.sequence)
               ORDER BY l.available_at, l.sequence LIMIT 1)
              UNION ALL
              (SELECT l.sequence, l.available_at FROM taskq_internal.live l
               WHERE l.topic_id = f.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
                 AND l.priority = f.priority AND (l.available_at, l.sequence) >= (f.available_at, f.sequence)
               ORDER BY l.available_at, l.sequence LIMIT 1)
              LIMIT 1) l
          WHERE l.available_at <= coalesce(p_until, clock_timestamp())
          ORDER BY f.topic_id, l.available_at, l.sequence) o
    JOIN taskq_internal.topic p ON p.topic_id = o.topic_id;
END $$;
COMMENT ON FUNCTION taskq.oldest_due IS
'Returns the task of each topic that has been due the longest, of any priority, and the time since when it is due. With
p_topic_id it returns only that of this topic. Leaves out the tasks that are due after p_until, which is now by default,
and topics without a due task.';

-- Returns the numbers of READY tasks of a topic, each up to p_cap, as if the topic were not paused. ready to paused
-- count by the status of taskq.task_info. due counts tasks that wait for nothing, and probing retries that are due and
-- wait for the probe of the topic. oldest is the earliest due time of the tasks that are due and wait for nothing. The
-- function reads priority by priority, because due times are in order only within a priority. To find p_cap tasks that
-- were never attempted among those that are due, it reads as many more as wait for a retry.
CREATE FUNCTION taskq_internal.count_waiting(
    p_topic_id int, p_cap int, OUT ready bigint, OUT scheduled bigint, OUT retrying bigint, OUT blocked bigint,
    OUT paused bigint, OUT due bigint, OUT probing bigint, OUT oldest timestamptz
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_most  bigint;
    v_front taskq_internal.front;
BEGIN
    retrying := (SELECT count(*) FROM (
        SELECT l.waits FROM taskq_internal.live l
        WHERE l.topic_id::bigint = p_topic_id AND l.holder IS NULL AND l.attempt > 0 AND l.waits <> :WAITS_DEPENDENCIES
        ORDER BY l.sequence LIMIT p_cap) n WHERE n.waits <> :WAITS_RESUME);
    v_most := p_cap + retrying;
    due := 0; ready := 0; scheduled := 0;
    FOR v_front IN SELECT * FROM taskq_internal.newest_fronts(p_topic_id) LOOP
        SELECT due + count(*), ready + count(*) FILTER (WHERE n.attempt = 0), least(oldest, min(n.available_at))
        INTO due, ready, oldest FROM (
            SELECT d.* FROM taskq_internal.due_of_front(v_front, v_now) d
            LIMIT greatest(v_most - due, 1)) n;
        scheduled := scheduled + (
            SELECT count(*) FILTER (WHERE n.attempt = 0)
            FROM (SELECT l.attempt FROM taskq_internal.live l
                  WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
                    AND l.priority = v_front.priority AND l.available_at > v_now
                  ORDER BY l.available_at, l.sequence LIMIT greatest(v_most - scheduled, 0)) n);
    END LOOP;
    blocked := 0; paused := 0; probing := 0;
    IF EXISTS (SELECT FROM taskq_internal.live l WHERE l.topic_id = p_topic_id AND l.holder IS NULL
               AND l.waits > :WAITS_NOTHING) THEN
        SELECT sum(n.count) FILTER (WHERE k.waits = :WAITS_DEPENDENCIES),
               sum(n.count) FILTER (WHERE k.waits = :WAITS_RESUME),
               sum(n.count) FILTER (WHERE k.waits = :WAITS_PROBE)
        INTO blocked, paused, probing
        FROM unnest(ARRAY[:WAITS_DEPENDENCIES, :WAITS_RESUME, :WAITS_PROBE]::smallint[]) AS k (waits)
        CROSS JOIN LATERAL (
            SELECT count(*) FROM (SELECT FROM taskq_internal.live l
                                  WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits > :WAITS_NOTHING
                                    AND l.waits = k.waits AND (k.waits <> :WAITS_PROBE OR l.available_at <= v_now)
                                  ORDER BY l.available_at, l.sequence LIMIT p_cap) w) n;
    END IF;
    ready := least(ready, p_cap); scheduled := least(scheduled, p_cap); due := least(due, p_cap);
END $$;
