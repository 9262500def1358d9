-- Health findings: sentences about what slows or threatens the queue. Every read is bounded, so a call takes
-- milliseconds on any queue. What PostgreSQL's own exporters report, as dead rows or connections, is left to them.

-- The row type of the functions below: a finding about a subject that taskq.health names.
CREATE VIEW taskq_internal.finding AS
SELECT NULL::text AS severity, NULL::text AS detail, NULL::bigint AS value, NULL::text AS remedy, NULL::text AS topic,
    NULL::bigint AS sequence, NULL::text AS owner, NULL::int AS pid;

CREATE FUNCTION taskq.health(p_patience interval DEFAULT '5 minutes')
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text,
               remedy text)
LANGUAGE sql AS $$
    WITH patience AS (SELECT taskq_internal.clamp_age(p_patience) AS patience),
    found AS MATERIALIZED (
        SELECT 'waiting tasks' AS subject, f.* FROM patience, taskq_internal.health_of_topics(patience) f
        UNION ALL SELECT 'lapsed leases', f.* FROM patience, taskq_internal.health_of_leases(patience) f
        UNION ALL SELECT 'long leases', f.* FROM taskq_internal.health_of_long_leases() f
        UNION ALL SELECT 'failures', f.* FROM taskq_internal.health_of_failures() f
        UNION ALL SELECT 'dependencies', f.* FROM taskq_internal.health_of_dependencies() f
        UNION ALL SELECT 'ended partitions', f.* FROM taskq_internal.health_of_partitions() f
        UNION ALL SELECT 'open transactions', f.* FROM taskq_internal.health_of_transactions() f
        UNION ALL SELECT 'notifications', f.* FROM taskq_internal.health_of_notifications() f
        UNION ALL SELECT 'upkeep', f.* FROM patience, taskq_internal.health_of_upkeep(patience) f
        UNION ALL SELECT 'retention', f.* FROM taskq_internal.health_of_retention() f
        UNION ALL SELECT 'left behind', f.* FROM taskq_internal.health_of_stages() f)
    SELECT a.severity, s.subject, coalesce(f.detail, s.fine), coalesce(f.value, 0), f.pid, f.topic, f.sequence, f.owner,
        CASE WHEN a.severity <> 'fine' THEN f.remedy END
    FROM (VALUES
        ('waiting tasks', 'no task has been due for longer than ' || taskq.format_duration(p_patience)),
        ('lapsed leases', 'no lease has lapsed'),
        ('long leases', 'no lease or lock reaches further than its length'),
        ('failures', 'no task has FAILED in the last hour'),
        ('dependencies', 'no task waits for one that has ended otherwise than by success'),
        ('ended partitions', 'no error has ended a partition of a consumer group'),
        ('open transactions', 'no transaction keeps vacuum from dead rows, or readers of a log from new tasks'),
        ('upkeep', 'the first 100 topics with a retention have no tasks that are older than it'),
        ('retention', 'the first 1,000 topics without keep_succeeded have no ended tasks'),
        ('left behind', 'no stage is left of a job whose owner is gone'),
        ('notifications', NULL)) s (subject, fine)
    LEFT JOIN found f ON f.subject = s.subject
    CROSS JOIN LATERAL (SELECT coalesce(f.severity, 'fine') AS severity) a
    ORDER BY array_position(ARRAY['critical', 'warning', 'notice', 'fine'], a.severity), s.subject, f.value DESC
$$;
COMMENT ON FUNCTION taskq.health IS
'Returns health findings, the worst first. The severity is critical, warning, notice or fine. Each subject has at least
one row. The unit of value is seconds, rows or transactions, as detail says. The columns pid, topic, sequence and owner
name the object of the finding. The column remedy has a command of taskq or an SQL statement that ends the condition or
shows its cause, or NULL. A due task or a lapsed lease may wait for p_patience before a finding reports it. The cost
depends on the number of topics, and not on the number of tasks.';

-- Returns a finding. The subject is that of the calling function.
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

