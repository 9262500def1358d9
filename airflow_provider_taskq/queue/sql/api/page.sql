-- The page: topics, owners, locks, groups, ticks and tasks. Every read is bounded: a count stops at a cap, a walk
-- over rows at a budget, and the result tells where.

CREATE FUNCTION taskq.browse_topics(p_search text, p_exact boolean, p_after text, p_size int, p_cap int)
RETURNS TABLE (topic text, paused boolean, ready bigint, scheduled bigint, retrying bigint, blocked bigint,
               paused_tasks bigint, running bigint, failed bigint, suspended bigint, expired bigint,
               running_capped boolean, consumers bigint, oldest_seconds bigint, last_end_seconds bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT array_agg(c.topic_id) AS topic_ids, array_agg(c.held) AS held, array_agg(c.consumers) AS consumers,
               coalesce(sum(c.held), 0) = 10000 AS capped
        FROM (SELECT h.topic_id, count(*) AS held, count(DISTINCT h.holder) AS consumers
              FROM taskq_internal.first_held h GROUP BY h.topic_id) c)
    SELECT p.name, p.paused, w.ready * n.open, w.scheduled * n.open, w.retrying * n.open, w.blocked * n.open,
           CASE WHEN p.paused THEN least(w.ready + w.scheduled + w.retrying + w.blocked + w.paused, p_cap)
                ELSE w.paused END,
           coalesce(h.held[n.place], 0), taskq_internal.count_in_state(p.topic_id, :FAILED, p_cap),
           taskq_internal.count_in_state(p.topic_id, :SUSPENDED, p_cap),
           taskq_internal.count_in_state(p.topic_id, :EXPIRED, p_cap), h.capped, coalesce(h.consumers[n.place], 0),
           extract(epoch FROM clock_timestamp() - taskq_internal.clamp_moment(w.oldest))::bigint,
           extract(epoch FROM clock_timestamp() - taskq_internal.last_completed(p.topic_id))::bigint
    FROM (SELECT * FROM taskq_internal.topic t
          WHERE (p_after IS NULL OR t.name > p_after) AND taskq_internal.may_access(t.name, 'SELECT')
            AND CASE WHEN p_exact THEN t.name = p_search ELSE p_search IS NULL
                OR strpos(lower(t.name), lower(p_search)) > 0 END
          ORDER BY t.name LIMIT greatest(p_size, 0)) p
    CROSS JOIN held h
    CROSS JOIN LATERAL (
        SELECT (NOT p.paused)::int AS open, array_position(h.topic_ids, p.topic_id) AS place OFFSET 0) n
    CROSS JOIN LATERAL taskq_internal.count_waiting(p.topic_id, greatest(p_cap, 0)) w
    ORDER BY p.name;
END $$;
COMMENT ON FUNCTION taskq.browse_topics IS
'Returns up to p_size topics after the name p_after, in the order of their names. Each row has the counts by status and
the time since when the oldest task has been due. p_search is a part of the name. With p_exact true it is the whole
name. Each count stops at p_cap. The columns running and consumers count the first 10,000 held tasks of the database;
running_capped tells whether there are more. A role that is limited to topics gets only these.';

CREATE FUNCTION taskq.browse_owners(p_search text, p_exact boolean, p_after bigint, p_size int)
RETURNS TABLE (name text, fence bigint, lease interval, lease_until timestamptz, lapsed boolean, seen timestamptz,
               held bigint, topics text[]) LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT o.name, o.fence, o.lease, o.lease_until, o.lease_until < clock_timestamp(), o.seen, h.held,
           ARRAY(SELECT p.name FROM taskq_internal.topic p WHERE p.topic_id = ANY (h.topic_ids) ORDER BY p.name)
    FROM ((SELECT n.* FROM taskq_internal.owner n
           WHERE NOT p_exact AND n.fence IS NOT NULL AND n.fence < coalesce(p_after, 9223372036854775807)
             AND (p_search IS NULL OR strpos(lower(n.name), lower(p_search)) > 0)
           ORDER BY n.fence DESC LIMIT greatest(p_size, 0))
          UNION ALL
          SELECT n.* FROM taskq_internal.owner n WHERE p_exact AND n.name = p_search) o
    CROSS JOIN LATERAL (
        SELECT count(*) AS held, array_agg(DISTINCT l.topic_id) AS topic_ids
        FROM (SELECT l.topic_id FROM taskq_internal.live l WHERE l.holder = o.owner_id ORDER BY l.sequence
              LIMIT 1000) l) h;
