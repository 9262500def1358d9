-- Fronts: where polls begin to read (see taskq_internal.front). No READY task of a priority lies before its front,
-- except late ones, and a poll reads those from the index live_late. So the cost of a poll does not grow with the
-- number of tasks that were claimed before, even while a long transaction keeps vacuum from removing their index
-- entries.
--
-- Tasks of a priority are in the order of due time and sequence. These rules keep tasks from appearing before a front:
--
--   - A transaction that pushes, or that makes tasks READY for a retry, first takes the locks of its announcement
--     (announce_time) and of its topic. Then it reads the clock. A task that is due at that time or later is not late.
--   - Every other task that becomes READY is late: one with an earlier due time, and one that was released, expired,
--     reset, resumed, promoted, or changed. A task that is late without need costs an entry in live_late, no more.
--   - A front advances to the first READY task that a snapshot shows, and not beyond a bound (front_bounds). The bound
--   is
--     the earliest time in the announcements of open transactions that have locked the topic, and no later than the
--     clock. The session reads the clock first, then pg_locks, and then takes the snapshot.
--
-- So a front passes no task. Let a transaction place a task that is not late before the bound. If it had ended before
-- the read of pg_locks, the snapshot shows its task. If it was open, its announcement is no later than its clock, and
-- the bound is no later than the announcement. If it took the lock of its announcement or of the topic after that read,
-- it read the clock later than the session did. In these two cases the task lies behind the bound.
--
-- A front also has the time of a recent push. After the clock was set back, it is later than the clock, and the tasks
-- that were due at their push are made due again (recall_early_tasks).
--
-- This requires that the clock of the server does not go back. After a clock was set back, pushes and retries compare
-- due times with the front, and tasks before it are late. One case is left: a poll has advanced a front and has not
-- committed while the clock is set back, and another transaction pushes in that moment.

