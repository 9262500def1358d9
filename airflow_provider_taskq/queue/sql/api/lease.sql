-- The end of a lease: given back by its owner, or taken when it has lapsed.

-- Gives back what the owner has not finished: READY in its old place, the attempt not counted. Ends the lease.
-- Returns how many tasks, 0 where the lease is gone already.
CREATE FUNCTION taskq.release(p_owner text, p_fence bigint) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    v_owner_id bigint;
    v_count    bigint;
BEGIN
    PERFORM taskq.need_read_committed('leases end');
    UPDATE taskq.owner SET fence = NULL, seen = clock_timestamp()
    WHERE name = p_owner AND fence = p_fence RETURNING owner_id INTO v_owner_id;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    UPDATE taskq.live l SET holder = NULL, polled = NULL, attempt = l.attempt - 1, waits = taskq.waits_again(l.topic_id, l.attempt, l.waits),
        available_at = (SELECT t.due FROM taskq.task t WHERE t.topic_id = l.topic_id AND t.sequence = l.sequence)
    WHERE l.holder = v_owner_id;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    DELETE FROM taskq.staged WHERE stage = taskq.aside(p_fence);
    RETURN v_count;
END $$;

-- Takes every lease that lapsed more than p_grace ago, with its tasks, and returns how many tasks those were. Leaves
-- out the owners that p_except names: a worker does not take its own leases, whose heartbeats may be under way.
-- By the policy of its topic a task becomes READY in its old place, marked redelivered, its attempt not counted;
-- or FAILED with the reason where this was its last permitted crash; or EXPIRED until somebody revives it.
-- Skips an owner whose poll, completion or registration is in flight: whoever commits first decides. Forgets what the executors of
-- owners that are gone have staged.
CREATE FUNCTION taskq.expire(p_grace interval, p_except text[] DEFAULT '{}') RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    v_lapsed bigint[];
    v_given  bigint;
    v_ended  bigint;
BEGIN
    PERFORM taskq.need_read_committed('leases end');
    v_lapsed := ARRAY(SELECT owner_id FROM taskq.owner
                      WHERE fence IS NOT NULL AND lease_until < clock_timestamp() - taskq.clamp_age(p_grace)
                        AND name <> ALL (p_except)
                      FOR UPDATE SKIP LOCKED);
    UPDATE taskq.owner SET fence = NULL WHERE owner_id = ANY (v_lapsed);
    INSERT INTO taskq.history (happened, due, polled, topic_id, sequence, kind, state, attempt, holder)
    SELECT clock_timestamp(), l.available_at, l.polled, l.topic_id, l.sequence, 2, 0, l.attempt, o.name
    FROM taskq.live l JOIN taskq.owner o ON o.owner_id = l.holder WHERE l.holder = ANY (v_lapsed);
    WITH gone AS (
        DELETE FROM taskq.live l USING taskq.topic p
        WHERE l.holder = ANY (v_lapsed) AND p.topic_id = l.topic_id
          AND (p.on_expiry = 'expire' OR l.crashes + 1 >= p.max_crashes)
        RETURNING l.*, p.on_expiry)
    INSERT INTO taskq.ended (sequence, completed, available_at, holder, polled, topic_id, attempt, state, crashes, redelivered,
                             identifier, error, error_summary)
    SELECT g.sequence, CASE WHEN g.on_expiry = 'redeliver' THEN clock_timestamp() END, g.available_at, g.holder,
           CASE WHEN g.on_expiry = 'redeliver' THEN g.polled END, g.topic_id, g.attempt - 1, CASE g.on_expiry WHEN 'redeliver' THEN 3 ELSE 2 END, g.crashes + 1, g.redelivered,
           g.identifier, n.error, CASE g.on_expiry WHEN 'redeliver' THEN n.error ELSE g.error_summary END
    FROM gone g
    CROSS JOIN LATERAL (SELECT CASE g.on_expiry WHEN 'redeliver'
        THEN format('given up: the lease of its owner lapsed %s times while the task was held', g.crashes + 1)
        ELSE g.error END AS error) n;
    GET DIAGNOSTICS v_ended = ROW_COUNT;
    UPDATE taskq.live l SET holder = NULL, polled = NULL, attempt = l.attempt - 1, crashes = l.crashes + 1, redelivered = true,
        waits = taskq.waits_again(l.topic_id, l.attempt, l.waits), available_at = (SELECT t.due FROM taskq.task t WHERE t.topic_id = l.topic_id AND t.sequence = l.sequence)
    WHERE l.holder = ANY (v_lapsed);
    GET DIAGNOSTICS v_given = ROW_COUNT;
    PERFORM taskq.prune_stages();
    RETURN v_given + v_ended;
END $$;

-- What a task waits for when it is given back: a retry of a probing topic for its probe again, others for nothing.
CREATE FUNCTION taskq.waits_again(p_topic_id int, p_attempt int, p_waits smallint) RETURNS smallint LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_attempt > 1 AND (SELECT p.probe FROM taskq.topic p WHERE p.topic_id = p_topic_id) THEN
        RETURN 2;
    END IF;
    RETURN p_waits;
END $$;

-- What this owner holds under this fence, in polled order; nothing once the lease is gone.
CREATE FUNCTION taskq.held(p_owner text, p_fence bigint, p_topic text)
RETURNS TABLE (sequence bigint, topic text, identifier text, payload json, reference text, attempt int, redelivered boolean)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_owner_id bigint := (SELECT o.owner_id FROM taskq.owner o WHERE o.name = p_owner AND o.fence = p_fence);
    v_held     bigint[] := ARRAY(SELECT l.sequence FROM taskq.live l WHERE l.holder = v_owner_id);
    v_topics   int[] := ARRAY(SELECT DISTINCT l.topic_id FROM taskq.live l WHERE l.holder = v_owner_id);
BEGIN
    RETURN QUERY
    SELECT t.sequence, p.name, t.identifier, t.payload, t.reference, l.attempt, l.redelivered
    FROM (SELECT * FROM taskq.live WHERE holder = v_owner_id) l
    JOIN (SELECT * FROM taskq.task WHERE topic_id = ANY (v_topics) AND sequence = ANY (v_held)) t USING (sequence)
    JOIN taskq.topic p ON p.topic_id = t.topic_id
    WHERE p_topic IS NULL OR p.name = p_topic
    ORDER BY l.priority DESC, l.available_at, l.sequence;
END $$;
