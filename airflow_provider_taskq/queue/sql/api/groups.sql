-- Consumer groups: partitions with one member at a time.

CREATE FUNCTION taskq.acquire_partition(
    p_owner text, p_fence bigint, p_group text, p_topic text, p_partitions int DEFAULT 1, p_level int DEFAULT NULL,
    p_resolver text DEFAULT NULL, p_except int[] DEFAULT '{}', OUT partition int, OUT fence bigint
) RETURNS SETOF record LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id;
    v_holder   bigint := taskq_internal.require_lease(p_owner, p_fence);
BEGIN
    PERFORM taskq_internal.check_name('a group', p_group);
    PERFORM taskq_internal.check_log_read(0, p_partitions, p_level);
    IF NOT EXISTS (SELECT FROM taskq_internal.consumer_partition h
                   WHERE h.group_name = p_group AND h.topic_id = v_topic_id AND h.partition = 0
                     AND (h.partitions, h.level, h.resolver)
                         IS NOT DISTINCT FROM (p_partitions, p_level, p_resolver)) THEN
        PERFORM taskq_internal.divide_group(p_group, v_topic_id, p_partitions, p_level, p_resolver);
    END IF;
    RETURN QUERY
    UPDATE taskq_internal.consumer_partition h SET fence = nextval('taskq_internal.fence'), holder = v_holder
    WHERE h.group_name = p_group AND h.topic_id = v_topic_id AND h.partition = (
        SELECT h.partition FROM taskq_internal.consumer_partition h
        WHERE h.group_name = p_group AND h.topic_id = v_topic_id
          AND (h.partitions, h.level, h.resolver) IS NOT DISTINCT FROM (p_partitions, p_level, p_resolver)
          AND h.partition <> ALL (p_except) AND taskq_internal.is_free(h)
        ORDER BY h.partition LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING h.partition, h.fence;
END $$;
COMMENT ON FUNCTION taskq.acquire_partition IS
'Acquires one partition of a group that has no member, or whose member''s lease has lapsed, for an owner with a lease
under p_fence. The owner holds the partition under the new fence that the call returns, as long as it renews its lease.
Creates the group if it does not exist. p_partitions, p_level and p_resolver are the division of the group: p_resolver
is the version of the function by which the programs of the group divide the log themselves, or NULL if the database
divides it by p_level. The call skips the partitions in p_except. Returns no row if no partition is free. Waits for no
member. If the group has another division, the call changes it, or raises TQ003 if a member holds a partition, or if the
partitions of a resolver are at different places. Raises TQ001 for an unknown topic, TQ005 if the owner has no lease
under p_fence, and TQ000 for a number or a level out of range and above READ COMMITTED.';

CREATE FUNCTION taskq.read_partition(p_group text, p_topic text, p_partition int, p_fence bigint, p_size int)
RETURNS TABLE (place bigint, identifier text, payload json, reference text, after bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_topic_id  int := (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id;
    v_horizon   bigint := taskq_internal.log_horizon(v_topic_id);  -- first, because a transaction that locks is slower
    v_partition taskq_internal.consumer_partition;
    v_after     bigint;
    v_count     bigint;
BEGIN
    IF p_size IS NULL OR p_size < 1 THEN
        PERFORM taskq_internal.raise_error('TQ008', format(
            'group %L: invalid size %s: expected at least 1', p_group, p_size));
    END IF;
    v_partition := taskq_internal.lock_partition(p_group, v_topic_id, p_partition, p_fence);
    v_after := taskq_internal.place_of(p_group, v_topic_id, p_partition);
    PERFORM taskq_internal.check_log_read(p_partition, v_partition.partitions, v_partition.level),
        taskq_internal.check_place(v_after);
    RETURN QUERY
    SELECT t.sequence, t.identifier, t.payload, t.reference, v_after FROM taskq_internal.task t
    WHERE t.topic_id = v_topic_id AND t.sequence > v_after AND t.sequence < v_horizon
      AND (v_partition.partitions = 1 OR v_partition.resolver IS NOT NULL
           OR taskq_internal.partition_of(t.identifier, v_partition.partitions, v_partition.level,
                   t.sequence) = p_partition)
      AND (SELECT true FROM taskq_internal.skipped_event s  -- not as a join, which could read all of them
           WHERE s.topic_id = v_topic_id AND s.group_name = p_group AND s.sequence = t.sequence
             AND s.error IS NULL) IS NULL
    ORDER BY t.sequence LIMIT p_size;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count < p_size THEN
        RETURN QUERY SELECT taskq_internal.log_place(v_topic_id, v_after, v_horizon), NULL, NULL::json, NULL, v_after;
    END IF;
END $$;
COMMENT ON FUNCTION taskq.read_partition IS
'Returns up to p_size tasks that follow the progress of a partition, for the member that holds the partition under
p_fence. The column after has the place to pass to advance_partition as p_after. If fewer than p_size tasks follow, a
last row without a task has the place up to which the call read the log. For a group with a resolver, the call returns
the tasks of all partitions. Raises TQ001 for an unknown topic, TQ005 if the fence does not hold the partition, and
TQ008 if p_size is below 1. Raises TQ000 above READ COMMITTED or on a standby.';

CREATE FUNCTION taskq.advance_partition(
    p_group text, p_topic text, p_partition int, p_fence bigint, p_after bigint, p_cursor bigint,
    p_error text DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id  int := (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id;
    v_partition taskq_internal.consumer_partition
        := taskq_internal.lock_partition(p_group, v_topic_id, p_partition, p_fence);
    v_lease     interval := (SELECT o.lease FROM taskq_internal.owner o WHERE o.owner_id = v_partition.holder);
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout',
                       least(ceil(extract(epoch FROM v_lease) * 1000), 2147483647)::bigint::text, true);
    IF NOT taskq_internal.store_progress(p_group, v_topic_id, p_partition, p_cursor, p_after) THEN
        RETURN false;
    END IF;
    IF v_partition.failed IS NOT NULL THEN
        UPDATE taskq_internal.consumer_partition SET failed = NULL, error = NULL
        WHERE group_name = p_group AND topic_id = v_topic_id AND partition = p_partition;
    END IF;
    IF p_error IS NOT NULL THEN
        INSERT INTO taskq_internal.skipped_event (group_name, topic_id, sequence, skipped, error)
        VALUES (p_group, v_topic_id, p_cursor, clock_timestamp(), left(p_error, 10000))
        ON CONFLICT (topic_id, group_name, sequence) DO UPDATE SET skipped = excluded.skipped, error = excluded.error;
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION taskq.advance_partition IS
'Moves the progress of a partition from p_after to p_cursor, for the member that holds the partition under p_fence.
With p_error, the member skips the task at p_cursor, and the group keeps the task''s sequence and the error. Returns
false and changes nothing if the progress is not at p_after. Until the calling transaction ends, no other member can
acquire the partition. For this reason the server ends a session that is idle in this transaction for longer than the
lease. Raises TQ001 for an unknown topic, and TQ005 if the fence does not hold the partition.';

CREATE FUNCTION taskq.release_partition(p_group text, p_topic text, p_partition int, p_fence bigint, p_error text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id;
BEGIN
    UPDATE taskq_internal.consumer_partition h SET fence = NULL, holder = NULL,
        failed = CASE WHEN p_error IS NULL THEN h.failed ELSE clock_timestamp() END,
        error = coalesce(left(p_error, 10000), h.error)
    WHERE h.group_name = p_group AND h.topic_id = v_topic_id AND h.partition = p_partition AND h.fence = p_fence;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION taskq.release_partition IS
'Releases a partition that a member holds under p_fence. The partition keeps p_error, the error that ended the work,
until a member makes progress. With p_error NULL the call keeps an earlier error. Returns false if the fence does not
hold the partition. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.partition_states(p_topic text DEFAULT NULL, p_size int DEFAULT 10000, p_cap int DEFAULT 1000)
RETURNS TABLE (group_name text, topic text, partitions int, level int, resolver text, partition int, member text,
               fence bigint, lease_until timestamptz, lapsed boolean, cursor bigint, advanced timestamptz,
               behind bigint, behind_since timestamptz, failed timestamptz, error text)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT h.group_name, p.name, h.partitions, h.level, h.resolver, h.partition, o.name, h.fence, o.lease_until,
           h.holder IS NOT NULL AND taskq_internal.is_free(h), coalesce(a.cursor, 0),
           a.advanced, n.behind, n.since, h.failed, h.error
    FROM taskq_internal.consumer_partition h
    JOIN taskq_internal.topic p ON p.topic_id = h.topic_id
    LEFT JOIN taskq_internal.owner o ON o.owner_id = h.holder
    LEFT JOIN LATERAL taskq_internal.latest_progress(h.group_name, h.topic_id, h.partition) a ON true
    CROSS JOIN LATERAL (
        SELECT count(*) AS behind, min(w.created) AS since
        FROM (SELECT t.created FROM taskq_internal.task t
              WHERE t.topic_id = h.topic_id AND t.sequence > coalesce(a.cursor, 0)
              ORDER BY t.sequence LIMIT greatest(p_cap, 1)) w) n
    WHERE p_topic IS NULL OR p.name = p_topic
    ORDER BY h.group_name, h.topic_id, h.partition LIMIT greatest(p_size, 0);
END $$;
COMMENT ON FUNCTION taskq.partition_states IS
'Returns up to p_size partitions of the consumer groups of a topic, or of all topics, with their members, leases,
progress and last errors. The column behind counts the tasks of the topic that follow the progress, up to p_cap, and
behind_since tells when the first of them was pushed. Partitions of a group that only stores progress have no division.
Returns no row for an unknown topic.';

CREATE FUNCTION taskq.forget_group(p_group text, p_topic text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
    v_found    boolean := taskq_internal.lock_idle_group(p_group, v_topic_id) IS NOT NULL;
BEGIN
    DELETE FROM taskq_internal.consumer_partition WHERE topic_id = v_topic_id AND group_name = p_group;
    DELETE FROM taskq_internal.consumer_progress WHERE topic_id = v_topic_id AND group_name = p_group;
    DELETE FROM taskq_internal.skipped_event WHERE topic_id = v_topic_id AND group_name = p_group;
    RETURN v_found;
END $$;
COMMENT ON FUNCTION taskq.forget_group IS
'Removes a consumer group of a topic and its progress. Returns false if the topic has neither the group nor any progress
of it. Raises TQ001 for an unknown topic, and TQ003 if a member holds a partition or a transaction stores progress.';

CREATE FUNCTION taskq.skipped_events(p_group text, p_topic text, p_size int DEFAULT 100)
RETURNS TABLE (sequence bigint, identifier text, skipped timestamptz, error text)
LANGUAGE sql STABLE AS $$
    SELECT s.sequence, t.identifier, s.skipped, s.error FROM taskq_internal.skipped_event s
    JOIN taskq_internal.task t ON t.topic_id = s.topic_id AND t.sequence = s.sequence
    WHERE s.group_name = p_group AND s.error IS NOT NULL
      AND s.topic_id = (SELECT p.topic_id FROM taskq_internal.topic p WHERE p.name = p_topic)
    ORDER BY s.sequence LIMIT greatest(p_size, 0)
$$;
COMMENT ON FUNCTION taskq.skipped_events IS
'Returns up to p_size tasks that a group has skipped after the last retry, in order, with the error of that retry.
Returns no row for an unknown topic.';
