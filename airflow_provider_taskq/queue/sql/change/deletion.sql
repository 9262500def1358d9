-- Deletion: the one way in which tasks are removed, and what has to stay.

-- Deletes tasks whose rows this transaction holds, and all their related rows. Wakes the tasks that depend on them.
-- With p_spare it keeps the latest task of an identifier on which a waiting task depends. Returns how many it deleted.
CREATE FUNCTION taskq_internal.delete_tasks(p_topic_id int, p_sequences bigint[], p_spare boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_gone        bigint[] := p_sequences;
    v_identifiers text[];
BEGIN
    IF EXISTS (SELECT FROM taskq_internal.dependency WHERE on_topic_id = p_topic_id AND waiting) THEN
        SELECT array_agg(t.sequence), array_agg(DISTINCT t.identifier) INTO v_gone, v_identifiers
        FROM taskq_internal.task t
        WHERE t.topic_id = p_topic_id AND t.sequence = ANY (p_sequences) AND NOT (
            p_spare
            AND EXISTS (SELECT FROM taskq_internal.dependency d
                        WHERE d.on_topic_id = p_topic_id AND d.on_identifier = t.identifier AND d.waiting OFFSET 0)
            AND NOT EXISTS (SELECT FROM taskq_internal.task n WHERE n.identifier = t.identifier
                            AND n.topic_id = p_topic_id AND n.sequence > t.sequence OFFSET 0));
    END IF;
    DELETE FROM taskq_internal.live WHERE topic_id = p_topic_id AND sequence = ANY (v_gone);
    DELETE FROM taskq_internal.ended WHERE topic_id = p_topic_id AND sequence = ANY (v_gone);
    DELETE FROM taskq_internal.task WHERE topic_id = p_topic_id AND sequence = ANY (v_gone);
    DELETE FROM taskq_internal.dependency WHERE topic_id = p_topic_id AND sequence = ANY (v_gone);
    DELETE FROM taskq_internal.history WHERE topic_id = p_topic_id AND sequence = ANY (v_gone);
    DELETE FROM taskq_internal.skipped_event WHERE topic_id = p_topic_id AND sequence = ANY (v_gone);
    IF v_identifiers IS NOT NULL THEN
        PERFORM taskq_internal.check_dependents_of(p_topic_id, v_identifiers, true);
    END IF;
    RETURN coalesce(cardinality(v_gone), 0);
END $$;

-- Drops a topic. Raises lock_not_available if the caller has to repeat the attempt. A transaction that reads or changes
-- tasks holds their rows in live or ended, which therefore come first.
CREATE FUNCTION taskq_internal.try_drop_topic(p_topic text) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
DECLARE
    v_topic_id int := (SELECT t.topic_id FROM taskq_internal.topic t WHERE t.name = p_topic);
    v_table    text;
BEGIN
    IF v_topic_id IS NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(taskq_internal.topic_lock(v_topic_id));
    PERFORM FROM taskq_internal.topic WHERE topic_id = v_topic_id FOR UPDATE;
    IF NOT FOUND THEN  -- another session has dropped it, and may have created it again
        RAISE lock_not_available;
    END IF;
    FOREACH v_table IN ARRAY CASE WHEN v_topic_id < :FIRST_OWN_TOPIC THEN ARRAY['live', 'ended', 'task'] ELSE '{}' END
        || ARRAY['dependency', 'history', 'probe', 'probe_result', 'group_release', 'consumer_partition',
                 'consumer_progress', 'skipped_event', 'retention_walk', 'front', 'identifier_front'] LOOP
        EXECUTE format('DELETE FROM taskq_internal.%I WHERE topic_id = $1', v_table) USING v_topic_id;
    END LOOP;
    IF v_topic_id >= :FIRST_OWN_TOPIC THEN
        PERFORM taskq_internal.drop_own_tables(v_topic_id);
    END IF;
    DELETE FROM taskq_internal.topic WHERE topic_id = v_topic_id;
    RETURN true;
END $$;

-- Removes tasks in some states, as lock_selected finds them, in batches that limit the server's memory. With p_spare it
-- keeps the tasks on which waiting tasks depend.
CREATE FUNCTION taskq_internal.purge_states(
    p_topic_id int, p_states int[], p_spare boolean, p_sequences bigint[], p_from bigint, p_to bigint, p_size bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_batch bigint;
    v_next  bigint := p_from;
    v_found bigint[];
    v_count bigint := 0;
BEGIN
    LOOP
        v_batch := least(50000, p_size - v_count);
        EXIT WHEN v_batch <= 0;
        v_found := taskq_internal.lock_selected(p_topic_id, p_states, p_sequences, v_next, p_to, v_batch);
        v_count := v_count + taskq_internal.delete_tasks(p_topic_id, v_found, p_spare);
        EXIT WHEN cardinality(v_found) < v_batch;
        v_next := v_found[v_batch] + 1;
    END LOOP;
    RETURN v_count;
END $$;
