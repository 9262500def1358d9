-- Probes: while a topic probes, one retry of it at a time runs, and the others wait (live.waits = PROBE).

-- Promotes retries that wait for the probe of their topic. While retries succeed, it promotes the due ones in polled
-- order. While they fail, it promotes the next retry in turn, which is then the probe (see may_probe).
--
-- Two polls never promote a probe at once, because each locks the row of the last probe as it read it. A poll that
-- promotes no probe locks nothing. No completion waits for a poll, because no completion changes this row.
CREATE FUNCTION taskq_internal.promote_retries(
    p_topic taskq_internal.topic, p_size int, p_lifo boolean, p_condition text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now     timestamptz := clock_timestamp();
    v_probe   record := taskq_internal.may_probe(p_topic, v_now, p_condition);
    v_retries bigint[];
    v_locked  bigint[];
BEGIN
    IF NOT v_probe.allowed THEN
        RETURN;
    END IF;
    v_retries := taskq_internal.retries_to_promote(
        p_topic.topic_id, v_probe.failing, v_now, p_size, p_lifo, p_condition);
    IF v_probe.failing THEN
        PERFORM FROM taskq_internal.probe p
        WHERE p.topic_id = p_topic.topic_id AND p.xmin = v_probe.version AND cardinality(v_retries) > 0
        FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        UPDATE taskq_internal.probe SET sequences = v_retries, period = v_probe.period
        WHERE topic_id = p_topic.topic_id;
    END IF;
    v_locked := ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_topic.topic_id AND l.sequence = ANY (v_retries || v_probe.sequences) AND l.holder IS NULL
          AND CASE WHEN l.sequence = ANY (v_retries) THEN l.waits + 0 = :WAITS_PROBE
                   ELSE l.waits + 0 <= :WAITS_NOTHING END
        FOR UPDATE SKIP LOCKED);
    UPDATE taskq_internal.live l SET late = true, waits = CASE
        -- The last probe, which no poll under the condition can claim, gives its place to this one.
        WHEN l.sequence <> ALL (v_retries) THEN :WAITS_PROBE ELSE :WAITS_NOTHING END
    WHERE l.topic_id = p_topic.topic_id AND l.sequence = ANY (v_locked);
END $$;

