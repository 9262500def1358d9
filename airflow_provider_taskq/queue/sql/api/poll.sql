-- Poll: hands out tasks by priority, then by age, each to one owner. A poll never waits, and never returns more tasks
-- than requested. A poll of batches hands out all due tasks of an identifier together.

CREATE FUNCTION taskq.poll(
    p_topic text, p_owner text, p_fence bigint, p_size int DEFAULT 1, p_order text DEFAULT 'FIRST_IN_FIRST_OUT',
    p_condition text DEFAULT 'NONE'
)
RETURNS TABLE (sequence bigint, identifier text, payload json, reference text, attempt int, redelivered boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_topic   taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'UPDATE');
    v_claimed bigint[] := taskq_internal.claim_for_owner(v_topic, p_owner, p_fence, p_size, p_order, p_condition);
BEGIN
    IF cardinality(v_claimed) = 1 THEN  -- saves the joins of claimed_tasks
        RETURN QUERY
        SELECT t.sequence, t.identifier, t.payload, t.reference, l.attempt, l.redelivered
        FROM taskq_internal.task t, taskq_internal.live l
        WHERE t.topic_id = v_topic.topic_id AND t.sequence = v_claimed[1]
          AND l.topic_id = v_topic.topic_id AND l.sequence = v_claimed[1];
    ELSIF cardinality(v_claimed) > 1 THEN
        RETURN QUERY SELECT * FROM taskq_internal.claimed_tasks(v_topic.topic_id, v_claimed);
    END IF;
END $$;
COMMENT ON FUNCTION taskq.poll IS
'Claims up to p_size due tasks for the owner and returns them. After a crash, it claims the tasks of the crashed owner in
smaller groups, and no others with them. p_order is FIRST_IN_FIRST_OUT or LAST_IN_FIRST_OUT.
p_condition is NONE, SINGULAR_BY_IDENTIFIER, or one of its variants that suspend. A poll that finds nothing first ends
the lapsed leases of owners that hold tasks of the topic, as taskq.expire does. Never waits. Raises TQ001 for an
unknown topic, and TQ005 if the lease has lapsed or no longer exists. Raises TQ000 for an unknown order or condition,
and for a poll under a condition above READ COMMITTED.';

CREATE FUNCTION taskq.claim(p_topic text, p_owner text, p_fence bigint, p_size int, p_order text, p_condition text)
RETURNS int LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_chunk int := 50000;  -- limits the server's memory for a claim of millions
    v_got   int;
    v_all   int := 0;
BEGIN
    LOOP
        v_got := cardinality(taskq_internal.claim_for_owner(
            taskq_internal.accessible_topic(p_topic, 'UPDATE'), p_owner, p_fence, least(v_chunk, p_size - v_all),
            p_order, p_condition));
        v_all := v_all + v_got;
        EXIT WHEN v_got < v_chunk OR v_all >= p_size;
    END LOOP;
    RETURN v_all;
END $$;
COMMENT ON FUNCTION taskq.claim IS
'Claims tasks like taskq.poll, but does not return them. Returns how many tasks it claimed. Raises the errors of
taskq.poll, such as TQ001 for an unknown topic.';

CREATE FUNCTION taskq.ready(p_topic text, p_limit int DEFAULT 1, p_condition text DEFAULT 'NONE') RETURNS int
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM taskq_internal.check_order_and_condition('FIRST_IN_FIRST_OUT', p_condition);
    RETURN taskq_internal.count_ready(taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE'),
                                      least(p_limit, taskq_internal.max_tasks()), p_condition);
END $$;
COMMENT ON FUNCTION taskq.ready IS
'Returns how many tasks a poll could claim now, counted up to p_limit. It does not count rows that open transactions
hold. Under a condition it also leaves out identifiers that open transactions hold. Returns 0 for a paused topic. Takes
no locks. Raises TQ001 for an unknown topic, and TQ000 for an unknown condition.';

