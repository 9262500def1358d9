-- Poll: tasks go out. At most as many as asked for, in order, each to one owner, and nobody waits.

-- Takes up to p_size due tasks of a topic for a holder and returns their sequences in polled order.
CREATE FUNCTION taskq.take(p_topic_id int, p_holder bigint, p_size int, p_lifo boolean) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_found bigint[];
    v_got   bigint[];
    v_taken bigint[] := '{}';
BEGIN
    LOOP
        v_found := taskq.lock_front(p_topic_id, p_size - cardinality(v_taken), p_lifo);
        EXIT WHEN cardinality(v_found) = 0;
        v_got := taskq.seize(p_topic_id, p_holder, v_found);
        v_taken := v_taken || v_got;
        EXIT WHEN cardinality(v_got) = cardinality(v_found);  -- else the place of what had to wait goes to others
    END LOOP;
    RETURN v_taken;
END $$;

-- Locks the first p_size due tasks that nobody else holds, and returns their sequences in polled order: by priority
-- (higher first), then due time, then sequence; the last two reversed for p_lifo. One index range a priority, so that
-- tasks scheduled for later at a high priority are never walked. The rows are locked first and changed by key then, so
-- that the size is a hard bound on any plan.
CREATE FUNCTION taskq.lock_front(p_topic_id int, p_size int, p_lifo boolean) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_now      timestamptz := clock_timestamp();
    v_priority smallint := 101;
    v_found    bigint[];
    v_locked   bigint[] := '{}';
BEGIN
    LOOP
        EXIT WHEN cardinality(v_locked) >= p_size;
        SELECT l.priority INTO v_priority FROM taskq.live l
        WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0 AND l.priority < v_priority
        ORDER BY l.priority DESC LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF p_lifo THEN
            v_found := ARRAY(
                SELECT l.sequence FROM taskq.live l
                WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0 AND l.priority = v_priority AND l.available_at <= v_now
                ORDER BY l.available_at DESC, l.sequence DESC
                LIMIT p_size - cardinality(v_locked) FOR UPDATE SKIP LOCKED);
        ELSE
            v_found := ARRAY(
                SELECT l.sequence FROM taskq.live l
                WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0 AND l.priority = v_priority AND l.available_at <= v_now
                ORDER BY l.available_at, l.sequence
                LIMIT p_size - cardinality(v_locked) FOR UPDATE SKIP LOCKED);
        END IF;
        v_locked := v_locked || v_found;
    END LOOP;
    RETURN v_locked;
END $$;

-- Makes READY tasks, whose rows this transaction has locked, ACTIVE for a holder and returns their sequences. Those with
-- dependencies that were fulfilled but are so no longer wait on, and are left out.
CREATE FUNCTION taskq.seize(p_topic_id int, p_holder bigint, p_sequences bigint[]) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_depend boolean;
    v_kept   bigint[];
    v_back   bigint[];
BEGIN
    WITH taken AS (
        UPDATE taskq.live SET holder = p_holder, polled = v_now, attempt = attempt + 1
        WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences) RETURNING waits)
    SELECT bool_or(t.waits < 0) INTO v_depend FROM taken t;
    IF v_depend IS NOT TRUE THEN
        RETURN p_sequences;
    END IF;
    v_kept := taskq.fulfilled(p_topic_id, p_sequences);
    v_back := ARRAY(SELECT unnest(p_sequences) EXCEPT SELECT unnest(v_kept));
    UPDATE taskq.live SET holder = NULL, polled = NULL, attempt = attempt - 1 WHERE topic_id = p_topic_id AND sequence = ANY (v_back);
    PERFORM taskq.judge_dependents(p_topic_id, v_back);
    RETURN v_kept;
END $$;

-- Takes tasks for an owner: the checks around the ways to take. Refuses a lease that has lapsed or is gone (TQ005).
CREATE FUNCTION taskq.take_for(p_topic text, p_owner text, p_fence bigint, p_size int, p_order text, p_condition text)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_topic    taskq.topic := taskq.find_topic(p_topic);
    v_owner_id bigint := taskq.hold_running_lease(p_owner, p_fence);
    v_lifo     boolean := p_order = 'LAST_IN_FIRST_OUT';
    v_size     int := least(p_size, taskq.most_tasks());
    v_out      bigint[];
    v_taken    bigint[];