END $$;
COMMENT ON FUNCTION taskq.browse_owners IS
'Returns up to p_size owners that have a lease, the newest registration first, with a fence below p_after. p_search is a
part of the name. With p_exact true it returns the owner with that name, even without a lease. The column held counts up
to 1,000 tasks.';

CREATE FUNCTION taskq.browse_holders(p_topic text)
RETURNS TABLE (name text, held bigint, lease_until timestamptz, lapsed boolean) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT')).topic_id;
BEGIN
    RETURN QUERY
    SELECT o.name, h.held, o.lease_until, o.lease_until < clock_timestamp()
    FROM (SELECT n.holder, count(*) AS held FROM taskq_internal.first_held n
          WHERE n.topic_id = v_topic_id GROUP BY n.holder ORDER BY 2 DESC, 1 LIMIT 100) h
    JOIN taskq_internal.owner o ON o.owner_id = h.holder ORDER BY h.held DESC, o.name;
END $$;
COMMENT ON FUNCTION taskq.browse_holders IS
'Returns up to 100 owners that hold tasks of a topic, owners with the most tasks first. It counts the first 10,000 held
tasks of the database. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.browse_locks(p_after text, p_size int)
RETURNS TABLE (name text, held_by text, locked timestamptz, until timestamptz, seconds_left bigint)
LANGUAGE sql STABLE AS $$
    SELECT k.name, k.held_by, k.locked, k.until,
        extract(epoch FROM taskq_internal.clamp_moment(k.until) - clock_timestamp())::bigint FROM taskq_internal.lock k
    WHERE k.until > clock_timestamp() AND (p_after IS NULL OR k.name > p_after) ORDER BY k.name
        LIMIT greatest(p_size, 0)
$$;
COMMENT ON FUNCTION taskq.browse_locks IS
'Returns up to p_size named locks after the name p_after, in the order of their names. It returns the locks that a
holder has, or that stay blocked until their shortest time is over.';

CREATE FUNCTION taskq.browse_ticks(p_topic text, p_steps int)
RETURNS TABLE (prefix text, config_hash text, waiting bigint, next timestamptz, last timestamptz)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_topic_id bigint := (taskq_internal.accessible_topic(p_topic, 'SELECT')).topic_id;
BEGIN
    RETURN QUERY
    WITH RECURSIVE step AS (
        SELECT 0 AS number, '' COLLATE "C" AS place, NULL::text[] COLLATE "C" AS parts
        UNION ALL  -- '0' is the character after '/'
        SELECT s.number + 1, coalesce(n.parts[1] || '/' || n.parts[2] || '0', n.identifier) COLLATE "C", n.parts
        FROM step s CROSS JOIN LATERAL (
            SELECT l.identifier, regexp_match(l.identifier, '^(.+)/([^/]+)/[0-9]{8}T[0-9]{6}\.[0-9]{6}Z$') AS parts
            FROM taskq_internal.live l
            WHERE l.topic_id::bigint = v_topic_id AND l.holder IS NULL AND l.identifier > s.place
            ORDER BY l.identifier LIMIT 1) n
        WHERE s.number <= p_steps)
    SELECT s.parts[1], s.parts[2], n.* FROM step s CROSS JOIN LATERAL (
        SELECT count(*), min(t.available_at), max(t.available_at) FROM (
            SELECT l.available_at FROM taskq_internal.live l
            WHERE l.topic_id::bigint = v_topic_id AND l.holder IS NULL AND l.identifier < s.place
              AND l.identifier >= s.parts[1] || '/' || s.parts[2] || '/'
            ORDER BY l.identifier LIMIT 1000) t) n
    WHERE s.parts IS NOT NULL AND s.number <= p_steps
    UNION ALL SELECT NULL, NULL, NULL, NULL, NULL FROM step s WHERE s.number > p_steps;
