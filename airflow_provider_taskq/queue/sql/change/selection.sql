-- Selections: the tasks that a verb of an operator names, by sequence or by state, locked for it.

-- Locks the tasks among p_sequences that are in one of p_states, or with p_sequences NULL the p_size lowest tasks in
-- p_states from p_from to p_to, both included. Then the states are ACTIVE and READY, or among the others. A bound of
-- NULL is open. Returns the sequences in order. Never waits: it leaves out tasks that another transaction holds. For
-- one of the states EXPIRED, FAILED and SUSPENDED it reads an index. For other states it walks over the tasks.
CREATE FUNCTION taskq_internal.lock_selected(
    p_topic_id int, p_states int[], p_sequences bigint[], p_from bigint, p_to bigint, p_size bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_from  bigint := coalesce(p_from, 0);
    v_to    bigint := coalesce(p_to, 9223372036854775807);
    v_size  bigint := CASE WHEN p_size < 0 THEN 0 ELSE p_size END;
    v_found bigint[];
BEGIN
    IF p_sequences IS NOT NULL THEN
        v_found := ARRAY(SELECT l.sequence FROM taskq_internal.live l
                         WHERE l.topic_id = p_topic_id AND l.sequence = ANY (p_sequences)
                           AND CASE WHEN l.holder IS NULL THEN :READY ELSE :ACTIVE END = ANY (p_states)
                         FOR UPDATE SKIP LOCKED)
                || ARRAY(SELECT e.sequence FROM taskq_internal.ended e
                         WHERE e.topic_id = p_topic_id AND e.sequence = ANY (p_sequences) AND e.state = ANY (p_states)
                         FOR UPDATE SKIP LOCKED);
        RETURN ARRAY(SELECT unnest(v_found) ORDER BY 1);
    ELSIF p_states <@ ARRAY[:ACTIVE, :READY] THEN
        RETURN ARRAY(SELECT l.sequence FROM taskq_internal.live l
                     WHERE l.topic_id = p_topic_id AND l.sequence BETWEEN v_from AND v_to
                       AND CASE WHEN l.holder IS NULL THEN :READY ELSE :ACTIVE END = ANY (p_states)
                     ORDER BY l.sequence LIMIT v_size FOR UPDATE SKIP LOCKED);
    ELSIF p_states[1] <= :SUSPENDED AND cardinality(p_states) = 1 THEN
        RETURN ARRAY(SELECT e.sequence FROM taskq_internal.ended e
                     WHERE e.topic_id::bigint = p_topic_id AND e.state::int IN (:EXPIRED, :FAILED, :SUSPENDED)
                       AND e.state::int = p_states[1] AND e.sequence BETWEEN v_from AND v_to
                     ORDER BY e.sequence LIMIT v_size FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN ARRAY(SELECT e.sequence FROM taskq_internal.ended e
                 WHERE e.topic_id = p_topic_id AND e.state = ANY (p_states) AND e.sequence BETWEEN v_from AND v_to
                 ORDER BY e.sequence LIMIT v_size FOR UPDATE SKIP LOCKED);
END $$;

-- Locks named tasks, all of them or none. Raises TQ003 if a task is in none of p_states, which are READY alone or
-- EXPIRED to SUCCEEDED, and if another transaction holds it. The error names the first ten such tasks.
CREATE FUNCTION taskq_internal.lock_named(p_topic_id int, p_topic text, p_sequences bigint[], p_states int[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_held    bigint[] := taskq_internal.lock_selected(p_topic_id, p_states, p_sequences, NULL, NULL, NULL);
    v_missing bigint[] := ARRAY(SELECT unnest(p_sequences) EXCEPT SELECT unnest(v_held) ORDER BY 1);
BEGIN
    IF cardinality(v_missing) > 0 THEN
        PERFORM taskq_internal.raise_error('TQ003', format('topic %L: %s of %s tasks %s: sequence %s%s', p_topic,
            cardinality(v_missing), cardinality(v_held || v_missing), CASE WHEN :READY = ANY (p_states)
                THEN 'are not READY, and only a READY task can be changed or canceled' ELSE 'have not ended' END, (
                SELECT string_agg(format('%s (%s)', coalesce(n.sequence::text, 'NULL'), CASE
                    WHEN n.name IN (SELECT taskq.state_name(s) FROM unnest(p_states) AS s)
                        THEN 'being claimed or changed' ELSE n.name END), ', ' ORDER BY n.sequence)
                FROM (SELECT u.sequence, taskq_internal.task_state_name(p_topic_id, u.sequence) AS name
                      FROM unnest(v_missing[:10]) AS u (sequence)) n),
            CASE WHEN cardinality(v_missing) > 10 THEN ', ...' ELSE '' END));
    END IF;
    RETURN v_held;
END $$;

-- Locks ended tasks and returns their sequences in order: the tasks in p_sequences, all or none, or the p_size lowest
-- tasks in p_state from p_from to p_to. Raises TQ003 for contradicting arguments.
CREATE FUNCTION taskq_internal.lock_ended(
    p_topic_id int, p_topic text, p_sequences bigint[], p_state int, p_from bigint, p_to bigint, p_size bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_wrong text := CASE
        WHEN (p_sequences IS NULL) = (p_state IS NULL) THEN
            'name the tasks either by their state or by their sequences'
        WHEN p_sequences IS NOT NULL AND (coalesce(p_from, 0) <> 0 OR p_to IS NOT NULL OR p_size IS NOT NULL) THEN
            'a range and a size go with a state, not with sequences'
        WHEN p_state NOT BETWEEN :EXPIRED AND :SUCCEEDED THEN format(
            'tasks in state %s have not ended; EXPIRED to SUCCEEDED have', taskq.state_name(p_state)) END;
BEGIN
    IF v_wrong IS NOT NULL THEN
        PERFORM taskq_internal.raise_error('TQ003', format('topic %L: %s', p_topic, v_wrong));
    END IF;
    RETURN CASE WHEN p_state IS NULL
        THEN taskq_internal.lock_named(p_topic_id, p_topic, p_sequences,
                                       ARRAY(SELECT generate_series(:EXPIRED, :SUCCEEDED)))
        ELSE taskq_internal.lock_selected(p_topic_id, ARRAY[p_state], NULL, p_from, p_to, p_size) END;
END $$;