-- An open poll under a condition holds all identifiers that it examines, even those of which it claims no task.
CREATE FUNCTION taskq.has_unclaimed(p_topic text, p_condition text) RETURNS boolean
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM taskq_internal.check_order_and_condition('FIRST_IN_FIRST_OUT', p_condition);
    RETURN taskq_internal.count_ready(taskq_internal.accessible_topic(p_topic, 'UPDATE'), 1, p_condition, true) > 0;
END $$;
COMMENT ON FUNCTION taskq.has_unclaimed IS
'Returns whether a topic has a task that a poll could claim now. It includes tasks of identifiers that an open poll has
locked. An empty poll under a condition does not prove that the topic is empty. A result of false from this function
proves it, except for rows that an open transaction holds. Raises TQ001 for an unknown topic, and TQ000 for an unknown
condition.';

CREATE FUNCTION taskq.ready_many(p_topics text[], p_limits int[], p_conditions text[] DEFAULT NULL)
RETURNS TABLE ("position" int, ready int) LANGUAGE sql STABLE SET plan_cache_mode = force_generic_plan AS $$
    SELECT u.place::int, CASE WHEN t.topic_id IS NOT NULL
        THEN taskq_internal.count_ready(t, least(u.bound, taskq_internal.max_tasks()),
            coalesce(u.condition, 'NONE')) END
    FROM unnest(p_topics, p_limits, p_conditions) WITH ORDINALITY AS u (topic, bound, condition, place)
    LEFT JOIN taskq_internal.topic t ON t.name = u.topic AND taskq_internal.may_access(u.topic, 'SELECT, UPDATE')
$$;
COMMENT ON FUNCTION taskq.ready_many IS
'Returns the counts of taskq.ready for many topics in one call. p_limits and p_conditions have one element for each
element of p_topics. A condition of NULL stands for NONE. Each row has the position of a topic, from 1, and its count.
The count is NULL for an unknown topic.';

CREATE FUNCTION taskq.poll_batch(p_topic text, p_owner text, p_fence bigint, p_identifiers int, p_size int)
RETURNS TABLE (sequence bigint, identifier text, payload json, reference text, attempt int, redelivered boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_topic    taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'UPDATE');
    v_owner_id bigint := taskq_internal.require_running_lease(p_owner, p_fence);
    v_limit    int := least(p_identifiers, taskq_internal.max_tasks());
    v_claimed    bigint[] := '{}';
    v_advanced boolean;
BEGIN
    IF p_size < -1 THEN
        PERFORM taskq_internal.raise_error('TQ008', format(
            'topic %L: invalid group size %s: expected -1 for all tasks, or 0 or more', p_topic, p_size));
    END IF;
    IF NOT v_topic.paused AND v_owner_id IS NOT NULL AND p_identifiers > 0 AND p_size <> 0 THEN
        PERFORM taskq_internal.require_read_committed('poll_batch()');
        PERFORM taskq_internal.promote_waiting(v_topic, v_limit, false, 'BATCH');
        v_claimed := taskq_internal.claim_turns(v_topic.topic_id, v_owner_id, v_limit, false, 'BATCH',
                                                nullif(p_size, -1));
        v_claimed := taskq_internal.cut_claim(v_topic.topic_id, v_owner_id, v_claimed);
        IF v_topic.probe THEN
            PERFORM taskq_internal.demote_retries(v_topic.topic_id);
        END IF;
        v_advanced := taskq_internal.advance_fronts_at_random(v_topic.topic_id, v_claimed, false, true);
        IF v_claimed = '{}' AND (taskq_internal.take_back_lapsed(v_topic.topic_id)
            OR taskq_internal.recall_early_tasks(v_topic.topic_id, clock_timestamp()) > 0
            OR taskq_internal.wake_missed(v_topic.topic_id)) THEN
            RETURN QUERY SELECT * FROM taskq.poll_batch(p_topic, p_owner, p_fence, p_identifiers, p_size);
            RETURN;
        END IF;
    END IF;
    RETURN QUERY SELECT * FROM taskq_internal.claimed_tasks(v_topic.topic_id, v_claimed);