-- Reports the topics whose due tasks have waited longer than p_patience, with the reason: no worker claims the tasks,
-- other tasks of their identifiers block them, or more tasks arrive than the workers can handle. It also reports paused
-- topics. Beyond the ten topics that have waited longest, it counts them.
--
-- A poll leaves no trace, because a trace would be a write. So a topic counts as served if a running lease holds some
-- of its tasks, or if one of its newest tasks has ended within p_patience.
CREATE FUNCTION taskq_internal.health_of_topics(p_patience interval) RETURNS SETOF taskq_internal.finding
LANGUAGE plpgsql AS $$
DECLARE
    v_now      timestamptz := clock_timestamp();
    v_held     int[] := taskq_internal.served_topics();
    v_severity text;
    v_why      text;
    v_topic    record;
BEGIN
    FOR v_topic IN
        SELECT d.topic_id, p.name, taskq_internal.shell_word(p.name) AS word, p.paused, d.sequence,
            v_now - d.since AS age, v_now - d.since >= 12 * p_patience AS long, count(*) OVER () AS topics
        FROM taskq.oldest_due_by_topic(v_now - p_patience) d JOIN taskq_internal.topic p USING (topic_id)
        ORDER BY d.since LIMIT 10
    LOOP
        v_why := taskq.explain_turn(v_topic.topic_id, v_topic.sequence);
        v_topic.word := CASE WHEN v_topic.paused THEN 'taskq resume ' || v_topic.word
                             WHEN v_why IS NOT NULL THEN format('taskq why %s %s', v_topic.word, v_topic.sequence)
                             ELSE 'taskq worker MODULE:FUNCTION --topic ' || v_topic.word END;
        IF v_topic.paused THEN
            v_severity := 'notice';
            v_why := 'it is paused';
        ELSIF v_topic.topic_id = ANY (v_held)
            OR taskq_internal.last_completed(v_topic.topic_id) >= v_now - p_patience THEN
            v_severity := CASE WHEN v_topic.long THEN 'warning' ELSE 'notice' END;
            v_why := coalesce(v_why, 'workers poll it, but tasks arrive faster than they end, or tasks with a higher'
                              ' priority pass it');
        ELSE
            v_severity := CASE WHEN v_topic.long THEN 'critical' ELSE 'warning' END;
            v_why := concat_ws('; ', format(
                'no worker seems to poll it: no running lease holds any of its tasks, and none of its newest has ended'
                ' for %s', taskq.format_duration(p_patience)), v_why);
        END IF;
        RETURN NEXT taskq_internal.finding(
            v_severity, format('topic %L, sequence %s has been due for %s: %s', v_topic.name, v_topic.sequence,
                               taskq.format_duration(v_topic.age), v_why),
            extract(epoch FROM v_topic.age)::bigint, v_topic.word, v_topic.name, v_topic.sequence);
    END LOOP;
    IF v_topic.topics > 10 THEN
        RETURN NEXT taskq_internal.finding('notice', format(
            '%s topics have tasks that have been due for longer than %s', v_topic.topics,
            taskq.format_duration(p_patience)), v_topic.topics, 'taskq topics');
    END IF;
END $$;

-- Reports leases that have lapsed and that no call of expire() or maintain() has ended since.
CREATE FUNCTION taskq_internal.health_of_leases(p_patience interval) RETURNS SETOF taskq_internal.finding
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT f.*
    FROM (SELECT count(*) AS count, max(clock_timestamp() - taskq_internal.clamp_moment(o.lease_until)) AS oldest,
                 (array_agg(o.name ORDER BY o.lease_until))[1] AS name, sum(o.held) AS held
          FROM (SELECT n.*, (SELECT count(*) FROM (SELECT FROM taskq_internal.live l WHERE l.holder = n.owner_id
                                                   LIMIT 100) h) AS held
                FROM taskq_internal.owner n
                WHERE n.fence IS NOT NULL AND n.lease_until < clock_timestamp() LIMIT 1000) o) n
    CROSS JOIN LATERAL taskq_internal.finding(
        CASE WHEN n.oldest < p_patience THEN 'fine' WHEN n.held = 0 THEN 'notice'
             WHEN n.oldest < 12 * p_patience THEN 'warning' ELSE 'critical' END,
        format('%s leases have lapsed, the longest %s ago (owner %L); some %s tasks wait under them for'
               ' taskq.maintain() to give them back: a worker, a drain, a waiting gate or "taskq maintain" calls it',
               CASE WHEN n.count >= 1000 THEN '1000 or more' ELSE n.count::text END,
               taskq.format_duration(n.oldest), n.name, n.held),
        n.count, 'taskq maintain', p_owner => n.name) f
    WHERE n.count > 0;
