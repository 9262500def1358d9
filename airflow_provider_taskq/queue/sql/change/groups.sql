-- Groups: each group handles a topic's log in partitions, and each partition has one member at a time.
--
-- A member is an owner: a name with a lease, for one running program of the group. It draws a fence for each partition
-- that it acquires. It reads tasks and stores progress only under this fence, and the transaction that does so holds
-- the partition's row until it ends. A program that acquires a partition skips a held row. If another member has
-- acquired the partition, the transaction of the first member fails.
--
-- Progress is a row for each step, of which the newest counts: the update of one row would become slower with each step
-- while an old snapshot is open. A transaction that stores progress has locked the row of the partition.
--
-- The division of a group (the number of its partitions, the level, the resolver) changes while no member holds a
-- partition. The change locks all partitions and replaces them, so no fence of the old division is valid afterwards.
-- The new partitions begin at the first place that an old one has reached, and skip what the others had handled after
-- it (skipped_event). So no task is left out or repeated. No function of this file waits for a member.

-- Returns whether a partition has no member, or one whose lease has lapsed or ended. The function is volatile, and so
-- looks at the leases of now also for a row that another transaction has changed since the caller's snapshot.
CREATE FUNCTION taskq_internal.is_free(p_partition taskq_internal.consumer_partition) RETURNS boolean
LANGUAGE sql AS $$
    SELECT NOT EXISTS (SELECT FROM taskq_internal.owner o WHERE o.owner_id = p_partition.holder AND o.fence IS NOT NULL
                       AND o.lease_until >= clock_timestamp())
$$;

-- Locks all partitions of a group until the transaction ends, and returns their places, or NULL if there is no
-- partition. Raises TQ003 if a member holds one of them, or another transaction has locked one. Never waits.
CREATE FUNCTION taskq_internal.lock_idle_group(p_group text, p_topic_id int) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_free   int[] := ARRAY(SELECT h.partition FROM taskq_internal.consumer_partition h
                            WHERE h.group_name = p_group AND h.topic_id = p_topic_id AND taskq_internal.is_free(h)
                            ORDER BY h.partition FOR UPDATE SKIP LOCKED);
    v_busy   int[];
    v_places bigint[];
BEGIN
    SELECT array_agg(h.partition ORDER BY h.partition) FILTER (WHERE h.partition <> ALL (v_free)),
           array_agg(taskq_internal.place_of(p_group, p_topic_id, h.partition) ORDER BY h.partition)
    INTO v_busy, v_places
    FROM taskq_internal.consumer_partition h WHERE h.group_name = p_group AND h.topic_id = p_topic_id;
    IF v_busy IS NOT NULL THEN
        PERFORM taskq_internal.raise_error('TQ003', format(
            'group %L is in use: programs hold its partitions %s; stop them first',
            p_group, array_to_string(v_busy, ', ')));
    END IF;
    RETURN v_places;
END $$;

-- Divides a group that no member uses, which may be a new one. Of two transactions that do so at once, the first wins.
CREATE FUNCTION taskq_internal.divide_group(
    p_group text, p_topic_id int, p_partitions int, p_level int, p_resolver text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_places bigint[] := (taskq_internal.lock_idle_group(p_group, p_topic_id));
    v_old    taskq_internal.consumer_partition;
    v_first  bigint;
BEGIN
    SELECT * INTO v_old FROM taskq_internal.consumer_partition
    WHERE group_name = p_group AND topic_id = p_topic_id AND partition = 0 AND partitions IS NOT NULL;
    IF FOUND THEN
        v_places := v_places[:v_old.partitions];
        v_first := (SELECT min(n) FROM unnest(v_places) n);
        IF v_old.resolver IS NOT NULL AND v_first < ANY (v_places) THEN
            PERFORM taskq_internal.raise_error('TQ003', format(
                'group %L: its partitions are at different places, and only programs with version %L of its resolver'
                ' know what they handled: run these to the end of the log, or rewind the group',
                p_group, v_old.resolver));
        END IF;
        INSERT INTO taskq_internal.skipped_event (group_name, topic_id, sequence)
        SELECT p_group, p_topic_id, t.sequence FROM taskq_internal.task t
        WHERE t.topic_id = p_topic_id AND t.sequence > v_first AND t.sequence <= (SELECT max(n) FROM unnest(v_places) n)
          AND t.sequence <= v_places[1 + taskq_internal.partition_of(
              t.identifier, v_old.partitions, v_old.level, t.sequence)]
        ON CONFLICT DO NOTHING;
        DELETE FROM taskq_internal.consumer_partition WHERE group_name = p_group AND topic_id = p_topic_id;
        DELETE FROM taskq_internal.consumer_progress WHERE group_name = p_group AND topic_id = p_topic_id;
    END IF;
    FOR v_partition IN 0 .. p_partitions - 1 LOOP
        INSERT INTO taskq_internal.consumer_partition AS h
            (group_name, topic_id, partition, partitions, level, resolver)
        VALUES (p_group, p_topic_id, v_partition, p_partitions, p_level, p_resolver)
        ON CONFLICT (group_name, topic_id, partition) DO UPDATE
            SET partitions = p_partitions, level = p_level, resolver = p_resolver WHERE h.partitions IS NULL;
        EXIT WHEN NOT FOUND;
        PERFORM taskq_internal.store_progress(p_group, p_topic_id, v_partition, v_first) WHERE v_first IS NOT NULL;
    END LOOP;
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

-- Returns the newest progress of a partition. The scan begins there, and passes none of the rows that were replaced.
CREATE FUNCTION taskq_internal.latest_progress(p_group text, p_topic_id int, p_partition int)
RETURNS SETOF taskq_internal.consumer_progress LANGUAGE sql STABLE AS $$
    SELECT * FROM taskq_internal.consumer_progress a
    WHERE a.topic_id = p_topic_id AND a.group_name = p_group AND a.partition = p_partition
    ORDER BY a.number DESC LIMIT 1
$$;

-- Returns the place that a partition has reached, 0 if it has no progress.
CREATE FUNCTION taskq_internal.place_of(p_group text, p_topic_id int, p_partition int) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT a.cursor FROM taskq_internal.latest_progress(p_group, p_topic_id, p_partition) a), 0)
$$;

-- Stores the progress of a partition whose row this transaction has locked. Returns false and stores nothing if the
-- progress is not at p_after.
CREATE FUNCTION taskq_internal.store_progress(
    p_group text, p_topic_id int, p_partition int, p_cursor bigint, p_after bigint DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_old taskq_internal.consumer_progress;
BEGIN
    SELECT * INTO v_old FROM taskq_internal.latest_progress(p_group, p_topic_id, p_partition);
    IF p_after <> coalesce(v_old.cursor, 0) THEN
        RETURN false;
    END IF;
    INSERT INTO taskq_internal.consumer_progress (topic_id, group_name, partition, cursor, advanced)
    VALUES (p_topic_id, p_group, p_partition, p_cursor, clock_timestamp());
    DELETE FROM taskq_internal.consumer_progress
    WHERE topic_id = p_topic_id AND group_name = p_group AND partition = p_partition AND number = v_old.number;
    RETURN true;
END $$;
