-- Browse: what a page shows of topics, owners, locks, readers and ticks. Everything is read with bounds, so that ten million tasks
-- cost the same as ten thousand: a count goes up to a cap, a walk over rows up to a budget, and what was not looked at is said.

-- Topics whose name contains p_search (p_exact: is p_search), after a name, in order: at most p_size. Counts go up to p_cap, by
-- the statuses of taskq.task_info; running and consumers are of the first 10,000 tasks that are held in the database, `running_capped`
-- where there are more.
CREATE FUNCTION taskq.browse_topics(p_search text, p_exact boolean, p_after text, p_size int, p_cap int)
RETURNS TABLE (topic text, paused boolean, ready bigint, scheduled bigint, retrying bigint, blocked bigint, paused_tasks bigint, running bigint,
               failed bigint, suspended bigint, expired bigint, running_capped boolean, consumers bigint, oldest_seconds bigint, last_end_seconds bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_now       timestamptz := clock_timestamp();
    v_topic     record;
    v_topic_ids int[];
    v_held      bigint[];
    v_consumers bigint[];
    v_capped    boolean;
BEGIN
    SELECT array_agg(h.topic_id), array_agg(h.held), array_agg(h.consumers), coalesce(sum(h.held), 0) = 10000
    INTO v_topic_ids, v_held, v_consumers, v_capped FROM taskq.held_by_topic() h;
    FOR v_topic IN
        SELECT p.topic_id, p.name, p.paused, coalesce(h.held, 0) AS held, coalesce(h.consumers, 0) AS consumers
        FROM taskq.topic p LEFT JOIN unnest(v_topic_ids, v_held, v_consumers) AS h (topic_id, held, consumers) ON h.topic_id = p.topic_id
        WHERE (p_after IS NULL OR p.name > p_after)
          AND CASE WHEN p_exact THEN p.name = p_search ELSE p_search IS NULL OR strpos(lower(p.name), lower(p_search)) > 0 END
        ORDER BY p.name LIMIT greatest(p_size, 0)
    LOOP
        topic := v_topic.name; paused := v_topic.paused;
        running := v_topic.held; running_capped := v_capped; consumers := v_topic.consumers;
        SELECT r.ready, r.scheduled, r.retrying, r.blocked, r.paused INTO ready, scheduled, retrying, blocked, paused_tasks
        FROM taskq.count_waiting(v_topic.topic_id, v_topic.paused, p_cap) r;
        expired := taskq.count_troubled(v_topic.topic_id, 2, p_cap);
        failed := taskq.count_troubled(v_topic.topic_id, 3, p_cap);
        suspended := taskq.count_troubled(v_topic.topic_id, 4, p_cap);
        oldest_seconds := (SELECT extract(epoch FROM v_now - d.since)::bigint FROM taskq.longest_due(v_topic.topic_id) d);
        last_end_seconds := extract(epoch FROM v_now - taskq.last_end(v_topic.topic_id))::bigint;
        RETURN NEXT;
    END LOOP;
END $$;

-- How many tasks of each topic are held, and by how many, among the first 10,000 that are.
CREATE FUNCTION taskq.held_by_topic() RETURNS TABLE (topic_id int, held bigint, consumers bigint) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT n.topic_id, count(*), count(DISTINCT n.holder)
    FROM (SELECT l.topic_id, l.holder FROM taskq.live l WHERE l.holder IS NOT NULL ORDER BY l.holder, l.sequence LIMIT 10000) n
    GROUP BY n.topic_id;
END $$;

-- How many READY tasks of a topic have each status of taskq.task_info, each up to a cap. In a paused topic all are paused. Else it looks
-- priority by priority, as only there their times stand in order, at p_cap * 10 rows that are due and as many that are not.
CREATE FUNCTION taskq.count_waiting(
    p_topic_id int, p_paused boolean, p_cap int, OUT ready bigint, OUT scheduled bigint, OUT retrying bigint, OUT blocked bigint,
    OUT paused bigint
) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_now      timestamptz := clock_timestamp();
    v_priority smallint := 101;
    v_asleep   bigint;
BEGIN
    ready := 0; scheduled := 0; paused := 0;
    IF p_paused THEN
        retrying := 0; blocked := 0;
        paused := (SELECT count(*) FROM (
            (SELECT FROM taskq.live l WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0
             ORDER BY l.priority DESC, l.available_at, l.sequence LIMIT p_cap)
            UNION ALL
            (SELECT FROM taskq.live l WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits > 0
             ORDER BY l.waits, l.available_at, l.sequence LIMIT p_cap) LIMIT p_cap) n);
        RETURN;
    END IF;
    LOOP
        v_priority := (SELECT l.priority FROM taskq.live l
                       WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0 AND l.priority < v_priority
                       ORDER BY l.priority DESC, l.available_at, l.sequence LIMIT 1);
        EXIT WHEN v_priority IS NULL OR ready >= p_cap AND scheduled >= p_cap AND paused >= p_cap;
        ready := ready + (SELECT count(*) FROM (SELECT FROM (
            SELECT l.attempt FROM taskq.live l WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0
                AND l.priority = v_priority AND l.available_at <= v_now
            ORDER BY l.available_at, l.sequence LIMIT p_cap::bigint * 10) w WHERE w.attempt = 0 LIMIT p_cap - ready) n);
        scheduled := scheduled + (SELECT count(*) FROM (SELECT FROM (
            SELECT l.attempt, l.available_at FROM taskq.live l WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0
                AND l.priority = v_priority AND l.available_at > v_now
            ORDER BY l.available_at, l.sequence LIMIT p_cap::bigint * 10) w
            WHERE w.attempt = 0 AND w.available_at <> taskq.paused_until() LIMIT p_cap - scheduled) n);
        paused := paused + (SELECT count(*) FROM (
            SELECT FROM taskq.live l WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0
                AND l.priority = v_priority AND l.available_at = taskq.paused_until()
            ORDER BY l.available_at, l.sequence LIMIT p_cap - paused) n);
    END LOOP;
    SELECT count(*) FILTER (WHERE n.due_again IS DISTINCT FROM taskq.paused_until()), count(*) FILTER (WHERE n.due_again = taskq.paused_until())
    INTO blocked, v_asleep FROM (
        SELECT l.due_again FROM taskq.live l WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits > 0 AND l.waits = 1
        ORDER BY l.available_at, l.sequence LIMIT greatest(p_cap, 0)) n;
    paused := least(p_cap, paused + v_asleep);
    SELECT count(*) FILTER (WHERE n.available_at <> taskq.paused_until()), count(*) FILTER (WHERE n.available_at = taskq.paused_until() AND n.waits = 2)
    INTO retrying, v_asleep FROM (
        SELECT l.available_at, l.waits FROM taskq.live l
        WHERE l.topic_id::bigint = p_topic_id AND l.holder IS NULL AND l.attempt > 0 AND l.waits <> 1
        ORDER BY l.sequence LIMIT greatest(p_cap, 0)) n;
    paused := least(p_cap, paused + v_asleep);
END $$;

-- How many tasks of a topic are EXPIRED (2), FAILED (3) or SUSPENDED (4), up to a cap.
CREATE FUNCTION taskq.count_troubled(p_topic_id int, p_state int, p_cap int) RETURNS bigint LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN (SELECT count(*) FROM (
        SELECT FROM taskq.ended e WHERE e.topic_id::bigint = p_topic_id AND e.state::int = p_state AND e.state::int IN (2, 3, 4)
        ORDER BY e.sequence LIMIT greatest(p_cap, 0)) n);
END $$;

-- When the last of a topic's newest hundred ended tasks did so.
CREATE FUNCTION taskq.last_end(p_topic_id int) RETURNS timestamptz LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN (SELECT taskq.clamp_moment(max(n.completed)) FROM (SELECT e.completed FROM taskq.ended e WHERE e.topic_id = p_topic_id
                                          ORDER BY e.sequence DESC LIMIT 100) n);
END $$;

-- Owners whose lease is not gone, the newest registration first, before a fence: at most p_size, of the p_budget that are looked
-- at. p_exact: the one of that name, its lease gone or not. held goes up to 1,000; topics are those of these tasks. The last row
-- may be one without a name: how far it was looked.
CREATE FUNCTION taskq.browse_owners(p_search text, p_exact boolean, p_after bigint, p_size int, p_budget int)
RETURNS TABLE (name text, fence bigint, lease interval, lease_until timestamptz, lapsed boolean, seen timestamptz, held bigint, topics text[])
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    v_count int;
BEGIN
    RETURN QUERY
    SELECT o.name, o.fence, o.lease, o.lease_until, o.lease_until < clock_timestamp(), o.seen, h.held,
           ARRAY(SELECT p.name FROM taskq.topic p WHERE p.topic_id = ANY (h.topic_ids) ORDER BY p.name)
    FROM (SELECT w.* FROM (
              SELECT n.* FROM taskq.owner n
              WHERE NOT p_exact AND n.fence IS NOT NULL AND n.fence < coalesce(p_after, 9223372036854775807)
              ORDER BY n.fence DESC LIMIT greatest(p_budget, 1)) w
          WHERE p_search IS NULL OR strpos(lower(w.name), lower(p_search)) > 0
          UNION ALL
          SELECT n.* FROM taskq.owner n WHERE p_exact AND n.name = p_search
          LIMIT greatest(p_size, 0)) o
    CROSS JOIN LATERAL (
        SELECT count(*) AS held, array_agg(DISTINCT l.topic_id) AS topic_ids
        FROM (SELECT l.topic_id FROM taskq.live l WHERE l.holder = o.owner_id ORDER BY l.sequence LIMIT 1000) l) h;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count < p_size AND NOT p_exact THEN
        RETURN QUERY
        SELECT NULL::text, n.fence, NULL::interval, NULL::timestamptz, NULL::boolean, NULL::timestamptz, NULL::bigint, NULL::text[]
        FROM taskq.owner n WHERE n.fence IS NOT NULL AND n.fence < coalesce(p_after, 9223372036854775807)
        ORDER BY n.fence DESC OFFSET greatest(p_budget, 1) - 1 LIMIT 1;
    END IF;
END $$;

-- Who holds tasks of a topic, those with most first: of the first 10,000 tasks that are held in the database, at most 100 owners.
CREATE FUNCTION taskq.browse_holders(p_topic text) RETURNS TABLE (name text, held bigint, lease_until timestamptz, lapsed boolean)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
BEGIN
    RETURN QUERY
    SELECT o.name, h.held, o.lease_until, o.lease_until < clock_timestamp()
    FROM (SELECT n.holder, count(*) AS held
          FROM (SELECT l.topic_id, l.holder FROM taskq.live l WHERE l.holder IS NOT NULL ORDER BY l.holder, l.sequence LIMIT 10000) n
          WHERE n.topic_id = v_topic_id GROUP BY n.holder ORDER BY 2 DESC, 1 LIMIT 100) h
    JOIN taskq.owner o ON o.owner_id = h.holder ORDER BY h.held DESC, o.name;
END $$;

-- Locks that are held, or that are nobody's until a time, after a name, in order.
CREATE FUNCTION taskq.browse_locks(p_after text, p_size int)
RETURNS TABLE (name text, held_by text, locked timestamptz, until timestamptz, seconds_left bigint) LANGUAGE sql STABLE AS $$
    SELECT k.name, k.held_by, k.locked, k.until, extract(epoch FROM taskq.clamp_moment(k.until) - clock_timestamp())::bigint FROM taskq.lock k
    WHERE k.until > clock_timestamp() AND (p_after IS NULL OR k.name > p_after) ORDER BY k.name LIMIT greatest(p_size, 0)
$$;

-- How far groups of readers got, and how many tasks of the topic, of all its partitions, come after: up to p_cap.
CREATE FUNCTION taskq.browse_readers(p_size int, p_cap int)
RETURNS TABLE (reader_group text, topic text, part int, place bigint, advanced timestamptz, behind bigint) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN QUERY
    SELECT g.reader_group, p.name, g.partition, g.cursor, g.advanced,
           (SELECT count(*) FROM (SELECT FROM taskq.task t WHERE t.topic_id = g.topic_id AND t.sequence > g.cursor
                                  ORDER BY t.sequence LIMIT greatest(p_cap, 0)) n)
    FROM taskq.progress g JOIN taskq.topic p ON p.topic_id = g.topic_id
    ORDER BY g.reader_group, g.topic_id, g.partition LIMIT greatest(p_size, 0);
END $$;

-- Ticks that wait, by prefix and hash: how many (up to 1,000), the next and the last. Goes from identifier to identifier of a
-- topic's waiting tasks, past all ticks of one prefix at once, for p_steps at most; `capped` where there are more. moments: the last
-- fifty nominal times, of ticks that are over as well.
CREATE FUNCTION taskq.browse_ticks(p_topic text, p_steps int)
RETURNS TABLE (prefix text, config_hash text, waiting bigint, next timestamptz, last timestamptz, capped boolean, moments timestamptz[])
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    v_topic_id   bigint := (taskq.find_topic(p_topic)).topic_id;
    v_identifier text COLLATE "C" := '';
    v_parts      text[];
    v_key        text COLLATE "C";
BEGIN
    capped := false;
    FOR v_step IN 1 .. p_steps LOOP
        v_identifier := (SELECT l.identifier FROM taskq.live l
                         WHERE l.topic_id::bigint = v_topic_id AND l.holder IS NULL AND l.identifier > v_identifier
                         ORDER BY l.identifier LIMIT 1);
        EXIT WHEN v_identifier IS NULL;
        v_parts := regexp_match(v_identifier, '^(.+)/([^/]+)/[0-9]{8}T[0-9]{6}\.[0-9]{6}Z$');
        CONTINUE WHEN v_parts IS NULL;
        prefix := v_parts[1];
        config_hash := v_parts[2];
        v_key := prefix || '/' || config_hash;
        SELECT count(*), min(n.available_at), max(n.available_at) INTO waiting, next, last FROM (
            SELECT taskq.due_of(l) AS available_at FROM taskq.live l
            WHERE l.topic_id::bigint = v_topic_id AND l.holder IS NULL AND l.identifier >= v_key || '/' AND l.identifier < v_key || '0'
            ORDER BY l.identifier LIMIT 1000) n;
        moments := ARRAY(SELECT to_timestamp(right(t.identifier, 23), 'YYYYMMDD"T"HH24MISS.US"Z"')::timestamp AT TIME ZONE 'UTC'
                         FROM taskq.task t WHERE t.identifier >= v_key || '/' AND t.identifier < v_key || '0' AND t.topic_id = v_topic_id
                         ORDER BY t.identifier DESC LIMIT 50);
        RETURN NEXT;
        v_identifier := v_key || '0';  -- the letter after the slash
    END LOOP;
    IF v_identifier IS NOT NULL THEN
        SELECT NULL, NULL, NULL, NULL, NULL, true, NULL INTO prefix, config_hash, waiting, next, last, capped, moments;
        RETURN NEXT;
    END IF;
END $$;
