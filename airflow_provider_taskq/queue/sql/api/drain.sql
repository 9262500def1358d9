-- Drains: claims of a job, their slices, and the rows of drains.

-- Each range takes one scan of the index from the end of the last range. This is half the work of sorting and numbering
-- all tasks.
CREATE FUNCTION taskq.held_bounds(
    p_owner text, p_fence bigint, p_topic text, p_parts int, p_until timestamptz DEFAULT NULL
) RETURNS TABLE (low bigint, high bigint, size bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_owner_id bigint := taskq_internal.require_lease(p_owner, p_fence);
    v_topic_id int := CASE WHEN p_topic IS NOT NULL
        THEN (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id END;
    v_since    timestamptz := coalesce(
        (SELECT deferred_until FROM taskq_internal.owner WHERE owner_id = v_owner_id), '-infinity');
    v_until    timestamptz := coalesce(p_until, 'infinity');
    v_left     bigint;
    v_size     bigint;
BEGIN
    SELECT count(*) INTO v_left FROM taskq_internal.live l
    WHERE l.holder = v_owner_id AND (v_topic_id IS NULL OR l.topic_id = v_topic_id)
      AND l.polled > v_since AND l.polled <= v_until;
    high := -1;
    FOR v_parts IN REVERSE p_parts .. 1 LOOP
        EXIT WHEN v_left <= 0;
        v_size := (v_left + v_parts - 1) / v_parts;
        SELECT min(n.sequence), max(n.sequence), count(*) INTO low, high, size
        FROM (SELECT l.sequence FROM taskq_internal.live l
              WHERE l.holder = v_owner_id AND l.sequence > high AND (v_topic_id IS NULL OR l.topic_id = v_topic_id)
                AND l.polled > v_since AND l.polled <= v_until
              ORDER BY l.sequence LIMIT v_size) n;
        EXIT WHEN size = 0;
        RETURN NEXT;
        v_left := v_left - size;
    END LOOP;
END $$;
COMMENT ON FUNCTION taskq.held_bounds IS
'Splits the tasks that an owner holds into at most p_parts ranges of sequences of nearly equal size. With p_topic NULL
it splits the tasks of all topics. With p_until it leaves out the tasks that the owner claimed later. Leaves out
deferred tasks. Returns the lowest and highest sequence and the number of tasks of each range. Raises TQ005 if the owner
has no lease under p_fence, and TQ001 for an unknown topic.';

-- The plan reads both tables in the order of their sequences and merges them. This needs neither a sort nor a hash of
-- the payloads, which took half of the time of a read.
CREATE FUNCTION taskq.held_slice(
    p_owner text, p_fence bigint, p_topic text, p_low bigint, p_high bigint, p_until timestamptz DEFAULT NULL
) RETURNS TABLE (sequence bigint, topic text, identifier text, payload text, reference text, attempt int,
               redelivered boolean, priority int, created timestamptz, available_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_owner taskq_internal.owner;
    v_topic record;
BEGIN
    SELECT * INTO v_owner FROM taskq_internal.owner
    WHERE name = p_owner AND fence = p_fence AND taskq_internal.may_act_as(registered_by);
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_lease_lost(p_owner, p_fence);
    END IF;
    IF p_topic IS NOT NULL THEN
        PERFORM taskq_internal.accessible_topic(p_topic, 'UPDATE');
    END IF;
    FOR v_topic IN SELECT p.topic_id, p.name FROM taskq_internal.topic p
                   WHERE p.name = p_topic
                      OR p_topic IS NULL AND p.topic_id IN (SELECT l.topic_id FROM taskq_internal.live l
                              WHERE l.holder = v_owner.owner_id)
                   ORDER BY p.topic_id LOOP
        RETURN QUERY
        SELECT t.sequence, v_topic.name, t.identifier, t.payload::text, t.reference, l.attempt, l.redelivered,
               t.priority::int, t.created, l.available_at
        FROM (SELECT * FROM taskq_internal.live
              WHERE holder = v_owner.owner_id AND sequence BETWEEN p_low AND p_high AND topic_id = v_topic.topic_id
                AND polled > coalesce(v_owner.deferred_until, '-infinity')
                AND polled <= coalesce(p_until, 'infinity')) l
        JOIN (SELECT * FROM taskq_internal.task WHERE topic_id = v_topic.topic_id AND sequence BETWEEN p_low
              AND p_high) t USING (sequence)
        ORDER BY t.sequence;
    END LOOP;
END $$;
COMMENT ON FUNCTION taskq.held_slice IS
'Returns the tasks that an owner holds between the sequences p_low and p_high, topic by topic, in the order of their
sequences. With p_topic NULL it returns the tasks of all topics. With p_until it leaves out the tasks that the owner
claimed later. Leaves out deferred tasks. Every call returns the same tasks until the owner completes them. Raises TQ005
if the owner has no lease under p_fence, and TQ001 for an unknown topic.';

CREATE FUNCTION taskq.defer_held_tasks(p_owner text, p_fence bigint, p_until timestamptz DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE taskq_internal.owner SET deferred_until = coalesce(p_until, clock_timestamp())
    WHERE name = p_owner AND fence = p_fence AND taskq_internal.may_act_as(registered_by);
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_lease_lost(p_owner, p_fence);
    END IF;
END $$;
COMMENT ON FUNCTION taskq.defer_held_tasks IS
'Defers the tasks that an owner holds: they stay held until the lease ends, and later reads leave them out. So the owner
reads a task without a decision once in a lease. With p_until it leaves out the tasks that the owner claimed later.
Raises TQ005 if the owner has no lease under p_fence.';

CREATE FUNCTION taskq.claim_batch(p_topic text, p_owner text, p_fence bigint, p_size int, p_condition text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    v_topic    taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'UPDATE');
    v_owner_id bigint := taskq_internal.require_running_lease(p_owner, p_fence);
    v_limit    int;
    v_heads    bigint[];
    v_all      int := 0;
    v_advanced boolean;
BEGIN
    PERFORM taskq_internal.check_order_and_condition('FIRST_IN_FIRST_OUT', p_condition);
    IF v_topic.paused OR v_owner_id IS NULL OR p_condition = 'NONE' THEN
        RETURN 0;
    END IF;
    PERFORM taskq_internal.require_read_committed('a claim under a condition');
    WHILE v_all < p_size LOOP
        v_limit := least(10000, p_size - v_all);  -- chunks limit the server's memory
        PERFORM taskq_internal.promote_waiting(v_topic, v_limit, false, p_condition);
        v_heads := taskq_internal.claim_turns(v_topic.topic_id, v_owner_id, v_limit, false, p_condition);
        v_heads := taskq_internal.cut_claim(v_topic.topic_id, v_owner_id, v_heads);
        v_all := v_all + cardinality(v_heads);
        EXIT WHEN taskq_internal.max_claim(v_owner_id) IS NOT NULL;  -- the later tasks would exceed it
        v_all := v_all + taskq_internal.claim_remaining_tasks(v_topic.topic_id, v_owner_id, v_heads, p_size - v_all);
        v_advanced := taskq_internal.advance_fronts_at_random(v_topic.topic_id, v_heads, false, true);
        EXIT WHEN cardinality(v_heads) < v_limit;
    END LOOP;
    RETURN v_all;
END $$;
COMMENT ON FUNCTION taskq.claim_batch IS
'Claims up to p_size due tasks of the identifiers that have the turn under p_condition, identifier by identifier. If the
claim reaches p_size within an identifier, the later tasks of that identifier stay unclaimed. If an identifier has
another attempted task, the call claims only the first task of the identifier. Returns how many tasks it claimed. Never
waits. Raises TQ001 for an unknown topic, TQ005 if the lease has lapsed or no longer exists, and TQ000 for an unknown
condition or above READ COMMITTED.';

CREATE FUNCTION taskq.begin_drain(p_name text, p_fence bigint, p_topic text) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    v_began timestamptz;
BEGIN
    PERFORM taskq_internal.accessible_topic(p_topic, 'UPDATE');
    PERFORM taskq_internal.check_name('a drain', p_name);
    INSERT INTO taskq_internal.drain AS d (name, topic, fence, began)
        VALUES (p_name, p_topic, p_fence, clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET
        began = CASE WHEN d.finished IS NULL AND d.topic = p_topic THEN d.began ELSE clock_timestamp() END,
        topic = p_topic, fence = p_fence, finished = NULL, report = NULL
    WHERE taskq_internal.may_access(d.topic, 'UPDATE')
    RETURNING d.began INTO v_began;
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_error('42501', format(
            'drain %L is one of another topic, which role %I may not consume', p_name, taskq_internal.acting_role()));
    END IF;
    RETURN v_began;
END $$;
COMMENT ON FUNCTION taskq.begin_drain IS
'Stores the start of a drain. Returns the moment from which its tasks count. If an earlier drain of this name and topic
left no report, this is the start of the earlier drain. p_fence is the fence of the drain''s owner. It is NULL for a
drain with several owners. Raises TQ001 for an unknown topic, and TQ008 for an invalid name.';

CREATE FUNCTION taskq.end_drain(p_name text, p_fence bigint, p_report text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF octet_length(p_report) > 65536 OR taskq_internal.has_unstorable_escape(p_report) THEN
        PERFORM taskq_internal.raise_error('TQ008', format(
            'the report of drain %L is not JSON of at most 64 KiB', p_name));
    END IF;
    UPDATE taskq_internal.drain SET finished = clock_timestamp(), report = p_report::json
    WHERE name = p_name AND fence IS NOT DISTINCT FROM p_fence AND finished IS NULL
        AND taskq_internal.may_access(topic, 'UPDATE');
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION taskq.end_drain IS
'Stores the report of a drain. Returns false and stores nothing if the drain has a report already, or if a later drain
of this name has started under another fence. Raises TQ008 for a report that is not JSON or is larger than 64 KiB.';

CREATE FUNCTION taskq.find_drain(p_name text)
RETURNS TABLE (topic text, began timestamptz, finished timestamptz, report json) LANGUAGE sql STABLE AS $$
    SELECT d.topic, d.began, d.finished, d.report FROM taskq_internal.drain d
    WHERE d.name = p_name AND taskq_internal.may_access(d.topic, 'SELECT, UPDATE')
$$;
COMMENT ON FUNCTION taskq.find_drain IS
'Returns the latest drain with this name. The columns finished and report are NULL until the drain ends. Returns no row
if no drain has this name.';

-- The query finds the tasks that have ended since p_since by the block range index of `completed`. The expression with
-- `+ 0` keeps the planner from other indexes, with which it would read the whole history of the topic.
CREATE FUNCTION taskq.count_ended_by(p_topic text, p_owner text, p_since timestamptz, p_first int)
RETURNS TABLE (failed bigint, ended bigint, sequence bigint, identifier text, error text) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE')).topic_id;
BEGIN
    RETURN QUERY  -- which may use several processes, unlike a SELECT INTO
    WITH counted AS MATERIALIZED (
        SELECT count(*) AS ended, coalesce(array_agg(e.sequence) FILTER (WHERE e.state = :FAILED), '{}') AS failed
        FROM taskq_internal.ended e JOIN taskq_internal.owner o ON o.owner_id = e.holder
        WHERE e.topic_id + 0 = v_topic_id AND e.completed >= p_since AND e.state BETWEEN :FAILED AND :SUCCEEDED
          AND (o.name = p_owner OR starts_with(o.name, p_owner || '/')))
    SELECT cardinality(c.failed)::bigint, c.ended, e.sequence, e.identifier::text, e.error_summary
    FROM (SELECT c.*, ARRAY(SELECT unnest(c.failed) AS s ORDER BY s LIMIT p_first) AS first FROM counted c) c
    LEFT JOIN taskq_internal.ended e ON e.topic_id = v_topic_id AND e.sequence = ANY (c.first) ORDER BY e.sequence;
END $$;
COMMENT ON FUNCTION taskq.count_ended_by IS
'Counts the tasks of a topic that an owner has ended since a moment, and those of them that are FAILED. Returns the
counts with each of the first p_first failed tasks, in the order of their sequences, or once without a task. Includes
the tasks of owners whose names begin with p_owner and a slash. A task that waits for its retry has not ended. Raises
TQ001 for an unknown topic.';

CREATE FUNCTION taskq.task_bounds(
    p_topic text, p_low bigint, p_high bigint, p_states int[], p_identifiers text[], p_since timestamptz,
    p_until timestamptz, p_parts int
) RETURNS TABLE (low bigint, high bigint, size bigint) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic    taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE');
    v_low      bigint := greatest(p_low, 0);
    v_high     bigint := least(p_high, (SELECT s.last_value FROM taskq_internal.task_sequence s));
BEGIN
    IF p_since IS NOT NULL THEN
        v_low := greatest(v_low, coalesce(taskq_internal.resolve(ARRAY[v_topic.topic_id], p_since, false), v_high + 1));
    END IF;
    IF p_until IS NOT NULL THEN
        v_high := least(v_high, coalesce(taskq_internal.resolve(ARRAY[v_topic.topic_id], p_until, true), v_low - 1));
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT min(n.sequence), max(n.sequence), count(*)
         FROM (SELECT f.sequence, ntile(%s) OVER (ORDER BY f.sequence) AS part FROM (%s) f) n
         GROUP BY n.part ORDER BY 1', greatest(p_parts, 1), (taskq_internal.filter_queries(
            v_topic, v_low, v_high, p_states, p_identifiers)).matches);
END $$;
COMMENT ON FUNCTION taskq.task_bounds IS
'Splits the tasks that match the filters into at most p_parts ranges of sequences of nearly equal size. A filter of NULL
matches every task. Returns the lowest and highest sequence and the number of tasks of each range. Raises TQ001 for an
unknown topic.';

-- Each range has a snapshot of its own: tasks may change between the reads of two ranges.
CREATE FUNCTION taskq.task_slice(
    p_topic text, p_low bigint, p_high bigint, p_states int[], p_identifiers text[], p_since timestamptz,
    p_until timestamptz, p_bulky boolean
) RETURNS TABLE (sequence bigint, topic text, identifier text, payload text, reference text, attempt int,
                 redelivered boolean, state text, descent text, status text, owner text, crashes int, priority int,
                 created timestamptz, available_at timestamptz, completed timestamptz, output text, error text)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic    taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'SELECT');
BEGIN
    RETURN QUERY EXECUTE format(
        'SELECT i.sequence, i.topic, i.identifier, CASE WHEN $8 THEN i.payload::text END, i.reference, i.attempt,
                i.redelivered, taskq.state_name(i.state), taskq.state_name(i.descent::int), i.status, i.owner,
                i.crashes::int, i.priority::int, i.created, i.available_at, i.completed,
                CASE WHEN $8 THEN i.output::text END, i.error
         FROM taskq.task_info i
         WHERE i.topic_id = $1 AND i.sequence BETWEEN $2 AND $3 AND ($4 IS NULL OR i.state = ANY ($4))
           AND ($5 IS NULL OR i.identifier = ANY ($5))
           AND ($6 IS NULL OR i.created >= $6) AND ($7 IS NULL OR i.created <= $7)
           %s ORDER BY i.sequence',
        CASE WHEN coalesce(p_identifiers::text, p_states::text) IS NOT NULL
             THEN format('AND i.sequence IN (%s)', (taskq_internal.filter_queries(
                 v_topic, p_low, p_high, p_states, p_identifiers)).matches) END)
        USING v_topic.topic_id, p_low, p_high, p_states, p_identifiers, p_since, p_until, p_bulky;
END $$;
COMMENT ON FUNCTION taskq.task_slice IS
'Returns the tasks that match the filters in the range of sequences from p_low to p_high, in order. A filter of NULL
matches every task. Returns payload and output only with p_bulky true. Raises TQ001 for an unknown topic.';