END $$;

-- Reports leases of owners and members, and locks by name, that reach further than their length: they were taken while
-- the clock of the server was ahead, and hold their tasks and events for that much longer. Reads a thousand of each.
CREATE FUNCTION taskq_internal.health_of_long_leases() RETURNS SETOF taskq_internal.finding
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_now timestamptz := clock_timestamp() + interval '1 second';
BEGIN
    RETURN QUERY
    SELECT f.*
    FROM (SELECT n.*, count(*) OVER () AS count
          FROM (SELECT format('the lease of owner %L', o.name) AS what, o.name,
                       taskq_internal.clamp_moment(o.lease_until) - taskq_internal.clamp_age(o.lease) AS began,
                       'taskq release ' || taskq_internal.shell_word(o.name) AS remedy
                FROM (SELECT * FROM taskq_internal.owner w WHERE w.fence IS NOT NULL ORDER BY w.fence LIMIT 1000) o
                UNION ALL
                SELECT format('the lease of partition %s in group %L', c.partition, c.group_name), NULL,
                       taskq_internal.clamp_moment(c.lease_until) - taskq_internal.clamp_age(c.lease),
                       format('SELECT taskq.release_partition(%L, %L, %s, %s, NULL)', c.group_name, p.name,
                              c.partition, c.fence)
                FROM (SELECT * FROM taskq_internal.consumer_partition w WHERE w.fence IS NOT NULL
                      ORDER BY w.fence LIMIT 1000) c JOIN taskq_internal.topic p USING (topic_id)
                UNION ALL
                SELECT format('the lock %L', k.name), NULL, taskq_internal.clamp_moment(k.locked),
                       format('SELECT taskq.unlock(%L, %L)', k.name, k.held_by)
                FROM (SELECT * FROM taskq_internal.lock w ORDER BY w.name LIMIT 1000) k) n
          WHERE n.began > v_now ORDER BY n.began DESC LIMIT 5) n
    CROSS JOIN LATERAL taskq_internal.finding(
        'warning', format('%s reaches %s further than its length, as do %s more: it is of a time when the clock of the'
                          ' server was ahead. The next heartbeat of its holder shortens it, if it is a lease',
                          n.what, taskq.format_duration(n.began - v_now), n.count - 1),
        extract(epoch FROM n.began - v_now)::bigint, n.remedy, p_owner => n.name) f;
END $$;

-- Reports the ten topics with the most tasks that FAILED in the last hour, with their share and their error groups. A
-- share of a tenth is a warning, and a half is critical. Fewer than 5 failures are a notice. Failures are counted among
-- the newest 1,000 of a topic. If more than 1,000 tasks ended, the share is that of the newest ones.
CREATE FUNCTION taskq_internal.health_of_failures() RETURNS SETOF taskq_internal.finding
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_since timestamptz := clock_timestamp() - interval '1 hour';
BEGIN
    RETURN QUERY
    SELECT f.*
    FROM taskq_internal.failing_topics(v_since) t
    JOIN taskq_internal.topic p ON p.topic_id = t.topic_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS count, count(*) FILTER (WHERE n.state = :FAILED) AS failed
        FROM (SELECT e.completed, e.state FROM taskq_internal.ended e
              WHERE e.topic_id = t.topic_id ORDER BY e.sequence DESC LIMIT 1000) n
        WHERE n.completed >= v_since AND n.state BETWEEN :FAILED AND :SUCCEEDED) e
    CROSS JOIN LATERAL (
        SELECT sum(g.failed)::bigint AS failed, string_agg(format('%s x %s', g.failed, g.error_group), ', '
                ORDER BY g.failed DESC, g.error_group) FILTER (WHERE g.place <= 3)
            || CASE WHEN count(*) > 3 THEN format(' and %s other errors', count(*) - 3) ELSE '' END AS errors
        FROM (SELECT n.*, row_number() OVER (ORDER BY n.failed DESC, n.error_group) AS place
              FROM taskq_internal.failed_groups(t.topic_id, v_since, 1000) n) g) g
    CROSS JOIN LATERAL (
        SELECT CASE WHEN e.count = 1000 THEN e.failed / 1000.0
                    ELSE g.failed::numeric / greatest(e.count, g.failed) END AS share) s
    CROSS JOIN LATERAL taskq_internal.finding(
        CASE WHEN g.failed < 5 THEN 'notice' ELSE taskq_internal.severity(s.share, 0, 0.1, 0.5) END,
        format('topic %L: %s of %s tasks that ended in the last hour FAILED (%s %%): %s', p.name, g.failed,
               CASE WHEN e.count = 1000 THEN '1000 or more' ELSE greatest(e.count, g.failed)::text END,
               round(100 * s.share, 1), g.errors),
        g.failed, 'taskq errors ' || taskq_internal.shell_word(p.name), p.name) f;
