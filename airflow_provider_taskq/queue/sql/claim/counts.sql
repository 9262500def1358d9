-- Counts of what a poll could get now, by the rules of the poll itself.

-- Returns the count of taskq.ready: tasks that a poll can claim at once, and tasks that a poll would promote first.
-- With p_locked true it includes identifiers that an open transaction holds. Without a condition it counts priority by
-- priority like lock_first_due, and leaves out the rows that another transaction holds, which SKIP LOCKED would skip.
CREATE FUNCTION taskq_internal.count_ready(
    p_topic taskq_internal.topic, p_limit int, p_condition text, p_locked boolean DEFAULT false
) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_next  bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_front taskq_internal.front;
    v_count int := 0;
    v_more  bigint[];
BEGIN
    IF p_topic.paused OR p_limit <= 0 THEN
        RETURN 0;
    ELSIF p_condition <> 'NONE' THEN
        v_count := taskq_internal.count_turns(p_topic.topic_id, p_limit, p_condition, p_locked);
    ELSE
        FOR v_front IN SELECT * FROM taskq_internal.due_fronts(p_topic.topic_id, 101, v_now) LOOP
            v_count := v_count + (SELECT count(*) FROM (
                SELECT FROM taskq_internal.due_of_front(v_front, v_now) d
                WHERE NOT (taskq_internal.is_transaction_open(d.locked_by, v_next)
                           AND NOT taskq_internal.is_transaction_open(d.placed_by, v_next))
                LIMIT p_limit - v_count) found);
            EXIT WHEN v_count >= p_limit;
        END LOOP;
    END IF;
    IF v_count < p_limit AND EXISTS (SELECT FROM taskq_internal.live l WHERE l.topic_id = p_topic.topic_id
                                     AND l.holder IS NULL AND l.waits > :WAITS_NOTHING) THEN
        v_more := taskq_internal.waiting_to_promote(p_topic, p_limit, p_condition);
        v_count := v_count + CASE p_condition WHEN 'NONE' THEN cardinality(v_more)
            ELSE taskq_internal.count_turns_among(p_topic.topic_id, v_more, p_condition, p_locked) END;
    END IF;
    RETURN least(v_count, p_limit);
END $$;

-- Returns the number of turns that a poll could hand out now, counted up to p_limit. It leaves out turns whose row
-- another transaction holds. Unless p_locked is true, it also leaves out turns whose identifier is locked.
CREATE FUNCTION taskq_internal.count_turns(p_topic_id int, p_limit int, p_condition text, p_locked boolean) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_window int := p_limit + 16;
    v_widest int := greatest(1000, 2 * p_limit);
    v_turns  record;
    v_after  text := '';
    v_hop    boolean := true;
    v_count  int := 0;
BEGIN
    LOOP
        v_turns := taskq_internal.turns_among_first(p_topic_id, v_now, false, p_condition, v_window, v_window, '{}');
        v_count := taskq_internal.count_unlocked(p_topic_id, v_turns.sequences, v_turns.identifiers, p_locked);
        IF v_count >= p_limit OR v_turns.seen < v_window THEN
            RETURN least(v_count, p_limit);
        END IF;
        EXIT WHEN v_window >= v_widest;
        v_window := v_widest;
    END LOOP;
    v_count := 0;
    WHILE v_count < p_limit AND v_after IS NOT NULL LOOP
        v_turns := taskq_internal.turns_beyond(p_topic_id, v_now, false, p_condition, v_after, NULL, v_hop, 1000, '{}');
        v_hop := v_turns.hop;
        v_count := v_count
            + taskq_internal.count_unlocked(p_topic_id, v_turns.sequences, v_turns.identifiers, p_locked);
        v_after := v_turns.last;
    END LOOP;
    RETURN least(v_count, p_limit);
END $$;

-- Returns the number of identifiers that would hand out one of these tasks, which are about to be promoted. Such an
-- identifier has no other due task, or its task here is an attempted one. No task blocks the identifier, and no other
-- task has its turn.
CREATE FUNCTION taskq_internal.count_turns_among(
    p_topic_id int, p_sequences bigint[], p_condition text, p_locked boolean
) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_any      boolean := taskq_internal.has_identifier_fronts(p_topic_id);  -- whether there are fronts of identifiers
    v_now      timestamptz := clock_timestamp();
    v_blocking smallint[] := taskq_internal.blocking_states(p_condition);
    v_turns    text[];
BEGIN
    v_turns := ARRAY(
        SELECT DISTINCT l.identifier FROM taskq_internal.live l
        LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, l.identifier, v_any) i ON true
        WHERE l.topic_id = p_topic_id AND l.sequence = ANY (p_sequences)
          AND (l.attempt > 0 OR taskq_internal.first_due_of_identifier(p_topic_id, l.identifier, v_now, false) IS NULL)
          AND coalesce((
                SELECT t.sequence FROM taskq_internal.turn_of_identifier(p_topic_id, l.identifier, i.claimed_at) t),
              l.sequence) = l.sequence
          AND (SELECT e.sequence FROM taskq_internal.ended e WHERE e.identifier = l.identifier
               AND e.topic_id = p_topic_id AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED) AND e.state = ANY (v_blocking)
               ORDER BY e.state, e.sequence LIMIT 1) IS NULL);
    RETURN cardinality(v_turns) - CASE WHEN p_locked THEN 0
        ELSE cardinality(taskq_internal.locked_identifiers(p_topic_id, v_turns)) END;
END $$;

-- Returns the number of these turns that no other transaction holds: neither the row nor, unless p_locked is true, the
-- identifier. It takes no lock.
CREATE FUNCTION taskq_internal.count_unlocked(
    p_topic_id int, p_sequences bigint[], p_identifiers text[], p_locked boolean
) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_next   bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_locked text[] := CASE WHEN p_locked THEN '{}'
        ELSE taskq_internal.locked_identifiers(p_topic_id, p_identifiers) END;
BEGIN
    RETURN (SELECT count(*) FROM taskq_internal.live l
            WHERE l.topic_id = p_topic_id AND l.sequence = ANY (p_sequences) AND l.identifier <> ALL (v_locked)
              AND NOT (taskq_internal.is_transaction_open(l.xmax, v_next)
                       AND NOT taskq_internal.is_transaction_open(l.xmin, v_next)));
END $$;