END $$;
COMMENT ON FUNCTION taskq.browse_ticks IS
'Returns the waiting ticks of a topic, by prefix and configuration hash. Each row has their number (up to 1,000), the
next tick and the last tick. Reads at most p_steps prefixes. If there may be more, the last row has no prefix. Raises
TQ001 for an unknown topic.';

CREATE FUNCTION taskq.find_tasks(
    p_topic text, p_state int, p_status text, p_identifier text, p_reference text, p_since timestamptz,
    p_until timestamptz, p_error text, p_error_group text, p_pushed_with bigint, p_after bigint, p_newest boolean,
    p_size int, p_budget int DEFAULT NULL, p_from bigint DEFAULT 0, p_to bigint DEFAULT NULL,
    OUT sequences bigint[], OUT looked_to bigint
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic    taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'SELECT');
    v_low      bigint := CASE WHEN p_from IS NOT NULL THEN greatest(
        p_from, CASE WHEN NOT p_newest THEN p_after + (p_after < 9223372036854775807)::int END,
        CASE WHEN p_since IS NOT NULL THEN coalesce(
            taskq_internal.resolve(ARRAY[v_topic.topic_id], p_since, false), 9223372036854775807) END) END;
    v_high     bigint := least(
        p_to, CASE WHEN p_newest THEN p_after - (p_after > 0)::int END,
        CASE WHEN p_until IS NOT NULL THEN coalesce(
            taskq_internal.resolve(ARRAY[v_topic.topic_id], p_until, true), -1) END, 9223372036854775807);
    v_order    text := CASE WHEN p_newest THEN 'DESC' ELSE 'ASC' END;
    v_budget   int := CASE WHEN p_budget IS NOT NULL THEN greatest(p_budget, 1) END;
    v_queries  record;
BEGIN
    v_queries := taskq_internal.filter_queries(
        v_topic, v_low, v_high, CASE WHEN p_state IS NOT NULL THEN ARRAY[p_state] END,
        CASE WHEN p_identifier IS NOT NULL THEN ARRAY[p_identifier] END, p_reference, p_status, p_since, p_until,
        p_error, p_error_group, p_pushed_with, v_order, v_budget);
    EXECUTE format('SELECT ARRAY(%s ORDER BY sequence %s LIMIT %s)', v_queries.matches, v_order, greatest(p_size, 0))
        INTO sequences;
    IF cardinality(sequences) < p_size AND v_budget IS NOT NULL THEN
        EXECUTE format('SELECT w.sequence FROM (%s) w OFFSET %s LIMIT 1', v_queries.scan, v_budget - 1) INTO looked_to;
    END IF;
END $$;
COMMENT ON FUNCTION taskq.find_tasks IS
'Returns up to p_size sequences of a topic''s tasks that match a filter, beyond p_after. The order is ascending, or
descending with p_newest true. A filter of NULL matches every task. p_status is a status of taskq.task_info in the state
p_state; failed includes exhausted. p_since and p_until limit the time of the push, both included. p_error is a part of
the error, in upper or lower case. p_error_group is a group of taskq.error_groups. p_pushed_with is a task of the same
push. p_from and p_to bound the sequences; with p_from NULL no task matches. The call reads up to p_budget rows of the
narrowest index, or with NULL any number. If the budget ends first, looked_to is the p_after of the next call. Raises
TQ001 for an unknown topic.';

