-- Slices: parts of a topic for the executors of a job.

-- Claims the due tasks that follow the first tasks of their identifiers, identifier by identifier. p_heads has these
-- first tasks, which this transaction has locked. If another transaction holds a task of an identifier, it claims only
-- the tasks before that task. Returns how many tasks it claimed.
CREATE FUNCTION taskq_internal.claim_remaining_tasks(p_topic_id int, p_holder bigint, p_heads bigint[], p_size int)
RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_identifiers text[];
    v_found  bigint[];
    v_locked bigint[];
    v_chunk  int;
    v_all    int := 0;
BEGIN
    v_identifiers := (  -- without another attempted task
        SELECT array_agg(l.identifier ORDER BY l.sequence) FROM taskq_internal.live l
        WHERE l.topic_id = p_topic_id AND l.sequence = ANY (p_heads)
            AND (SELECT a.sequence FROM taskq_internal.live a
                 WHERE a.identifier = l.identifier AND a.topic_id = p_topic_id AND a.attempt > 0
                     AND coalesce(a.polled, 'infinity') = 'infinity'
                 ORDER BY a.sequence LIMIT 1) IS NULL);
    WHILE v_all < p_size AND cardinality(v_identifiers) > 0 LOOP
        v_chunk := least(50000, p_size - v_all);
        v_found := ARRAY(
            SELECT t.sequence FROM unnest(v_identifiers) AS u (identifier)
            CROSS JOIN LATERAL (
                SELECT b.sequence FROM taskq_internal.live b
                WHERE b.topic_id::bigint = p_topic_id AND b.identifier = u.identifier AND b.holder IS NULL
                  -- + 0 keeps the planner from the index live_ready, which has the tasks of all identifiers.
                  AND b.waits + 0 <= :WAITS_NOTHING AND b.available_at <= v_now
                ORDER BY b.priority DESC, b.available_at, b.sequence LIMIT v_chunk) t
            LIMIT v_chunk);
        v_locked := ARRAY(SELECT l.sequence FROM taskq_internal.live l
                          WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_found) AND l.holder IS NULL
                              FOR UPDATE SKIP LOCKED);
        IF cardinality(v_locked) < cardinality(v_found) THEN
            v_found := ARRAY(
                SELECT n.sequence FROM (
                    SELECT u.sequence, bool_and(u.sequence IN (SELECT unnest(v_locked))) OVER (
                        PARTITION BY l.identifier ORDER BY u.place) AS whole
                    FROM unnest(v_found) WITH ORDINALITY AS u (sequence, place)
                    JOIN taskq_internal.live l ON l.topic_id = p_topic_id AND l.sequence = u.sequence) n
                WHERE n.whole);
        END IF;
        v_all := v_all + cardinality(taskq_internal.claim_locked(p_topic_id, p_holder, v_found));
        EXIT WHEN cardinality(v_found) < v_chunk;  -- no tasks are left, or a lock has cut an identifier
    END LOOP;
    RETURN v_all;
END $$;
