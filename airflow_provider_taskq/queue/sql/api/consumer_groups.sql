-- Consumer groups: each group handles a topic's log in partitions, and each partition has one member at a time.
--
-- A member is one running program of the group. It has a lease and a fence. It reads tasks and stores progress only
-- under its fence, and the transaction that does so holds the partition's row until it ends. A program that acquires a
-- partition skips a held row. If another member has acquired the partition, the transaction of the first member fails.
--
-- The number of partitions changes by generations. join_group ends a generation: it locks the rows of the partitions,
-- which waits for members that read at this moment, and ends the generation at the furthest place that any member has
-- read. No member reads beyond that place in this generation, and the next generation begins after it. The place of a
-- task assigns it to one generation, and within that generation to one partition. So no task is skipped or repeated,
-- and no two members have tasks of one identifier, even while programs with the old and with the new setting run.
--
-- Transactions lock rows in this order: taskq_internal.consumer_group, taskq_internal.consumer_partition by number,
-- taskq_internal.progress. A transaction that stores progress with taskq.advance holds the group's row FOR SHARE, so
-- that no other transaction replaces the progress of the group's partitions until it ends.

CREATE FUNCTION taskq.join_group(p_group text, p_topic text, p_partitions int, p_level int)
RETURNS TABLE (generation int, partitions int, level int, next_partitions int, next_level int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id;
    v_group   taskq_internal.consumer_group;
BEGIN
    PERFORM taskq_internal.check_log_read(0, p_partitions, p_level);
    INSERT INTO taskq_internal.consumer_group (group_name, topic_id, generation, partitions, level, begins, since)
    VALUES (p_group, v_topic_id, 1, p_partitions, p_level, 0, clock_timestamp()) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM taskq_internal.create_partitions(p_group, v_topic_id, p_partitions);
    END IF;
    SELECT * INTO v_group FROM taskq_internal.consumer_group WHERE group_name = p_group
        AND topic_id = v_topic_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN  -- another transaction has just removed the group
        RETURN QUERY SELECT * FROM taskq.join_group(p_group, p_topic, p_partitions, p_level);
        RETURN;
    END IF;
    IF v_group.ends IS NOT NULL THEN
        UPDATE taskq_internal.consumer_group SET next_partitions = p_partitions, next_level = p_level
        WHERE group_name = p_group AND topic_id = v_topic_id;
    ELSIF (v_group.partitions, v_group.level) IS DISTINCT FROM (p_partitions, p_level) THEN
        UPDATE taskq_internal.consumer_group SET next_partitions = p_partitions, next_level = p_level,
            ends = taskq_internal.furthest_place(v_group)
        WHERE group_name = p_group AND topic_id = v_topic_id;
    END IF;
    PERFORM taskq_internal.begin_next_generation(p_group, v_topic_id);
    RETURN QUERY SELECT r.generation, r.partitions, r.level, r.next_partitions, r.next_level
        FROM taskq_internal.consumer_group r
                 WHERE r.group_name = p_group AND r.topic_id = v_topic_id;
END $$;
COMMENT ON FUNCTION taskq.join_group IS
'Joins a consumer group of a topic, and requests a number of partitions and a partition level. The latest request of any
member decides. If a request differs from the current assignment, the next generation begins when all partitions have
reached the end of the current one. Returns the current assignment and, in next_partitions and next_level, the requested
one. Raises TQ001 for an unknown topic, and TQ000 for a number or a level out of range.';

CREATE FUNCTION taskq.acquire_partition(
    p_group text, p_topic text, p_member text, p_lease interval, p_except int[] DEFAULT '{}'
) RETURNS TABLE (generation int, partitions int, level int, partition int, fence bigint, taken_over boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id;
    v_group   taskq_internal.consumer_group;
    v_found    taskq_internal.consumer_partition;
    v_fence    bigint;
BEGIN
    PERFORM taskq_internal.check_duration(format('group %L: the lease', p_group), p_lease);
    PERFORM taskq_internal.require_read_committed('acquire_partition()');
    PERFORM taskq_internal.begin_next_generation(p_group, v_topic_id);
    SELECT h.* INTO v_found FROM taskq_internal.consumer_partition h
    LEFT JOIN taskq_internal.progress g
        ON (g.group_name, g.topic_id, g.partition) = (h.group_name, h.topic_id, h.partition)
    JOIN taskq_internal.consumer_group r ON r.group_name = h.group_name AND r.topic_id = h.topic_id
    WHERE h.group_name = p_group AND h.topic_id = v_topic_id AND h.partition <> ALL (p_except)
      AND (h.fence IS NULL OR h.lease_until < clock_timestamp())
      AND (r.ends IS NULL OR coalesce(g.cursor, r.begins) < r.ends)
    ORDER BY h.partition LIMIT 1 FOR UPDATE OF h SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE taskq_internal.consumer_partition h SET fence = nextval('taskq_internal.fence'), member = p_member,
        lease = p_lease,
        lease_until = clock_timestamp() + p_lease, member_since = clock_timestamp()
    WHERE h.group_name = p_group AND h.topic_id = v_topic_id AND h.partition = v_found.partition RETURNING h.fence
        INTO v_fence;
    RETURN QUERY SELECT r.generation, r.partitions, r.level, v_found.partition, v_fence, v_found.fence IS NOT NULL
                 FROM taskq_internal.consumer_group r WHERE r.group_name = p_group AND r.topic_id = v_topic_id;
END $$;
COMMENT ON FUNCTION taskq.acquire_partition IS
'Acquires one partition that has no member, or whose member''s lease has lapsed, and gives the caller a lease with a new
fence. p_member is the name of one running program. p_lease is the length of the lease. The call skips the partitions in
p_except. The call begins the next generation if that is due. It never waits. Returns no row if no partition is free.
Raises TQ001 for an unknown topic, TQ008 for an invalid lease, and TQ000 above READ COMMITTED.';

CREATE FUNCTION taskq.renew_partitions(p_group text, p_topic text, p_member text) RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id;
BEGIN
    PERFORM FROM taskq_internal.consumer_partition h WHERE h.group_name = p_group AND h.topic_id = v_topic_id
        AND h.member = p_member
    ORDER BY h.partition FOR UPDATE;
    RETURN QUERY UPDATE taskq_internal.consumer_partition h SET lease_until = clock_timestamp() + h.lease
                 WHERE h.group_name = p_group AND h.topic_id = v_topic_id AND h.member = p_member
                     AND h.fence IS NOT NULL
                 RETURNING h.fence;
END $$;
COMMENT ON FUNCTION taskq.renew_partitions IS
'Renews all partition leases of a member in a group, including lapsed leases. Each lease runs for its full length from
now. Returns the fences of the renewed leases. A fence is missing if another member has acquired its partition. Raises
TQ001 for an unknown topic.';

CREATE FUNCTION taskq.read_partition(p_group text, p_topic text, p_partition int, p_fence bigint, p_size int)
RETURNS TABLE (place bigint, identifier text, payload json, reference text, after bigint, at_end boolean)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id;
    v_partition      taskq_internal.consumer_partition
        := taskq_internal.lock_partition(p_group, v_topic_id, p_partition, p_fence);
    v_group   taskq_internal.consumer_group;
    v_after    bigint;
    v_horizon  bigint;
    v_places   bigint[];
    v_seen     bigint;
BEGIN
    IF p_size IS NULL OR p_size < 1 THEN
        PERFORM taskq_internal.raise_error('TQ008', format(
            'group %L: invalid size %s: expected at least 1', p_group, p_size));
    END IF;
    -- This has to be a separate statement: its new snapshot sees a commit that has ended the generation.
    SELECT * INTO v_group FROM taskq_internal.consumer_group WHERE group_name = p_group AND topic_id = v_topic_id;
    PERFORM taskq_internal.check_log_read(p_partition, v_group.partitions, v_group.level);
    v_after := coalesce(taskq.progress(p_group, p_topic, p_partition), v_group.begins);
    v_horizon := taskq_internal.log_horizon(v_topic_id);
    v_places := ARRAY(
        SELECT t.sequence FROM taskq_internal.task t
        WHERE t.topic_id = v_topic_id AND t.sequence > v_after AND t.sequence < least(v_horizon, v_group.ends + 1)
          AND (v_group.partitions = 1
               OR v_group.level = 2147483647  -- the group's programs apply their own partitioning function
               OR taskq_internal.partition_of(t.identifier, v_group.partitions, v_group.level,
                       t.sequence) = p_partition)
        ORDER BY t.sequence LIMIT p_size);
    v_seen := v_places[cardinality(v_places)];
    RETURN QUERY SELECT t.sequence, t.identifier, t.payload, t.reference, v_after, false FROM taskq_internal.task t
                 WHERE t.topic_id = v_topic_id AND t.sequence = ANY (v_places) ORDER BY t.sequence;
    IF cardinality(v_places) < p_size THEN
        v_seen := CASE WHEN v_horizon > v_group.ends THEN greatest(v_after, v_group.ends)
                       ELSE greatest(v_after, (SELECT t.sequence FROM taskq_internal.task t
                                               WHERE t.topic_id = v_topic_id AND t.sequence < v_horizon
                                               ORDER BY t.sequence DESC LIMIT 1)) END;
        IF cardinality(v_places) = 0 AND v_seen > v_after THEN
            PERFORM taskq_internal.store_progress(p_group, v_topic_id, p_partition, v_after, v_seen);
        END IF;
        RETURN QUERY SELECT v_seen, NULL, NULL::json, NULL, v_after, coalesce(v_seen >= v_group.ends, false);
    END IF;
    UPDATE taskq_internal.consumer_partition h SET reach = v_seen
    WHERE h.group_name = p_group AND h.topic_id = v_topic_id AND h.partition = p_partition AND h.reach < v_seen;
END $$;
COMMENT ON FUNCTION taskq.read_partition IS
'Returns up to p_size tasks that follow the progress of a partition, for the member that holds the partition under
p_fence. The column after has the place to pass to advance_partition as p_after. If fewer than p_size tasks remain, a
last row without a task has the place up to which the call read the log. Its column at_end tells whether the generation
ends there. Raises TQ001 for an unknown topic, TQ005 if the fence does not hold the partition, and TQ008 if p_size is
below 1. Raises TQ000 above READ COMMITTED, on a standby, or for an invalid partition.';

CREATE FUNCTION taskq.advance_partition(
    p_group text, p_topic text, p_partition int, p_fence bigint, p_after bigint, p_cursor bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id;
    v_partition      taskq_internal.consumer_partition
        := taskq_internal.lock_partition(p_group, v_topic_id, p_partition, p_fence);
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout',
                       least(ceil(extract(epoch FROM v_partition.lease) * 1000), 2147483647)::bigint::text, true);
    IF v_partition.failed IS NOT NULL THEN
        UPDATE taskq_internal.consumer_partition SET failed = NULL, error = NULL WHERE fence = p_fence;
    END IF;
    RETURN taskq_internal.store_progress(p_group, v_topic_id, p_partition, p_after, p_cursor);
END $$;
COMMENT ON FUNCTION taskq.advance_partition IS
'Moves the progress of a partition from p_after to p_cursor, for the member that holds the partition under p_fence.
Returns false and changes nothing if the progress is not at p_after. Until the calling transaction ends, no other member
can acquire the partition. For this reason the server ends a session that is idle in this transaction for longer than
the lease. Raises TQ001 for an unknown topic, and TQ005 if the fence does not hold the partition.';

CREATE FUNCTION taskq.release_partition(p_group text, p_topic text, p_partition int, p_fence bigint, p_error text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id;
BEGIN
    UPDATE taskq_internal.consumer_partition h SET fence = NULL, member = NULL, lease = NULL, lease_until = NULL,
        member_since = NULL,
        failed = CASE WHEN p_error IS NULL THEN h.failed ELSE clock_timestamp() END,
            error = coalesce(left(p_error, 10000), h.error)
    WHERE h.group_name = p_group AND h.topic_id = v_topic_id AND h.partition = p_partition AND h.fence = p_fence;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION taskq.release_partition IS
'Releases a partition that a member holds under p_fence. The partition keeps p_error, the error that ended the work,
until a member makes progress. With p_error NULL the call keeps an earlier error. Returns false if the fence does not
hold the partition. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.partition_states(p_topic text DEFAULT NULL)
RETURNS TABLE (group_name text, topic text, generation int, partitions int, level int, partition int, member text,
               fence bigint, lease_until timestamptz, lapsed boolean, cursor bigint, ends bigint,
               behind_since timestamptz, failed timestamptz, error text)
LANGUAGE sql STABLE AS $$
    SELECT r.group_name, p.name, r.generation, r.partitions, r.level, h.partition, h.member, h.fence, h.lease_until,
           coalesce(h.lease_until < clock_timestamp(), false), coalesce(g.cursor, r.begins), r.ends,
           (SELECT t.created FROM taskq_internal.task t WHERE t.topic_id = r.topic_id
            AND t.sequence > coalesce(g.cursor, r.begins)
            ORDER BY t.sequence LIMIT 1), h.failed, h.error
    FROM taskq_internal.consumer_group r
    JOIN taskq_internal.topic p ON p.topic_id = r.topic_id
    JOIN taskq_internal.consumer_partition h ON h.group_name = r.group_name AND h.topic_id = r.topic_id
    LEFT JOIN taskq_internal.progress g
        ON (g.group_name, g.topic_id, g.partition) = (h.group_name, h.topic_id, h.partition)
    WHERE p_topic IS NULL OR p.name = p_topic
    ORDER BY r.group_name, p.name, h.partition
$$;
COMMENT ON FUNCTION taskq.partition_states IS
'Returns the partitions of all consumer groups of a topic, with their members, leases, progress and last errors. With
p_topic NULL it returns the partitions of all topics. The column behind_since tells since when the next task waits for
the partition''s group. Returns no row for an unknown topic.';

CREATE FUNCTION taskq.forget_group(p_group text, p_topic text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
    v_limit    interval := current_setting('lock_timeout')::interval;
    v_since    timestamptz := clock_timestamp();
    v_found    boolean;
BEGIN
    -- Locks the rows in the order that the head of this file states, because the cascade of the deletion would lock the
    -- partitions in any order. The lock leaves the group's key free: a member that changes its partition twice in a
    -- transaction locks that key through the foreign key.
    PERFORM FROM taskq_internal.consumer_group WHERE topic_id = v_topic_id AND group_name = p_group FOR NO KEY UPDATE;
    PERFORM FROM taskq_internal.consumer_partition h WHERE h.topic_id = v_topic_id AND h.group_name = p_group
    ORDER BY h.partition FOR UPDATE;
    -- A program may store progress of a group that was never joined. There is then no row that all its transactions lock
    -- first, so this function waits for none of them while it holds the progress of another partition.
    LOOP
        BEGIN
            PERFORM FROM taskq_internal.progress WHERE topic_id = v_topic_id AND group_name = p_group FOR UPDATE NOWAIT;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM taskq_internal.check_lock_timeout(v_since, v_limit);
        END;
        PERFORM pg_sleep(0.05 + 0.1 * random());
    END LOOP;
    DELETE FROM taskq_internal.consumer_group WHERE topic_id = v_topic_id AND group_name = p_group;
    v_found := FOUND;
    DELETE FROM taskq_internal.progress WHERE topic_id = v_topic_id AND group_name = p_group;
    RETURN v_found OR FOUND;
END $$;
COMMENT ON FUNCTION taskq.forget_group IS
'Removes a consumer group of a topic and its progress. Members of the group that still run get TQ005 and stop. Returns
false if the topic has neither the group nor any progress of it. Raises TQ001 for an unknown topic.';

-- Ends a wait in several steps like the caller's lock_timeout would end a single wait. A limit of 0 means no limit.
CREATE FUNCTION taskq_internal.check_lock_timeout(p_since timestamptz, p_limit interval) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_limit > interval '0' AND clock_timestamp() >= p_since + p_limit THEN
        RAISE lock_not_available USING MESSAGE = 'canceling statement due to lock timeout';
    END IF;
END $$;

-- Creates the partitions of a generation, without members.
CREATE FUNCTION taskq_internal.create_partitions(p_group text, p_topic_id int, p_partitions int) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO taskq_internal.consumer_partition (group_name, topic_id, partition, reach)
    SELECT p_group, p_topic_id, n, 0 FROM generate_series(0, p_partitions - 1) n
$$;

-- Returns the furthest place that a member of any partition has read or stored as progress. Locks the partitions, so
-- that no member reads further before this transaction ends.
CREATE FUNCTION taskq_internal.furthest_place(p_group taskq_internal.consumer_group) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM taskq_internal.consumer_partition h WHERE h.group_name = p_group.group_name
        AND h.topic_id = p_group.topic_id
    ORDER BY h.partition FOR UPDATE;
    RETURN (SELECT greatest(p_group.begins, max(h.reach), max(g.cursor)) FROM taskq_internal.consumer_partition h
            LEFT JOIN taskq_internal.progress g
                ON (g.group_name, g.topic_id, g.partition) = (h.group_name, h.topic_id, h.partition)
            WHERE h.group_name = p_group.group_name AND h.topic_id = p_group.topic_id);
END $$;

-- Begins the next generation if a member has requested one and every partition has reached the end of the current one.
-- Never waits: if another transaction begins the generation or stores progress now, a later call begins it. The lock on
-- the group's row and the locks on all partitions keep other transactions from the progress.
CREATE FUNCTION taskq_internal.begin_next_generation(p_group text, p_topic_id int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_group  taskq_internal.consumer_group;
    v_locked int;
BEGIN
    SELECT * INTO v_group FROM taskq_internal.consumer_group r
    WHERE r.group_name = p_group AND r.topic_id = p_topic_id AND r.ends IS NOT NULL FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_locked := (SELECT count(*) FROM (
        SELECT FROM taskq_internal.consumer_partition h WHERE h.group_name = p_group AND h.topic_id = p_topic_id
        ORDER BY h.partition FOR UPDATE SKIP LOCKED) n);
    IF v_locked < v_group.partitions OR EXISTS (  -- a partition has not reached the end
        SELECT FROM taskq_internal.consumer_partition h
        LEFT JOIN taskq_internal.progress g
            ON (g.group_name, g.topic_id, g.partition) = (h.group_name, h.topic_id, h.partition)
        WHERE h.group_name = p_group AND h.topic_id = p_topic_id
          AND coalesce(g.cursor, v_group.begins) < v_group.ends) THEN
        RETURN;
    END IF;
    DELETE FROM taskq_internal.consumer_partition WHERE group_name = p_group AND topic_id = p_topic_id;
    DELETE FROM taskq_internal.progress WHERE group_name = p_group AND topic_id = p_topic_id;
    PERFORM taskq_internal.create_partitions(p_group, p_topic_id, v_group.next_partitions);
    INSERT INTO taskq_internal.progress (group_name, topic_id, partition, cursor, advanced)
    SELECT p_group, p_topic_id, n, v_group.ends, clock_timestamp()
        FROM generate_series(0, v_group.next_partitions - 1) n;
    UPDATE taskq_internal.consumer_group SET generation = generation + 1, since = clock_timestamp(),
        partitions = next_partitions, level = next_level,
        begins = ends, ends = NULL, next_partitions = NULL, next_level = NULL
    WHERE group_name = p_group AND topic_id = p_topic_id;
END $$;

-- Locks the partition that a member leases under p_fence until the transaction ends. Raises TQ005 if no lease has this
-- fence.
CREATE FUNCTION taskq_internal.lock_partition(p_group text, p_topic_id int, p_partition int, p_fence bigint)
RETURNS taskq_internal.consumer_partition LANGUAGE plpgsql AS $$
DECLARE
    v_partition taskq_internal.consumer_partition;
BEGIN
    SELECT * INTO v_partition FROM taskq_internal.consumer_partition h
    WHERE h.group_name = p_group AND h.topic_id = p_topic_id AND h.partition = p_partition AND h.fence = p_fence
        FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_error('TQ005', format(
            'partition %s of group %L is no longer leased under fence %s: another member took the lapsed lease over, or'
            ' this one gave it back', p_partition, p_group, p_fence));
    END IF;
    RETURN v_partition;
END $$;

-- Moves the progress of a partition from p_after to p_cursor. Returns false if the progress is not at p_after. A
-- partition without stored progress is at the beginning of the generation.
CREATE FUNCTION taskq_internal.store_progress(
    p_group text, p_topic_id int, p_partition int, p_after bigint, p_cursor bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE taskq_internal.progress g SET cursor = p_cursor, advanced = clock_timestamp()
    WHERE g.group_name = p_group AND g.topic_id = p_topic_id AND g.partition = p_partition AND g.cursor = p_after;
    IF NOT FOUND THEN
        INSERT INTO taskq_internal.progress (group_name, topic_id, partition, cursor, advanced)
        SELECT p_group, p_topic_id, p_partition, p_cursor, clock_timestamp() FROM taskq_internal.consumer_group r
        WHERE r.group_name = p_group AND r.topic_id = p_topic_id AND r.begins = p_after
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN FOUND;
END $$;
