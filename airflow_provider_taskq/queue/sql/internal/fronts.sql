-- Fronts: where polls begin to read (see taskq_internal.front). No READY task of a priority lies before its front, except
-- late ones, and a poll reads those from the index live_late. So the cost of a poll does not depend on the number of
-- tasks that were claimed before, even while a long transaction keeps vacuum from removing their index entries.
--
-- The place of a task in a priority is its due time and its sequence. These rules keep tasks from appearing before a
-- front:
--
--   - A push, or a retry that is due later, reads the clock after it has announced itself: a push by the locks of the
--     log (api/log.sql), a retry by announce_retry. The task is not late if it is due at that time or afterwards.
--   - Every other task that becomes READY is late: one with an earlier due time, and one that was released, expired,
--     reset, resumed, promoted, or changed. Late is always safe, but costs an entry in live_late.
--   - A front advances to the first READY task that a snapshot shows, and not beyond the bound (front_bound): the time
--     before which no announced transaction will place a task. The snapshot is taken after the bound. So it shows every
--     task before the bound that is not late and that will ever be committed.
--
-- The steps to the last rule: the bound is no later than the clock before one read of pg_locks. A transaction that
-- announces itself after that read reads the clock later still. One that ended before it is in the snapshot. One that
-- is open is among the locks. The bound is then no later than its announcement. An open push announces no time but a
-- number, which no task had drawn yet. So a task with a lower number was created before the announcement.
--
-- The clock of the server may be set back. A push therefore compares the due time with the front, too: a task before
-- the front is late.
--
-- A poll advances the fronts about once per 450 tasks if it claims a hundred, and about once per 54 if it claims one.

