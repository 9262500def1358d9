-- Revive and reassign: actions of an operator on ended tasks, EXPIRED to SUCCEEDED.

-- Makes ended tasks READY in their original place, as if they had just been pushed. This transaction holds their rows.
CREATE FUNCTION taskq_internal.reset_tasks(p_topic_id int, p_sequences bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM taskq_internal.record_change(p_topic_id, :HISTORY_RESET, p_sequences);
    DELETE FROM taskq_internal.ended WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    PERFORM taskq_internal.insert_ready_tasks(p_topic_id, p_sequences);
    PERFORM taskq_internal.check_dependents_of(p_topic_id, ARRAY(
        SELECT l.identifier FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
            AND l.sequence = ANY (p_sequences)), false);
END $$;

-- Inserts tasks as READY in their original place. The next poll checks the tasks with dependencies. If the topic's
-- policy has notify, it sends a notification, as a push does.
CREATE FUNCTION taskq_internal.insert_ready_tasks(p_topic_id int, p_sequences bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM taskq_internal.add_fronts(p_topic_id, ARRAY(
        SELECT DISTINCT t.priority FROM taskq_internal.task t WHERE t.topic_id = p_topic_id
            AND t.sequence = ANY (p_sequences)));
    INSERT INTO taskq_internal.live (sequence, available_at, topic_id, priority, waits, late, identifier)
    SELECT t.sequence, t.due, t.topic_id, t.priority,
           CASE WHEN EXISTS (SELECT FROM taskq_internal.dependency d WHERE d.topic_id = p_topic_id
                             AND d.sequence = t.sequence OFFSET 0)
               THEN :WAITS_DEPENDENCIES ELSE :WAITS_NOTHING END, true, t.identifier
    FROM taskq_internal.task t WHERE t.topic_id = p_topic_id AND t.sequence = ANY (p_sequences);
    PERFORM taskq.notify(t.name) FROM taskq_internal.topic t WHERE t.topic_id = p_topic_id AND t.notify
        AND cardinality(p_sequences) > 0;
END $$;

-- Marks ended tasks RECREATED and pushes a copy of each, all at once and in the order given. This transaction holds
-- their rows. Unless the insertion is APPEND, only the last copy of an identifier remains in effect. The limits of the
-- topic apply to new tasks only. Returns the sequences of the copies.
CREATE FUNCTION taskq_internal.recreate_tasks(p_topic_id int, p_insertion text, p_sequences bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
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
    v_identifiers := ARRAY(SELECT (SELECT t.identifier FROM taskq_internal.task t WHERE t.topic_id = p_topic_id
                                   AND t.sequence = u.sequence)
                           FROM unnest(p_sequences) WITH ORDINALITY AS u (sequence, place) ORDER BY u.place);
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
    CROSS JOIN LATERAL (SELECT * FROM taskq_internal.task WHERE topic_id = p_topic_id AND sequence = n.old OFFSET 0) t;
    INSERT INTO taskq_internal.dependency (topic_id, sequence, on_topic_id, on_identifier)
    SELECT p_topic_id, n.sequence, d.on_topic_id, d.on_identifier
    FROM unnest(v_new, p_sequences) AS n (sequence, old)
    CROSS JOIN LATERAL (SELECT * FROM taskq_internal.dependency
                        WHERE topic_id = p_topic_id AND sequence = n.old OFFSET 0) d;
    INSERT INTO taskq_internal.ended (sequence, available_at, topic_id, state, descent, identifier)
    SELECT n.sequence, v_now, p_topic_id, :REDUNDANT, :READY, n.identifier
    FROM unnest(v_new, v_identifiers, v_states) AS n (sequence, identifier, state) WHERE n.state = :REDUNDANT;
    PERFORM taskq_internal.insert_ready_tasks(p_topic_id, ARRAY(
        SELECT n.sequence FROM unnest(v_new, v_states) AS n (sequence, state) WHERE n.state = :READY));
    PERFORM taskq_internal.check_dependents_of(p_topic_id, v_identifiers, false);
    RETURN v_new;
END $$;
