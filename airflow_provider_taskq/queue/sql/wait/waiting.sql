-- Waiting tasks: a poll promotes those whose wait is over, and puts those back that have to wait after all.

-- Promotes tasks that have waited long enough, before a poll of up to p_size tasks reads the indexes. A promoted task
-- stays in these indexes until a poll claims it. Only a poll of batches makes the retries wait again that it left.
-- Returns whether any task waited.
CREATE FUNCTION taskq_internal.promote_waiting(
    p_topic taskq_internal.topic, p_size int, p_lifo boolean, p_condition text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now     timestamptz := clock_timestamp();
    v_woken   bigint;
    v_retries bigint;
BEGIN
    -- The orders are ones that only live_woken and live_waiting have. Otherwise a plan made while the table was empty
    -- could use any index.
    SELECT (SELECT l.sequence FROM taskq_internal.live l
            WHERE l.topic_id = p_topic.topic_id AND l.holder IS NULL AND l.waits = :WAITS_DEPENDENCIES AND l.late
            ORDER BY -l.priority, l.available_at, l.sequence LIMIT 1),
           (SELECT l.sequence FROM taskq_internal.live l
            WHERE l.topic_id = p_topic.topic_id AND l.holder IS NULL AND l.waits > :WAITS_NOTHING
              AND l.waits = :WAITS_PROBE AND l.available_at <= v_now
            ORDER BY l.available_at, l.sequence LIMIT 1)
    INTO v_woken, v_retries;
    IF coalesce(v_woken, v_retries) IS NULL THEN
        RETURN false;
    END IF;
    PERFORM taskq_internal.promote_dependents(p_topic.topic_id, CASE WHEN p_condition <> 'BATCH' THEN p_size END);
    PERFORM taskq_internal.promote_retries(p_topic, p_size, p_lifo, p_condition);
    RETURN true;
END $$;

-- Wakes the dependents of the tasks that SUCCEEDED in a call of complete, and updates the probe.
CREATE FUNCTION taskq_internal.update_waiting(p_topic_id int, p_sequences bigint[], p_results smallint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_topic taskq_internal.topic;
BEGIN
    PERFORM taskq_internal.check_dependents_of(p_topic_id, ARRAY(
        SELECT e.identifier FROM taskq_internal.ended e WHERE e.topic_id = p_topic_id AND e.sequence = ANY (p_sequences)
            AND e.state = :SUCCEEDED), true);
    SELECT * INTO v_topic FROM taskq_internal.topic WHERE topic_id = p_topic_id;
    IF v_topic.probe THEN
        PERFORM taskq_internal.update_probe(v_topic, p_sequences, p_results);
    END IF;
END $$;

-- Returns the tasks that a poll would promote now: woken and missed dependents that are fulfilled and due, and up to
-- p_limit retries. It changes nothing.
CREATE FUNCTION taskq_internal.waiting_to_promote(p_topic taskq_internal.topic, p_limit int, p_condition text)
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_probe record := taskq_internal.may_probe(p_topic, v_now, p_condition);
    v_tasks bigint[] := ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_topic.topic_id AND l.holder IS NULL AND l.waits = :WAITS_DEPENDENCIES AND l.late
          AND l.available_at <= v_now AND (l.attempt = 0 OR NOT p_topic.probe));
BEGIN
    v_tasks := taskq_internal.fulfilled_dependents(p_topic.topic_id, v_tasks)
        || taskq_internal.missed_dependents(p_topic.topic_id);
    IF v_probe.allowed THEN
        v_tasks := v_tasks || taskq_internal.retries_to_promote(
            p_topic.topic_id, v_probe.failing, v_now, p_limit, false, p_condition);
    END IF;
    RETURN v_tasks;
END $$;