-- Stores the first row of the priorities that have none.
CREATE FUNCTION taskq_internal.add_fronts(p_topic_id int, p_priorities int[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    INSERT INTO taskq_internal.front (topic_id, priority)
    SELECT DISTINCT p_topic_id, coalesce(u.priority, 0) FROM unnest(p_priorities) AS u (priority)
    WHERE (SELECT f.number FROM taskq_internal.front f
           WHERE f.topic_id = p_topic_id AND f.priority = coalesce(u.priority, 0)
           ORDER BY f.priority DESC, f.number DESC LIMIT 1) IS NULL;
END $$;

-- Returns the time from which new tasks of these priorities are not late: the greatest due time of their fronts, and no
-- earlier than p_now. Stores the first row of a priority that has none.
CREATE FUNCTION taskq_internal.front_time(p_topic_id int, p_priorities int[], p_now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off AS $$
BEGIN
    PERFORM taskq_internal.add_fronts(p_topic_id, coalesce(p_priorities, '{0}'));
    RETURN greatest(p_now, (SELECT max(f.available_at) FROM taskq_internal.newest_fronts(p_topic_id) f));
END $$;

-- Returns the row that counts of each priority of a topic, the highest priority first.
CREATE FUNCTION taskq_internal.newest_fronts(p_topic_id int) RETURNS SETOF taskq_internal.front
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE newest AS (
        (SELECT f.* FROM taskq_internal.front f WHERE f.topic_id = p_topic_id
         ORDER BY f.priority DESC, f.number DESC LIMIT 1)
        UNION ALL
        SELECT n.* FROM newest v CROSS JOIN LATERAL (
            SELECT f.* FROM taskq_internal.front f WHERE f.topic_id = p_topic_id AND f.priority < v.priority
            ORDER BY f.priority DESC, f.number DESC LIMIT 1) n)
    SELECT * FROM newest;
END $$;

-- Returns the first READY task of a priority, due or not, without tasks that wait for anything else. Returns NULLs if
-- there is none.
CREATE FUNCTION taskq_internal.first_ready(
    p_front taskq_internal.front, OUT available_at timestamptz, OUT sequence bigint
) LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off AS $$
BEGIN
    SELECT l.available_at, l.sequence INTO available_at, sequence FROM taskq_internal.live l
    WHERE l.topic_id::bigint = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING AND l.late
      AND l.priority = p_front.priority AND (l.available_at, l.sequence) < (p_front.available_at, p_front.sequence)
    ORDER BY l.available_at, l.sequence LIMIT 1;
    IF NOT FOUND THEN
        SELECT l.available_at, l.sequence INTO available_at, sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
          AND l.priority = p_front.priority AND (l.available_at, l.sequence) >= (p_front.available_at, p_front.sequence)
        ORDER BY l.available_at, l.sequence LIMIT 1;
    END IF;
END $$;

-- Announces that this transaction makes tasks READY that are due later. Returns the time from which these tasks are not
-- late. Never waits.
--
-- The key of an advisory lock carries the time of the announcement in milliseconds. A transaction uses the time of its
-- first announcement again, which the setting taskq.retry_time carries: otherwise a transaction of many calls would fill
-- the server's lock table. If another program holds the key exclusively, all tasks of this call are late.
CREATE FUNCTION taskq_internal.announce_retry() RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    v_hint text := current_setting('taskq.retry_time', true);
    v_time bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
BEGIN
    IF v_hint ~ '^[0-9]{1,14}$' THEN
        v_time := least(v_time, v_hint::bigint);
    END IF;
    IF v_time NOT BETWEEN 0 AND (1::bigint << 48) - 1
        OR NOT pg_try_advisory_xact_lock_shared((taskq_internal.retry_lock_class()::bigint << 48) | v_time) THEN
        RETURN 'infinity';
    END IF;
    LOCK TABLE taskq_internal.retry IN ROW SHARE MODE;
    IF v_hint IS DISTINCT FROM v_time::text THEN
        PERFORM set_config('taskq.retry_time', v_time::text, true);
    END IF;
    RETURN clock_timestamp();
END $$;

-- Returns the upper 16 of the 64 bits of each advisory lock whose key carries the time of a retry.
CREATE FUNCTION taskq_internal.retry_lock_class() RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT 32328  -- 0x7E48
$$;

-- Returns the earliest time that an open transaction has announced for retries. The query reads pg_locks once.
CREATE FUNCTION taskq_internal.first_announced_retry() RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT min(r.time) FROM (
        SELECT to_timestamp(coalesce(min((l.classid::bigint & 65535) << 32 | l.objid::bigint)
                   FILTER (WHERE l.objsubid = 1 AND l.classid::bigint >> 16 = taskq_internal.retry_lock_class()), 0)
                   / 1000.0) AS time
        FROM pg_locks l
        WHERE l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND (l.locktype = 'advisory' OR l.locktype = 'relation' AND l.mode = 'RowShareLock'
               AND l.relation = 'taskq_internal.retry'::regclass)
        GROUP BY l.virtualtransaction
        HAVING bool_or(l.relation = 'taskq_internal.retry'::regclass)) r
$$;

-- Returns the bound of a topic's fronts: in a statement that begins after this one, no task before the bound will appear
-- later that is not late. The order of the reads matters: see the head of this file. Returns NULLs if the topic has no
-- task that was pushed before an open push.
CREATE FUNCTION taskq_internal.front_bound(p_topic_id int, OUT available_at timestamptz, OUT sequence bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_pushed bigint;
    v_retry  timestamptz;
BEGIN
    available_at := clock_timestamp();
    sequence := 0;
    v_pushed := (SELECT min(o.floor) FROM taskq_internal.open_pushes(p_topic_id) o);
    IF v_pushed IS NOT NULL THEN
        SELECT least(t.created, available_at), t.sequence INTO available_at, sequence FROM taskq_internal.task t
        WHERE t.topic_id = p_topic_id AND t.sequence < v_pushed ORDER BY t.sequence DESC LIMIT 1;
    END IF;
    v_retry := taskq_internal.first_announced_retry();
    IF v_retry <= available_at THEN
        available_at := v_retry;
        sequence := 0;
    END IF;
END $$;

-- Advances the fronts of the priorities from p_low to p_high. With p_lifo true it moves the gaps, too. Does nothing above
-- READ COMMITTED, because the snapshot would be older than the bound.
CREATE FUNCTION taskq_internal.advance_fronts(p_topic_id int, p_low int, p_high int, p_lifo boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_bound record;
    v_front taskq_internal.front;
    v_next  taskq_internal.front;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    v_bound := taskq_internal.front_bound(p_topic_id);
    IF v_bound.available_at IS NULL THEN
        RETURN;
    END IF;
    FOR v_front IN SELECT * FROM taskq_internal.newest_fronts(p_topic_id) f WHERE f.priority BETWEEN p_low AND p_high
    LOOP
        v_next := taskq_internal.next_front(v_front, v_bound.available_at, v_bound.sequence, p_lifo);
        IF v_next IS DISTINCT FROM v_front THEN
            INSERT INTO taskq_internal.front (topic_id, priority, available_at, sequence, gap_low_at, gap_low_sequence,
                gap_high_at, gap_high_sequence)
            VALUES (v_next.topic_id, v_next.priority, v_next.available_at, v_next.sequence, v_next.gap_low_at,
                    v_next.gap_low_sequence, v_next.gap_high_at, v_next.gap_high_sequence);
        END IF;
    END LOOP;
END $$;

-- Returns where a front may advance to: to its first READY task, and not beyond the bound. With p_lifo true the gap
-- then reaches from the last READY task before the bound to the bound.
CREATE FUNCTION taskq_internal.next_front(
    p_front taskq_internal.front, p_bound_at timestamptz, p_bound_sequence bigint, p_lifo boolean
) RETURNS taskq_internal.front LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_next  taskq_internal.front := p_front;
    v_task  record;
BEGIN
    IF (p_front.available_at, p_front.sequence) >= (p_bound_at, p_bound_sequence) THEN
        RETURN p_front;
    END IF;
    SELECT l.available_at, l.sequence INTO v_task FROM taskq_internal.live l
    WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
      AND l.priority = p_front.priority AND (l.available_at, l.sequence) >= (p_front.available_at, p_front.sequence)
    ORDER BY l.available_at, l.sequence LIMIT 1;
    IF FOUND AND (v_task.available_at, v_task.sequence) < (p_bound_at, p_bound_sequence) THEN
        v_next.available_at := v_task.available_at;
        v_next.sequence := v_task.sequence;
    ELSE
        v_next.available_at := p_bound_at;
        v_next.sequence := p_bound_sequence;
    END IF;
    IF p_lifo THEN
        v_next := taskq_internal.next_gap(v_next, p_bound_at, p_bound_sequence);
    END IF;
    IF (v_next.available_at, v_next.sequence) >= (v_next.gap_high_at, v_next.gap_high_sequence) THEN
        v_next.gap_low_at := NULL;
        v_next.gap_low_sequence := NULL;
        v_next.gap_high_at := NULL;
        v_next.gap_high_sequence := NULL;
    END IF;
    RETURN v_next;
END $$;

-- Returns the front with its gap below the bound: from the last READY task before the bound. Looks for that task above
-- the present gap first, and then below it.
CREATE FUNCTION taskq_internal.next_gap(p_front taskq_internal.front, p_bound_at timestamptz, p_bound_sequence bigint)
RETURNS taskq_internal.front LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_next taskq_internal.front := p_front;
    v_low  record;
BEGIN
    v_next.gap_high_at := p_bound_at;
    v_next.gap_high_sequence := p_bound_sequence;
    SELECT l.available_at, l.sequence INTO v_low FROM taskq_internal.live l
    WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
      AND l.priority = p_front.priority AND (l.available_at, l.sequence) < (p_bound_at, p_bound_sequence)
      AND (l.available_at, l.sequence) >= (
          coalesce(p_front.gap_high_at, p_front.available_at), coalesce(p_front.gap_high_sequence, p_front.sequence))
    ORDER BY l.available_at DESC, l.sequence DESC LIMIT 1;
    IF NOT FOUND AND p_front.gap_low_at IS NOT NULL THEN
        SELECT l.available_at, l.sequence INTO v_low FROM taskq_internal.live l
        WHERE l.topic_id = p_front.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
          AND l.priority = p_front.priority
          AND (l.available_at, l.sequence) <= (p_front.gap_low_at, p_front.gap_low_sequence)
          AND (l.available_at, l.sequence) >= (p_front.available_at, p_front.sequence)
        ORDER BY l.available_at DESC, l.sequence DESC LIMIT 1;
    END IF;
    v_next.gap_low_at := coalesce(v_low.available_at, p_front.available_at);
    v_next.gap_low_sequence := coalesce(v_low.sequence, p_front.sequence);
    RETURN v_next;
END $$;

-- Advances the fronts of the priorities of these tasks, which a poll has just claimed in polled order, at random: about
-- once per 50 tasks and four polls of this size.
CREATE FUNCTION taskq_internal.advance_fronts_at_random(p_topic_id int, p_claimed bigint[], p_lifo boolean) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_count int := cardinality(p_claimed);
    v_low   int;
    v_high  int;
BEGIN
    IF random() * (50 + 4 * v_count) >= v_count THEN
        RETURN;
    END IF;
    SELECT min(l.priority), max(l.priority) INTO v_low, v_high FROM taskq_internal.live l
    WHERE l.topic_id = p_topic_id AND l.sequence = ANY (ARRAY[p_claimed[1], p_claimed[v_count]]);
    PERFORM taskq_internal.advance_fronts(p_topic_id, v_low, v_high, p_lifo);
END $$;

-- Removes rows of fronts that no longer count, about p_most. Never waits.
CREATE FUNCTION taskq_internal.remove_old_fronts(p_most int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM taskq_internal.front f USING (
        SELECT o.topic_id, o.priority, o.number FROM (
            SELECT n.*, row_number() OVER (PARTITION BY n.topic_id, n.priority ORDER BY n.number DESC) AS place
            FROM taskq_internal.front n) o
        WHERE o.place > 1 ORDER BY o.topic_id, o.priority, o.number LIMIT p_most) old
    WHERE f.topic_id = old.topic_id AND f.priority = old.priority AND f.number = old.number;
END $$;
