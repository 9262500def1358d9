-- Revive and reassign: actions of an operator on ended tasks, EXPIRED to SUCCEEDED.

CREATE FUNCTION taskq.revive(
    p_topic text, p_revival text DEFAULT 'RESET', p_sequences bigint[] DEFAULT NULL, p_state int DEFAULT NULL,
    p_from bigint DEFAULT 0, p_to bigint DEFAULT NULL, p_size bigint DEFAULT NULL
) RETURNS TABLE (old bigint, new bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.lock_topic_shared(p_topic, 'UPDATE')).topic_id;
    v_old      bigint[];
    v_new      bigint[];
BEGIN
    IF p_revival IS NULL OR p_revival NOT IN ('RESET', 'APPEND', 'SUPERSEDE', 'REPLACE') THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'revival %L is none of RESET, APPEND, SUPERSEDE, REPLACE', p_revival));
    END IF;
    v_old := taskq_internal.lock_ended(v_topic_id, p_topic, p_sequences, p_state, p_from, p_to, p_size);
    IF p_revival = 'RESET' THEN
        PERFORM taskq_internal.reset_tasks(v_topic_id, v_old);
        v_new := v_old;
    ELSE
        v_new := taskq_internal.recreate_tasks(v_topic_id, p_revival, v_old);
    END IF;
    RETURN QUERY SELECT * FROM unnest(v_old, v_new);
END $$;
COMMENT ON FUNCTION taskq.revive IS
'Revives ended tasks (EXPIRED to SUCCEEDED): the tasks in p_sequences, or the p_size lowest tasks in p_state from p_from
to p_to. With p_revival RESET the tasks become READY again. With APPEND, SUPERSEDE or REPLACE they become RECREATED, and
the call pushes copies. Returns each sequence with the sequence that continues it. Never waits: a call with p_state leaves
out tasks that another transaction holds, and a call with p_sequences revives all tasks or none. Raises TQ001 for an
unknown topic, TQ003 for a task that has not ended or that another transaction holds, and TQ000 for contradicting
arguments.';

CREATE FUNCTION taskq.reassign(
    p_topic text, p_result int, p_sequences bigint[], p_state int, p_from bigint, p_to bigint
) RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
    v_found    bigint[];
    v_identifiers text[];
BEGIN
    IF p_result IS NULL OR p_result NOT BETWEEN :FAILURE AND :SUCCESS THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'result %s is none of 0 FAILURE, 1 SUSPENSION, 2 FILTER, 3 SUCCESS', p_result));
    END IF;
    v_found := taskq_internal.lock_ended(v_topic_id, p_topic, p_sequences, p_state, p_from, p_to,
                                CASE WHEN p_state = taskq_internal.state_of_result(p_result) THEN 0 END);
    PERFORM taskq_internal.record_change(v_topic_id, :HISTORY_REASSIGNED, v_found, array_fill(
        taskq_internal.state_of_result(p_result)::bigint, ARRAY[cardinality(v_found)]));
    UPDATE taskq_internal.ended SET state = taskq_internal.state_of_result(p_result),
        completed = coalesce(completed, clock_timestamp())
    WHERE topic_id = v_topic_id AND sequence = ANY (v_found);
    v_identifiers := ARRAY(SELECT e.identifier FROM taskq_internal.ended e WHERE e.topic_id = v_topic_id
                           AND e.sequence = ANY (v_found));
    IF p_result = :SUCCESS THEN
        PERFORM taskq_internal.wake_dependents(v_topic_id, v_identifiers);
    ELSE
        PERFORM taskq_internal.park_dependents(v_topic_id, v_identifiers);
    END IF;
    RETURN cardinality(v_found);
END $$;
COMMENT ON FUNCTION taskq.reassign IS
'Changes the result of ended tasks to p_result, which is 0 FAILURE, 1 SUSPENSION, 2 FILTER or 3 SUCCESS. The tasks keep
their output. The arguments select the tasks as in taskq.revive. Returns how many tasks it changed. Raises TQ001 for an
unknown topic, and the other errors of taskq.revive.';

