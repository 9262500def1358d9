-- Rounds: an owner that works a topic off in several turns of claim, work and commit under one lease.

-- The stage under which an owner lays tasks aside. It goes with the lease, as all of its stages.
CREATE FUNCTION taskq.aside(p_fence bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(p_fence), 12, '0') || '8fff8000000000000000')::uuid
$$;

-- Lays aside what the owner holds: it stays held until the lease ends, but is not read again. So a task without a decision
-- comes once in a lease, however many rounds there are. Returns how many tasks are new there; refuses a lease that is gone (TQ005).
CREATE FUNCTION taskq.lay_aside(p_owner text, p_fence bigint) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_owner_id bigint := taskq.hold_lease(p_owner, p_fence);
    v_aside    uuid := taskq.aside(p_fence);
    v_count    bigint;
BEGIN
    INSERT INTO taskq.staged (stage, part, attempt, sequence, result)
    SELECT v_aside, 0, 0, l.sequence, 0 FROM taskq.live l
    WHERE l.holder = v_owner_id AND NOT EXISTS (SELECT FROM taskq.staged s WHERE s.stage = v_aside AND s.sequence = l.sequence);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Claims whole lanes: of identifiers whose turn it is under the condition, their due tasks in the order of their turns, up to p_size
-- tasks in all. A lane that is longer than what is left of the size is cut at its end, so that nothing overtakes; one that has a
-- second begun task gives the first alone. Returns how many were taken. Never waits; refuses a lease that has lapsed (TQ005).
CREATE FUNCTION taskq.claim_batch(p_topic text, p_owner text, p_fence bigint, p_size int, p_condition text) RETURNS int
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_topic    taskq.topic := taskq.find_topic(p_topic);
    v_owner_id bigint := taskq.hold_running_lease(p_owner, p_fence);
    v_lanes    int;
    v_heads    bigint[];
    v_out      bigint[];
    v_all      int := 0;
BEGIN
    PERFORM taskq.check_order('FIRST_IN_FIRST_OUT', p_condition);
    IF v_topic.paused OR v_owner_id IS NULL OR p_condition = 'NONE' THEN
        RETURN 0;
    END IF;
    PERFORM taskq.need_read_committed('tasks go out one at a time per identifier');
    WHILE v_all < p_size LOOP
        v_lanes := least(10000, p_size - v_all);  -- at a time: bounds the server's memory
        v_out := taskq.let_out(v_topic, v_lanes, false, p_condition);
        v_heads := CASE WHEN taskq.is_paused_by_now(v_topic.topic_id) THEN '{}'
                        ELSE taskq.take_turns(v_topic.topic_id, v_owner_id, v_lanes, false, p_condition) END;
        v_all := v_all + cardinality(v_heads);
        v_all := v_all + taskq.take_tails(v_topic.topic_id, v_owner_id, v_heads, p_size - v_all);
        PERFORM taskq.keep_in(v_topic.topic_id, v_out);
        EXIT WHEN cardinality(v_heads) < v_lanes;
    END LOOP;
    RETURN v_all;
END $$;

-- Takes what is due behind the first tasks of lanes, whose locks this transaction holds; returns how many tasks.
CREATE FUNCTION taskq.take_tails(p_topic_id int, p_holder bigint, p_heads bigint[], p_size int) RETURNS int LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_lanes text[];
    v_found bigint[];
    v_chunk int;
    v_room  int := p_size;
    v_all   int := 0;
BEGIN
    v_lanes := ARRAY(SELECT l.identifier FROM taskq.live l WHERE l.topic_id = p_topic_id AND l.sequence = ANY (p_heads)
                     AND (SELECT a.sequence FROM taskq.live a
                          WHERE a.identifier = l.identifier AND a.topic_id = p_topic_id AND a.attempt > 0 AND a.holder IS NULL
                          ORDER BY a.holder, a.sequence LIMIT 1) IS NULL
                     ORDER BY l.sequence);
    WHILE v_room > 0 AND cardinality(v_lanes) > 0 LOOP
        v_chunk := least(50000, v_room);
        v_found := taskq.lock_tails(p_topic_id, v_now, v_lanes, v_chunk);
        v_all := v_all + cardinality(taskq.seize(p_topic_id, p_holder, v_found));
        v_room := p_size - v_all;
        EXIT WHEN cardinality(v_found) < v_chunk;  -- these were all, or a lane was cut
    END LOOP;
    RETURN v_all;
END $$;