BEGIN
    PERFORM taskq.check_order(p_order, p_condition);
    IF v_topic.paused OR v_owner_id IS NULL OR p_size <= 0 THEN
        RETURN '{}';
    END IF;
    IF p_condition <> 'NONE' THEN
        PERFORM taskq.need_read_committed('tasks go out one at a time per identifier');
    END IF;
    v_out := taskq.let_out(v_topic, v_size, v_lifo, p_condition);
    v_taken := CASE WHEN taskq.is_paused_by_now(v_topic.topic_id) THEN '{}'
                    WHEN p_condition = 'NONE' THEN taskq.take(v_topic.topic_id, v_owner_id, v_size, v_lifo)
                    ELSE taskq.take_turns(v_topic.topic_id, v_owner_id, v_size, v_lifo, p_condition) END;
    IF cardinality(v_out) > 0 THEN  -- a call less for most polls
        PERFORM taskq.keep_in(v_topic.topic_id, v_out);
    END IF;
    RETURN v_taken;
END $$;

-- Whether a topic was paused since it was looked up: asked once the tables of the queue are in use by this transaction.
-- Who moves the topic to other tables pauses it first, and then waits for those who have these in use.
CREATE FUNCTION taskq.is_paused_by_now(p_topic_id int) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT t.paused FROM taskq.topic t WHERE t.topic_id = p_topic_id);
END $$;

