-- Health of the work: leases that nobody takes back, topics that nobody serves, tasks that wait for ever, and failures.

-- Leases that lapsed and that no expire() has taken since.
CREATE FUNCTION taskq.health_of_leases(p_patience interval)
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text) LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    v_count  bigint;
    v_oldest interval;
    v_owner  text;
    v_held   bigint;
BEGIN
    SELECT count(*), max(clock_timestamp() - taskq.clamp_moment(o.lease_until)), (array_agg(o.name ORDER BY o.lease_until))[1], sum(o.held)
    INTO v_count, v_oldest, v_owner, v_held
    FROM (SELECT n.*, (SELECT count(*) FROM (SELECT FROM taskq.live l WHERE l.holder = n.owner_id LIMIT 100) h) AS held
          FROM taskq.owner n WHERE n.fence IS NOT NULL AND n.lease_until < clock_timestamp() LIMIT 1000) o;
    IF v_count = 0 THEN
        RETURN QUERY SELECT 'fine', 'lapsed leases', 'no lease has lapsed', 0::bigint, NULL::int, NULL::text, NULL::bigint, NULL::text;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT CASE WHEN v_oldest < p_patience THEN 'fine' WHEN v_held = 0 THEN 'notice' WHEN v_oldest < 12 * p_patience THEN 'warning'
                ELSE 'critical' END,
           'lapsed leases',
           format('%s leases have lapsed, the longest %s ago (owner %L); some %s tasks wait under them for taskq.expire() to give them back',
                  CASE WHEN v_count >= 1000 THEN '1000 or more' ELSE v_count::text END, taskq.in_words(v_oldest), v_owner, v_held),
           v_count, NULL::int, NULL::text, NULL::bigint, v_owner;
END $$;

-- Topics whose due tasks have waited longer than p_patience, and why as far as it can be told: nobody takes them, others
-- of their identifiers stand in the way, or there is more than those who work on it can do. Paused topics are told too.
--
-- A poll leaves no trace of its own, which would be a write. That a topic is served is told by what it leads to: somebody
-- with a running lease holds tasks of it now, or one of its newest ended tasks ended within p_patience.
CREATE FUNCTION taskq.health_of_topics(p_patience interval)
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text) LANGUAGE plpgsql AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_held  int[] := taskq.topics_served();
    v_topic record;
    v_count int := 0;
    v_why   text;
BEGIN
    FOR v_topic IN
        SELECT p.topic_id, p.name, p.paused, d.sequence, v_now - d.since AS age
        FROM taskq.topic p CROSS JOIN LATERAL taskq.longest_due(p.topic_id) d
        WHERE d.since < v_now - p_patience ORDER BY d.since
    LOOP
        v_count := v_count + 1;
        CONTINUE WHEN v_count > 10;
        subject := 'waiting tasks';
        value := extract(epoch FROM v_topic.age);
        topic := v_topic.name;
        sequence := v_topic.sequence;
        v_why := taskq.in_the_way(v_topic.topic_id, v_topic.sequence);
        IF v_topic.paused THEN
            severity := 'notice';
            detail := 'it is paused';
        ELSIF v_topic.topic_id = ANY (v_held) OR taskq.ended_since(v_topic.topic_id, v_now - p_patience) THEN
            severity := CASE WHEN v_topic.age < 12 * p_patience THEN 'notice' ELSE 'warning' END;
            detail := coalesce(v_why, 'it is worked on, but more comes in than goes out, or what goes first passes by');
        ELSE
            severity := CASE WHEN v_topic.age < 12 * p_patience THEN 'warning' ELSE 'critical' END;
            detail := format('nobody seems to poll it: no running lease holds any of its tasks, and none of its newest has ended for %s%s',
                             taskq.in_words(p_patience), coalesce('; ' || v_why, ''));
        END IF;
        detail := format('topic %L, sequence %s has been due for %s: %s', v_topic.name, v_topic.sequence, taskq.in_words(v_topic.age), detail);
        RETURN NEXT;
    END LOOP;
    RETURN QUERY
    SELECT CASE WHEN v_count = 0 THEN 'fine' ELSE 'notice' END, 'waiting tasks',
           format('%s topics have tasks that have been due for longer than %s', v_count, taskq.in_words(p_patience)), v_count::bigint, NULL::int, NULL::text, NULL::bigint, NULL::text;
