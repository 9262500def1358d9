-- Readers of the log: events after a place, and their stored progress.

CREATE FUNCTION taskq.log_blockers(p_topic text)
RETURNS TABLE (pid int, since timestamptz, application text, floor bigint) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT')).topic_id;
BEGIN
    RETURN QUERY
    SELECT o.pid, coalesce(a.xact_start, p.prepared),
           coalesce(a.application_name, format('prepared transaction %s', o.gid)), o.floor
    FROM taskq_internal.open_pushes(v_topic_id) o
    LEFT JOIN pg_stat_activity a ON a.pid = o.pid
    LEFT JOIN pg_prepared_xacts p ON p.gid = o.gid
    ORDER BY o.floor, o.pid;
END $$;
COMMENT ON FUNCTION taskq.log_blockers IS
'Returns the open transactions that hold a topic''s log back. Until such a transaction ends, no reader gets a task whose
sequence is at or above its floor. The columns since and application are NULL for sessions of other roles, unless the
owner of the schema has pg_read_all_stats. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.events(p_topic text, p_after bigint, p_size int, p_partition int, p_partitions int, p_level int)
RETURNS TABLE (place bigint, identifier text, payload json, reference text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE')).topic_id;
    v_after    bigint := coalesce(p_after, 0);
    v_horizon  bigint;
    v_count    bigint;
BEGIN
    PERFORM taskq_internal.check_log_read(p_partition, p_partitions, p_level), taskq_internal.check_place(v_after);
    v_horizon := taskq_internal.log_horizon(v_topic_id);
    RETURN QUERY
    SELECT t.sequence, t.identifier, t.payload, t.reference FROM taskq_internal.task t
    WHERE t.topic_id = v_topic_id AND t.sequence > v_after AND t.sequence < v_horizon
      AND (p_partitions = 1 OR taskq_internal.partition_of(t.identifier, p_partitions, p_level,
              t.sequence) = p_partition)
    ORDER BY t.sequence LIMIT greatest(p_size, 0);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count < p_size THEN
        RETURN QUERY SELECT taskq_internal.log_place(v_topic_id, v_after, v_horizon), NULL, NULL::json, NULL;
    END IF;
END $$;
COMMENT ON FUNCTION taskq.events IS
'Returns up to p_size tasks of a topic''s log after the place p_after, in order. With p_after NULL it begins at the
start of the log. The call returns only the tasks of partition p_partition, out of p_partitions. With p_level NULL a
task''s whole identifier decides on its partition; with p_level n, the first n levels of the identifier; with p_level 0,
its sequence. If fewer than p_size tasks remain, a last row without a task tells how far the call read the log. The call
claims nothing. Raises TQ001 for an unknown topic. Raises TQ000 above READ COMMITTED, on a standby, for an invalid
partition, or for a place that this database has not reached.';

CREATE FUNCTION taskq.progress(p_group text, p_topic text, p_partition int) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE')).topic_id;
BEGIN
    RETURN (SELECT a.cursor FROM taskq_internal.latest_progress(p_group, v_topic_id, p_partition) a);
END $$;
COMMENT ON FUNCTION taskq.progress IS
'Returns the place up to which a group has handled a partition of a topic. Returns NULL if the group has stored no
progress. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.advance(p_group text, p_topic text, p_partition int, p_cursor bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id;
BEGIN
    PERFORM taskq_internal.check_name('a group', p_group);
    INSERT INTO taskq_internal.consumer_partition (group_name, topic_id, partition)
    VALUES (p_group, v_topic_id, p_partition)
    ON CONFLICT (group_name, topic_id, partition) DO UPDATE SET fence = NULL WHERE false;  -- only locks the row
    IF p_cursor < taskq_internal.place_of(p_group, v_topic_id, p_partition) THEN
        DELETE FROM taskq_internal.skipped_event s USING taskq_internal.consumer_partition h, taskq_internal.task t
        WHERE s.topic_id = v_topic_id AND s.group_name = p_group AND s.sequence > p_cursor
          AND h.topic_id = v_topic_id AND h.group_name = p_group AND h.partition = p_partition
          AND t.topic_id = v_topic_id AND t.sequence = s.sequence
          AND (h.resolver IS NOT NULL
               OR taskq_internal.partition_of(t.identifier, h.partitions, h.level, t.sequence) = p_partition);
    END IF;
    PERFORM taskq_internal.store_progress(p_group, v_topic_id, p_partition, p_cursor);
END $$;
COMMENT ON FUNCTION taskq.advance IS
'Stores the place up to which a group has handled a partition of a topic. With an earlier place the group reads the
following tasks again, also those that it has skipped. If another transaction stores this progress, the call waits for
its end, and the later commit wins. The call also waits for a transaction that changes the division of the group or
removes the group. Raises TQ001 for an unknown topic, and TQ008 for an invalid name.';

CREATE FUNCTION taskq.log_end(p_topic text, p_after bigint, p_size bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE')).topic_id;
    v_horizon  bigint;
    v_end      bigint;
BEGIN
    PERFORM taskq_internal.check_log_read(0, 1, 0), taskq_internal.check_place(p_after);
    v_horizon := taskq_internal.log_horizon(v_topic_id);
    IF p_size IS NOT NULL THEN
        v_end := (SELECT t.sequence FROM taskq_internal.task t
                  WHERE t.topic_id = v_topic_id AND t.sequence > p_after AND t.sequence < v_horizon
                  ORDER BY t.sequence OFFSET greatest(p_size, 1) - 1 LIMIT 1);
    END IF;
    RETURN coalesce(v_end, taskq_internal.log_place(v_topic_id, p_after, v_horizon));
END $$;
COMMENT ON FUNCTION taskq.log_end IS
'Returns the sequence of the last task of a topic''s log after p_after, at most p_size tasks further. With p_size NULL
there is no limit. Returns p_after if no task follows. No task appears later with a sequence up to the result. Raises
TQ001 for an unknown topic. Raises TQ000 above READ COMMITTED, on a standby, or for a place that this database has not
reached.';

CREATE FUNCTION taskq.log_slice(p_topic text, p_low bigint, p_high bigint)
RETURNS TABLE (sequence bigint, topic text, identifier text, payload text, reference text, priority int,
               created timestamptz) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE')).topic_id;
BEGIN
    RETURN QUERY
    SELECT t.sequence, p_topic, t.identifier, t.payload::text, t.reference, t.priority::int, t.created
        FROM taskq_internal.task t
    WHERE t.topic_id = v_topic_id AND t.sequence BETWEEN p_low AND p_high ORDER BY t.sequence;
END $$;
COMMENT ON FUNCTION taskq.log_slice IS
'Returns the tasks of a topic''s log in a range of sequences, in order. Up to a result of taskq.log_end, every call
returns the same tasks, except for purged tasks. Raises TQ001 for an unknown topic.';