-- Locks the first due tasks of lanes, lane by lane, at most p_size in all, and returns their sequences. Of a lane in which
-- another transaction holds one, only those before it.
CREATE FUNCTION taskq.lock_tails(p_topic_id int, p_now timestamptz, p_lanes text[], p_size int) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    v_found  bigint[];
    v_locked bigint[];
BEGIN
    v_found := ARRAY(
        SELECT t.sequence FROM unnest(p_lanes) AS u (identifier)
        CROSS JOIN LATERAL (
            SELECT b.sequence FROM taskq.live b
            WHERE b.topic_id::bigint = p_topic_id AND b.identifier = u.identifier AND b.holder IS NULL
              AND b.waits + 0 <= 0 AND b.available_at <= p_now  -- not by live_ready, which has all lanes
            ORDER BY b.priority DESC, b.available_at, b.sequence LIMIT p_size) t
        LIMIT p_size);
    v_locked := ARRAY(SELECT l.sequence FROM taskq.live l
                      WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_found) AND l.holder IS NULL FOR UPDATE SKIP LOCKED);
    IF cardinality(v_locked) = cardinality(v_found) THEN
        RETURN v_found;
    END IF;
    RETURN ARRAY(
        SELECT n.sequence FROM (
            SELECT u.sequence, bool_and(k.sequence IS NOT NULL) OVER (PARTITION BY l.identifier ORDER BY u.place) AS whole
            FROM unnest(v_found) WITH ORDINALITY AS u (sequence, place)
            JOIN taskq.live l ON l.topic_id = p_topic_id AND l.sequence = u.sequence
            LEFT JOIN unnest(v_locked) AS k (sequence) ON k.sequence = u.sequence) n
        WHERE n.whole);
END $$;

-- Drops from a stage of rounds the failures within a time to live, which are not noted: their tasks would be ready again at once, and
-- the next round would take them again, before all that was pushed later. They stay held, and are given back with the lease.
CREATE FUNCTION taskq.keep_young(p_owner_id bigint, p_stage uuid) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_failed bigint[];
    v_topics int[];
    v_count  bigint;
BEGIN
    IF taskq.stage_kind(p_stage) < 4 THEN
        RETURN 0;
    END IF;
    v_failed := ARRAY(SELECT sequence FROM taskq.staged WHERE stage = p_stage AND result = 0);
    v_topics := taskq.topics_held(p_owner_id, v_failed);
    DELETE FROM taskq.staged s USING (
        SELECT t.sequence
        FROM (SELECT * FROM taskq.task WHERE topic_id = ANY (v_topics) AND sequence = ANY (v_failed)) t
        JOIN (SELECT * FROM taskq.live WHERE holder = p_owner_id AND sequence = ANY (v_failed)) l USING (topic_id, sequence)
        JOIN taskq.topic p ON p.topic_id = t.topic_id
        WHERE t.created + coalesce(t.ttl, p.ttl) > v_now) y
    WHERE s.stage = p_stage AND s.sequence = y.sequence;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Drops from a stage that was opened under a condition the decisions that overtake: of each identifier those behind its first task
-- that has not ended well, as it failed, is to be snoozed, has no decision, or was suspended where that blocks. They are given back.
CREATE FUNCTION taskq.keep_turns(p_owner_id bigint, p_stage uuid) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_kind  int := taskq.stage_kind(p_stage) & 3;
    v_count bigint;
BEGIN
    IF v_kind = 0 THEN
        RETURN 0;
    END IF;
    DELETE FROM taskq.staged s USING (
        SELECT l.sequence,
               bool_or(d.result IS NULL OR d.result = 0 OR d.result = 1 AND (d.delay IS NOT NULL OR v_kind = 2)) OVER (
                   PARTITION BY l.topic_id, l.identifier
                   ORDER BY (l.attempt > 1) DESC, CASE WHEN l.attempt > 1 THEN l.sequence END,
                            l.priority DESC, l.available_at, l.sequence
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS stopped
        FROM taskq.live l
        LEFT JOIN (SELECT sequence, result, delay FROM taskq.staged WHERE stage = p_stage) d ON d.sequence = l.sequence
        WHERE l.holder = p_owner_id) t
    WHERE t.stopped AND s.stage = p_stage AND s.sequence = t.sequence;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- How many decisions have been staged so far: for whoever watches.
CREATE FUNCTION taskq.stage_size(p_stage uuid) RETURNS bigint LANGUAGE sql STABLE
SET enable_seqscan = off AS $$
    SELECT count(*) FROM taskq.staged WHERE stage = p_stage
$$;
