-- For a distributed engine: the tasks of a topic, and its log, in ranges of sequences that many read at once, changing nothing.

-- Cuts the tasks that are asked for (NULL: of any sequence, state, identifier, time) into at most p_parts ranges of sequences of nearly
-- equal length. What is pushed later is in none of them.
CREATE FUNCTION taskq.task_bounds(
    p_topic text, p_low bigint, p_high bigint, p_states int[], p_identifiers text[], p_since timestamptz, p_until timestamptz, p_parts int
) RETURNS TABLE (low bigint, high bigint, size bigint) LANGUAGE plpgsql STABLE
SET enable_seqscan = off AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_low      bigint := greatest(p_low, 0);
    v_high     bigint := least(p_high, (SELECT s.last_value FROM taskq.task_sequence s));
BEGIN
    IF p_since IS NOT NULL THEN
        v_low := greatest(v_low, coalesce(taskq.resolve(p_since, false), v_high + 1));
    END IF;
    IF p_until IS NOT NULL THEN
        v_high := least(v_high, coalesce(taskq.resolve(p_until, true), v_low - 1));
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT min(n.sequence), max(n.sequence), count(*)
         FROM (SELECT f.sequence, ntile($6) OVER (ORDER BY f.sequence) AS part FROM (%s) f) n GROUP BY n.part ORDER BY 1',
        taskq.slice_source(p_states, p_identifiers))
        USING v_topic_id, v_low, v_high, p_states, p_identifiers, greatest(p_parts, 1);
END $$;

-- The tasks that are asked for in one range of sequences, in their order, with the names of things; payload and output only where
-- p_bulky. One look: each task as it is at that moment, while other ranges are read at others.
CREATE FUNCTION taskq.task_slice(
    p_topic text, p_low bigint, p_high bigint, p_states int[], p_identifiers text[], p_since timestamptz, p_until timestamptz,
    p_bulky boolean
) RETURNS TABLE (sequence bigint, topic text, identifier text, payload text, reference text, attempt int, redelivered boolean,
                 state text, descent text, status text, owner text, crashes int, priority int, created timestamptz,
                 available_at timestamptz, completed timestamptz, output text, error text) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET work_mem = '32MB' AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
BEGIN
    RETURN QUERY EXECUTE format(
        'SELECT i.sequence, i.topic, i.identifier, CASE WHEN $8 THEN i.payload::text END, i.reference, i.attempt, i.redelivered,
                taskq.state_name(i.state), taskq.state_name(i.descent::int), i.status, i.owner, i.crashes::int, i.priority::int, i.created,
                i.available_at, i.completed, CASE WHEN $8 THEN i.output::text END, i.error
         FROM taskq.task_info i
         WHERE i.topic_id = $1 AND i.sequence BETWEEN $2 AND $3 AND ($4 IS NULL OR i.state = ANY ($4))
           AND ($5 IS NULL OR i.identifier = ANY ($5)) AND ($6 IS NULL OR i.created >= $6) AND ($7 IS NULL OR i.created <= $7)
           %s ORDER BY i.sequence',
        CASE WHEN coalesce(p_identifiers::text, p_states::text) IS NOT NULL
             THEN format('AND i.sequence IN (%s)', taskq.slice_source(p_states, p_identifiers)) END)
        USING v_topic_id, p_low, p_high, p_states, p_identifiers, p_since, p_until, p_bulky;
END $$;

-- The query for the sequences of such tasks, or of some more, by the narrowest table that has them all: $1 is the number of the topic, $2
-- and $3 are the range, $4 the states, $5 the identifiers.
CREATE FUNCTION taskq.slice_source(p_states int[], p_identifiers text[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN p_identifiers IS NOT NULL THEN 'SELECT s.sequence FROM taskq.task s WHERE s.identifier = ANY ($5) AND s.topic_id = $1'
        WHEN p_states <@ ARRAY[0, 1] THEN 'SELECT s.sequence FROM taskq.live s WHERE s.topic_id = $1'
        WHEN p_states <@ ARRAY[2, 3, 4] THEN
            'SELECT s.sequence FROM taskq.ended s WHERE s.topic_id::bigint = $1 AND s.state::int IN (2, 3, 4) AND s.state::int = ANY ($4)'
        WHEN p_states <@ ARRAY[2, 3, 4, 5, 6, 7, 8] THEN
            'SELECT s.sequence FROM taskq.ended s WHERE s.topic_id = $1 AND s.state = ANY ($4)'
        ELSE 'SELECT s.sequence FROM taskq.task s WHERE s.topic_id = $1' END
        || ' AND s.sequence BETWEEN $2 AND $3'
$$;

-- The last task of a topic's log after p_after, at most p_size tasks on (NULL: as many as there are); p_after where there is none. What
-- is up to there stays the same for good but for what is deleted or purged: no task comes in below it. See log.sql.
CREATE FUNCTION taskq.log_end(p_topic text, p_after bigint, p_size bigint) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_horizon  bigint;
    v_end      bigint;
BEGIN
    PERFORM taskq.check_reader(0, 1, 0);
    v_horizon := taskq.log_horizon(v_topic_id);
    IF p_size IS NOT NULL THEN
        v_end := (SELECT t.sequence FROM taskq.task t
                  WHERE t.topic_id = v_topic_id AND t.sequence > p_after AND t.sequence < v_horizon
                  ORDER BY t.sequence OFFSET greatest(p_size, 1) - 1 LIMIT 1);
    END IF;
    IF v_end IS NULL THEN
        v_end := (SELECT t.sequence FROM taskq.task t WHERE t.topic_id = v_topic_id AND t.sequence < v_horizon
                  ORDER BY t.sequence DESC LIMIT 1);
    END IF;
    RETURN greatest(v_end, p_after);
END $$;

-- Cuts the tasks after p_after up to p_end into at most p_parts ranges of sequences of nearly equal length.
CREATE FUNCTION taskq.log_bounds(p_topic text, p_after bigint, p_end bigint, p_parts int)
RETURNS TABLE (low bigint, high bigint, size bigint) LANGUAGE plpgsql STABLE
SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
BEGIN
    RETURN QUERY
    SELECT min(n.sequence), max(n.sequence), count(*)
    FROM (SELECT t.sequence, ntile(greatest(p_parts, 1)) OVER (ORDER BY t.sequence) AS part FROM taskq.task t
          WHERE t.topic_id = v_topic_id AND t.sequence > p_after AND t.sequence <= p_end) n
    GROUP BY n.part ORDER BY 1;
END $$;

-- The tasks of a topic's log in a range of sequences, as they were pushed, in order. Below a taskq.log_end it is the same whenever it is
-- read, but for what was deleted or purged since.
CREATE FUNCTION taskq.log_slice(p_topic text, p_low bigint, p_high bigint)
RETURNS TABLE (sequence bigint, topic text, identifier text, payload text, reference text, priority int, created timestamptz)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET work_mem = '32MB' AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
BEGIN
    RETURN QUERY
    SELECT t.sequence, p_topic, t.identifier, t.payload::text, t.reference, t.priority::int, t.created FROM taskq.task t
    WHERE t.topic_id = v_topic_id AND t.sequence BETWEEN p_low AND p_high ORDER BY t.sequence;
END $$;