END $$;

-- Returns the ten topics with the most failures since p_since, among the newest 20 failures of the first 1,000 topics
-- that have tasks in EXPIRED, FAILED or SUSPENDED.
CREATE FUNCTION taskq_internal.failing_topics(p_since timestamptz) RETURNS TABLE (topic_id int)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE troubled AS (
        (SELECT e.topic_id::bigint AS id, 1 AS nth FROM taskq_internal.ended e
         WHERE e.state::int IN (:EXPIRED, :FAILED, :SUSPENDED) ORDER BY e.topic_id::bigint LIMIT 1)
        UNION ALL
        SELECT n.id, t.nth + 1 FROM troubled t CROSS JOIN LATERAL (
            SELECT e.topic_id::bigint AS id FROM taskq_internal.ended e
            WHERE e.state::int IN (:EXPIRED, :FAILED, :SUSPENDED) AND e.topic_id::bigint > t.id
            ORDER BY e.topic_id::bigint LIMIT 1) n
        WHERE t.nth < 1000)
    SELECT t.id::int
    FROM troubled t CROSS JOIN LATERAL (
        SELECT count(*) AS count
        FROM (SELECT e.completed FROM taskq_internal.ended e
              WHERE e.topic_id::bigint = t.id AND e.state::int = :FAILED
                AND e.state::int IN (:EXPIRED, :FAILED, :SUSPENDED)
              ORDER BY e.sequence DESC LIMIT 20) n
        WHERE n.completed >= p_since) f
    WHERE f.count > 0 ORDER BY f.count DESC, t.id LIMIT 10;
END $$;

-- Reports tasks that depend on a task that has ended without success, or was removed before. They wait until an operator
-- acts. Reads the first two thousand waiting dependencies.
CREATE FUNCTION taskq_internal.health_of_dependencies() RETURNS SETOF taskq_internal.finding
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY
    SELECT f.*
    FROM (SELECT d.topic_id, d.sequence, d.on_topic_id, n.sequence AS on_sequence, count(*) OVER () AS count
          FROM (SELECT * FROM taskq_internal.dependency n WHERE n.waiting LIMIT 2000) d
          LEFT JOIN LATERAL (SELECT t.sequence FROM taskq_internal.task t WHERE t.identifier = d.on_identifier
                             AND t.topic_id = d.on_topic_id ORDER BY t.sequence DESC LIMIT 1) n ON true
          LEFT JOIN taskq_internal.ended e ON e.topic_id = d.on_topic_id AND e.sequence = n.sequence
          WHERE n.sequence IS NULL OR e.state <> :SUCCEEDED
          LIMIT 1) d
    JOIN taskq_internal.topic a ON a.topic_id = d.topic_id
    LEFT JOIN taskq_internal.topic b ON b.topic_id = d.on_topic_id
    CROSS JOIN LATERAL taskq_internal.finding(
        'warning',
        format('%s dependencies can''t be fulfilled until an operator revives, reassigns, replaces or cancels a task:'
               ' sequence %s of topic %L %s',
               d.count, d.sequence, a.name, taskq.explain_dependency(d.topic_id, d.sequence)),
        d.count,
        CASE WHEN d.on_sequence IS NULL THEN format('taskq cancel %s %s', taskq_internal.shell_word(a.name), d.sequence)
             ELSE format('taskq retry %s %s', taskq_internal.shell_word(b.name), d.on_sequence) END,
        a.name, d.sequence) f;