-- Stores the first row of the priorities that have none, with the time of a push that the highest one has.
CREATE FUNCTION taskq_internal.add_fronts(p_topic_id int, p_priorities int[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO taskq_internal.front (topic_id, priority, pushed)
    SELECT DISTINCT p_topic_id, coalesce(u.priority, 0), coalesce(
        (SELECT f.pushed FROM taskq_internal.front f WHERE f.topic_id = p_topic_id
         ORDER BY f.priority DESC, f.number DESC LIMIT 1), '0001-01-01 00:00Z')
    FROM unnest(p_priorities) AS u (priority)
    WHERE (SELECT f.number FROM taskq_internal.front f
           WHERE f.topic_id = p_topic_id AND f.priority = coalesce(u.priority, 0)
           ORDER BY f.priority DESC, f.number DESC LIMIT 1) IS NULL;
END $$;

-- Returns the time from which new tasks of these priorities are not late: p_now, or the latest front of the topic if
-- the clock was set back. Stores the first row of a priority that has none.
CREATE FUNCTION taskq_internal.front_time(p_topic_id int, p_priorities int[], p_now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
    v_front   timestamptz;
    v_is_past boolean;
BEGIN
    PERFORM taskq_internal.add_fronts(p_topic_id, coalesce(p_priorities, '{0}'));
    SELECT max(f.available_at), bool_or(f.pushed NOT BETWEEN p_now - interval '1 minute' AND p_now)
    INTO v_front, v_is_past FROM taskq_internal.newest_fronts(p_topic_id) f;
    IF v_is_past THEN
        PERFORM taskq_internal.note_push(p_topic_id, p_now);
    END IF;
    RETURN greatest(p_now, v_front, (
        SELECT i.available_at FROM taskq_internal.identifier_front i
        WHERE i.topic_id = p_topic_id AND i.identifier = '' ORDER BY i.number DESC LIMIT 1));
END $$;

-- Stores the time of a push in the fronts of its topic. Calls come once a minute, and after the clock was set back.
CREATE FUNCTION taskq_internal.note_push(p_topic_id int, p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM taskq_internal.recall_early_tasks(p_topic_id, p_now);
    PERFORM taskq_internal.store_push_time(p_topic_id, p_now)
    WHERE NOT EXISTS (SELECT FROM taskq_internal.newest_fronts(p_topic_id) f WHERE f.pushed >= p_now);
END $$;

-- A task without a due time is due at its push. If the clock was ahead then, and was set back since, that time is to
-- come: this function makes such tasks of a topic due, and returns their number. A stored time of a push that is later
-- than p_now tells it; by a second, because pushes read the clock before they commit. Pushes, empty polls and upkeep
-- call this function. It does nothing above READ COMMITTED.
CREATE FUNCTION taskq_internal.recall_early_tasks(p_topic_id int, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    -- The front of the highest priority has the time that all have.
    RETURN CASE WHEN (SELECT f.pushed FROM taskq_internal.front f WHERE f.topic_id = p_topic_id
                      ORDER BY f.priority DESC, f.number DESC LIMIT 1) > p_now + interval '1 second'
        AND current_setting('transaction_isolation') = 'read committed'
        THEN taskq_internal.make_early_tasks_due(p_topic_id, p_now) ELSE 0 END;
END $$;

CREATE FUNCTION taskq_internal.make_early_tasks_due(p_topic_id int, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_found bigint[];
    v_due   bigint[];
BEGIN
    v_found := ARRAY(
        SELECT t.sequence FROM taskq_internal.task t
        WHERE t.topic_id = p_topic_id AND t.sequence >= taskq_internal.resolve(ARRAY[p_topic_id], p_now, false)
          AND t.created > p_now AND t.due = t.created
        FOR UPDATE SKIP LOCKED);
    v_due := ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_found) AND l.holder IS NULL AND l.available_at = (
            SELECT t.due FROM taskq_internal.task t WHERE t.topic_id = p_topic_id AND t.sequence = l.sequence)
        FOR UPDATE SKIP LOCKED);
    UPDATE taskq_internal.live SET available_at = p_now, late = true
    WHERE topic_id = p_topic_id AND sequence = ANY (v_due);
    -- The others are held or have ended: what restores their due time finds this one.
    UPDATE taskq_internal.task SET due = p_now WHERE topic_id = p_topic_id AND sequence = ANY (v_found);
    PERFORM taskq_internal.store_push_time(p_topic_id, p_now);
    RETURN cardinality(v_due);
END $$;

CREATE FUNCTION taskq_internal.store_push_time(p_topic_id int, p_now timestamptz) RETURNS void LANGUAGE sql AS $$
    INSERT INTO taskq_internal.front (topic_id, priority, available_at, sequence, pushed, gap_low_at, gap_low_sequence,
        gap_high_at, gap_high_sequence)
    SELECT f.topic_id, f.priority, f.available_at, f.sequence, p_now, f.gap_low_at, f.gap_low_sequence, f.gap_high_at,
        f.gap_high_sequence
    FROM taskq_internal.newest_fronts(p_topic_id) f
$$;

-- Returns the newest row of each priority of a topic, the highest priority first. The planner inlines the body.
CREATE FUNCTION taskq_internal.newest_fronts(p_topic_id int) RETURNS SETOF taskq_internal.front
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE newest AS (
        (SELECT f.* FROM taskq_internal.front f WHERE f.topic_id = p_topic_id
         ORDER BY f.priority DESC, f.number DESC LIMIT 1)
        UNION ALL
        SELECT n.* FROM newest v CROSS JOIN LATERAL (
            SELECT f.* FROM taskq_internal.front f WHERE f.topic_id = p_topic_id AND f.priority < v.priority
            ORDER BY f.priority DESC, f.number DESC LIMIT 1) n)
    SELECT * FROM newest
$$;

-- Returns the fronts of the priorities below p_below that have a task that is due at p_now, the highest priority first.
CREATE FUNCTION taskq_internal.due_fronts(p_topic_id int, p_below int, p_now timestamptz)
RETURNS SETOF taskq_internal.front LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT f.* FROM taskq_internal.newest_fronts(p_topic_id) f
    WHERE f.priority < p_below AND (
        (SELECT l.sequence FROM taskq_internal.live l
         WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
           AND l.priority = f.priority AND l.available_at <= p_now
           AND (l.available_at, l.sequence) >= (f.available_at, f.sequence)
         ORDER BY l.available_at, l.sequence LIMIT 1) IS NOT NULL
        OR (SELECT l.sequence FROM taskq_internal.live l
            WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING AND l.late
              AND l.priority + 0 = f.priority AND l.available_at <= p_now
              AND (l.available_at, l.sequence) < (f.available_at, f.sequence)
            ORDER BY l.available_at, l.sequence LIMIT 1) IS NOT NULL);
END $$;

-- Returns the due tasks of one priority in order: the late ones before the front, and then those behind it. The planner
-- inlines the body, so that a LIMIT of the caller ends the scans.
CREATE FUNCTION taskq_internal.due_of_front(p_front taskq_internal.front, p_now timestamptz)
RETURNS TABLE (available_at timestamptz, attempt int, placed_by xid, locked_by xid) LANGUAGE sql STABLE AS $$
    (SELECT l.available_at, l.attempt, l.xmin, l.xmax FROM taskq_internal.live l
     WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING AND l.late
       AND l.priority + 0 = p_front.priority AND l.available_at <= p_now
       AND (l.available_at, l.sequence) < (p_front.available_at, p_front.sequence)
     ORDER BY l.available_at, l.sequence)
    UNION ALL
    (SELECT l.available_at, l.attempt, l.xmin, l.xmax FROM taskq_internal.live l
     WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
       AND l.priority = p_front.priority AND l.available_at <= p_now
       AND (l.available_at, l.sequence) >= (p_front.available_at, p_front.sequence)
     ORDER BY l.available_at, l.sequence)
$$;

-- Announces that this transaction makes tasks of these topics READY for a retry. Returns the time from which these
-- tasks are not late: the clock, or the latest front of these topics if the clock was set back. The transaction may
-- have announced its time before, for another topic. So it reads the clock after it has taken the locks of these
-- topics.
CREATE FUNCTION taskq_internal.announce_retry(p_topic_ids int[]) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    v_time bigint := taskq_internal.announce_time(:LOCK_RETRY_TIME);
BEGIN
    PERFORM pg_advisory_xact_lock_shared((:LOCK_RETRY_TOPIC::bigint << 48) | u.number)
    FROM (SELECT DISTINCT unnest(p_topic_ids) & 1023 AS number) u;
    RETURN greatest(clock_timestamp(), (
        SELECT max(greatest(f.available_at, (
            SELECT i.available_at FROM taskq_internal.identifier_front i
            WHERE i.topic_id = u.topic_id AND i.identifier = '' ORDER BY i.number DESC LIMIT 1)))
        FROM unnest(p_topic_ids) AS u (topic_id) CROSS JOIN LATERAL taskq_internal.newest_fronts(u.topic_id) f));
END $$;

-- Returns the bounds of a topic's fronts. In a statement that begins after this call, no task that is not late will
-- appear with a due time before placed, and no ACTIVE task with a time of its claim before claimed. The order of the
-- two reads matters: see the head of this file. The bound of a transaction is a millisecond before its announcement,
-- because the time is rounded.
CREATE FUNCTION taskq_internal.front_bounds(p_topic_id int, OUT placed timestamptz, OUT claimed timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    SELECT least(v_now, to_timestamp((min(least(CASE WHEN o.retried THEN o.retries END,
                                                CASE WHEN o.placed THEN o.pushes END)) - 1) / 1000.0)),
           least(v_now, to_timestamp((min(o.claims) - 1) / 1000.0))
    INTO placed, claimed
    FROM (SELECT min(h.number) FILTER (WHERE h.kind = :LOCK_PUSH_TIME) AS pushes,
                 min(h.number) FILTER (WHERE h.kind = :LOCK_RETRY_TIME) AS retries,
                 min(h.number) FILTER (WHERE h.kind = :LOCK_CLAIM_TIME) AS claims,
                 bool_or(h.kind = :LOCK_TOPIC AND h.number = p_topic_id & 1023) AS placed,
                 bool_or(h.kind = :LOCK_RETRY_TOPIC AND h.number = p_topic_id & 1023) AS retried
          FROM taskq_internal.held_locks() h GROUP BY h.virtualtransaction) o;
END $$;

-- Advances the fronts of the priorities from p_low to p_high up to the bound. With p_lifo true it moves the gaps, too.
CREATE FUNCTION taskq_internal.advance_fronts(
    p_topic_id int, p_low int, p_high int, p_lifo boolean, p_bound timestamptz
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_front taskq_internal.front;
    v_next  taskq_internal.front;
BEGIN
    FOR v_front IN SELECT * FROM taskq_internal.newest_fronts(p_topic_id) f WHERE f.priority BETWEEN p_low AND p_high
    LOOP
        v_next := taskq_internal.next_front(v_front, p_bound, p_lifo);
        IF v_next IS DISTINCT FROM v_front THEN
            INSERT INTO taskq_internal.front (topic_id, priority, available_at, sequence, pushed, gap_low_at,
                gap_low_sequence, gap_high_at, gap_high_sequence)
            VALUES (v_next.topic_id, v_next.priority, v_next.available_at, v_next.sequence, v_next.pushed,
                    v_next.gap_low_at, v_next.gap_low_sequence, v_next.gap_high_at, v_next.gap_high_sequence);
        END IF;
    END LOOP;
END $$;

-- Returns where a front may advance to: to its first READY task, and not beyond the bound. With p_lifo true, and if the
-- bound has passed the end of the gap, the gap then reaches from the last READY task before the bound to the bound.
CREATE FUNCTION taskq_internal.next_front(p_front taskq_internal.front, p_bound timestamptz, p_lifo boolean)
RETURNS taskq_internal.front LANGUAGE plpgsql AS $$
DECLARE
    v_next taskq_internal.front := p_front;
BEGIN
    IF p_front.available_at >= p_bound THEN
        RETURN p_front;
    END IF;
    SELECT l.available_at, l.sequence INTO v_next.available_at, v_next.sequence FROM taskq_internal.live l
    WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
      AND l.priority = p_front.priority AND l.available_at < p_bound
      AND (l.available_at, l.sequence) >= (p_front.available_at, p_front.sequence)
    ORDER BY l.available_at, l.sequence LIMIT 1;
    IF NOT FOUND THEN
        v_next.available_at := p_bound;
        v_next.sequence := 0;
    END IF;
    IF p_lifo AND p_bound > coalesce(p_front.gap_high_at, '-infinity') THEN
        v_next := taskq_internal.next_gap(v_next, p_bound);
    END IF;
    IF (v_next.available_at, v_next.sequence) >= (v_next.gap_high_at, v_next.gap_high_sequence) THEN
        v_next.gap_low_at := NULL;
        v_next.gap_low_sequence := NULL;
        v_next.gap_high_at := NULL;
        v_next.gap_high_sequence := NULL;
    ELSIF (v_next.available_at, v_next.sequence) > (v_next.gap_low_at, v_next.gap_low_sequence) THEN
        v_next.gap_low_at := v_next.available_at;
        v_next.gap_low_sequence := v_next.sequence;
    END IF;
    RETURN v_next;
END $$;

-- Returns the front with its gap below the bound: from the last READY task before the bound. Looks for that task above
-- the present gap first, and then below it.
CREATE FUNCTION taskq_internal.next_gap(p_front taskq_internal.front, p_bound timestamptz)
RETURNS taskq_internal.front LANGUAGE plpgsql AS $$
DECLARE
    v_next taskq_internal.front := p_front;
BEGIN
    v_next.gap_high_at := p_bound;
    v_next.gap_high_sequence := 0;
    SELECT l.available_at, l.sequence INTO v_next.gap_low_at, v_next.gap_low_sequence FROM taskq_internal.live l
    WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
      AND l.priority = p_front.priority AND l.available_at < p_bound
      AND (l.available_at, l.sequence) >= (
          coalesce(p_front.gap_high_at, p_front.available_at), coalesce(p_front.gap_high_sequence, p_front.sequence))
    ORDER BY l.available_at DESC, l.sequence DESC LIMIT 1;
    IF NOT FOUND AND p_front.gap_low_at IS NOT NULL THEN
        SELECT l.available_at, l.sequence INTO v_next.gap_low_at, v_next.gap_low_sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
          AND l.priority = p_front.priority
          AND (l.available_at, l.sequence) <= (p_front.gap_low_at, p_front.gap_low_sequence)
          AND (l.available_at, l.sequence) >= (p_front.available_at, p_front.sequence)
        ORDER BY l.available_at DESC, l.sequence DESC LIMIT 1;
    END IF;
    v_next.gap_low_at := coalesce(v_next.gap_low_at, p_front.available_at);
    v_next.gap_low_sequence := coalesce(v_next.gap_low_sequence, p_front.sequence);
    RETURN v_next;
END $$;

-- Advances the fronts of the priorities of these n tasks, which a poll has just claimed in polled order. Does so at
-- random, with the probability n / (50 + 4 n), because a counter would be a write; and always for a thousand tasks. A
-- poll for p_singular identifiers, one task of each, also advances the fronts of some of them. Does nothing above
-- READ COMMITTED, because the snapshot would be older than the bounds. Returns whether it advanced them.
CREATE FUNCTION taskq_internal.advance_fronts_at_random(
    p_topic_id int, p_claimed bigint[], p_lifo boolean, p_singular boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_count  int := cardinality(p_claimed);
    v_bounds record;
    v_low    int;
    v_high   int;
BEGIN
    IF v_count < 1000 AND random() * (50 + 4 * v_count) >= v_count
        OR current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN false;
    END IF;
    v_bounds := taskq_internal.front_bounds(p_topic_id);
    SELECT min(l.priority), max(l.priority) INTO v_low, v_high FROM taskq_internal.live l
    WHERE l.topic_id = p_topic_id AND l.sequence = ANY (ARRAY[p_claimed[1], p_claimed[v_count]]);
    PERFORM taskq_internal.advance_fronts(p_topic_id, v_low, v_high, p_lifo, v_bounds.placed);
    IF p_singular THEN
        PERFORM taskq_internal.advance_identifier_fronts(p_topic_id, p_claimed, v_bounds.placed, v_bounds.claimed);
    END IF;
    RETURN true;
END $$;

-- Removes up to p_most rows of fronts that no poll reads any more. Leaves rows that another transaction has locked.
-- Also removes the rows of identifiers that no poll has claimed for ten minutes and that have no READY task.
CREATE FUNCTION taskq_internal.remove_old_fronts(p_most int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM taskq_internal.front f USING (
        SELECT o.topic_id, o.priority, o.number FROM taskq_internal.front o
        WHERE EXISTS (SELECT FROM taskq_internal.front n WHERE n.topic_id = o.topic_id AND n.priority = o.priority
                      AND n.number > o.number)
        LIMIT p_most FOR UPDATE OF o SKIP LOCKED) old
    WHERE f.topic_id = old.topic_id AND f.priority = old.priority AND f.number = old.number;
    DELETE FROM taskq_internal.identifier_front f USING (
        SELECT o.topic_id, o.identifier, o.number FROM taskq_internal.identifier_front o
        WHERE EXISTS (SELECT FROM taskq_internal.identifier_front n WHERE n.topic_id = o.topic_id
                      AND n.identifier = o.identifier AND n.priority = o.priority AND n.number > o.number)
           OR o.identifier <> '' AND o.claimed_at < clock_timestamp() - interval '10 minutes' AND (
                SELECT l.sequence FROM taskq_internal.live l
                WHERE l.topic_id::bigint = o.topic_id AND l.topic_id = o.topic_id AND l.identifier = o.identifier
                  AND l.holder IS NULL AND l.priority = o.priority
                  AND (l.available_at, l.sequence) >= (o.available_at, o.sequence)
                ORDER BY l.available_at, l.sequence LIMIT 1) IS NULL
        LIMIT p_most FOR UPDATE OF o SKIP LOCKED) old
    WHERE f.topic_id = old.topic_id AND f.identifier = old.identifier AND f.number = old.number;
END $$;