CREATE FUNCTION taskq.search_tasks(p_text text, p_size int) RETURNS TABLE (topic text, sequence bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_sequence bigint := CASE WHEN p_text ~ '^#?[0-9]{1,18}$' THEN ltrim(p_text, '#')::bigint END;
    v_size     int := greatest(p_size, 0);
BEGIN
    RETURN QUERY
    SELECT p.name, n.sequence FROM taskq_internal.topic p CROSS JOIN LATERAL (
        SELECT t.sequence FROM taskq_internal.task t WHERE t.topic_id = p.topic_id AND t.sequence = v_sequence
        UNION
        (SELECT t.sequence FROM taskq_internal.task t WHERE t.identifier = p_text AND t.topic_id = p.topic_id
         ORDER BY t.sequence DESC LIMIT v_size)
        UNION
        (SELECT t.sequence FROM taskq_internal.task t WHERE t.reference = p_text AND t.topic_id = p.topic_id
         ORDER BY t.sequence DESC LIMIT v_size)) n
    ORDER BY n.sequence DESC LIMIT v_size;
END $$;
COMMENT ON FUNCTION taskq.search_tasks IS
'Returns up to p_size tasks of all topics whose sequence, identifier or reference equals the text, the newest first.';

CREATE FUNCTION taskq.browse_held(p_owner text, p_workers boolean, p_after bigint, p_size int)
RETURNS TABLE (topic text, sequence bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.name, l.sequence FROM (
        SELECT n.topic_id, n.sequence FROM (
            SELECT w.owner_id FROM taskq_internal.owner w WHERE w.name = p_owner
            UNION ALL
            (SELECT w.owner_id FROM taskq_internal.owner w
             -- '0' is the character after '/'.
             WHERE p_workers AND w.name > p_owner || '/' AND w.name < p_owner || '0' AND w.fence IS NOT NULL
             ORDER BY w.name LIMIT 1000)) o
        CROSS JOIN LATERAL (SELECT h.topic_id, h.sequence FROM taskq_internal.live h
                            WHERE h.holder = o.owner_id AND h.sequence > coalesce(p_after, 0)
                            ORDER BY h.sequence LIMIT greatest(p_size, 0)) n
        ORDER BY n.sequence LIMIT greatest(p_size, 0)) l
    JOIN taskq_internal.topic p ON p.topic_id = l.topic_id ORDER BY l.sequence;
END $$;
COMMENT ON FUNCTION taskq.browse_held IS
'Returns the topics and sequences of up to p_size tasks that an owner holds, after the sequence p_after, in order. With
p_workers true it includes the tasks of up to 1,000 owners whose names begin with p_owner and a slash.';

CREATE FUNCTION taskq.find_claimed(p_topic text, p_owner text, p_since timestamptz, p_budget int)
RETURNS TABLE (sequence bigint, state int) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT')).topic_id;
    v_owner_id bigint := (SELECT o.owner_id FROM taskq_internal.owner o WHERE o.name = p_owner);
BEGIN
    RETURN QUERY
    SELECT n.sequence, n.state FROM (
        (SELECT l.sequence, :ACTIVE AS state FROM taskq_internal.live l WHERE l.holder = v_owner_id
         AND l.topic_id + 0 = v_topic_id
         ORDER BY l.sequence LIMIT greatest(p_budget, 0))
        UNION ALL
        SELECT e.sequence, e.state::int FROM (
            SELECT * FROM taskq_internal.ended w WHERE w.topic_id = v_topic_id ORDER BY w.sequence DESC
                LIMIT greatest(p_budget, 0)) e
        WHERE e.holder = v_owner_id AND (p_since IS NULL OR e.completed >= p_since)) n
    ORDER BY n.sequence;
END $$;
COMMENT ON FUNCTION taskq.find_claimed IS
'Returns the tasks of a topic that an owner holds or that ended under the owner since p_since, with their states, in
order. Reads the newest p_budget ended tasks of the topic. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.dependencies(p_topic text, p_sequence bigint)
RETURNS TABLE (topic text, identifier text, sequence bigint, state text) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT')).topic_id;
BEGIN
    RETURN QUERY
    SELECT d.on_topic, d.on_identifier, d.on_sequence,
           taskq_internal.task_state_name(d.on_topic_id, d.on_sequence)
    FROM taskq_internal.dependency_state d
    WHERE d.topic_id = v_topic_id AND d.sequence = p_sequence AND d.on_topic IS NOT NULL LIMIT 50;
END $$;
COMMENT ON FUNCTION taskq.dependencies IS
'Returns the dependencies of a task: for each one the newest task of its identifier, with the name of its state. Returns
at most fifty rows. Raises TQ001 for an unknown topic.';
