-- Offers: a task is stored, or the one that already waits is changed.

-- Offers tasks of different identifiers, which the caller has locked by lock_offers. Compares payloads as texts.
--
-- An offer without a due time asks for a task that is due at once. A task that is due already then keeps its place in
-- the order. A paused task stays paused, and a task that waits for dependencies or a probe keeps waiting: the offer
-- changes their later due time. Attempts and the last error stay.
CREATE FUNCTION taskq_internal.offer_distinct(
    p_topic taskq_internal.topic, p_if_exists text, p_identifiers text[], p_payloads text[], p_references text[],
    p_available_at timestamptz[], p_delays interval[], p_ttls interval[], p_priorities int[], OUT outcomes text[],
    OUT sequences bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_now     timestamptz := clock_timestamp();
    v_waiting bigint[] := taskq_internal.waiting_tasks(p_topic.topic_id, p_identifiers, p_if_exists = 'ignore_held');
    v_new     bigint[];
    v_changed bigint[];
BEGIN
    IF array_position(v_waiting, NULL) IS NOT NULL THEN
        PERFORM taskq_internal.announce_push();
        v_now := clock_timestamp();
        v_new := taskq_internal.draw_sequences(cardinality(v_waiting));
        PERFORM taskq_internal.store_tasks(
            p_topic, v_now, v_new, p_identifiers, p_payloads, p_references, NULL, p_available_at, p_delays, p_ttls,
            p_priorities, ARRAY(SELECT CASE WHEN u.sequence IS NULL THEN :READY ELSE :NOT_STORED END::smallint
                                FROM unnest(v_waiting) WITH ORDINALITY AS u (sequence, place) ORDER BY u.place));
    END IF;
    IF p_if_exists = 'update' AND array_remove(v_waiting, NULL) <> '{}' THEN
        WITH changed AS MATERIALIZED (
            SELECT n.sequence, n.payload, n.reference, n.ttl, coalesce(n.priority, 0) AS priority, d.due
            FROM unnest(v_waiting, p_payloads, p_references, p_available_at, p_delays, p_ttls, p_priorities)
                 AS n (sequence, payload, reference, available_at, delay, ttl, priority)
            JOIN taskq_internal.task t ON t.topic_id = p_topic.topic_id AND t.sequence = ANY (v_waiting)
                AND t.sequence = n.sequence
            JOIN taskq_internal.live l ON l.topic_id = p_topic.topic_id AND l.sequence = ANY (v_waiting)
                AND l.sequence = n.sequence
            CROSS JOIN LATERAL (
                SELECT coalesce(n.available_at, v_now + n.delay, least(l.available_at, v_now)) AS due) d
            WHERE (t.payload::text, t.reference, t.ttl, t.priority::int, l.available_at)
                IS DISTINCT FROM (n.payload, n.reference, n.ttl, coalesce(n.priority, 0), d.due)
        ), pushed AS (
            UPDATE taskq_internal.task t SET payload = c.payload::json, reference = c.reference, ttl = c.ttl,
                priority = c.priority, due = c.due
            FROM changed c
            WHERE t.topic_id = p_topic.topic_id AND t.sequence = ANY (v_waiting) AND t.sequence = c.sequence
        ), placed AS (
            UPDATE taskq_internal.live l SET priority = c.priority, late = true, available_at = c.due FROM changed c
            WHERE l.topic_id = p_topic.topic_id AND l.sequence = ANY (v_waiting) AND l.sequence = c.sequence
            RETURNING l.sequence)
        SELECT array_agg(p.sequence) INTO v_changed FROM placed p;
    END IF;
    IF v_changed IS NOT NULL THEN
        PERFORM taskq_internal.add_fronts(p_topic.topic_id, coalesce(p_priorities, '{0}'));
        IF p_topic.notify THEN  -- a task may be due earlier
            PERFORM taskq_internal.notify('taskq', p_topic.name);
        END IF;
    END IF;
    SELECT array_agg(coalesce(u.waiting, u.new) ORDER BY u.place), array_agg(
        CASE WHEN u.waiting IS NULL THEN 'CREATED' WHEN c.sequence IS NULL THEN 'IGNORED' ELSE 'UPDATED' END
        ORDER BY u.place)
    INTO sequences, outcomes
    FROM unnest(v_waiting, v_new) WITH ORDINALITY AS u (waiting, new, place)
    LEFT JOIN unnest(v_changed) AS c (sequence) ON c.sequence = u.waiting;
END $$;

-- Locks the newest waiting task of each identifier, and returns their sequences in input order, with NULL for an
-- identifier without one. With p_held a held task comes first, and nothing is locked: a task that an open transaction
-- polls or completes counts, too.
CREATE FUNCTION taskq_internal.waiting_tasks(p_topic_id int, p_identifiers text[], p_held boolean) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT coalesce(h.sequence, w.sequence) FROM unnest(p_identifiers) WITH ORDINALITY AS u (identifier, place)
        LEFT JOIN LATERAL (
            (SELECT a.sequence FROM taskq_internal.live a
             WHERE p_held AND a.topic_id = p_topic_id AND a.identifier = u.identifier AND a.attempt > 0
             ORDER BY coalesce(a.polled, 'infinity'), a.sequence LIMIT 1)
            UNION ALL
            (SELECT r.sequence FROM taskq_internal.live r
             WHERE p_held AND r.topic_id::bigint = p_topic_id AND r.identifier = u.identifier AND r.holder IS NULL
             ORDER BY r.sequence DESC LIMIT 1)
            LIMIT 1) h ON true
        LEFT JOIN LATERAL (
            SELECT l.sequence FROM taskq_internal.live l
            WHERE NOT p_held AND l.topic_id::bigint = p_topic_id AND l.identifier = u.identifier AND l.holder IS NULL
            ORDER BY l.sequence DESC LIMIT 1 FOR UPDATE SKIP LOCKED) w ON true
        ORDER BY u.place);
END $$;