-- Refuses an order or a condition that is none (TQ000).
CREATE FUNCTION taskq.check_order(p_order text, p_condition text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_order IS NULL OR p_order NOT IN ('FIRST_IN_FIRST_OUT', 'LAST_IN_FIRST_OUT') THEN
        PERFORM taskq.refuse('TQ000', format('order %L is none of FIRST_IN_FIRST_OUT, LAST_IN_FIRST_OUT', p_order));
    END IF;
    IF p_condition IS NULL OR p_condition NOT IN ('NONE', 'SINGULAR_BY_IDENTIFIER', 'SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE',
                                                  'SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS') THEN
        PERFORM taskq.refuse('TQ000', format('condition %L is none of NONE, SINGULAR_BY_IDENTIFIER,'
            ' SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE, SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS', p_condition));
    END IF;
END $$;

-- Polls: takes up to p_size due tasks for the owner and returns them in polled order.
CREATE FUNCTION taskq.poll(p_topic text, p_owner text, p_fence bigint, p_size int, p_order text, p_condition text)
RETURNS TABLE (sequence bigint, identifier text, payload json, reference text, attempt int, redelivered boolean)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_taken    bigint[] := taskq.take_for(p_topic, p_owner, p_fence, p_size, p_order, p_condition);
BEGIN
    RETURN QUERY SELECT * FROM taskq.taken(v_topic_id, v_taken);
END $$;

-- What a client gets of tasks that it took, in the order of the sequences.
CREATE FUNCTION taskq.taken(p_topic_id int, p_sequences bigint[])
RETURNS TABLE (sequence bigint, identifier text, payload json, reference text, attempt int, redelivered boolean)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT t.sequence, t.identifier, t.payload, t.reference, l.attempt, l.redelivered
    FROM unnest(p_sequences) WITH ORDINALITY AS u (sequence, place)
    JOIN (SELECT * FROM taskq.task WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) t USING (sequence)
    JOIN (SELECT * FROM taskq.live WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) l USING (sequence)
    ORDER BY u.place;
END $$;

-- Claims: like poll, but moves no task to the client. Returns how many were taken.
CREATE FUNCTION taskq.claim(p_topic text, p_owner text, p_fence bigint, p_size int, p_order text, p_condition text)
RETURNS int LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_chunk int := 50000;  -- bounds the server's memory for a claim of millions
    v_got   int;
    v_all   int := 0;
BEGIN
    LOOP
        v_got := cardinality(taskq.take_for(p_topic, p_owner, p_fence, least(v_chunk, p_size - v_all), p_order, p_condition));
        v_all := v_all + v_got;
        EXIT WHEN v_got < v_chunk OR v_all >= p_size;
    END LOOP;
    RETURN v_all;
END $$;

-- How many tasks could be polled now, counted to p_limit, without the rows and, under a condition, the identifiers that an open
-- transaction holds. Reads only: it takes no locks, and so hides nothing from a poll beside it. A paused topic has none.
CREATE FUNCTION taskq.ready(p_topic text, p_limit int, p_condition text) RETURNS int LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM taskq.check_order('FIRST_IN_FIRST_OUT', p_condition);
    RETURN taskq.count_ready(taskq.find_topic(p_topic), least(p_limit, taskq.most_tasks()), p_condition);
END $$;

-- Whether the topic has a task that could be polled now, or could be if no poll were looking at its identifier. An open poll under a
-- condition holds the identifiers that it looks at, also those of which it takes nothing in the end: so an empty poll and a `ready`
-- of 0 do not prove that nothing is left. Rows that an open transaction holds do not count.
CREATE FUNCTION taskq.has_unclaimed(p_topic text, p_condition text) RETURNS boolean LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM taskq.check_order('FIRST_IN_FIRST_OUT', p_condition);
    RETURN taskq.count_ready(taskq.find_topic(p_topic), 1, p_condition, true) > 0;
END $$;

-- The same as `ready` for many topics in one call, for a watcher: one row a topic; `ready` is NULL where the topic is unknown.
CREATE FUNCTION taskq.ready_many(p_topics text[], p_limits int[], p_conditions text[] DEFAULT NULL)
RETURNS TABLE ("position" int, ready int) LANGUAGE sql STABLE
SET plan_cache_mode = force_generic_plan AS $$
    SELECT u.place::int, CASE WHEN t.topic_id IS NOT NULL THEN taskq.count_ready(t, least(u.bound, taskq.most_tasks()), coalesce(u.condition, 'NONE')) END
    FROM unnest(p_topics, p_limits, p_conditions) WITH ORDINALITY AS u (topic, bound, condition, place)
    LEFT JOIN taskq.topic t ON t.name = u.topic
$$;

-- The count of taskq.ready: what can be taken at once, then what a poll would let out first. p_locked: identifiers that an open
-- transaction holds count, too.
CREATE FUNCTION taskq.count_ready(p_topic taskq.topic, p_limit int, p_condition text, p_locked boolean DEFAULT false) RETURNS int LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_count int;
    v_more  bigint[];
BEGIN
    IF p_topic.paused OR p_limit <= 0 THEN
        RETURN 0;
    END IF;
    v_count := CASE p_condition WHEN 'NONE' THEN taskq.count_front(p_topic.topic_id, p_limit)
                                ELSE taskq.count_turns(p_topic.topic_id, p_limit, p_condition, p_locked) END;
    IF v_count < p_limit AND EXISTS (SELECT FROM taskq.live l WHERE l.topic_id = p_topic.topic_id AND l.holder IS NULL AND l.waits > 0) THEN
        v_more := taskq.to_let_out(p_topic, p_limit, p_condition);
        v_count := v_count + CASE p_condition WHEN 'NONE' THEN cardinality(v_more)
                                              ELSE taskq.count_turns_among(p_topic.topic_id, v_more, p_condition, p_locked) END;
    END IF;
    RETURN least(v_count, p_limit);
END $$;

-- Counts the due READY tasks of a topic up to p_limit, priority by priority as taskq.lock_front walks them, and leaves
-- out rows that another transaction holds: what SKIP LOCKED would skip, told without taking a lock.
CREATE FUNCTION taskq.count_front(p_topic_id int, p_limit int) RETURNS int LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_now      timestamptz := clock_timestamp();
    v_priority smallint := 101;
    v_next     bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_count    int := 0;
    v_found    int;
BEGIN
    LOOP
        EXIT WHEN v_count >= p_limit;
        SELECT l.priority INTO v_priority FROM taskq.live l
        WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0 AND l.priority < v_priority
        ORDER BY l.priority DESC LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT count(*) INTO v_found FROM (
            SELECT FROM taskq.live l
            WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0 AND l.priority = v_priority AND l.available_at <= v_now
              AND NOT (taskq.is_open(l.xmax, v_next) AND NOT taskq.is_open(l.xmin, v_next))
              AND (l.waits = 0 OR taskq.is_fulfilled(p_topic_id, l.sequence))
            ORDER BY l.available_at, l.sequence LIMIT p_limit - v_count) found;
        v_count := v_count + v_found;
    END LOOP;
    RETURN v_count;
END $$;

-- Whether a transaction is still open. Of a row's xmax: somebody holds the row, as rows of `live` are only ever locked
-- FOR UPDATE, by the call that then changes them, so that this is one transaction and no multixact. Of a visible row's
-- xmin: it is our own, and so is whatever lock its xmax carries. p_next is the next transaction's number, which tells
-- the epoch of the row's 32 bits; a number beyond it began after our snapshot.
CREATE FUNCTION taskq.is_open(p_xid xid, p_next bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
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
