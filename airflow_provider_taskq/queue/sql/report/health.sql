-- Health findings: sentences about what slows or threatens the queue. Every read is bounded, so a call takes
-- milliseconds on any queue. What PostgreSQL's own exporters report, as dead rows or connections, is left to them.

-- The row type of the functions below: a finding about a subject that taskq.health names.
CREATE VIEW taskq_internal.finding AS
SELECT NULL::text AS severity, NULL::text AS detail, NULL::bigint AS value, NULL::text AS remedy, NULL::text AS topic,
    NULL::bigint AS sequence, NULL::text AS owner, NULL::int AS pid;

CREATE FUNCTION taskq_internal.finding(
    p_severity text, p_detail text, p_value bigint, p_remedy text, p_topic text DEFAULT NULL,
    p_sequence bigint DEFAULT NULL, p_owner text DEFAULT NULL, p_pid int DEFAULT NULL
) RETURNS taskq_internal.finding LANGUAGE sql IMMUTABLE AS $$
    SELECT p_severity, p_detail, p_value, p_remedy, p_topic, p_sequence, p_owner, p_pid
$$;

-- Returns the severity of a value, by the lower bounds of notice, warning and critical.
CREATE FUNCTION taskq_internal.severity(p_value numeric, p_notice numeric, p_warning numeric, p_critical numeric)
RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_value >= p_critical THEN 'critical' WHEN p_value >= p_warning THEN 'warning'
                WHEN p_value >= p_notice THEN 'notice' ELSE 'fine' END
$$;

