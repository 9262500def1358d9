-- Batches: all due tasks of an identifier go out together, to one owner.

-- Polls groups: of up to p_identifiers identifiers the due READY tasks, in polled order, at most p_size of each (-1: all).
-- The groups come in the order of their first tasks. Left out is an identifier with an ACTIVE task, with one that waits to
-- be retried and is not due, or with a FAILED one. Never waits; refuses a lease that has lapsed or is gone (TQ005).
CREATE FUNCTION taskq.poll_batch(p_topic text, p_owner text, p_fence bigint, p_identifiers int, p_size int)
RETURNS TABLE (sequence bigint, identifier text, payload json, reference text, attempt int, redelivered boolean)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_topic    taskq.topic := taskq.find_topic(p_topic);
    v_owner_id bigint := taskq.hold_running_lease(p_owner, p_fence);
    v_lanes    int := least(p_identifiers, taskq.most_tasks());
    v_out      bigint[];
    v_taken    bigint[] := '{}';
BEGIN
    IF p_size < -1 THEN
        PERFORM taskq.refuse('TQ008', format('topic %L: the size of a group is -1 for all of its tasks, or 0 and more, not %s',
                                             p_topic, p_size));
    END IF;
    IF NOT v_topic.paused AND v_owner_id IS NOT NULL AND p_identifiers > 0 AND p_size <> 0 THEN
        PERFORM taskq.need_read_committed('batches go out');
        v_out := taskq.let_out(v_topic, v_lanes, false, 'BATCH');
        v_taken := CASE WHEN taskq.is_paused_by_now(v_topic.topic_id) THEN '{}'
                        ELSE taskq.take_turns(v_topic.topic_id, v_owner_id, v_lanes, false, 'BATCH', nullif(p_size, -1)) END;
        PERFORM taskq.keep_in(v_topic.topic_id, v_out);
    END IF;
    RETURN QUERY SELECT * FROM taskq.taken(v_topic.topic_id, v_taken);
END $$;

-- The groups of these lanes, whose locks this transaction holds: their due tasks, at most p_each of each lane (NULL: all),
-- locked, in the order of the lanes. Looks at each lane again; leaves out one that may not go out, or of which another
-- transaction holds a task.
CREATE FUNCTION taskq.groups_of(p_topic_id int, p_now timestamptz, p_identifiers text[], p_each int) RETURNS bigint[]
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_found  bigint[];
    v_locked bigint[];
BEGIN
    v_found := ARRAY(
        SELECT l.sequence FROM unnest(p_identifiers) WITH ORDINALITY AS u (identifier, place)
        CROSS JOIN LATERAL (
            SELECT b.sequence, b.priority, b.available_at FROM taskq.live b
            WHERE b.topic_id::bigint = p_topic_id AND b.identifier = u.identifier AND b.holder IS NULL
              AND b.waits + 0 <= 0 AND b.available_at <= p_now  -- not by live_ready, which has all lanes
            ORDER BY b.priority DESC, b.available_at, b.sequence LIMIT p_each) l
        WHERE (SELECT a.sequence FROM taskq.live a WHERE a.identifier = u.identifier AND a.topic_id = p_topic_id
                                                     AND a.attempt > 0 AND a.holder IS NOT NULL
               ORDER BY a.holder, a.sequence LIMIT 1) IS NULL
          AND (SELECT e.sequence FROM taskq.ended e WHERE e.identifier = u.identifier AND e.topic_id = p_topic_id
                                                      AND e.state IN (2, 3, 4) AND e.state = 3
               ORDER BY e.state, e.sequence LIMIT 1) IS NULL
          AND NOT taskq.has_undue_retry(p_topic_id, u.identifier, p_now)
        ORDER BY u.place, l.priority DESC, l.available_at, l.sequence);
    v_locked := ARRAY(SELECT l.sequence FROM taskq.live l
                      WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_found) AND l.holder IS NULL FOR UPDATE SKIP LOCKED);
    IF cardinality(v_locked) = cardinality(v_found) THEN
        RETURN v_found;
    END IF;
    RETURN ARRAY(
        SELECT u.sequence FROM unnest(v_found) WITH ORDINALITY AS u (sequence, place)
        JOIN taskq.live l ON l.topic_id = p_topic_id AND l.sequence = u.sequence
        WHERE l.identifier NOT IN (SELECT m.identifier FROM taskq.live m WHERE m.topic_id = p_topic_id
                                   AND m.sequence = ANY (v_found) AND m.sequence <> ALL (v_locked))
        ORDER BY u.place);
END $$;