END $$;

-- Reports partitions of consumer groups that an error ended and that have made no progress since. Their consumers do
-- not retry them.
CREATE FUNCTION taskq_internal.health_of_partitions() RETURNS SETOF taskq_internal.finding LANGUAGE sql AS $$
    SELECT f.*
    FROM (SELECT h.*, p.name, clock_timestamp() - h.failed AS age
          FROM taskq_internal.consumer_partition h JOIN taskq_internal.topic p USING (topic_id)
          WHERE h.failed IS NOT NULL ORDER BY h.failed LIMIT 5) h
    CROSS JOIN LATERAL taskq_internal.finding(
        'warning',
        format('an error ended partition %s of topic %L in group %L %s ago; taskq.partition_states() shows the error',
               h.partition, h.name, h.group_name, taskq.format_duration(h.age)),
        extract(epoch FROM h.age)::bigint, format('SELECT * FROM taskq.partition_states(%L)', h.name), h.name) f
$$;

-- Reports the oldest transactions that keep vacuum from removing dead rows, and the open pushes among them, which keep
-- readers from the log of their topics (taskq.log_blockers returns those of one topic).
CREATE FUNCTION taskq_internal.health_of_transactions() RETURNS SETOF taskq_internal.finding LANGUAGE sql AS $$
    SELECT f.*
    FROM (SELECT h.*, clock_timestamp() - h.since AS open,
                 ARRAY(SELECT p.name FROM taskq_internal.topic p WHERE (p.topic_id & 1023) = ANY (o.topic_locks)
                       ORDER BY p.topic_id) AS topics
          FROM taskq_internal.oldest_transactions() h LEFT JOIN taskq_internal.push_transactions() o
              ON o.pid = h.pid OR o.pid IS NULL AND o.virtualtransaction = h.virtualtransaction
          ORDER BY h.age DESC LIMIT 5) n
    CROSS JOIN LATERAL taskq_internal.finding(
        CASE WHEN n.since IS NULL THEN taskq_internal.severity(n.age, 100000, 10000000, 500000000)
             ELSE taskq_internal.severity(extract(epoch FROM n.open), 60, 600, 3600) END,
        concat_ws(', ', n.holder || ' keeps vacuum from removing what died since: open for '
                  || coalesce(taskq.format_duration(n.open), 'a time that this role may not see'),
                  n.age || ' transactions ago', n.state,
                  CASE WHEN n.topics <> '{}' THEN format('readers of the log wait for its push to topic %L%s',
                       n.topics[1], ' and ' || nullif(cardinality(n.topics) - 1, 0) || ' others') END),
        coalesce(extract(epoch FROM n.open)::bigint, n.age), n.remedy, n.topics[1], p_pid => n.pid) f
$$;

