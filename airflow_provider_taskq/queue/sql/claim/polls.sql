-- Poll: hands out tasks by priority, then by age, each to one owner. A poll never waits, and never returns more tasks
-- than requested. A poll of batches hands out all due tasks of an identifier together.

-- Claims tasks for an owner. Checks the lease (TQ005), the order and the condition first. Under BATCH it claims the
-- groups of p_size identifiers, and up to p_each tasks of each, or with p_each NULL all of them.
CREATE FUNCTION taskq_internal.claim_for_owner(
    p_topic taskq_internal.topic, p_owner text, p_fence bigint, p_size int, p_order text, p_condition text,
    p_each int DEFAULT -1
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_owner_id bigint := taskq_internal.require_running_lease(p_owner, p_fence);
    v_lifo     boolean := p_order = 'LAST_IN_FIRST_OUT';
    v_size     int := least(p_size, :MAX_TASKS);
    v_waited     boolean;
    v_claimed    bigint[];
    v_advanced boolean;
BEGIN
    IF p_each = -1 AND (p_order = 'FIRST_IN_FIRST_OUT' AND p_condition = 'NONE') IS NOT TRUE THEN  -- spares most polls
        PERFORM taskq_internal.check_order_and_condition(p_order, p_condition);
    END IF;
    IF p_topic.paused OR v_owner_id IS NULL OR p_size <= 0 THEN
        RETURN '{}';
    END IF;
    IF p_condition <> 'NONE' THEN
        PERFORM taskq_internal.require_read_committed('a poll under a condition');
    END IF;
    v_waited := taskq_internal.promote_waiting(p_topic, v_size, v_lifo, p_condition);  -- PERFORM costs a statement
    v_claimed := CASE WHEN p_condition = 'NONE'
                        THEN taskq_internal.claim_first_due(p_topic.topic_id, v_owner_id, v_size, v_lifo)
                    ELSE taskq_internal.claim_turns(
                        p_topic.topic_id, v_owner_id, v_size, v_lifo, p_condition, p_each) END;
    v_claimed := taskq_internal.cut_claim(p_topic.topic_id, v_owner_id, v_claimed);
    IF p_topic.probe AND p_condition = 'BATCH' THEN
        PERFORM taskq_internal.demote_retries(p_topic.topic_id);
    END IF;
    v_advanced := taskq_internal.advance_fronts_at_random(p_topic.topic_id, v_claimed, v_lifo,
                p_condition <> 'NONE');
    IF v_advanced THEN  -- a topic may have no poll that finds nothing
        v_waited := taskq_internal.promote_missed(p_topic.topic_id);
    ELSIF v_claimed = '{}' AND (taskq_internal.take_back_lapsed(p_topic.topic_id)
        OR taskq_internal.recall_early_tasks(p_topic.topic_id, clock_timestamp()) > 0
        OR taskq_internal.promote_missed(p_topic.topic_id)) THEN
        RETURN taskq_internal.claim_for_owner(p_topic, p_owner, p_fence, p_size, p_order, p_condition, p_each);
    END IF;
    RETURN v_claimed;
END $$;

-- Claims up to p_size due tasks of a topic for a holder and returns their sequences in polled order.
CREATE FUNCTION taskq_internal.claim_first_due(p_topic_id int, p_holder bigint, p_size int, p_lifo boolean)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_found bigint[] := taskq_internal.lock_first_due(p_topic_id, p_size, p_lifo);
BEGIN
    RETURN CASE WHEN cardinality(v_found) = 0 THEN '{}'
                ELSE taskq_internal.claim_locked(p_topic_id, p_holder, v_found) END;
END $$;

-- Locks the first p_size due tasks that no other transaction holds. Returns their sequences in polled order: by
-- priority (higher first), then due time, then sequence. With p_lifo true, due time and sequence are reversed. Reads
-- the index ranges of one priority after the other, so it never reads scheduled tasks of a high priority. It locks the
-- rows first and changes them by key, so no plan can exceed the size.
CREATE FUNCTION taskq_internal.lock_first_due(p_topic_id int, p_size int, p_lifo boolean) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_front  taskq_internal.front;
    v_locked bigint[];
BEGIN
    SELECT * INTO v_front FROM taskq_internal.front f WHERE f.topic_id = p_topic_id
        ORDER BY f.priority DESC, f.number DESC LIMIT 1;
    v_locked := taskq_internal.lock_due_of_priority(v_front, v_now, p_size, p_lifo);
    IF cardinality(v_locked) >= p_size THEN
        RETURN v_locked;
    END IF;
    FOR v_front IN SELECT * FROM taskq_internal.due_fronts(p_topic_id, v_front.priority, v_now) LOOP
        v_locked := v_locked || taskq_internal.lock_due_of_priority(
            v_front, v_now, p_size - cardinality(v_locked), p_lifo);
        EXIT WHEN cardinality(v_locked) >= p_size;
    END LOOP;
    RETURN v_locked;
END $$;

-- Locks the first p_size due tasks of one priority: the late tasks before the front, and then the tasks behind it.
CREATE FUNCTION taskq_internal.lock_due_of_priority(
    p_front taskq_internal.front, p_now timestamptz, p_size int, p_lifo boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    IF p_lifo THEN
        RETURN taskq_internal.lock_last_due(p_front, p_now, p_size);
    END IF;
    RETURN (
        SELECT before.sequences || ARRAY(
            SELECT l.sequence FROM taskq_internal.live l
            WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
              AND l.priority = p_front.priority AND l.available_at <= p_now
              AND (l.available_at, l.sequence) >= (p_front.available_at, p_front.sequence)
            ORDER BY l.available_at, l.sequence LIMIT p_size - cardinality(before.sequences) FOR UPDATE SKIP LOCKED)
        FROM (SELECT ARRAY(
            SELECT l.sequence FROM taskq_internal.live l
            WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING AND l.late
              AND l.priority + 0 = p_front.priority AND l.available_at <= p_now
              AND (l.available_at, l.sequence) < (p_front.available_at, p_front.sequence)
            ORDER BY l.available_at, l.sequence LIMIT p_size FOR UPDATE SKIP LOCKED) AS sequences OFFSET 0) before);
END $$;

-- Does the same for one priority with due time and sequence reversed. The order is: tasks above the gap, late tasks in
-- the gap, tasks from the front to the gap, late tasks before the front.
CREATE FUNCTION taskq_internal.lock_last_due(p_front taskq_internal.front, p_now timestamptz, p_size int)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_locked bigint[];
BEGIN
    v_locked := ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
          AND l.priority = p_front.priority AND l.available_at <= p_now
          AND (l.available_at, l.sequence) >= (
              coalesce(p_front.gap_high_at, p_front.available_at),
              coalesce(p_front.gap_high_sequence, p_front.sequence))
        ORDER BY l.available_at DESC, l.sequence DESC LIMIT p_size FOR UPDATE SKIP LOCKED);
    IF p_front.gap_low_at IS NOT NULL AND cardinality(v_locked) < p_size THEN
        v_locked := v_locked || ARRAY(
            SELECT l.sequence FROM taskq_internal.live l
            WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING AND l.late
              AND l.priority + 0 = p_front.priority AND l.available_at <= p_now
              AND (l.available_at, l.sequence) < (p_front.gap_high_at, p_front.gap_high_sequence)
              AND (l.available_at, l.sequence) > (p_front.gap_low_at, p_front.gap_low_sequence)
            ORDER BY l.available_at DESC, l.sequence DESC LIMIT p_size - cardinality(v_locked) FOR UPDATE SKIP LOCKED);
        v_locked := v_locked || ARRAY(
            SELECT l.sequence FROM taskq_internal.live l
            WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
              AND l.priority = p_front.priority AND l.available_at <= p_now
              AND (l.available_at, l.sequence) <= (p_front.gap_low_at, p_front.gap_low_sequence)
              AND (l.available_at, l.sequence) >= (p_front.available_at, p_front.sequence)
            ORDER BY l.available_at DESC, l.sequence DESC LIMIT p_size - cardinality(v_locked) FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN v_locked || ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING AND l.late
          AND l.priority + 0 = p_front.priority AND l.available_at <= p_now
          AND (l.available_at, l.sequence) < (p_front.available_at, p_front.sequence)
        ORDER BY l.available_at DESC, l.sequence DESC LIMIT p_size - cardinality(v_locked) FOR UPDATE SKIP LOCKED);
END $$;