END $$;

-- The task of a topic that has been due for longest, of any priority; NULLs where none is due.
CREATE FUNCTION taskq.longest_due(p_topic_id int, OUT sequence bigint, OUT since timestamptz) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_first record;
    v_below smallint := 101;
BEGIN
    LOOP
        SELECT l.priority, l.available_at, l.sequence INTO v_first FROM taskq.live l
        WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= 0 AND l.priority < v_below
        ORDER BY l.priority DESC, l.available_at, l.sequence LIMIT 1;
        EXIT WHEN NOT FOUND;
        v_below := v_first.priority;
        IF v_first.available_at <= clock_timestamp() AND (since IS NULL OR v_first.available_at < since) THEN
            since := taskq.clamp_moment(v_first.available_at);
            sequence := v_first.sequence;
        END IF;
    END LOOP;
END $$;

-- The topics of which owners with a running lease hold tasks now: of a thousand owners, and of the first and the last
-- hundred tasks of each.
CREATE FUNCTION taskq.topics_served() RETURNS int[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN ARRAY(
        SELECT DISTINCT h.topic_id
        FROM (SELECT o.owner_id FROM taskq.owner o WHERE o.fence IS NOT NULL AND o.lease_until >= clock_timestamp() LIMIT 1000) w
        CROSS JOIN LATERAL (
            (SELECT l.topic_id FROM taskq.live l WHERE l.holder = w.owner_id ORDER BY l.sequence LIMIT 100)
            UNION ALL
            (SELECT l.topic_id FROM taskq.live l WHERE l.holder = w.owner_id ORDER BY l.sequence DESC LIMIT 100)) h);
END $$;

-- The number of tasks among the newest p_most FAILED ones of a topic that failed since a moment.
CREATE FUNCTION taskq.recent_failures(p_topic_id int, p_since timestamptz, p_most int) RETURNS bigint LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN (SELECT count(*) FROM (
                SELECT e.completed FROM taskq.ended e
                WHERE e.topic_id::bigint = p_topic_id AND e.state::int = 3 AND e.state::int IN (2, 3, 4)
                ORDER BY e.sequence DESC LIMIT p_most) n
            WHERE n.completed >= p_since);
END $$;

-- The number of tasks among the newest p_most ended ones of a topic that ended, FAILED to SUCCEEDED, since a moment.
CREATE FUNCTION taskq.recent_ends(p_topic_id int, p_since timestamptz, p_most int) RETURNS bigint LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN (SELECT count(*) FROM (
                SELECT e.completed, e.state FROM taskq.ended e
                WHERE e.topic_id = p_topic_id ORDER BY e.sequence DESC LIMIT p_most) n
            WHERE n.completed >= p_since AND n.state BETWEEN 3 AND 6);
END $$;

-- Whether one of the newest hundred ended tasks of a topic has ended since.
CREATE FUNCTION taskq.ended_since(p_topic_id int, p_since timestamptz) RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM (SELECT e.completed FROM taskq.ended e WHERE e.topic_id = p_topic_id ORDER BY e.sequence DESC LIMIT 100) n
        WHERE n.completed >= p_since);
END $$;

-- What of its identifier stands in the way of a READY task where one is polled at a time: a sentence, or NULL.
CREATE FUNCTION taskq.in_the_way(p_topic_id int, p_sequence bigint) RETURNS text LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_identifier text := (SELECT l.identifier FROM taskq.live l WHERE l.topic_id = p_topic_id AND l.sequence = p_sequence);
    v_other      record;