CREATE FUNCTION taskq.state_name(p_state int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce((ARRAY['ACTIVE', 'READY', 'EXPIRED', 'FAILED', 'SUSPENDED', 'FILTERED', 'SUCCEEDED', 'RECREATED',
                           'REDUNDANT'])[p_state + 1], p_state::text)
$$;
COMMENT ON FUNCTION taskq.state_name IS
'Returns the name of a state from its number.';

-- Returns the state in which a result ends a task.
CREATE FUNCTION taskq_internal.state_of_result(p_result int) RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
    SELECT (CASE p_result WHEN :SUCCESS THEN :SUCCEEDED WHEN :FAILURE THEN :FAILED WHEN :FILTER THEN :FILTERED
                          WHEN :SUSPENSION THEN :SUSPENDED END)::smallint
$$;

-- Returns the result of a completed state.
CREATE FUNCTION taskq_internal.result_of_state(p_state int) RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_state WHEN :SUCCEEDED THEN :SUCCESS WHEN :FAILED THEN :FAILURE WHEN :FILTERED THEN :FILTER
                        WHEN :SUSPENDED THEN :SUSPENSION END
$$;

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

-- Locks the tasks among p_sequences that are in one of p_states, or with p_sequences NULL the p_size lowest tasks in
-- p_states from p_from to p_to, both included. Then the states are ACTIVE and READY, or among the others. A bound of
-- NULL is open. Returns the sequences in order. Never waits: it leaves out tasks that another transaction holds. For
-- one of the states EXPIRED, FAILED and SUSPENDED it reads an index. For other states it walks over the tasks.
CREATE FUNCTION taskq_internal.lock_selected(
    p_topic_id int, p_states int[], p_sequences bigint[], p_from bigint, p_to bigint, p_size bigint
) RETURNS bigint[] LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
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

-- Makes ended tasks READY in their original place, as if they had just been pushed. This transaction holds their rows.
CREATE FUNCTION taskq_internal.reset_tasks(p_topic_id int, p_sequences bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    PERFORM taskq_internal.record_change(p_topic_id, :HISTORY_RESET, p_sequences);
    DELETE FROM taskq_internal.ended WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    PERFORM taskq_internal.insert_ready_tasks(p_topic_id, p_sequences);
    PERFORM taskq_internal.park_dependents(p_topic_id, ARRAY(
        SELECT l.identifier FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
            AND l.sequence = ANY (p_sequences)));
END $$;

-- Inserts tasks as READY in their original place. The next poll checks the tasks with dependencies. If the topic's
-- policy has notify, it sends a notification, as a push does.
CREATE FUNCTION taskq_internal.insert_ready_tasks(p_topic_id int, p_sequences bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM taskq_internal.add_fronts(p_topic_id, ARRAY(
        SELECT DISTINCT t.priority FROM taskq_internal.task t WHERE t.topic_id = p_topic_id
            AND t.sequence = ANY (p_sequences)));
    INSERT INTO taskq_internal.live (sequence, available_at, topic_id, priority, waits, late, identifier)
    SELECT t.sequence, t.due, t.topic_id, t.priority,
           CASE WHEN d.sequence IS NULL THEN :WAITS_NOTHING ELSE :WAITS_DEPENDENCIES END, true, t.identifier
    FROM (SELECT * FROM taskq_internal.task WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) t
    LEFT JOIN (SELECT DISTINCT sequence FROM taskq_internal.dependency
               WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) d USING (sequence);
    PERFORM taskq.notify(t.name) FROM taskq_internal.topic t WHERE t.topic_id = p_topic_id AND t.notify
        AND cardinality(p_sequences) > 0;
END $$;

-- Marks ended tasks RECREATED and pushes a copy of each, all at once and in the order given. This transaction holds
-- their rows. Unless the insertion is APPEND, only the last copy of an identifier remains in effect. The limits of the
-- topic apply to new tasks only. Returns the sequences of the copies.
CREATE FUNCTION taskq_internal.recreate_tasks(p_topic_id int, p_insertion text, p_sequences bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_now         timestamptz;
    v_identifiers text[];
    v_states      smallint[];
    v_new         bigint[];
BEGIN
    PERFORM taskq_internal.announce_push();
    v_now := clock_timestamp();
    v_new := taskq_internal.draw_sequences(cardinality(p_sequences));
    PERFORM taskq_internal.record_change(p_topic_id, :HISTORY_RECREATED, p_sequences, v_new);
    UPDATE taskq_internal.ended SET descent = state, state = :RECREATED WHERE topic_id = p_topic_id
        AND sequence = ANY (p_sequences);
    v_identifiers := ARRAY(SELECT t.identifier FROM unnest(p_sequences) WITH ORDINALITY AS u (sequence, place)
                           JOIN (SELECT * FROM taskq_internal.task WHERE topic_id = p_topic_id
                                 AND sequence = ANY (p_sequences)) t
                               USING (sequence) ORDER BY u.place);
    IF p_insertion <> 'APPEND' THEN
        PERFORM taskq_internal.displace_older_tasks(p_topic_id, p_insertion,
                ARRAY(SELECT DISTINCT unnest(v_identifiers)), NULL);
    END IF;
    v_states := taskq_internal.push_states(p_insertion, v_identifiers, NULL);
    INSERT INTO taskq_internal.task (sequence, created, due, pushed_in, topic_id, priority, identifier, reference, ttl,
        payload)
    SELECT n.sequence, v_now, v_now, pg_current_xact_id(), p_topic_id, t.priority, t.identifier, t.reference, t.ttl,
        t.payload
    FROM unnest(v_new, p_sequences) AS n (sequence, old)
    JOIN (SELECT * FROM taskq_internal.task WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) t
        ON t.sequence = n.old;
    INSERT INTO taskq_internal.dependency (topic_id, sequence, on_topic_id, on_identifier)
    SELECT p_topic_id, n.sequence, d.on_topic_id, d.on_identifier
    FROM unnest(v_new, p_sequences) AS n (sequence, old)
    JOIN (SELECT * FROM taskq_internal.dependency WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) d
        ON d.sequence = n.old;
    INSERT INTO taskq_internal.ended (sequence, available_at, topic_id, state, descent, identifier)
    SELECT n.sequence, v_now, p_topic_id, :REDUNDANT, :READY, n.identifier
    FROM unnest(v_new, v_identifiers, v_states) AS n (sequence, identifier, state) WHERE n.state = :REDUNDANT;
    PERFORM taskq_internal.insert_ready_tasks(p_topic_id, ARRAY(
        SELECT n.sequence FROM unnest(v_new, v_states) AS n (sequence, state) WHERE n.state = :READY));
    PERFORM taskq_internal.park_dependents(p_topic_id, v_identifiers);
    RETURN v_new;
END $$;

-- Returns whether any task may wait for a task of this topic.
CREATE FUNCTION taskq_internal.has_dependents(p_topic_id int) RETURNS boolean
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    RETURN EXISTS (SELECT FROM taskq_internal.dependency WHERE on_topic_id = p_topic_id AND waiting);
END $$;

-- Returns the name of a task's state, or a text that the topic does not have the task.
CREATE FUNCTION taskq_internal.task_state_name(p_topic_id int, p_sequence bigint) RETURNS text
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    RETURN coalesce(
        (SELECT CASE WHEN l.holder IS NULL THEN 'READY' ELSE 'ACTIVE' END FROM taskq_internal.live l
         WHERE l.topic_id = p_topic_id AND l.sequence = p_sequence),
        (SELECT taskq.state_name(e.state) FROM taskq_internal.ended e WHERE e.topic_id = p_topic_id
         AND e.sequence = p_sequence),
        'unknown');
END $$;
