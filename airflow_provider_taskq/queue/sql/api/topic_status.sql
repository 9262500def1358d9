-- Topic status: what keeps a topic's tasks from being polled, in counts, for gates that wait and for the page.

-- The status of any number of topics under a condition each, by the place in the arrays, counted from 1. Every count stops at p_cap;
-- an unknown topic has no row. The counts of READY tasks exclude each other:
--   ready      a poll under the condition could take them now
--   scheduled  due later, never tried
--   retrying   due later, tried before
--   blocked    due, but behind a dependency, the probe of the topic, another task of the identifier, or a transaction that polls
--   paused     due in a paused topic, or paused themselves
--   running    held by owners: of the first 10,000 held tasks of the database
CREATE FUNCTION taskq.topic_status(p_topics text[], p_conditions text[], p_cap int)
RETURNS TABLE ("position" int, ready bigint, scheduled bigint, retrying bigint, blocked bigint, paused bigint, running bigint,
               topic_paused boolean, paused_by text, paused_since timestamptz)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (SELECT h.topic_id, h.held FROM taskq.held_by_topic() h)
    SELECT u.place::int, r.ready,  w.scheduled, w.retrying, greatest(w.blocked + w.due - r.ready - CASE WHEN t.paused THEN w.due ELSE 0 END, 0),
           w.paused + CASE WHEN t.paused THEN w.due ELSE 0 END,
           coalesce((SELECT least(h.held, p_cap) FROM held h WHERE h.topic_id = t.topic_id), 0),
           t.paused, t.paused_by, t.paused_since
    FROM unnest(p_topics, p_conditions) WITH ORDINALITY AS u (topic, condition, place)
    JOIN taskq.topic t ON t.name = u.topic
    CROSS JOIN LATERAL taskq.count_waiting_kinds(t.topic_id, p_cap) w
    CROSS JOIN LATERAL (SELECT CASE WHEN w.due + w.blocked > 0 THEN taskq.count_ready(t, p_cap, u.condition) ELSE 0 END::bigint AS ready
                        OFFSET 0) r;
END $$;

-- The READY tasks of a topic by what they wait for, each count up to p_cap. `due` are in no dependency's or probe's way; `blocked`
-- are. Walks the tasks priority by priority, as only within a priority the times are in order.
CREATE FUNCTION taskq.count_waiting_kinds(
    p_topic_id int, p_cap int, OUT due bigint, OUT scheduled bigint, OUT retrying bigint, OUT paused bigint, OUT blocked bigint
) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_now      timestamptz := clock_timestamp();
    v_paused   timestamptz := taskq.paused_until();
    v_priority smallint := 101;
    v_later    record;
BEGIN
    due := 0; scheduled := 0; retrying := 0; paused := 0;
    LOOP
        v_priority := (SELECT l.priority FROM taskq.live l
                       WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0 AND l.priority < v_priority
                       ORDER BY l.priority DESC, l.available_at, l.sequence LIMIT 1);
        EXIT WHEN v_priority IS NULL;
        due := due + (SELECT count(*) FROM (
            SELECT FROM taskq.live l WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0 AND l.priority = v_priority
                                       AND l.available_at <= v_now
            ORDER BY l.available_at, l.sequence LIMIT p_cap - due) n);
        SELECT count(*) FILTER (WHERE n.available_at < v_paused AND n.attempt = 0) AS scheduled,
               count(*) FILTER (WHERE n.available_at < v_paused AND n.attempt > 0) AS retrying,
               count(*) FILTER (WHERE n.available_at >= v_paused) AS paused INTO v_later
        FROM (SELECT l.available_at, l.attempt FROM taskq.live l
              WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0 AND l.priority = v_priority AND l.available_at > v_now
              ORDER BY l.available_at, l.sequence LIMIT greatest(p_cap - scheduled - retrying - paused, 0)) n;
        scheduled := scheduled + v_later.scheduled;
        retrying := retrying + v_later.retrying;
        paused := paused + v_later.paused;
    END LOOP;
    -- Behind dependencies (1) or the probe of the topic (2); a retry that is not due yet is one that waits for its time.
    SELECT count(*) FILTER (WHERE n.waits = 1 OR n.available_at <= v_now), retrying + count(*) FILTER (WHERE n.waits = 2 AND n.available_at > v_now)
    INTO blocked, retrying
    FROM (SELECT l.waits, l.available_at FROM taskq.live l WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits > 0
          ORDER BY l.waits, l.available_at, l.sequence LIMIT greatest(p_cap, 0)) n;
END $$;