BEGIN
    SELECT l.sequence, o.name, o.lease_until INTO v_other FROM taskq.live l LEFT JOIN taskq.owner o ON o.owner_id = l.holder
    WHERE l.identifier = v_identifier AND l.topic_id = p_topic_id AND l.attempt > 0 AND l.sequence <> p_sequence
    ORDER BY l.holder, l.sequence LIMIT 1;
    IF FOUND THEN
        RETURN format('one at a time per identifier, it comes after sequence %s, %s', v_other.sequence,
            CASE WHEN v_other.name IS NULL THEN 'which is to be tried again'
                 WHEN v_other.lease_until < clock_timestamp() THEN format('held by %L, whose lease has lapsed', v_other.name)
                 ELSE format('held by %L', v_other.name) END);
    END IF;
    SELECT e.sequence, (ARRAY['EXPIRED', 'FAILED', 'SUSPENDED'])[e.state - 1] AS state INTO v_other FROM taskq.ended e
    WHERE e.identifier = v_identifier AND e.topic_id = p_topic_id AND e.state IN (2, 3, 4) ORDER BY e.state, e.sequence LIMIT 1;
    IF FOUND THEN
        RETURN format('under the conditions that suspend an identifier, sequence %s of its identifier blocks it, which is %s',
                      v_other.sequence, v_other.state);
    END IF;
    RETURN NULL;
END $$;

-- Tasks that wait for a task which has ended otherwise than by success, and so wait until somebody does something about it.
-- Looks at the first two thousand dependencies that are waited for.
CREATE FUNCTION taskq.health_of_dependencies()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_count   bigint;
    v_example record;
BEGIN
    SELECT count(*), (array_agg(d.topic_id))[1] AS topic_id, (array_agg(d.sequence))[1] AS sequence,
           (array_agg(d.on_topic_id))[1] AS on_topic_id, (array_agg(e.sequence))[1] AS on_sequence, (array_agg(e.state))[1] AS state
    INTO v_example
    FROM (SELECT * FROM taskq.dependency n WHERE n.waiting LIMIT 2000) d
    CROSS JOIN LATERAL (SELECT t.sequence FROM taskq.task t WHERE t.identifier = d.on_identifier AND t.topic_id = d.on_topic_id
                        ORDER BY t.sequence DESC LIMIT 1) n
    JOIN taskq.ended e ON e.topic_id = d.on_topic_id AND e.sequence = n.sequence AND e.state <> 6;
    v_count := v_example.count;
    IF v_count = 0 THEN
        RETURN QUERY SELECT 'fine', 'dependencies', 'no task waits for one that has ended otherwise than by success', 0::bigint, NULL::int, NULL::text, NULL::bigint, NULL::text;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT 'warning', 'dependencies',
           format('%s dependencies can''t be fulfilled until somebody revives, reassigns or replaces what they wait for: sequence %s of topic %L'
                  ' waits for sequence %s of topic %L, which is %s', v_count, v_example.sequence, a.name, v_example.on_sequence, b.name,
                  taskq.state_name(v_example.state)), v_count, NULL::int, a.name, v_example.sequence, NULL::text
    FROM taskq.topic a, taskq.topic b WHERE a.topic_id = v_example.topic_id AND b.topic_id = v_example.on_topic_id;
END $$;

-- Open pushes, whose end the readers of their topics' logs wait for (taskq.log_holders has those of one topic).
CREATE FUNCTION taskq.health_of_logs()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT coalesce(taskq.severity(extract(epoch FROM clock_timestamp() - h.since), 60, 600, 3600), 'fine'), 'open pushes',
           format('%s has an open push to %s: readers of these logs wait for its end, %s', h.who,
                  CASE WHEN h.everywhere THEN 'a topic whose lock another session holds, so to any topic'
                       ELSE format('topic %L', p.name) || CASE WHEN h.topics > 1 THEN format(' and %s others', h.topics - 1) ELSE '' END END,
                  coalesce('for ' || taskq.in_words(clock_timestamp() - h.since) || ' now', 'nobody may see since when')),
           extract(epoch FROM clock_timestamp() - h.since)::bigint, h.pid, p.name, NULL::bigint, NULL::text
    FROM (SELECT o.pid, coalesce(format('session %s (application %s)', o.pid, coalesce(nullif(a.application_name, ''), 'unnamed')),
                                 format('prepared transaction %L', x.gid)) AS who,
                 coalesce(a.xact_start, x.prepared) AS since, cardinality(o.topics) AS topics, o.everywhere,
                 (SELECT min(t.topic_id) FROM unnest(o.topics) AS t (topic_id)) AS topic_id
          FROM taskq.open_transactions() o LEFT JOIN pg_stat_activity a ON a.pid = o.pid
          LEFT JOIN (SELECT k.virtualtransaction, p.* FROM pg_prepared_xacts p
                     JOIN pg_locks k ON k.locktype = 'transactionid' AND k.transactionid = p.transaction) x
              ON o.pid IS NULL AND x.virtualtransaction = o.virtualtransaction) h
    LEFT JOIN taskq.topic p ON p.topic_id = h.topic_id
    WHERE h.since IS NULL OR h.since < clock_timestamp() - interval '1 minute'
    ORDER BY h.since NULLS LAST LIMIT 3;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'fine', 'open pushes', 'no push has been open for a minute', 0::bigint, NULL::int, NULL::text, NULL::bigint, NULL::text;
    END IF;