-- Returns a name as one word of a shell command, in quotes if it needs them.
CREATE FUNCTION taskq_internal.shell_word(p_name text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_name ~ '^[A-Za-z0-9_./][A-Za-z0-9_./-]*$' THEN p_name
                ELSE '''' || replace(p_name, '''', '''\''''') || '''' END
$$;

-- Reports the ten topics whose due tasks have waited longest, of those that have waited longer than p_patience, and
-- counts the others. A poll leaves no trace, because a trace would be a write. So a topic counts as served if a running
-- lease holds some of its tasks, or if one of its newest tasks has ended within p_patience.
CREATE FUNCTION taskq_internal.health_of_topics(p_patience interval) RETURNS SETOF taskq_internal.finding
LANGUAGE sql AS $$
    WITH late AS MATERIALIZED (
        SELECT d.topic_id, p.name, p.paused, d.sequence, clock_timestamp() - d.since AS age, count(*) OVER () AS topics
        FROM taskq.oldest_due(clock_timestamp() - p_patience) d JOIN taskq_internal.topic p USING (topic_id)
        ORDER BY d.since LIMIT 10),
    judged AS MATERIALIZED (
        SELECT l.*, taskq_internal.shell_word(l.name) AS word,
               taskq_internal.explain_turn(l.topic_id, l.sequence) AS turn,
               l.topic_id = ANY ((SELECT taskq_internal.served_topics())::int[])
               OR taskq_internal.last_completed(l.topic_id) >= clock_timestamp() - p_patience IS TRUE AS served
        FROM late l)
    SELECT taskq_internal.finding(
        CASE WHEN j.paused THEN 'notice'
             ELSE (ARRAY['notice', 'warning', 'critical'])[
                 1 + (NOT j.served)::int + (j.age >= 12 * p_patience)::int] END,
        format('topic %L, sequence %s has been due for %s: %s', j.name, j.sequence, taskq.format_duration(j.age),
            CASE WHEN j.paused THEN 'it is paused'
                 WHEN j.served THEN coalesce(j.turn, 'workers poll it, but tasks arrive faster than they end, or tasks'
                                                     ' with a higher priority pass it')
                 ELSE concat_ws('; ', format(
                     'no worker seems to poll it: no running lease holds any of its tasks, and none of its newest has'
                     ' ended for %s', taskq.format_duration(p_patience)), j.turn) END),
        extract(epoch FROM j.age)::bigint,
        CASE WHEN j.paused THEN 'taskq resume ' || j.word
             WHEN j.turn IS NOT NULL THEN format('taskq why %s %s', j.word, j.sequence)
             ELSE 'taskq worker MODULE:FUNCTION --topic ' || j.word END,
        j.name, j.sequence)
    FROM judged j
    UNION ALL
    SELECT taskq_internal.finding(
        'notice', format('%s topics have tasks that have been due for longer than %s', n.topics,
                         taskq.format_duration(p_patience)), n.topics, 'taskq topics')
    FROM (SELECT max(l.topics) AS topics FROM late l) n WHERE n.topics > 10
$$;

-- Reports leases that have lapsed and that no call of expire() or maintain() has ended since. Reads a thousand.
CREATE FUNCTION taskq_internal.health_of_leases(p_patience interval) RETURNS SETOF taskq_internal.finding
LANGUAGE sql AS $$
    SELECT taskq_internal.finding(
        CASE WHEN n.oldest < p_patience THEN 'fine' WHEN n.held = 0 THEN 'notice'
             WHEN n.oldest < 12 * p_patience THEN 'warning' ELSE 'critical' END,
        format('%s leases have lapsed, the longest %s ago (owner %L); some %s tasks wait under them for'
               ' taskq.maintain() to give them back: a worker, a drain, a waiting gate or "taskq maintain" calls it',
               n.count, taskq.format_duration(n.oldest), n.name, n.held),
        n.count, 'taskq maintain', p_owner => n.name)
    FROM (SELECT count(*) AS count, max(clock_timestamp() - taskq_internal.clamp_moment(o.lease_until)) AS oldest,
                 (array_agg(o.name ORDER BY o.lease_until))[1] AS name, sum(h.count) AS held
          FROM (SELECT * FROM taskq_internal.owner n
                WHERE n.fence IS NOT NULL AND n.lease_until < clock_timestamp() ORDER BY n.fence LIMIT 1000) o
          CROSS JOIN LATERAL (SELECT count(*) FROM (SELECT FROM taskq_internal.live l WHERE l.holder = o.owner_id
                                                    LIMIT 100) l) h) n
    WHERE n.count > 0
$$;

-- Reports leases of owners, and locks by name, that reach further than their length: they were taken while the clock of
-- the server was ahead, and keep their tasks and partitions for that much longer. Reads a thousand of each.
CREATE FUNCTION taskq_internal.health_of_long_leases() RETURNS SETOF taskq_internal.finding LANGUAGE sql AS $$
    SELECT taskq_internal.finding(
        'warning', format('%s reaches %s further than its length, as do %s more: it is of a time when the clock of the'
                          ' server was ahead. The next heartbeat of its holder shortens it, if it is a lease',
                          n.what, taskq.format_duration(n.ahead), n.count - 1),
        extract(epoch FROM n.ahead)::bigint, n.remedy, p_owner => n.owner)
    FROM (
        SELECT n.*, n.began - clock_timestamp() AS ahead, count(*) OVER () AS count
        FROM (
            SELECT format('the lease of owner %L', o.name) AS what, o.name AS owner,
                   'taskq release ' || taskq_internal.shell_word(o.name) AS remedy,
                   taskq_internal.clamp_moment(o.lease_until) - taskq_internal.clamp_age(o.lease) AS began
            FROM (SELECT * FROM taskq_internal.owner w WHERE w.fence IS NOT NULL ORDER BY w.fence LIMIT 1000) o
            UNION ALL
            SELECT format('the lock %L', k.name), NULL, format('SELECT taskq.unlock(%L, %L)', k.name, k.held_by),
                   taskq_internal.clamp_moment(k.locked)
            FROM (SELECT * FROM taskq_internal.lock w ORDER BY w.name LIMIT 1000) k) n
        WHERE n.began > clock_timestamp() + interval '1 second'
        ORDER BY n.began DESC LIMIT 5) n
$$;

-- Reports the ten topics with the most tasks that FAILED since a moment, with their share of the tasks that ended, and
-- their most frequent error. A share of a tenth is a warning, and a half is critical. Fewer than 5 failures are a
-- notice. Reads the newest 1,000 failures of the first 1,000 topics that have tasks in EXPIRED, FAILED or SUSPENDED. If
-- more than 1,000 tasks ended, the share is that of the newest.
CREATE FUNCTION taskq_internal.health_of_failures(p_since timestamptz) RETURNS SETOF taskq_internal.finding
LANGUAGE sql AS $$
    WITH RECURSIVE troubled AS (
        SELECT 0::bigint AS id, 0 AS nth
        UNION ALL
        SELECT n.id, t.nth + 1 FROM troubled t CROSS JOIN LATERAL (
            SELECT e.topic_id::bigint AS id FROM taskq_internal.ended e
            WHERE e.state::int IN (:EXPIRED, :FAILED, :SUSPENDED) AND e.topic_id::bigint > t.id
            ORDER BY e.topic_id::bigint LIMIT 1) n
        WHERE t.nth < 1000),
    failing AS (
        SELECT t.id::int AS id, count(*) AS failed,
               mode() WITHIN GROUP (ORDER BY taskq_internal.error_group(f.error_summary, f.identifier)) AS error
        FROM troubled t CROSS JOIN LATERAL (
            SELECT e.completed, e.error_summary, e.identifier FROM taskq_internal.ended e
            WHERE e.topic_id::bigint = t.id AND e.state::int = :FAILED
              AND e.state::int IN (:EXPIRED, :FAILED, :SUSPENDED) ORDER BY e.sequence DESC LIMIT 1000) f
        WHERE f.completed >= p_since AND p_since <= (
            SELECT max(n.completed)
            FROM (SELECT e.completed FROM taskq_internal.ended e
                  WHERE e.topic_id::bigint = t.id AND e.state::int = :FAILED
                    AND e.state::int IN (:EXPIRED, :FAILED, :SUSPENDED) ORDER BY e.sequence DESC LIMIT 20) n)
        GROUP BY t.id ORDER BY 2 DESC, 1 LIMIT 10)
    SELECT taskq_internal.finding(
        CASE WHEN f.failed < 5 THEN 'notice' ELSE taskq_internal.severity(s.share, 0, 0.1, 0.5) END,
        format('topic %L: %s of %s tasks that ended in the last hour FAILED (%s %%), most often by: %s', p.name,
               f.failed, e.count || CASE WHEN e.count = 1000 THEN ' or more' ELSE '' END, round(100 * s.share, 1),
               f.error),
        f.failed, 'taskq errors ' || taskq_internal.shell_word(p.name), p.name)
    FROM failing f
    JOIN taskq_internal.topic p ON p.topic_id = f.id
    CROSS JOIN LATERAL (
        SELECT greatest(count(*), f.failed) AS count, count(*) FILTER (WHERE n.state = :FAILED) AS failed
        FROM (SELECT e.completed, e.state FROM taskq_internal.ended e
              WHERE e.topic_id = f.id ORDER BY e.sequence DESC LIMIT 1000) n
        WHERE n.completed >= p_since AND n.state BETWEEN :FAILED AND :SUCCEEDED) e
    CROSS JOIN LATERAL (
        SELECT CASE WHEN e.count = 1000 THEN e.failed ELSE f.failed END / e.count::numeric AS share) s
$$;

-- Reports tasks that depend on a task that has ended without success or was removed. They wait until an operator acts.
-- Reads the first two thousand waiting dependencies.
CREATE FUNCTION taskq_internal.health_of_dependencies() RETURNS SETOF taskq_internal.finding LANGUAGE sql AS $$
    SELECT taskq_internal.finding(
        'warning',
        format('%s dependencies can''t be fulfilled until an operator revives, reassigns, replaces or cancels a task:'
               ' sequence %s of topic %L %s',
               d.count, d.sequence, a.name, taskq_internal.explain_dependency(d.topic_id, d.sequence)),
        d.count,
        CASE WHEN d.on_sequence IS NULL THEN format('taskq cancel %s %s', taskq_internal.shell_word(a.name), d.sequence)
             ELSE format('taskq retry %s %s', taskq_internal.shell_word(d.on_topic), d.on_sequence) END,
        a.name, d.sequence)
    FROM (SELECT d.*, count(*) OVER () AS count
          FROM (SELECT * FROM taskq_internal.dependency_state n WHERE n.waiting LIMIT 2000) d
          WHERE d.on_sequence IS NULL OR d.state <> :SUCCEEDED
          LIMIT 1) d
    JOIN taskq_internal.topic a ON a.topic_id = d.topic_id
$$;

-- Reports partitions of consumer groups that an error ended and that have made no progress since. Their consumers do
-- not retry them.
CREATE FUNCTION taskq_internal.health_of_partitions() RETURNS SETOF taskq_internal.finding LANGUAGE sql AS $$
    SELECT taskq_internal.finding(
        'warning',
        format('an error ended partition %s of topic %L in group %L %s ago; taskq.partition_states() shows the error',
               h.partition, p.name, h.group_name, taskq.format_duration(clock_timestamp() - h.failed)),
        extract(epoch FROM clock_timestamp() - h.failed)::bigint,
        format('SELECT * FROM taskq.partition_states(%L)', p.name), p.name)
    FROM taskq_internal.consumer_partition h JOIN taskq_internal.topic p USING (topic_id)
    WHERE h.failed IS NOT NULL ORDER BY h.failed LIMIT 5
$$;

-- Reports the oldest sessions and prepared transactions that keep vacuum from removing dead rows, and the open pushes
-- among them, which keep readers from the log of their topics (taskq.log_blockers returns those of one topic).
CREATE FUNCTION taskq_internal.health_of_transactions() RETURNS SETOF taskq_internal.finding LANGUAGE sql AS $$
    WITH holders AS (
        SELECT a.pid, NULL AS gid, greatest(age(a.backend_xmin), age(a.backend_xid))::bigint AS age,
               a.xact_start AS since, format('session %s (application %s)', a.pid, coalesce(
                   nullif(a.application_name, ''), 'unnamed')) AS what, coalesce(a.state || ' since '
                   || taskq.format_duration(clock_timestamp() - a.state_change),
                   format('GRANT pg_read_all_stats TO %I shows what it does', current_user)) AS state
        FROM pg_stat_activity a
        WHERE coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL AND a.pid <> pg_backend_pid()
          AND (a.datname IS NULL OR a.datname = current_database())
          AND a.usesysid IS NOT NULL  -- of autovacuum it is NULL; the type of a session is not visible to every role
          AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
        UNION ALL
        SELECT NULL, p.gid, age(p.transaction), p.prepared, format('prepared transaction %L', p.gid),
               'COMMIT PREPARED or ROLLBACK PREPARED ends it'
        FROM pg_prepared_xacts p WHERE p.database = current_database()),
    pushes AS MATERIALIZED (SELECT * FROM taskq_internal.push_transactions())
    SELECT taskq_internal.finding(
        CASE WHEN h.since IS NULL THEN taskq_internal.severity(h.age, 100000, 10000000, 500000000)
             ELSE taskq_internal.severity(extract(epoch FROM h.open), 60, 600, 3600) END,
        concat_ws(', ', h.what || ' keeps vacuum from removing what died since: open for '
                  || coalesce(taskq.format_duration(h.open), 'a time that this role may not see'),
                  h.age || ' transactions ago', h.state,
                  'readers of the log wait for its push to topic ' || quote_literal(h.topics[1])
                  || coalesce(' and ' || nullif(cardinality(h.topics) - 1, 0) || ' others', '')),
        coalesce(extract(epoch FROM h.open)::bigint, h.age),
        coalesce(format('SELECT pg_terminate_backend(%s)', h.pid), format('ROLLBACK PREPARED %L', h.gid)),
        h.topics[1], p_pid => h.pid)
    FROM (SELECT h.*, clock_timestamp() - h.since AS open,
                 ARRAY(SELECT p.name FROM pushes o JOIN taskq_internal.topic p
                           ON (p.topic_id & 1023) = ANY (o.topic_locks)
                       WHERE o.pid = h.pid OR o.gid = h.gid ORDER BY p.topic_id) AS topics
          FROM holders h ORDER BY h.age DESC LIMIT 5) h
$$;

-- Reports how full the server's queue of notifications is. A listener that stays in a transaction keeps the server from
-- emptying it. PostgreSQL does not show which sessions listen, so the oldest transaction is named.
CREATE FUNCTION taskq_internal.health_of_notifications() RETURNS SETOF taskq_internal.finding LANGUAGE sql AS $$
    SELECT taskq_internal.finding(
        taskq_internal.severity(n.share, 10, 25, 50),
        format('%s %% of the server''s queue of notifications is in use', n.share)
        || CASE WHEN n.share < 10 THEN '' ELSE ', because a session that listens stays in a transaction: TaskQ sends'
           ' none from 50 % on, and at 100 % each COMMIT of a NOTIFY fails' END,
        n.share, format('SELECT pg_terminate_backend(%s)', o.pid), p_pid => o.pid)
    FROM (SELECT floor(100 * pg_notification_queue_usage())::bigint AS share) n
    LEFT JOIN LATERAL (
        SELECT a.pid FROM pg_stat_activity a WHERE n.share >= 10 AND a.usesysid IS NOT NULL
            AND a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid()
        ORDER BY a.xact_start LIMIT 1) o ON true
$$;

-- Reports that no program calls taskq.maintain although a topic or an owner needs it, and consumer groups that keep
-- tasks longer than the policy of their topic, among a hundred topics with a retention.
CREATE FUNCTION taskq_internal.health_of_upkeep(p_patience interval) RETURNS SETOF taskq_internal.finding
LANGUAGE sql AS $$
    SELECT taskq_internal.finding(
        CASE WHEN u.idle < 12 * p_patience THEN 'notice' ELSE 'warning' END,
        format('no program has called taskq.maintain() for %s: the tasks of owners that die stay with them, and ended'
               ' tasks are kept. A worker, a drain, a waiting gate, or "taskq maintain" every minute calls it',
               taskq.format_duration(u.idle)),
        extract(epoch FROM u.idle)::bigint, 'taskq maintain')
    FROM (SELECT clock_timestamp() - taskq_internal.clamp_moment(coalesce(n.called, n.due)) AS idle
          FROM taskq_internal.upkeep n) u
    WHERE u.idle > p_patience + interval '5 minutes'
      AND (EXISTS (SELECT FROM taskq_internal.live l WHERE l.holder IS NOT NULL)
           OR EXISTS (SELECT FROM taskq_internal.topic t
                      WHERE t.keep_succeeded IS NOT NULL OR t.keep_failed IS NOT NULL))
    UNION ALL (
    SELECT taskq_internal.finding(
        'warning', format('consumer group %L has handled topic %L up to sequence %s. Tasks after it are older than the'
                          ' policy of the topic keeps them, and stay. If the group is out of use, forget_group()'
                          ' removes it', g.group_name, p.name, g.handled),
        g.handled, format('SELECT taskq.forget_group(%L, %L)', g.group_name, p.name), p.name)
    FROM (SELECT * FROM taskq_internal.topic t WHERE t.keep_succeeded IS NOT NULL OR t.keep_failed IS NOT NULL
          ORDER BY t.topic_id LIMIT 100) p
    CROSS JOIN LATERAL taskq_internal.slowest_group(p.topic_id) g
    WHERE EXISTS (
        SELECT FROM (SELECT * FROM taskq_internal.ended e WHERE e.topic_id = p.topic_id AND e.sequence > g.handled
                     ORDER BY e.sequence LIMIT 100) e
        WHERE e.completed < taskq_internal.keeps_until(
            e.state, e.descent, clock_timestamp() - p_patience - 1.1 * p.keep_succeeded,
            clock_timestamp() - p_patience - 1.1 * p.keep_failed))
    LIMIT 5)
$$;