-- Returns everything that holds back the oldest row version that vacuum may remove from the tables of this database.
CREATE FUNCTION taskq_internal.oldest_transactions()
RETURNS TABLE (holder text, age bigint, since timestamptz, state text, pid int, virtualtransaction text, remedy text)
LANGUAGE sql AS $$
    SELECT format('session %s (application %s)', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed')),
           greatest(age(a.backend_xmin), age(a.backend_xid))::bigint, a.xact_start,
           coalesce(a.state || ' since ' || taskq.format_duration(clock_timestamp() - a.state_change)
                    || coalesce(', its last statement began '
                                || taskq.format_duration(clock_timestamp() - a.query_start) || ' ago', ''),
                    format('GRANT pg_read_all_stats TO %I shows what it does', current_user)),
           a.pid, NULL, format('SELECT pg_terminate_backend(%s)', a.pid)
    FROM pg_stat_activity a
    WHERE coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL AND a.pid <> pg_backend_pid()
      AND (a.datname IS NULL OR a.datname = current_database())
      AND a.usesysid IS NOT NULL  -- of autovacuum it is NULL; the type of a session is not visible to every role
      AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
    UNION ALL
    SELECT format('replication slot %I', s.slot_name), age(s.xmin)::bigint, NULL,
           CASE WHEN s.active THEN 'in use' ELSE 'not in use' END, s.active_pid, NULL,
           format('SELECT pg_drop_replication_slot(%L)', s.slot_name)
    FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
    UNION ALL
    SELECT format('prepared transaction %L', p.gid), age(p.transaction)::bigint, p.prepared,
           'COMMIT PREPARED or ROLLBACK PREPARED ends it', NULL,
           (SELECT l.virtualtransaction FROM pg_locks l
            WHERE l.locktype = 'transactionid' AND l.transactionid = p.transaction LIMIT 1),
           format('ROLLBACK PREPARED %L', p.gid)
    FROM pg_prepared_xacts p WHERE p.database = current_database()
$$;

-- Reports how full the server's queue of notifications is. A listener that stays in a transaction keeps the server from
-- emptying it. PostgreSQL does not show which sessions listen, so the oldest transaction is named.
CREATE FUNCTION taskq_internal.health_of_notifications() RETURNS SETOF taskq_internal.finding LANGUAGE sql AS $$
    SELECT f.*
    FROM (SELECT floor(100 * pg_notification_queue_usage())::bigint AS share) n
    LEFT JOIN LATERAL (
        SELECT a.pid FROM pg_stat_activity a WHERE n.share >= 10 AND a.usesysid IS NOT NULL
            AND a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid()
        ORDER BY a.xact_start LIMIT 1) o ON true
    CROSS JOIN LATERAL taskq_internal.finding(
        taskq_internal.severity(n.share, 10, 25, 50),
        format('%s %% of the server''s queue of notifications is in use', n.share)
        || CASE WHEN n.share < 10 THEN '' ELSE ', because a session that listens stays in a transaction: TaskQ sends'
           ' none from 50 % on, and at 100 % each COMMIT of a NOTIFY fails' END,
        n.share, format('SELECT pg_terminate_backend(%s)', o.pid), p_pid => o.pid) f
$$;

-- Reports topics with tasks that taskq.maintain should have removed a while ago, with the reason: no program calls it,
-- a consumer group has not handled the tasks, or there are too many. Reads a hundred topics with a retention, and the
-- next hundred tasks of each. If there are none, reports a lease that no program would end if its owner died. For a
-- lease that has lapsed, health_of_leases does.
CREATE FUNCTION taskq_internal.health_of_upkeep(p_patience interval) RETURNS SETOF taskq_internal.finding
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_late   interval := p_patience + interval '5 minutes';
    v_idle   interval := (SELECT v_now - taskq_internal.clamp_moment(u.called) FROM taskq_internal.upkeep u);
    v_known  interval := (SELECT v_now - taskq_internal.clamp_moment(coalesce(u.called, u.due))  -- since the installation
                          FROM taskq_internal.upkeep u);
    v_silent text := format('no program has called taskq.maintain() %s',
                            coalesce('for ' || taskq.format_duration(v_idle), 'so far'));
BEGIN
    RETURN QUERY
    SELECT f.*
    FROM (SELECT p.*, w.position
          FROM (SELECT * FROM taskq_internal.topic t WHERE t.keep_succeeded IS NOT NULL OR t.keep_failed IS NOT NULL
                ORDER BY t.topic_id LIMIT 100) p
          LEFT JOIN taskq_internal.retention_walk w ON w.topic_id = p.topic_id
          WHERE EXISTS (
              SELECT FROM (SELECT * FROM taskq_internal.ended e
                           WHERE e.topic_id = p.topic_id AND e.sequence > coalesce(w.position, 0)
                           ORDER BY e.sequence LIMIT 100) e
              WHERE e.completed <= taskq_internal.keeps_until(
                  e.state, e.descent, v_now - v_late - 1.1 * p.keep_succeeded, v_now - v_late - 1.1 * p.keep_failed))
          ORDER BY p.topic_id LIMIT 5) p
    CROSS JOIN LATERAL taskq_internal.slowest_group(p.topic_id) g
    CROSS JOIN LATERAL (SELECT v_idle < p_patience IS TRUE AS runs, g.handled <= p.position IS TRUE AS behind) c
    CROSS JOIN LATERAL taskq_internal.finding(
        'warning',
        format('topic %L has tasks that are older than its policy keeps them: ', p.name)
        || CASE WHEN NOT c.runs THEN v_silent || ', as a worker, a drain, a waiting gate or "taskq maintain" does'
                WHEN NOT c.behind THEN 'taskq.maintain() removes them, but there are many'
                ELSE format('consumer group %L has handled the log up to sequence %s, and tasks that it has not handled'
                            ' stay. If the group is out of use, forget_group() removes it',
                            g.group_name, g.handled) END,
        extract(epoch FROM v_idle)::bigint,
        CASE WHEN c.runs AND c.behind THEN format('SELECT taskq.forget_group(%L, %L)', g.group_name, p.name)
             ELSE 'taskq maintain' END, p.name) f;
    IF FOUND OR coalesce(v_known <= v_late, true) THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT f.*
    FROM (SELECT o.name FROM taskq_internal.owner o WHERE o.fence IS NOT NULL ORDER BY o.fence LIMIT 1) o
    CROSS JOIN LATERAL taskq_internal.finding(
        'notice', v_silent || format(
            ': if owner %L dies, its tasks stay with it until a program calls taskq.maintain() or taskq.expire(). A'
            ' worker, a drain, a waiting gate, or "taskq maintain" every minute does', o.name),
        extract(epoch FROM v_idle)::bigint, 'taskq maintain', p_owner => o.name) f
    WHERE NOT EXISTS (SELECT FROM taskq_internal.owner o
                      WHERE o.fence IS NOT NULL AND o.lease_until < v_now - p_patience);
END $$;

-- Reports a topic that has ended tasks and keeps those that have succeeded forever.
CREATE FUNCTION taskq_internal.health_of_retention() RETURNS SETOF taskq_internal.finding
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT f.*
    FROM (SELECT p.name, p.topics
          FROM (SELECT t.*, count(*) OVER () AS topics FROM taskq_internal.topic t WHERE t.keep_succeeded IS NULL
                ORDER BY t.name LIMIT 1000) p
          -- One step in the index of each topic: the planner would turn an EXISTS into a join of all ended tasks.
          WHERE (SELECT e.sequence FROM taskq_internal.ended e WHERE e.topic_id = p.topic_id
                 ORDER BY e.sequence LIMIT 1) IS NOT NULL
          ORDER BY p.name LIMIT 1) p
    CROSS JOIN LATERAL taskq_internal.finding(
        'notice', format('%s of %s topics keep tasks that have succeeded forever, as they have no keep_succeeded, for'
                         ' example %L', p.topics, (SELECT count(*) FROM taskq_internal.topic), p.name),
        p.topics, 'taskq topics alter --keep-succeeded 30d ' || taskq_internal.shell_word(p.name), p.name) f;
END $$;

-- Reports the stages of jobs that died.
CREATE FUNCTION taskq_internal.health_of_stages() RETURNS SETOF taskq_internal.finding
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT f.*
    FROM (SELECT count(*) AS count
          FROM (SELECT FROM taskq_internal.stage s
                WHERE s.fence IS NOT NULL AND NOT EXISTS (SELECT FROM taskq_internal.owner o WHERE o.fence = s.fence)
                  AND EXISTS (SELECT FROM taskq.staged d WHERE d.stage = s.stage)
                LIMIT 1000) s) n
    CROSS JOIN LATERAL taskq_internal.finding(
        taskq_internal.severity(n.count, 1, 1000, 'Infinity'),
        format('%s stages are left of jobs whose owner is gone; taskq.prune_stages() removes them', n.count), n.count,
        'SELECT taskq.prune_stages()') f
    WHERE n.count > 0;
END $$;

-- Returns the topics of tasks that owners with a running lease hold. It reads up to a thousand owners, and the first
-- and the last hundred tasks of each.
CREATE FUNCTION taskq_internal.served_topics() RETURNS int[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN ARRAY(
        SELECT DISTINCT h.topic_id
        FROM (SELECT o.owner_id FROM taskq_internal.owner o WHERE o.fence IS NOT NULL
              AND o.lease_until >= clock_timestamp() LIMIT 1000) w
        CROSS JOIN LATERAL (
            (SELECT l.topic_id FROM taskq_internal.live l WHERE l.holder = w.owner_id ORDER BY l.sequence LIMIT 100)
            UNION ALL
            (SELECT l.topic_id FROM taskq_internal.live l WHERE l.holder = w.owner_id ORDER BY l.sequence DESC
             LIMIT 100)) h);
END $$;