END $$;

-- Moves of topics to their own tables that have not ended, and what dropped topics left of such tables.
CREATE FUNCTION taskq.health_of_moves()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text) LANGUAGE plpgsql AS $$
DECLARE
    v_vacant bigint := (SELECT count(*) FROM taskq.vacant_topics());
BEGIN
    RETURN QUERY
    SELECT CASE WHEN n.moving THEN taskq.severity(n.seconds, 60, 600, 'Infinity') ELSE 'critical' END, 'unfinished moves',
           format('the move of topic %L to its own tables, by session %s, started %s ago, ', n.name, n.pid,
                  taskq.in_words(make_interval(secs => n.seconds)))
           || CASE WHEN n.moving THEN 'is under way: the topic is paused, and pushes to it wait'
                   ELSE format('was interrupted after %s: the topic is paused%s. "taskq topics partition own %s" or'
                               ' own_partition(%L) finishes the move, "taskq topics partition shared %3$s" or shared_partition(%4$L)'
                               ' undoes it', n.step, CASE n.step WHEN 'the shared tables were closed' THEN ', and refuses pushes' ELSE '' END,
                               CASE WHEN n.name ~ '^[A-Za-z0-9._/-]+$' THEN n.name ELSE quote_literal(n.name) END, n.name) END,
           n.seconds, CASE WHEN n.moving THEN n.pid END, n.name, NULL::bigint, NULL::text
    FROM (SELECT p.name, m.pid, m.step, taskq.is_moving(m) AS moving, extract(epoch FROM clock_timestamp() - m.since)::bigint AS seconds
          FROM taskq.topic_move m JOIN taskq.topic p USING (topic_id)) n
    ORDER BY n.seconds DESC LIMIT 5;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'fine', 'unfinished moves', 'no topic is on its way to its own tables', 0::bigint, NULL::int, NULL::text, NULL::bigint, NULL::text;
    END IF;
    RETURN QUERY SELECT taskq.severity(v_vacant, 1, 100, 'Infinity'), 'left behind',
        format('%s dropped topics have left empty tables; "taskq topics partition clean" or drop_vacant_partitions() drops these',
               v_vacant),
        v_vacant, NULL::int, NULL::text, NULL::bigint, NULL::text;
END $$;

-- What is left behind and nobody has cleared away: stages of jobs that died, and the rows of owners of long ago.
CREATE FUNCTION taskq.health_of_leftovers()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int) LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    v_stages bigint := (
        WITH RECURSIVE known AS (
            (SELECT s.stage, 1 AS nth FROM taskq.staged s ORDER BY s.stage LIMIT 1)
            UNION ALL
            SELECT (SELECT s.stage FROM taskq.staged s WHERE s.stage > k.stage ORDER BY s.stage LIMIT 1), k.nth + 1
            FROM known k WHERE k.stage IS NOT NULL AND k.nth < 1000)
        SELECT count(*) FROM known k
        WHERE taskq.stage_fence(k.stage) IS NOT NULL
          AND NOT EXISTS (SELECT FROM taskq.owner o WHERE o.fence = taskq.stage_fence(k.stage)));
    v_owners bigint := (SELECT greatest(c.reltuples, s.n_live_tup) FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid
                        WHERE c.oid = 'taskq.owner'::regclass);
