-- Drains: programs that work until a topic has nothing more for them. When one began, what it ended, and its report.

-- Stores that a drain of this name begins, and returns the moment from which its tasks count. For a drain that was killed before its
-- report, this is the moment at which that one began. p_fence is the fence of the drain's owner, NULL for several owners.
CREATE FUNCTION taskq.begin_drain(p_name text, p_fence bigint, p_topic text) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    v_began timestamptz;
BEGIN
    PERFORM taskq.find_topic(p_topic);
    INSERT INTO taskq.drain AS d (name, topic, fence, began) VALUES (p_name, p_topic, p_fence, clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET
        began = CASE WHEN d.finished IS NULL AND d.topic = p_topic THEN d.began ELSE clock_timestamp() END,
        topic = p_topic, fence = p_fence, finished = NULL, report = NULL
    RETURNING d.began INTO v_began;
    RETURN v_began;
END $$;

-- Stores the report of a drain. False, and nothing is stored, if a later drain of this name has begun under another fence.
CREATE FUNCTION taskq.end_drain(p_name text, p_fence bigint, p_report text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF octet_length(p_report) > 65536 OR taskq.json_defect(p_report) IS NOT NULL THEN
        PERFORM taskq.refuse('TQ008', format('the report of drain %L is not JSON of at most 64 KiB', p_name));
    END IF;
    UPDATE taskq.drain SET finished = clock_timestamp(), report = p_report::json
    WHERE name = p_name AND fence IS NOT DISTINCT FROM p_fence AND finished IS NULL;
    RETURN FOUND;
END $$;

-- The latest drain of this name; no row if there was none. `finished` and `report` are NULL until its end.
CREATE FUNCTION taskq.drain_named(p_name text)
RETURNS TABLE (topic text, began timestamptz, finished timestamptz, report json) LANGUAGE sql STABLE AS $$
    SELECT d.topic, d.began, d.finished, d.report FROM taskq.drain d WHERE d.name = p_name
$$;

-- How many tasks of a topic an owner has ended since a moment, by state; the owners named p_owner/... count as p_owner. A task that waits
-- for its retry has not ended. Reads what has ended since then, by the block range index of `completed`: the expressions with `+ 0` keep
-- the planner from other indexes, by which it would read the whole history of the topic.
CREATE FUNCTION taskq.ended_by(p_topic text, p_owner text, p_since timestamptz)
RETURNS TABLE (state int, count bigint) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_indexscan = off SET enable_nestloop = off AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
BEGIN
    RETURN QUERY
    SELECT e.state::int, count(*) FROM taskq.ended e JOIN taskq.owner o ON o.owner_id = e.holder
    WHERE e.topic_id + 0 = v_topic_id AND e.completed >= p_since AND e.state BETWEEN 3 AND 6
      AND (o.name = p_owner OR starts_with(o.name, p_owner || '/'))
    GROUP BY e.state ORDER BY 1;
END $$;

-- The first p_size tasks of a topic, by sequence, that are FAILED and that an owner has ended since a moment: as taskq.ended_by counts them.
CREATE FUNCTION taskq.failed_by(p_topic text, p_owner text, p_since timestamptz, p_size int)
RETURNS TABLE (sequence bigint, identifier text, error text) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_indexscan = off SET enable_nestloop = off AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
BEGIN
    RETURN QUERY
    SELECT e.sequence, e.identifier::text, e.error_summary FROM taskq.ended e JOIN taskq.owner o ON o.owner_id = e.holder
    WHERE e.topic_id + 0 = v_topic_id AND e.completed >= p_since AND e.state + 0 = 3
      AND (o.name = p_owner OR starts_with(o.name, p_owner || '/'))
    ORDER BY e.sequence LIMIT p_size;
END $$;