END $$;
COMMENT ON FUNCTION taskq.poll_batch IS
'Claims the due tasks of up to p_identifiers identifiers, in polled order, and returns them. It claims at most p_size
tasks of each identifier. With p_size -1 it claims all of them. The groups come in the order of their first tasks. In a
group, retries come first, by sequence. It leaves out an identifier with an ACTIVE or a FAILED task, or with a retry
that is not due. Never waits. Raises TQ001 for
an unknown topic, TQ005 if the lease has lapsed or no longer exists, TQ008 for an invalid size, and TQ000 above READ
COMMITTED.';

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
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off AS $$
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
) RETURNS bigint[] LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off AS $$
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
RETURNS bigint[] LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_locked bigint[];
BEGIN
    v_locked := ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
          AND l.priority = p_front.priority AND l.available_at <= p_now
          AND (l.available_at, l.sequence) >= (
              coalesce(p_front.gap_high_at, p_front.available_at), coalesce(p_front.gap_high_sequence, p_front.sequence))
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

-- Makes READY tasks ACTIVE for a holder and returns their sequences. This transaction has locked their rows.
CREATE FUNCTION taskq_internal.claim_locked(p_topic_id int, p_holder bigint, p_sequences bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_now timestamptz := taskq_internal.announce_claim(p_topic_id);
BEGIN
    UPDATE taskq_internal.live SET holder = p_holder, polled = v_now, attempt = attempt + 1
    WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    RETURN p_sequences;
END $$;

-- Makes tasks READY again that this transaction has just claimed.
CREATE FUNCTION taskq_internal.undo_claim(p_topic_id int, p_sequences bigint[]) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    UPDATE taskq_internal.live SET holder = NULL, polled = NULL, attempt = attempt - 1, late = true
    WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
END $$;

-- Cuts a claim of this transaction to the tasks that may be held together, and returns their sequences. A task that was
-- held when its owner crashed may be the cause. So it is held together with at most max_claim tasks, all of which have
-- had a crash too. The claim keeps its first tasks, so no task overtakes another. An owner that holds tasks gets
-- crashed tasks only when it has completed those, and the other way round.
CREATE FUNCTION taskq_internal.cut_claim(p_topic_id int, p_holder bigint, p_claimed bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_crashed boolean;
    v_kept    bigint[];
BEGIN
    IF cardinality(p_claimed) = 0 OR NOT EXISTS (SELECT FROM taskq_internal.live l
                                                 WHERE l.topic_id = p_topic_id AND l.max_claim IS NOT NULL) THEN
        RETURN p_claimed;
    END IF;
    v_crashed := EXISTS (SELECT FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
                         AND l.sequence = p_claimed[1] AND l.max_claim IS NOT NULL);
    IF NOT EXISTS (SELECT FROM taskq_internal.live l WHERE l.holder = p_holder AND l.sequence <> ALL (p_claimed)
                   AND (v_crashed OR l.max_claim IS NOT NULL)
                   AND NOT taskq_internal.is_deferred(l)) THEN
        v_kept := ARRAY(
            SELECT k.sequence FROM (
                SELECT u.sequence, u.place, min(l.max_claim) OVER claim AS most,
                       bool_and((l.max_claim IS NOT NULL) = v_crashed) OVER claim AS alike
                FROM unnest(p_claimed) WITH ORDINALITY AS u (sequence, place)
                JOIN (SELECT * FROM taskq_internal.live WHERE topic_id = p_topic_id AND sequence = ANY (p_claimed)) l
                    USING (sequence)
                WINDOW claim AS (ORDER BY u.place)) k
            WHERE k.alike AND k.place <= coalesce(k.most, k.place) ORDER BY k.place);
    END IF;
    PERFORM taskq_internal.undo_claim(p_topic_id, p_claimed[coalesce(cardinality(v_kept), 0) + 1:]);
    RETURN coalesce(v_kept, '{}');
END $$;

-- Claims tasks for an owner. Checks the lease (TQ005), the order and the condition first.
CREATE FUNCTION taskq_internal.claim_for_owner(
    p_topic taskq_internal.topic, p_owner text, p_fence bigint, p_size int, p_order text, p_condition text
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_owner_id bigint := taskq_internal.require_running_lease(p_owner, p_fence);
    v_lifo     boolean := p_order = 'LAST_IN_FIRST_OUT';
    v_size     int := least(p_size, taskq_internal.max_tasks());
    v_waited     boolean;
    v_claimed    bigint[];
    v_advanced boolean;
BEGIN
    IF NOT coalesce(p_order = 'FIRST_IN_FIRST_OUT' AND p_condition = 'NONE', false) THEN  -- saves a call in most polls
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
                    ELSE taskq_internal.claim_turns(p_topic.topic_id, v_owner_id, v_size, v_lifo, p_condition) END;
    v_claimed := taskq_internal.cut_claim(p_topic.topic_id, v_owner_id, v_claimed);
    v_advanced := taskq_internal.advance_fronts_at_random(p_topic.topic_id, v_claimed, v_lifo,
                p_condition <> 'NONE');
    IF v_claimed = '{}' AND (taskq_internal.take_back_lapsed(p_topic.topic_id)
        OR taskq_internal.recall_early_tasks(p_topic.topic_id, clock_timestamp()) > 0
        OR taskq_internal.wake_missed(p_topic.topic_id)) THEN
        RETURN taskq_internal.claim_for_owner(p_topic, p_owner, p_fence, p_size, p_order, p_condition);
    END IF;
    RETURN v_claimed;
END $$;

-- Raises TQ000 for an unknown order or condition.
CREATE FUNCTION taskq_internal.check_order_and_condition(p_order text, p_condition text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_order IS NULL OR p_order NOT IN ('FIRST_IN_FIRST_OUT', 'LAST_IN_FIRST_OUT') THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'order %L is none of FIRST_IN_FIRST_OUT, LAST_IN_FIRST_OUT', p_order));
    END IF;
    IF p_condition IS NULL OR p_condition NOT IN (
        'NONE', 'SINGULAR_BY_IDENTIFIER', 'SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE',
        'SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS') THEN
        PERFORM taskq_internal.raise_error('TQ000', format('condition %L is none of NONE, SINGULAR_BY_IDENTIFIER,'
            ' SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE, SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS', p_condition));
    END IF;
END $$;

-- Returns the columns that a client gets of the tasks that it claimed, in the order of the sequences.
CREATE FUNCTION taskq_internal.claimed_tasks(p_topic_id int, p_sequences bigint[])
RETURNS TABLE (sequence bigint, identifier text, payload json, reference text, attempt int, redelivered boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_nestloop = off
SET enable_mergejoin = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT t.sequence, t.identifier, t.payload, t.reference, l.attempt, l.redelivered
    FROM unnest(p_sequences) WITH ORDINALITY AS u (sequence, place)
    JOIN (SELECT * FROM taskq_internal.task WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) t
        USING (sequence)
    JOIN (SELECT * FROM taskq_internal.live WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) l
        USING (sequence)
    ORDER BY u.place;
END $$;

-- Returns the count of taskq.ready: tasks that a poll can claim at once, and tasks that a poll would promote first.
-- With p_locked true it includes identifiers that an open transaction holds.
CREATE FUNCTION taskq_internal.count_ready(
    p_topic taskq_internal.topic, p_limit int, p_condition text, p_locked boolean DEFAULT false
) RETURNS int LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_count int;
    v_more  bigint[];
BEGIN
    IF p_topic.paused OR p_limit <= 0 THEN
        RETURN 0;
    END IF;
    v_count := CASE p_condition WHEN 'NONE' THEN taskq_internal.count_first_due(p_topic.topic_id, p_limit)
                                ELSE taskq_internal.count_turns(p_topic.topic_id, p_limit, p_condition, p_locked) END;
    IF v_count < p_limit AND EXISTS (SELECT FROM taskq_internal.live l WHERE l.topic_id = p_topic.topic_id
                                     AND l.holder IS NULL AND l.waits > :WAITS_NOTHING) THEN
        v_more := taskq_internal.waiting_to_promote(p_topic, p_limit, p_condition);
        v_count := v_count + CASE p_condition WHEN 'NONE' THEN cardinality(v_more)
                                              ELSE taskq_internal.count_turns_among(p_topic.topic_id, v_more,
                                                      p_condition, p_locked) END;
    END IF;
    RETURN least(v_count, p_limit);
END $$;

-- Counts the due READY tasks of a topic up to p_limit, priority by priority like lock_first_due. It leaves out the rows
-- that another transaction holds, which SKIP LOCKED would skip. It takes no lock.
CREATE FUNCTION taskq_internal.count_first_due(p_topic_id int, p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_now      timestamptz := clock_timestamp();
    v_front    taskq_internal.front;
    v_next     bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_count    int := 0;
    v_found    int;
BEGIN
    FOR v_front IN SELECT * FROM taskq_internal.due_fronts(p_topic_id, 101, v_now) LOOP
        SELECT count(*) INTO v_found FROM (
            SELECT FROM (
                (SELECT l.xmin, l.xmax FROM taskq_internal.live l
                 WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING AND l.late
                   AND l.priority + 0 = v_front.priority AND l.available_at <= v_now
                   AND (l.available_at, l.sequence) < (v_front.available_at, v_front.sequence)
                 ORDER BY l.available_at, l.sequence)
                UNION ALL
                (SELECT l.xmin, l.xmax FROM taskq_internal.live l
                 WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
                   AND l.priority = v_front.priority AND l.available_at <= v_now
                   AND (l.available_at, l.sequence) >= (v_front.available_at, v_front.sequence)
                 ORDER BY l.available_at, l.sequence)) l
            WHERE NOT (taskq_internal.is_transaction_open(l.xmax, v_next)
                       AND NOT taskq_internal.is_transaction_open(l.xmin, v_next))
            LIMIT p_limit - v_count) found;
        v_count := v_count + v_found;
        EXIT WHEN v_count >= p_limit;
    END LOOP;
    RETURN v_count;
END $$;

-- Returns whether a transaction is still open. p_xid may be the xmax of a row of live. These rows are only locked FOR
-- UPDATE, by the call that then changes them, so xmax is one transaction and no multixact. The xmin of a visible row
-- belongs to this transaction itself. p_next is the next transaction number. It gives the epoch of the row's 32 bits; a
-- number beyond it began after this snapshot.
CREATE FUNCTION taskq_internal.is_transaction_open(p_xid xid, p_next bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_xid bigint := p_xid::text::bigint;
BEGIN
    IF v_xid = 0 THEN
        RETURN false;
    END IF;
    v_xid := v_xid + (p_next >> 32 << 32);
    IF v_xid >= p_next THEN
        IF v_xid - p_next < (1::bigint << 31) THEN
            RETURN true;
        END IF;
        v_xid := v_xid - (1::bigint << 32);
    END IF;
    RETURN v_xid > 0 AND pg_xact_status(v_xid::text::xid8) IS NOT DISTINCT FROM 'in progress';
END $$;

-- Locks the due tasks of identifiers that this transaction has locked, at most p_each of each identifier. With p_each
-- NULL it locks all of them. Returns them in the order of the identifiers. The attempted tasks of an identifier come
-- first, by sequence, as they have its turn: otherwise a bounded poll would let another task overtake a retry. It checks
-- each identifier again, and leaves out a blocked identifier and an identifier with a task that another transaction
-- holds.
CREATE FUNCTION taskq_internal.lock_groups(p_topic_id int, p_now timestamptz, p_identifiers text[], p_each int)
RETURNS bigint[] LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    v_front  taskq_internal.front := taskq_internal.only_front(p_topic_id, false);
    v_found  bigint[];
    v_locked bigint[];
BEGIN
    v_found := ARRAY(
        SELECT l.sequence FROM unnest(p_identifiers) WITH ORDINALITY AS u (identifier, place)
        LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, u.identifier, true) i ON true
        CROSS JOIN LATERAL (
            (SELECT b.sequence, b.priority, b.available_at, b.sequence AS attempted FROM taskq_internal.live b
             WHERE b.identifier = u.identifier AND b.topic_id = p_topic_id AND b.attempt > 0
               AND coalesce(b.polled, 'infinity') = 'infinity' AND b.holder IS NULL
               AND b.waits + 0 <= :WAITS_NOTHING AND b.available_at <= p_now
             ORDER BY b.sequence LIMIT p_each)
            UNION ALL
            (SELECT b.sequence, b.priority, b.available_at, NULL FROM taskq_internal.live b
             WHERE (i.claimed_at IS NULL OR v_front.number IS NULL)
               AND b.topic_id::bigint = p_topic_id AND b.topic_id = p_topic_id AND b.identifier = u.identifier
               AND b.holder IS NULL AND b.attempt = 0
               -- + 0 keeps the planner from the index live_ready, which has the tasks of all identifiers.
               AND b.waits + 0 <= :WAITS_NOTHING AND b.available_at <= p_now
             ORDER BY b.priority DESC, b.available_at, b.sequence LIMIT p_each)
            UNION ALL
            (SELECT b.sequence, b.priority, b.available_at, NULL FROM taskq_internal.live b
             WHERE i.claimed_at IS NOT NULL AND v_front.number IS NOT NULL
               AND b.topic_id::bigint = p_topic_id AND b.topic_id = p_topic_id AND b.identifier = u.identifier
               AND b.holder IS NULL AND b.attempt = 0
               AND b.late AND b.waits <= :WAITS_NOTHING AND b.priority::int = v_front.priority
               AND b.available_at <= p_now AND (b.available_at, b.sequence) < (i.available_at, i.sequence)
             ORDER BY b.available_at, b.sequence LIMIT p_each)
            UNION ALL
            (SELECT b.sequence, b.priority, b.available_at, NULL FROM taskq_internal.live b
             WHERE i.claimed_at IS NOT NULL AND v_front.number IS NOT NULL
               AND b.topic_id::bigint = p_topic_id AND b.topic_id = p_topic_id AND b.identifier = u.identifier
               AND b.holder IS NULL AND b.attempt = 0
               AND b.waits + 0 <= :WAITS_NOTHING AND b.priority = v_front.priority
               AND b.available_at <= p_now AND (b.available_at, b.sequence) >= (i.available_at, i.sequence)
             ORDER BY b.available_at, b.sequence LIMIT p_each)
            LIMIT p_each) l
        WHERE (SELECT t.holder FROM taskq_internal.turn_of_identifier(p_topic_id, u.identifier, i.claimed_at) t) IS NULL
          AND (SELECT e.sequence FROM taskq_internal.ended e WHERE e.identifier = u.identifier
               AND e.topic_id = p_topic_id AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED) AND e.state = :FAILED
               ORDER BY e.state, e.sequence LIMIT 1) IS NULL
          AND NOT taskq_internal.has_undue_retry(p_topic_id, u.identifier, p_now)
        ORDER BY u.place, l.attempted, l.priority DESC, l.available_at, l.sequence);
    v_locked := ARRAY(SELECT l.sequence FROM taskq_internal.live l
                      WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_found) AND l.holder IS NULL
                          FOR UPDATE SKIP LOCKED);
    IF cardinality(v_locked) = cardinality(v_found) THEN
        RETURN v_found;
    END IF;
    RETURN ARRAY(
        SELECT u.sequence FROM unnest(v_found) WITH ORDINALITY AS u (sequence, place)
        JOIN taskq_internal.live l ON l.topic_id = p_topic_id AND l.sequence = u.sequence
        WHERE l.identifier NOT IN (SELECT m.identifier FROM taskq_internal.live m WHERE m.topic_id = p_topic_id
                                   AND m.sequence = ANY (v_found) AND m.sequence <> ALL (v_locked))
        ORDER BY u.place);
END $$;