BEGIN
    RETURN QUERY SELECT taskq.severity(v_stages, 1, 1000, 'Infinity'), 'left behind',
        format('%s stages are left of jobs whose owner is gone; taskq.prune_stages() forgets them', v_stages), v_stages, NULL::int;
    RETURN QUERY SELECT taskq.severity(v_owners, 100000, 1000000, 'Infinity'), 'left behind',
        format('some %s owners are known; taskq.purge_owners() forgets those that hold nothing and gave no sign of life for long', v_owners),
        v_owners, NULL::int;
END $$;

-- Tasks that FAILED in the last hour: a row for each of the ten topics with most of them, with their share in what ended and their errors
-- in groups. What ended is an estimate where there is much of it (taskq.throughput); the failures are those among the topic's
-- newest 1,000. From a tenth on it is a warning, from a half on critical; fewer than 5 are a notice.
CREATE FUNCTION taskq.health_of_failures()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text) LANGUAGE plpgsql AS $$
DECLARE
    v_since   timestamptz := clock_timestamp() - interval '1 hour';
    v_topic   record;
    v_failed  bigint;
    v_ended   bigint;
    v_errors  text;
    v_sampled jsonb;
    v_topics  int := 0;
BEGIN
    FOR v_topic IN
        SELECT p.topic_id, p.name, taskq.recent_failures(p.topic_id, v_since, 100) AS failed FROM taskq.topic p
        WHERE taskq.recent_failures(p.topic_id, v_since, 100) > 0 ORDER BY 3 DESC, 2 LIMIT 10
    LOOP
        SELECT sum(f.failed), string_agg(format('%s x %s', f.failed, f.error_group), ', ' ORDER BY f.failed DESC, f.error_group) FILTER (WHERE f.place <= 3)
            || CASE WHEN count(*) > 3 THEN format(' and %s other errors', count(*) - 3) ELSE '' END
        INTO v_failed, v_errors
        FROM (SELECT g.failed, g.error_group, row_number() OVER (ORDER BY g.failed DESC, g.error_group) AS place
              FROM taskq.failed_groups(v_topic.topic_id, v_since, 1000) g) f;
        CONTINUE WHEN v_failed IS NULL;
        v_topics := v_topics + 1;
        v_ended := taskq.recent_ends(v_topic.topic_id, v_since, 1000);
        IF v_ended = 1000 OR v_failed = 1000 THEN  -- there may be more: only a sample bounds the cost
            v_sampled := coalesce(v_sampled, (
                SELECT jsonb_object_agg(n.topic, jsonb_build_object('failed', n.failed, 'ended', n.ended))
                FROM (SELECT t.topic, sum(t.count) FILTER (WHERE t.state = 3) AS failed, sum(t.count) AS ended
                      FROM taskq.throughput('1 hour', 1) t WHERE t.state BETWEEN 3 AND 6 GROUP BY t.topic) n), '{}');
            v_ended := greatest(v_ended, (v_sampled -> v_topic.name ->> 'ended')::bigint);
            v_failed := CASE WHEN v_failed < 1000 THEN v_failed
                             ELSE greatest(v_failed, (v_sampled -> v_topic.name ->> 'failed')::bigint) END;
        END IF;
        v_ended := greatest(v_ended, v_failed);
        severity := CASE WHEN v_failed < 5 THEN 'notice' ELSE taskq.severity(v_failed::numeric / v_ended, 0, 0.1, 0.5) END;
        subject := 'failures';
        detail := format('topic %L: %s of %s tasks that ended in the last hour FAILED (%s %%): %s', v_topic.name, v_failed, v_ended,
                         round(100.0 * v_failed / v_ended, 1), v_errors);
        value := v_failed;
        topic := v_topic.name;
        RETURN NEXT;
    END LOOP;
    IF v_topics = 0 THEN
        RETURN QUERY SELECT 'fine', 'failures', 'no task has FAILED in the last hour', 0::bigint, NULL::int, NULL::text, NULL::bigint, NULL::text;
    END IF;
END $$;