-- Returns due retries that wait for the probe and that a poll under the condition could claim: a probe that none can
-- claim would block the others. While retries fail, it returns the one whose last failure is the longest ago, whatever
-- its priority, and of those that failed in one call the first by priority, then by sequence. Otherwise it returns the
-- first p_size in polled order. For a poll of batches, the other retries of their identifiers follow.
CREATE FUNCTION taskq_internal.retries_to_promote(
    p_topic_id int, p_failing boolean, p_now timestamptz, p_size int, p_lifo boolean, p_condition text
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_sequence bigint;
    v_found    bigint[] := '{}';
BEGIN
    FOR v_sequence IN
        (SELECT l.sequence FROM taskq_internal.live l
         WHERE p_failing AND l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits = :WAITS_PROBE
           AND l.available_at <= p_now ORDER BY l.failed_at NULLS FIRST, l.priority DESC, l.sequence)
        UNION ALL
        SELECT r.sequence FROM taskq_internal.newest_fronts(p_topic_id) f CROSS JOIN LATERAL (
            (SELECT l.sequence FROM taskq_internal.live l
             WHERE NOT p_lifo AND l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits = :WAITS_PROBE
               AND l.priority = f.priority AND l.available_at <= p_now ORDER BY l.available_at, l.sequence)
            UNION ALL
            (SELECT l.sequence FROM taskq_internal.live l
             WHERE p_lifo AND l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits = :WAITS_PROBE
               AND l.priority = f.priority AND l.available_at <= p_now
             ORDER BY l.available_at DESC, l.sequence DESC)) r
        WHERE NOT p_failing
    LOOP
        IF taskq_internal.may_promote(p_topic_id, v_sequence, p_condition) THEN
            v_found := v_found || v_sequence;
        END IF;
        EXIT WHEN cardinality(v_found) >= CASE WHEN p_failing THEN 1 ELSE p_size END;
    END LOOP;
    IF p_condition = 'BATCH' THEN  -- a poll hands out a batch as a whole
        v_found := taskq_internal.fulfilled_dependents(p_topic_id, ARRAY(
            SELECT a.sequence
            FROM (SELECT DISTINCT l.identifier FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
                  AND l.sequence = ANY (v_found)) u
            CROSS JOIN LATERAL (
                SELECT b.sequence FROM taskq_internal.live b
                WHERE b.identifier = u.identifier AND b.topic_id = p_topic_id AND b.attempt > 0
                  AND coalesce(b.polled, 'infinity') = 'infinity' AND b.holder IS NULL AND b.waits + 0 = :WAITS_PROBE
                OFFSET 0) a));
    END IF;
    RETURN v_found;
END $$;

-- Returns whether a poll under a condition could claim a retry: its dependencies are fulfilled, it has the turn of its
-- identifier, and no task blocks the identifier.
CREATE FUNCTION taskq_internal.may_promote(p_topic_id int, p_sequence bigint, p_condition text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_identifier text;
BEGIN
    IF taskq_internal.fulfilled_dependents(p_topic_id, ARRAY[p_sequence]) = '{}' THEN
        RETURN false;
    ELSIF p_condition = 'NONE' THEN
        RETURN true;
    END IF;
    v_identifier := (SELECT l.identifier FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
                     AND l.sequence = p_sequence);
    RETURN (SELECT CASE WHEN p_condition = 'BATCH' THEN a.holder IS NULL ELSE a.sequence = p_sequence END
            FROM (SELECT) one
            LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, v_identifier, true) i ON true
            CROSS JOIN LATERAL taskq_internal.turn_of_identifier(p_topic_id, v_identifier, i.claimed_at) a)
       AND (SELECT e.sequence FROM taskq_internal.ended e
            WHERE e.identifier = v_identifier AND e.topic_id = p_topic_id AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED)
              AND e.state = ANY (taskq_internal.blocking_states(p_condition)) ORDER BY e.state, e.sequence
                  LIMIT 1) IS NULL
       AND (p_condition <> 'BATCH' OR NOT EXISTS (
            SELECT FROM taskq_internal.live a WHERE a.identifier = v_identifier AND a.topic_id = p_topic_id
                AND a.attempt > 0 AND coalesce(a.polled, 'infinity') = 'infinity' AND a.holder IS NULL
                AND (a.available_at > clock_timestamp() OR a.waits IN (:WAITS_DEPENDENCIES, :WAITS_RESUME))));
END $$;

-- Makes promoted retries wait for the probe again: those of a topic whose retries now fail, and those that a poll of
-- batches has left, so that no other poll splits their group. Never waits: it leaves out the retries that a poll is
-- claiming. The order is one that only live_late has.
CREATE FUNCTION taskq_internal.demote_retries(p_topic_id int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_retries bigint[] := ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING AND l.late AND l.attempt > 0
        ORDER BY l.priority + 0, l.available_at, l.sequence FOR UPDATE SKIP LOCKED);
BEGIN
    UPDATE taskq_internal.live SET waits = :WAITS_PROBE
    WHERE topic_id = p_topic_id AND sequence = ANY (v_retries);
END $$;

-- Returns whether a poll may promote retries of a topic, and whether they fail: then it may promote one, as the probe.
-- period, sequences and version are those of the last probe. While retries fail, the last probe has to be over: no
-- owner holds it, and no poll under the condition can claim it. Also, since its failure, a retry has to have become due
-- or the topic's first delay to have passed. The delay of the failed task does not count: it grows, and the other
-- retries would wait for it.
CREATE FUNCTION taskq_internal.may_probe(
    p_topic taskq_internal.topic, p_now timestamptz, p_condition text, OUT allowed boolean, OUT failing boolean,
    OUT period int, OUT sequences bigint[], OUT version xid
) LANGUAGE plpgsql AS $$
DECLARE
    v_result taskq_internal.probe_result;
BEGIN
    SELECT * INTO v_result FROM taskq_internal.probe_result r
    WHERE p_topic.probe AND r.topic_id = p_topic.topic_id AND r.failing;
    failing := FOUND;
    period := v_result.period;
    SELECT CASE WHEN p.period = v_result.period THEN p.sequences ELSE '{}' END, p.xmin INTO sequences, version
    FROM taskq_internal.probe p WHERE p.topic_id = p_topic.topic_id AND failing;
    allowed := NOT failing OR NOT EXISTS (
            SELECT FROM taskq_internal.live l
            WHERE l.topic_id = p_topic.topic_id AND l.sequence = ANY (sequences)
              AND (l.holder IS NOT NULL OR l.waits + 0 <= :WAITS_NOTHING AND l.available_at <= p_now
                   AND p_condition <> 'BATCH' AND taskq_internal.may_promote(l.topic_id, l.sequence, p_condition)))
        AND (v_result.failed_at IS NULL OR v_result.failed_at + least(p_topic.base, p_topic.max_delay) <= p_now
             OR (SELECT l.sequence FROM taskq_internal.live l
                 WHERE l.topic_id = p_topic.topic_id AND l.holder IS NULL AND l.waits = :WAITS_PROBE
                   AND l.available_at > v_result.failed_at AND l.available_at <= p_now
                 ORDER BY l.available_at, l.sequence LIMIT 1) IS NOT NULL);
END $$;

-- Updates a topic's probe after tasks have ended or returned to READY in this transaction. A recorded failure marks the
-- topic as failing. For a failure of the probe it stores the time, which delays the next probe (may_probe). Any other
-- decision on a retry marks the topic as no longer failing. It writes only changes, so that completions do not wait for
-- each other.
CREATE FUNCTION taskq_internal.update_probe(p_topic taskq_internal.topic, p_sequences bigint[], p_results smallint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_result taskq_internal.probe_result;
    v_probe  bigint[];
    v_failed bigint[];
    v_ok     boolean;
BEGIN
    v_failed := ARRAY(SELECT l.sequence FROM taskq_internal.live l WHERE l.topic_id = p_topic.topic_id
                      AND l.sequence = ANY (p_sequences)
                        AND l.waits + 0 = :WAITS_PROBE  -- + 0: not by live_waiting
                      UNION ALL
                      SELECT e.sequence FROM taskq_internal.ended e WHERE e.topic_id = p_topic.topic_id
                          AND e.sequence = ANY (p_sequences) AND e.state = :FAILED);
    SELECT * INTO v_result FROM taskq_internal.probe_result WHERE topic_id = p_topic.topic_id AND failing;
    SELECT p.sequences INTO v_probe FROM taskq_internal.probe p
    WHERE p.topic_id = p_topic.topic_id AND p.period = v_result.period;
    IF cardinality(v_failed) > 0 AND v_result.failing IS NULL THEN
        INSERT INTO taskq_internal.probe_result AS r (topic_id, failing) VALUES (p_topic.topic_id, true)
        ON CONFLICT (topic_id) DO UPDATE SET failing = true, failed_at = NULL, period = r.period + 1;
        INSERT INTO taskq_internal.probe (topic_id) VALUES (p_topic.topic_id) ON CONFLICT DO NOTHING;
        PERFORM taskq_internal.demote_retries(p_topic.topic_id);
    ELSIF v_probe && v_failed THEN
        UPDATE taskq_internal.probe_result SET failed_at = clock_timestamp() WHERE topic_id = p_topic.topic_id;
    ELSIF v_result.failing AND cardinality(v_failed) = 0 THEN
        v_ok := EXISTS (SELECT FROM taskq_internal.ended e WHERE e.topic_id = p_topic.topic_id
                        AND e.sequence = ANY (p_sequences) AND e.attempt > 1)
             OR v_probe && ARRAY(SELECT u.sequence FROM unnest(p_sequences, p_results) AS u (sequence, result)
                     WHERE u.result <> :FAILURE);
        IF v_ok THEN
            UPDATE taskq_internal.probe_result SET failing = false WHERE topic_id = p_topic.topic_id;
        END IF;
    END IF;
END $$;
