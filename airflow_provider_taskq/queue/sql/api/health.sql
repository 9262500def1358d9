-- Health findings: sentences about what slows or threatens the queue. Every read is bounded, so a call takes
-- milliseconds on any queue. The caller needs only rights on the schema. If its role cannot see something, a finding
-- says so.

CREATE FUNCTION taskq.health(p_patience interval DEFAULT '5 minutes')
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text,
               remedy text)
LANGUAGE sql AS $$
    SELECT f.severity, f.subject, f.detail, f.value, f.pid, f.topic, f.sequence, f.owner,
        CASE WHEN f.severity <> 'fine' THEN f.remedy END
    FROM (
        SELECT s.severity, s.subject, s.detail, s.value, s.pid, NULL::text, NULL::bigint, NULL::text, s.remedy FROM (
        SELECT * FROM taskq_internal.health_of_vacuum()
        UNION ALL SELECT * FROM taskq_internal.health_of_horizon()
        UNION ALL SELECT * FROM taskq_internal.health_of_waits()
        UNION ALL SELECT * FROM taskq_internal.health_of_numbers()
        UNION ALL SELECT * FROM taskq_internal.health_of_indexes()
        UNION ALL SELECT * FROM taskq_internal.health_of_leftovers()
        UNION ALL SELECT * FROM taskq_internal.health_of_connections()
        UNION ALL SELECT * FROM taskq_internal.health_of_notifications()
        ) s
        UNION ALL SELECT * FROM taskq_internal.health_of_leases(taskq_internal.clamp_age(p_patience))
        UNION ALL SELECT * FROM taskq_internal.health_of_topics(taskq_internal.clamp_age(p_patience))
        UNION ALL SELECT * FROM taskq_internal.health_of_dependencies()
        UNION ALL SELECT * FROM taskq_internal.health_of_failures()
        UNION ALL SELECT * FROM taskq_internal.health_of_logs()
        UNION ALL SELECT * FROM taskq_internal.health_of_partitions()
        UNION ALL SELECT * FROM taskq_internal.health_of_moves()
        UNION ALL SELECT * FROM taskq_internal.health_of_upkeep(taskq_internal.clamp_age(p_patience))
        UNION ALL SELECT * FROM taskq_internal.health_of_retention()
    ) f (severity, subject, detail, value, pid, topic, sequence, owner, remedy)
    ORDER BY array_position(ARRAY['critical', 'warning', 'notice', 'fine'], f.severity), f.subject,
        f.value DESC NULLS LAST
$$;
COMMENT ON FUNCTION taskq.health IS
'Returns health findings, the worst first. The severity is critical, warning, notice or fine. Each subject has at least
one row. The unit of value is seconds, rows, bytes or transactions, as detail says. The columns pid, topic, sequence and
owner name the object of the finding. The column remedy has a command of taskq or an SQL statement that ends the
condition or shows its cause, or NULL. A due task or a lapsed lease may wait for p_patience before a finding reports it.
The function reads bounded samples, so it takes milliseconds on any queue.';

CREATE FUNCTION taskq.format_duration(p_duration interval) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE WHEN s < 120 THEN s || ' s'
                WHEN s < 7200 THEN s / 60 || ' min'
                WHEN s < 172800 THEN s / 3600 || ' h' || CASE WHEN s % 3600 >= 60 THEN ' ' || s % 3600 / 60 || ' min'
                    ELSE '' END
                ELSE s / 86400 || ' days' END
    FROM (SELECT floor(greatest(0, extract(epoch FROM p_duration)))::bigint AS s) n
$$;
COMMENT ON FUNCTION taskq.format_duration IS
'Returns a duration as text with at most two units, for example 3 h 20 min.';

CREATE FUNCTION taskq.oldest_due(p_topic_id int, OUT sequence bigint, OUT since timestamptz)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_first record;
BEGIN
    FOR v_first IN
        SELECT d.* FROM taskq_internal.newest_fronts(p_topic_id) f
        CROSS JOIN LATERAL taskq_internal.first_ready(f) d WHERE d.sequence IS NOT NULL
    LOOP
        IF v_first.available_at <= clock_timestamp() AND (since IS NULL OR v_first.available_at < since) THEN
            since := taskq_internal.clamp_moment(v_first.available_at);
            sequence := v_first.sequence;
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION taskq.oldest_due IS
'Returns the task of a topic that has been due the longest, of any priority, and the time since when it is due. Returns
NULLs if no task is due.';

CREATE FUNCTION taskq.explain_turn(p_topic_id int, p_sequence bigint) RETURNS text
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_identifier text := (SELECT l.identifier FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
                          AND l.sequence = p_sequence);
    v_other      record;
BEGIN
    SELECT l.sequence, o.name, o.lease_until INTO v_other FROM taskq_internal.live l LEFT JOIN taskq_internal.owner o
        ON o.owner_id = l.holder
    WHERE l.topic_id = p_topic_id AND l.sequence <> p_sequence AND l.sequence = (
        SELECT t.sequence
        FROM (SELECT) one
        LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, v_identifier, true) i ON true
        CROSS JOIN LATERAL taskq_internal.turn_of_identifier(p_topic_id, v_identifier, i.claimed_at) t);
    IF FOUND THEN
        RETURN format('one at a time per identifier, it comes after sequence %s, %s', v_other.sequence,
            CASE WHEN v_other.name IS NULL THEN 'which is to be tried again'
                 WHEN v_other.lease_until < clock_timestamp()
                     THEN format('held by %L, whose lease has lapsed', v_other.name)
                 ELSE format('held by %L', v_other.name) END);
    END IF;
    SELECT e.sequence, taskq.state_name(e.state) AS state INTO v_other FROM taskq_internal.ended e
    WHERE e.identifier = v_identifier AND e.topic_id = p_topic_id AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED)
        ORDER BY e.state, e.sequence LIMIT 1;
    IF FOUND THEN
        RETURN format('under the conditions that suspend an identifier, sequence %s of its identifier blocks it,'
                      ' which is %s', v_other.sequence, v_other.state);
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION taskq.explain_turn IS
'Explains in a sentence why a poll that takes one task per identifier at a time does not return a READY task. Returns
NULL if no other task of the identifier blocks the task.';

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

-- Reports the dead rows of each table that vacuum has not removed yet, compared with the number at which autovacuum
-- begins.
CREATE FUNCTION taskq_internal.health_of_vacuum()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, remedy text) LANGUAGE plpgsql AS $$
DECLARE
    v_off text := (SELECT string_agg(name || ' is off', ' and ') FROM pg_settings
                   WHERE name IN ('autovacuum', 'track_counts') AND setting = 'off');
BEGIN
    IF v_off IS NOT NULL THEN
        RETURN QUERY SELECT 'critical', 'autovacuum',
            format('%s in this server: dead rows stay, and every poll walks over them', v_off), NULL::bigint, NULL::int,
            (SELECT string_agg(format('ALTER SYSTEM SET %s = on; ', name), '' ORDER BY name) FROM pg_settings
             WHERE name IN ('autovacuum', 'track_counts') AND setting = 'off') || 'SELECT pg_reload_conf()';
    END IF;
    RETURN QUERY
    SELECT w.severity, 'dead rows',
           format('table %s has %s dead rows, of %s in all; autovacuum %s, and the table was %s', w.name, w.dead,
                  w.dead + w.alive,
                  CASE WHEN w.disabled THEN 'is switched off for it' ELSE 'begins at ' || round(w.bound) END,
                  coalesce('vacuumed last ' || taskq.format_duration(clock_timestamp() - w.vacuumed) || ' ago',
                           'never vacuumed')),
           w.dead, NULL::int,
           CASE WHEN w.disabled THEN format('ALTER TABLE %s RESET (autovacuum_enabled); ', w.name) ELSE '' END
           || format('VACUUM %s', w.name)
    FROM (SELECT t.*, row_number() OVER (ORDER BY t.dead >= 1000 DESC, t.dead / t.bound DESC) AS place,
                 CASE WHEN t.dead < 1000 THEN 'fine' WHEN t.disabled THEN 'critical'
                      -- A small table may have a few thousand dead rows.
                      ELSE taskq_internal.severity(t.dead / greatest(t.bound, 1000), 2, 10, 100) END AS severity
          FROM taskq_internal.vacuum_state() t) w
    WHERE w.place = 1 OR w.place <= 5 AND w.severity <> 'fine';
END $$;

-- Returns the tables with their dead and live rows, and with the number of dead rows at which autovacuum begins.
CREATE FUNCTION taskq_internal.vacuum_state()
RETURNS TABLE (name text, dead bigint, alive bigint, bound numeric, disabled boolean, vacuumed timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT c.oid::regclass::text, s.n_dead_tup, s.n_live_tup,
           coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold')::numeric)
           + coalesce(o.scale, current_setting('autovacuum_vacuum_scale_factor')::numeric) * greatest(c.reltuples,
                   0)::numeric + 1,
           coalesce(o.disabled, false), greatest(s.last_autovacuum, s.last_vacuum)
    FROM pg_class c
    JOIN pg_stat_user_tables s ON s.relid = c.oid
    LEFT JOIN LATERAL (
        SELECT max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold')::numeric AS threshold,
               max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor')::numeric AS scale,
               bool_or(NOT option_value::boolean) FILTER (WHERE option_name = 'autovacuum_enabled') AS disabled
        FROM pg_options_to_table(c.reloptions)) o ON true
    WHERE c.relnamespace IN ('taskq'::regnamespace, 'taskq_internal'::regnamespace) AND c.relkind = 'r'
$$;

-- Reports what keeps vacuum from removing dead rows: open transactions, standbys, replication slots, prepared
-- transactions.
CREATE FUNCTION taskq_internal.health_of_horizon()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, remedy text) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT CASE WHEN h.since IS NULL THEN taskq_internal.severity(h.age, 100000, 10000000, 500000000)
                ELSE taskq_internal.severity(extract(epoch FROM clock_timestamp() - h.since), 60, 600, 3600) END,
           'oldest transaction',
           h.holder || ' keeps vacuum from removing what died since: '
           || coalesce('open for ' || taskq.format_duration(clock_timestamp() - h.since) || ', ', '') || h.age
               || ' transactions ago'
           || coalesce(', ' || h.state, ''),
           coalesce(extract(epoch FROM clock_timestamp() - h.since)::bigint, h.age), h.pid, h.remedy
    FROM taskq_internal.horizon() h ORDER BY h.age DESC LIMIT 3;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'fine', 'oldest transaction', 'nothing keeps vacuum from removing dead rows', 0::bigint,
            NULL::int, NULL::text;
    END IF;
    IF NOT pg_has_role('pg_read_all_stats', 'USAGE') THEN
        RETURN QUERY SELECT 'notice', 'what this role sees',
            format('role %I sees other roles'' sessions by pid, application and age'
            ' only, not since when they are open nor what they do: GRANT pg_read_all_stats TO %1$I', current_user),
                NULL::bigint, NULL::int, format('GRANT pg_read_all_stats TO %I', current_user);
    END IF;
END $$;

-- Returns everything that holds back the oldest row version that vacuum may remove from the tables of this database.
CREATE FUNCTION taskq_internal.horizon()
RETURNS TABLE (holder text, age bigint, since timestamptz, state text, pid int, remedy text) LANGUAGE sql AS $$
    SELECT CASE WHEN a.backend_type = 'walsender' THEN 'a standby with hot_standby_feedback' ELSE 'a session' END
           || format(' (pid %s, application %s)', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed')),
           greatest(age(a.backend_xmin), age(a.backend_xid))::bigint, a.xact_start,
           a.state || ' since ' || taskq.format_duration(clock_timestamp() - a.state_change)
           || coalesce(', its last statement began ' || taskq.format_duration(clock_timestamp() - a.query_start)
                       || ' ago', ''), a.pid,
           CASE WHEN a.backend_type = 'walsender'
               THEN 'SELECT pid, query FROM pg_stat_activity ORDER BY xact_start  -- on the standby: ends the oldest'
               ELSE format('SELECT pg_terminate_backend(%s)', a.pid) END
    FROM pg_stat_activity a
    WHERE coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL AND a.pid <> pg_backend_pid()
      AND (a.datname IS NULL OR a.datname = current_database())
      -- leaves out autovacuum's launcher and workers, also for roles that cannot see the type of a session
      AND a.usesysid IS NOT NULL
      AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
    UNION ALL
    SELECT format('replication slot %I', s.slot_name), age(s.xmin)::bigint, NULL,
           CASE WHEN s.active THEN 'in use' ELSE 'not in use: pg_drop_replication_slot() if its client is gone' END,
               s.active_pid, format('SELECT pg_drop_replication_slot(%L)', s.slot_name)
    FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
    UNION ALL
    SELECT format('prepared transaction %L', p.gid), age(p.transaction)::bigint, p.prepared,
        'COMMIT PREPARED or ROLLBACK PREPARED ends it', NULL, format('ROLLBACK PREPARED %L', p.gid)
    FROM pg_prepared_xacts p WHERE p.database = current_database()
$$;

-- Reports sessions that have waited for a lock of the queue for a second or more, with the pid of the session that
-- blocks each.
CREATE FUNCTION taskq_internal.health_of_waits()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, remedy text) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT taskq_internal.severity(w.seconds, 1, 10, 60), 'waits for locks',
           format('session %s has waited for %s s for %s, which session %s holds', w.pid, w.seconds, w.what, w.blocker),
               w.seconds, w.blocker, format('SELECT pg_terminate_backend(%s)', w.blocker)
    FROM (SELECT l.pid, extract(epoch FROM clock_timestamp() - s.since)::bigint AS seconds, (pg_blocking_pids(l.pid))[1]
          AS blocker,
                 CASE l.locktype WHEN 'relation' THEN 'the table ' || l.relation::regclass
                                 WHEN 'advisory' THEN 'a topic' ELSE 'a row' END AS what
          FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
          -- A session waits for the lock of a topic in steps of 2 seconds (taskq_internal.await_topic_lock), all of
          -- them in one statement.
          CROSS JOIN LATERAL (SELECT CASE l.locktype WHEN 'advisory' THEN least(a.query_start, l.waitstart)
                              ELSE l.waitstart END AS since) s
          WHERE NOT l.granted AND s.since < clock_timestamp() - interval '1 second'
            AND (l.locktype = 'advisory' AND l.classid = taskq_internal.topic_lock_class()::oid OR EXISTS (
                SELECT FROM pg_locks o JOIN pg_class c ON c.oid = o.relation
                WHERE o.pid = l.pid AND o.database = (SELECT d.oid FROM pg_database d
                        WHERE d.datname = current_database())
                  AND c.relnamespace IN ('taskq'::regnamespace, 'taskq_internal'::regnamespace)))
          ORDER BY s.since LIMIT 5) w;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'fine', 'waits for locks', 'no session has waited for a second for a lock of the queue',
            0::bigint, NULL::int, NULL::text;
    END IF;
END $$;

-- Reports numbers that run out: transactions and multixacts until they are frozen, and the values of sequences.
CREATE FUNCTION taskq_internal.health_of_numbers()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, remedy text) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT taskq_internal.severity(n.age, greatest(300000000, 1.5 * n.bound), 1000000000, 1600000000),
        'numbers that run out',
           format('the oldest %s of this database is %s old; autovacuum freezes from %s on, and the server stops'
                  ' taking writes at 2100000000',
                  n.what, n.age, n.bound), n.age, NULL::int, 'VACUUM (FREEZE)'
    FROM (SELECT 'transaction' AS what, age(d.datfrozenxid)::bigint AS age,
          current_setting('autovacuum_freeze_max_age')::bigint AS bound
          FROM pg_database d WHERE d.datname = current_database()
          UNION ALL
          SELECT 'multixact', mxid_age(d.datminmxid)::bigint,
              current_setting('autovacuum_multixact_freeze_max_age')::bigint
          FROM pg_database d WHERE d.datname = current_database()) n;
    RETURN QUERY
    SELECT taskq_internal.severity(s.last_value::numeric / s.max_value, 0.5, 0.8, 0.95), 'numbers that run out',
           format('sequence %I.%I is at %s of %s', s.schemaname, s.sequencename, s.last_value, s.max_value),
               s.last_value, NULL::int, NULL::text
    FROM pg_sequences s WHERE s.schemaname = 'taskq_internal' AND s.last_value IS NOT NULL
    ORDER BY s.last_value::numeric / s.max_value DESC LIMIT 1;
END $$;

-- Reports the number of sessions, compared with the number that the server accepts, or this database if its limit is
-- tighter.
CREATE FUNCTION taskq_internal.health_of_connections()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, remedy text) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT taskq_internal.severity(n.used::numeric / greatest(n.most, 1), 0.7, 0.8, 0.95), 'connections',
           format('%s sessions are connected to %s, which accepts %s', n.used, n.place, n.most), n.used, NULL::int,
           'SELECT datname, usename, application_name, count(*) FROM pg_stat_activity GROUP BY 1, 2, 3 ORDER BY 4 DESC'
    FROM (SELECT 'this server' AS place, sum(s.numbackends)::bigint AS used,
                 (SELECT sum(CASE g.name WHEN 'max_connections' THEN 1 ELSE -1 END * g.setting::bigint)::bigint
                  FROM pg_settings g WHERE g.name IN (
                      'max_connections', 'superuser_reserved_connections', 'reserved_connections')) AS most
          FROM pg_stat_database s
          UNION ALL
          SELECT 'this database', s.numbackends, d.datconnlimit
          FROM pg_database d JOIN pg_stat_database s ON s.datid = d.oid
          WHERE d.datname = current_database() AND d.datconnlimit >= 0) n
    ORDER BY n.used::numeric / greatest(n.most, 1) DESC LIMIT 1;
END $$;

-- Reports how full the server's queue of notifications is. A listener that stays in a transaction keeps the server from
-- emptying it. PostgreSQL does not show which sessions listen, so the oldest transaction is named.
CREATE FUNCTION taskq_internal.health_of_notifications()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, remedy text) LANGUAGE sql AS $$
    SELECT taskq_internal.severity(n.share, 10, 25, 50), 'notifications',
           format('%s %% of the server''s queue of notifications is in use', n.share)
           || CASE WHEN n.share < 10 THEN '' ELSE ', because a session that listens stays in a transaction: TaskQ sends'
              ' none from 50 % on, and at 100 % each COMMIT of a NOTIFY fails' END,
           n.share, o.pid, format('SELECT pg_terminate_backend(%s)', o.pid)
    FROM (SELECT floor(100 * pg_notification_queue_usage())::bigint AS share) n
    LEFT JOIN LATERAL (
        SELECT a.pid FROM pg_stat_activity a WHERE n.share >= 10 AND a.usesysid IS NOT NULL
            AND a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid()
        ORDER BY a.xact_start LIMIT 1) o ON true
$$;

-- Reports indexes of taskq_internal.live that are much larger than their entries need, by the pages that the last
-- vacuum counted.
CREATE FUNCTION taskq_internal.health_of_indexes()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, remedy text) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT 'notice', 'bloated indexes',
           format('index taskq_internal.%I has %s for %s entries, some %s each: REINDEX INDEX CONCURRENTLY'
                  ' taskq_internal.%1$I makes it small again',
                  b.name, pg_size_pretty(b.bytes), b.entries, pg_size_pretty(b.bytes / greatest(b.entries, 1))),
           b.bytes, NULL::int, format('REINDEX INDEX CONCURRENTLY taskq_internal.%I', b.name)
    FROM (SELECT i.relname AS name, i.relpages::bigint * current_setting('block_size')::bigint AS bytes,
          greatest(i.reltuples, 0)::bigint AS entries
          FROM pg_inherits h JOIN pg_index x ON x.indrelid = h.inhrelid JOIN pg_class i ON i.oid = x.indexrelid
          WHERE h.inhparent = 'taskq_internal.live'::regclass) b
    WHERE b.bytes >= 67108864 AND b.bytes > 8 * b.entries * 150
    ORDER BY b.bytes DESC LIMIT 5;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'fine', 'bloated indexes',
            'no index of taskq_internal.live is much larger than its entries need', NULL::bigint, NULL::int, NULL::text;
    END IF;
END $$;

-- Reports leases that have lapsed and that no call of expire() or maintain() has ended since.
CREATE FUNCTION taskq_internal.health_of_leases(p_patience interval)
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text,
               remedy text)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_count  bigint;
    v_oldest interval;
    v_owner  text;
    v_held   bigint;
BEGIN
    SELECT count(*), max(clock_timestamp() - taskq_internal.clamp_moment(o.lease_until)),
        (array_agg(o.name ORDER BY o.lease_until))[1], sum(o.held)
    INTO v_count, v_oldest, v_owner, v_held
    FROM (SELECT n.*, (SELECT count(*) FROM (SELECT FROM taskq_internal.live l WHERE l.holder = n.owner_id LIMIT 100) h)
          AS held
          FROM taskq_internal.owner n WHERE n.fence IS NOT NULL AND n.lease_until < clock_timestamp() LIMIT 1000) o;
    IF v_count = 0 THEN
        RETURN QUERY SELECT 'fine', 'lapsed leases', 'no lease has lapsed', 0::bigint, NULL::int, NULL::text,
            NULL::bigint, NULL::text, NULL::text;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT CASE WHEN v_oldest < p_patience THEN 'fine' WHEN v_held = 0 THEN 'notice' WHEN v_oldest < 12 * p_patience
        THEN 'warning'
                ELSE 'critical' END,
           'lapsed leases',
           format('%s leases have lapsed, the longest %s ago (owner %L); some %s tasks wait under them for'
                  ' taskq.maintain() to give them back: a worker, a drain, a waiting gate or "taskq maintain" calls it',
                  CASE WHEN v_count >= 1000 THEN '1000 or more' ELSE v_count::text END, taskq.format_duration(v_oldest),
                  v_owner, v_held),
           v_count, NULL::int, NULL::text, NULL::bigint, v_owner, 'taskq maintain';
END $$;

-- Reports the topics whose due tasks have waited longer than p_patience, with the reason: no worker claims the tasks,
-- other tasks of their identifiers block them, or more tasks arrive than the workers can handle. It also reports paused
-- topics.
--
-- A poll leaves no trace, because a trace would be a write. So a topic counts as served if a running lease holds some
-- of its tasks, or if one of its newest tasks has ended within p_patience.
CREATE FUNCTION taskq_internal.health_of_topics(p_patience interval)
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text,
               remedy text)
LANGUAGE plpgsql AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_held  int[] := taskq_internal.served_topics();
    v_topic record;
    v_count int := 0;
    v_why   text;
BEGIN
    FOR v_topic IN
        SELECT p.topic_id, p.name, p.paused, d.sequence, v_now - d.since AS age
        FROM taskq_internal.topic p CROSS JOIN LATERAL taskq.oldest_due(p.topic_id) d
        WHERE d.since < v_now - p_patience ORDER BY d.since
    LOOP
        v_count := v_count + 1;
        CONTINUE WHEN v_count > 10;
        subject := 'waiting tasks';
        value := extract(epoch FROM v_topic.age);
        topic := v_topic.name;
        sequence := v_topic.sequence;
        v_why := taskq.explain_turn(v_topic.topic_id, v_topic.sequence);
        remedy := CASE WHEN v_topic.paused THEN format('taskq resume %s', taskq_internal.shell_word(v_topic.name))
                       WHEN v_why IS NOT NULL
                           THEN format('taskq why %s %s', taskq_internal.shell_word(v_topic.name), v_topic.sequence)
                       ELSE format('taskq worker MODULE:FUNCTION --topic %s', taskq_internal.shell_word(v_topic.name))
                       END;
        IF v_topic.paused THEN
            severity := 'notice';
            detail := 'it is paused';
        ELSIF v_topic.topic_id = ANY (v_held) OR taskq_internal.has_ended_since(v_topic.topic_id, v_now - p_patience)
            THEN
            severity := CASE WHEN v_topic.age < 12 * p_patience THEN 'notice' ELSE 'warning' END;
            detail := coalesce(v_why, 'workers poll it, but tasks arrive faster than they end,'
                               ' or tasks with a higher priority pass it');
        ELSE
            severity := CASE WHEN v_topic.age < 12 * p_patience THEN 'warning' ELSE 'critical' END;
            detail := format(
                'no worker seems to poll it: no running lease holds any of its tasks, and none of its'
                ' newest has ended for %s%s', taskq.format_duration(p_patience), coalesce('; ' || v_why, ''));
        END IF;
        detail := format('topic %L, sequence %s has been due for %s: %s', v_topic.name, v_topic.sequence,
                         taskq.format_duration(v_topic.age), detail);
        RETURN NEXT;
    END LOOP;
    RETURN QUERY
    SELECT CASE WHEN v_count = 0 THEN 'fine' ELSE 'notice' END, 'waiting tasks',
           format('%s topics have tasks that have been due for longer than %s', v_count,
                  taskq.format_duration(p_patience)), v_count::bigint, NULL::int, NULL::text, NULL::bigint, NULL::text,
           'taskq topics';
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

-- Returns whether one of the newest hundred ended tasks of a topic has ended since p_since.
CREATE FUNCTION taskq_internal.has_ended_since(p_topic_id int, p_since timestamptz) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM (SELECT e.completed FROM taskq_internal.ended e WHERE e.topic_id = p_topic_id
                     ORDER BY e.sequence DESC LIMIT 100) n
        WHERE n.completed >= p_since);
END $$;

-- Reports tasks that depend on a task that has ended without success. They wait until an operator acts. Reads the first
-- two thousand waiting dependencies.
CREATE FUNCTION taskq_internal.health_of_dependencies()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text,
               remedy text)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_count   bigint;
    v_example record;
BEGIN
    SELECT count(*), (array_agg(d.topic_id))[1] AS topic_id, (array_agg(d.sequence))[1] AS sequence,
           (array_agg(d.on_topic_id))[1] AS on_topic_id, (array_agg(e.sequence))[1] AS on_sequence,
               (array_agg(e.state))[1] AS state
    INTO v_example
    FROM (SELECT * FROM taskq_internal.dependency n WHERE n.waiting LIMIT 2000) d
    CROSS JOIN LATERAL (SELECT t.sequence FROM taskq_internal.task t WHERE t.identifier = d.on_identifier
                        AND t.topic_id = d.on_topic_id
                        ORDER BY t.sequence DESC LIMIT 1) n
    JOIN taskq_internal.ended e ON e.topic_id = d.on_topic_id AND e.sequence = n.sequence AND e.state <> :SUCCEEDED;
    v_count := v_example.count;
    IF v_count = 0 THEN
        RETURN QUERY SELECT 'fine', 'dependencies', 'no task waits for one that has ended otherwise than by success',
            0::bigint, NULL::int, NULL::text, NULL::bigint, NULL::text, NULL::text;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT 'warning', 'dependencies',
           format('%s dependencies can''t be fulfilled until an operator revives, reassigns or replaces the tasks that'
                  ' have ended: sequence %s of topic %L waits for sequence %s of topic %L, which is %s',
                  v_count, v_example.sequence, a.name, v_example.on_sequence, b.name,
                  taskq.state_name(v_example.state)),
           v_count, NULL::int, a.name, v_example.sequence, NULL::text,
           format('taskq retry %s %s', taskq_internal.shell_word(b.name), v_example.on_sequence)
    FROM taskq_internal.topic a, taskq_internal.topic b WHERE a.topic_id = v_example.topic_id
        AND b.topic_id = v_example.on_topic_id;
END $$;

-- Reports open pushes, which hold back the readers of their topics' logs. taskq.log_blockers returns those of one
-- topic.
CREATE FUNCTION taskq_internal.health_of_logs()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text,
               remedy text)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT coalesce(taskq_internal.severity(extract(epoch FROM clock_timestamp() - h.since), 60, 600, 3600), 'fine'),
        'open pushes',
           format('%s has an open push to %s: readers of these logs wait for its end, %s', h.holder,
                  CASE WHEN h.everywhere THEN 'a topic whose lock another session holds, so to any topic'
                       ELSE format('topic %L', p.name) || CASE WHEN h.topics > 1
                           THEN format(' and %s others', h.topics - 1) ELSE '' END END,
                  coalesce('for ' || taskq.format_duration(clock_timestamp() - h.since) || ' now',
                           'the start is not visible to the owner of the schema')),
           extract(epoch FROM clock_timestamp() - h.since)::bigint, h.pid, p.name, NULL::bigint, NULL::text,
           CASE WHEN h.pid IS NULL THEN format('ROLLBACK PREPARED %L', h.gid)
                ELSE format('SELECT pg_terminate_backend(%s)', h.pid) END
    FROM (SELECT o.pid, x.gid, coalesce(format('session %s (application %s)', o.pid,
            coalesce(nullif(a.application_name, ''), 'unnamed')),
                                 format('prepared transaction %L', x.gid)) AS holder,
                 coalesce(a.xact_start, x.prepared) AS since, cardinality(o.topics) AS topics, o.everywhere,
                 (SELECT min(t.topic_id) FROM unnest(o.topics) AS t (topic_id)) AS topic_id
          FROM taskq_internal.push_transactions() o LEFT JOIN pg_stat_activity a ON a.pid = o.pid
          LEFT JOIN (SELECT k.virtualtransaction, p.* FROM pg_prepared_xacts p
                     JOIN pg_locks k ON k.locktype = 'transactionid' AND k.transactionid = p.transaction) x
              ON o.pid IS NULL AND x.virtualtransaction = o.virtualtransaction) h
    LEFT JOIN taskq_internal.topic p ON p.topic_id = h.topic_id
    WHERE h.since IS NULL OR h.since < clock_timestamp() - interval '1 minute'
    ORDER BY h.since NULLS LAST LIMIT 3;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'fine', 'open pushes', 'no push has been open for a minute', 0::bigint, NULL::int,
            NULL::text, NULL::bigint, NULL::text, NULL::text;
    END IF;
END $$;

-- Reports partitions of consumer groups that an error ended and that have made no progress since. Their consumers do
-- not retry them.
CREATE FUNCTION taskq_internal.health_of_partitions()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text,
               remedy text)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', 'ended partitions',
        format('an error ended partition %s of topic %L in group %L %s ago; taskq.partition_states() shows the error',
               h.partition, p.name, h.group_name, taskq.format_duration(clock_timestamp() - h.failed)),
        extract(epoch FROM clock_timestamp() - h.failed)::bigint, NULL::int, p.name, NULL::bigint, NULL::text,
        format('SELECT * FROM taskq.partition_states(%L)', p.name)
    FROM taskq_internal.consumer_partition h JOIN taskq_internal.topic p USING (topic_id)
    WHERE h.failed IS NOT NULL ORDER BY h.failed LIMIT 5;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'fine', 'ended partitions', 'no error has ended a partition of a consumer group',
            0::bigint, NULL::int, NULL::text, NULL::bigint, NULL::text, NULL::text;
    END IF;
END $$;

-- Reports unfinished moves of topics to own tables, and tables that dropped topics have left.
CREATE FUNCTION taskq_internal.health_of_moves()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text,
               remedy text)
LANGUAGE plpgsql AS $$
DECLARE
    v_vacant bigint := (SELECT count(*) FROM taskq_internal.dropped_topics_with_tables());
BEGIN
    RETURN QUERY
    SELECT CASE WHEN n.moving THEN taskq_internal.severity(n.seconds, 60, 600, 'Infinity') ELSE 'critical' END,
        'unfinished moves',
           format('the move of topic %L to its own tables, by session %s, started %s ago, ', n.name, n.pid,
                  taskq.format_duration(make_interval(secs => n.seconds)))
           || CASE WHEN n.moving THEN 'is under way: the topic is paused, and pushes to it wait'
                   ELSE format('was interrupted after %s: the topic is paused%s. "taskq topics partition own %s" or'
                               ' own_partition(%L) finishes the move, "taskq topics partition shared %3$s" or'
                               ' shared_partition(%4$L) undoes it', n.step,
                               CASE n.step WHEN 'the shared tables were closed' THEN ', and refuses pushes' ELSE '' END,
                               CASE WHEN n.name ~ '^[A-Za-z0-9._/-]+$' THEN n.name ELSE quote_literal(n.name) END,
                               n.name) END,
           n.seconds, CASE WHEN n.moving THEN n.pid END, n.name, NULL::bigint, NULL::text,
           format('taskq topics partition own %s', taskq_internal.shell_word(n.name))
    FROM (SELECT p.name, m.pid, m.step, taskq_internal.is_move_connected(m) AS moving,
          extract(epoch FROM clock_timestamp() - m.since)::bigint AS seconds
          FROM taskq_internal.topic_move m JOIN taskq_internal.topic p USING (topic_id)) n
    ORDER BY n.seconds DESC LIMIT 5;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'fine', 'unfinished moves', 'no topic is on its way to its own tables', 0::bigint,
            NULL::int, NULL::text, NULL::bigint, NULL::text, NULL::text;
    END IF;
    RETURN QUERY SELECT taskq_internal.severity(v_vacant, 1, 100, 'Infinity'), 'left behind',
        format('%s dropped topics have left empty tables; "taskq topics partition clean" or drop_vacant_partitions()'
               ' drops these',
               v_vacant),
        v_vacant, NULL::int, NULL::text, NULL::bigint, NULL::text, 'taskq topics partition clean';
END $$;

-- Reports topics with tasks that taskq.maintain should have removed a while ago, with the reason: no program calls it,
-- a consumer group has not handled the tasks, or there are too many. Reads a hundred topics with a retention, and the
-- next hundred tasks of each. If there are none, reports a lease that no program would end if its owner died. For a
-- lease that has lapsed, health_of_leases does.
CREATE FUNCTION taskq_internal.health_of_upkeep(p_patience interval)
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text,
               remedy text)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_idle  interval := (SELECT v_now - taskq_internal.clamp_moment(u.called) FROM taskq_internal.upkeep u);
    v_late  interval := p_patience + interval '5 minutes';
    v_topic record;
    v_count int := 0;
    v_never boolean;
BEGIN
    subject := 'upkeep';
    value := extract(epoch FROM v_idle);
    FOR v_topic IN
        SELECT p.name, w.position, g.group_name, g.handled
        FROM (SELECT * FROM taskq_internal.topic t WHERE t.keep_succeeded IS NOT NULL OR t.keep_failed IS NOT NULL
              ORDER BY t.topic_id LIMIT 100) p
        LEFT JOIN taskq_internal.retention_walk w ON w.topic_id = p.topic_id
        CROSS JOIN LATERAL taskq_internal.slowest_group(p.topic_id) g
        WHERE EXISTS (
            SELECT FROM (SELECT * FROM taskq_internal.ended e
                         WHERE e.topic_id = p.topic_id AND e.sequence > coalesce(w.position, 0)
                         ORDER BY e.sequence LIMIT 100) e
            WHERE e.completed <= taskq_internal.keeps_until(
                e.state, e.descent, clock_timestamp() - v_late - 1.1 * p.keep_succeeded,
                clock_timestamp() - v_late - 1.1 * p.keep_failed))
        ORDER BY p.topic_id LIMIT 5
    LOOP
        v_count := v_count + 1;
        topic := v_topic.name;
        severity := 'warning';
        remedy := 'taskq maintain';
        detail := format('topic %L has tasks that are older than its policy keeps them: ', topic);
        IF v_idle < p_patience AND v_topic.handled <= v_topic.position THEN
            detail := detail || format(
                'consumer group %L has handled the log up to sequence %s, and tasks that it has not handled stay. If'
                ' the group is out of use, forget_group() removes it', v_topic.group_name, v_topic.handled);
            remedy := format('SELECT taskq.forget_group(%L, %L)', v_topic.group_name, topic);
        ELSIF v_idle < p_patience THEN
            detail := detail || 'taskq.maintain() removes them, but there are many';
        ELSE
            detail := detail || format(
                'no program has called taskq.maintain() %s, as a worker, a drain, a waiting gate or "taskq maintain"'
                ' does', coalesce('for ' || taskq.format_duration(v_idle), 'so far'));
        END IF;
        RETURN NEXT;
    END LOOP;
    IF v_count > 0 THEN
        RETURN;
    END IF;
    v_never := coalesce(v_idle, (SELECT v_now - taskq_internal.clamp_moment(max(m.applied))
                                 FROM taskq_internal.migration m)) > v_late;
    IF v_never AND NOT EXISTS (SELECT FROM taskq_internal.owner o
                               WHERE o.fence IS NOT NULL AND o.lease_until < v_now - p_patience) THEN
        owner := (SELECT o.name FROM taskq_internal.owner o WHERE o.fence IS NOT NULL ORDER BY o.fence LIMIT 1);
    END IF;
    IF owner IS NOT NULL THEN
        severity := 'notice';
        detail := format(
            'no program has called taskq.maintain() %s: if owner %L dies, its tasks stay with it until a program calls'
            ' taskq.maintain() or taskq.expire(). A worker, a drain, a waiting gate, or "taskq maintain" every minute'
            ' does',
            coalesce('for ' || taskq.format_duration(v_idle), 'so far'), owner);
        remedy := 'taskq maintain';
        RETURN NEXT;
    ELSE
        RETURN QUERY SELECT 'fine', 'upkeep',
            'no topic has tasks that are older than its policy keeps them; taskq.maintain() removed tasks last '
            || coalesce(taskq.format_duration(v_idle) || ' ago', 'never'),
            value, NULL::int, NULL::text, NULL::bigint, NULL::text, NULL::text;
    END IF;
END $$;

-- Reports topics that keep tasks that have succeeded forever. This is a notice if such a topic has ended tasks. Reads a
-- thousand of these topics.
CREATE FUNCTION taskq_internal.health_of_retention()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text,
               remedy text)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_total   bigint := (SELECT count(*) FROM taskq_internal.topic);
    v_endless bigint := (SELECT count(*) FROM taskq_internal.topic p WHERE p.keep_succeeded IS NULL);
BEGIN
    topic := (SELECT p.name FROM (SELECT * FROM taskq_internal.topic t WHERE t.keep_succeeded IS NULL
                                  ORDER BY t.name LIMIT 1000) p
              -- One step in the index of each topic: the planner would turn an EXISTS into a join of all ended tasks.
              WHERE (SELECT e.sequence FROM taskq_internal.ended e WHERE e.topic_id = p.topic_id
                     ORDER BY e.sequence LIMIT 1) IS NOT NULL
              ORDER BY p.name LIMIT 1);
    severity := CASE WHEN topic IS NULL THEN 'fine' ELSE 'notice' END;
    subject := 'retention';
    value := (SELECT sum(greatest(c.reltuples, pg_stat_get_live_tuples(c.oid), 0))
              FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid
              WHERE h.inhparent = 'taskq_internal.ended'::regclass);
    detail := format('%s of %s topics keep tasks that have succeeded forever, as they have no keep_succeeded%s%s',
                     v_endless, v_total, ', for example ' || quote_literal(topic),
                     CASE WHEN value > 0 THEN format('; some %s ended tasks are stored', value) END);
    remedy := format('taskq topics alter --keep-succeeded 30d %s', taskq_internal.shell_word(topic));
    RETURN NEXT;
END $$;

-- Reports the stages of jobs that died, and the number of stored owners.
CREATE FUNCTION taskq_internal.health_of_leftovers()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, remedy text) LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    v_stages bigint := (
        WITH RECURSIVE known AS (
            (SELECT s.stage, 1 AS nth FROM taskq.staged s ORDER BY s.stage LIMIT 1)
            UNION ALL
            SELECT (SELECT s.stage FROM taskq.staged s WHERE s.stage > k.stage ORDER BY s.stage LIMIT 1), k.nth + 1
            FROM known k WHERE k.stage IS NOT NULL AND k.nth < 1000)
        SELECT count(*) FROM known k JOIN taskq_internal.stage s ON s.stage = k.stage
        WHERE s.fence IS NOT NULL AND NOT EXISTS (SELECT FROM taskq_internal.owner o WHERE o.fence = s.fence));
    v_owners bigint := (SELECT greatest(c.reltuples, s.n_live_tup) FROM pg_class c JOIN pg_stat_user_tables s
                        ON s.relid = c.oid
                        WHERE c.oid = 'taskq_internal.owner'::regclass);
BEGIN
    RETURN QUERY SELECT taskq_internal.severity(v_stages, 1, 1000, 'Infinity'), 'left behind',
        format('%s stages are left of jobs whose owner is gone; taskq.prune_stages() removes them', v_stages), v_stages,
        NULL::int, 'SELECT taskq.prune_stages()';
    RETURN QUERY SELECT taskq_internal.severity(v_owners, 100000, 1000000, 'Infinity'), 'left behind',
        format('some %s owners are stored; taskq.purge_owners() removes those that hold nothing and have sent no'
               ' heartbeat for long', v_owners),
        v_owners, NULL::int, 'taskq owners purge';
END $$;

-- Reports the tasks that FAILED in the last hour. Each of the ten topics with the most failures gets a row with the
-- share of FAILED tasks among the ended tasks, and with the error groups. For a long history the number of ended tasks
-- is an estimate (taskq.throughput). The failures are counted among the topic's newest 1,000. A share of a tenth is a
-- warning, and a half is critical. Fewer than 5 failures are a notice.
CREATE FUNCTION taskq_internal.health_of_failures()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text,
               remedy text)
LANGUAGE plpgsql AS $$
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
        SELECT p.topic_id, p.name, taskq_internal.recent_failures(p.topic_id, v_since, 100) AS failed
            FROM taskq_internal.topic p
        WHERE taskq_internal.recent_failures(p.topic_id, v_since, 100) > 0 ORDER BY 3 DESC, 2 LIMIT 10
    LOOP
        SELECT sum(f.failed), string_agg(format('%s x %s', f.failed, f.error_group), ', ' ORDER BY f.failed DESC,
                f.error_group) FILTER (WHERE f.place <= 3)
            || CASE WHEN count(*) > 3 THEN format(' and %s other errors', count(*) - 3) ELSE '' END
        INTO v_failed, v_errors
        FROM (SELECT g.failed, g.error_group, row_number() OVER (ORDER BY g.failed DESC, g.error_group) AS place
              FROM taskq_internal.failed_groups(v_topic.topic_id, v_since, 1000) g) f;
        CONTINUE WHEN v_failed IS NULL;
        v_topics := v_topics + 1;
        v_ended := taskq_internal.recent_ends(v_topic.topic_id, v_since, 1000);
        IF v_ended = 1000 OR v_failed = 1000 THEN  -- there may be more: a sample bounds the cost
            v_sampled := coalesce(v_sampled, (
                SELECT jsonb_object_agg(n.topic, jsonb_build_object('failed', n.failed, 'ended', n.ended))
                FROM (SELECT t.topic, sum(t.count) FILTER (WHERE t.state = :FAILED) AS failed, sum(t.count) AS ended
                      FROM taskq.throughput('1 hour', 1) t WHERE t.state BETWEEN :FAILED AND :SUCCEEDED
                          GROUP BY t.topic) n), '{}');
            v_ended := greatest(v_ended, (v_sampled -> v_topic.name ->> 'ended')::bigint);
            v_failed := CASE WHEN v_failed < 1000 THEN v_failed
                             ELSE greatest(v_failed, (v_sampled -> v_topic.name ->> 'failed')::bigint) END;
        END IF;
        v_ended := greatest(v_ended, v_failed);
        severity := CASE WHEN v_failed < 5 THEN 'notice'
            ELSE taskq_internal.severity(v_failed::numeric / v_ended, 0, 0.1, 0.5) END;
        subject := 'failures';
        detail := format('topic %L: %s of %s tasks that ended in the last hour FAILED (%s %%): %s', v_topic.name,
                         v_failed, v_ended, round(100.0 * v_failed / v_ended, 1), v_errors);
        value := v_failed;
        topic := v_topic.name;
        remedy := format('taskq errors %s', taskq_internal.shell_word(v_topic.name));
        RETURN NEXT;
    END LOOP;
    IF v_topics = 0 THEN
        RETURN QUERY SELECT 'fine', 'failures', 'no task has FAILED in the last hour', 0::bigint, NULL::int, NULL::text,
            NULL::bigint, NULL::text, NULL::text;
    END IF;
END $$;

-- Returns how many of the newest p_most FAILED tasks of a topic have failed since p_since.
CREATE FUNCTION taskq_internal.recent_failures(p_topic_id int, p_since timestamptz, p_most int) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN (SELECT count(*) FROM (
                SELECT e.completed FROM taskq_internal.ended e
                WHERE e.topic_id::bigint = p_topic_id AND e.state::int = :FAILED
                    AND e.state::int IN (:EXPIRED, :FAILED, :SUSPENDED)
                ORDER BY e.sequence DESC LIMIT p_most) n
            WHERE n.completed >= p_since);
END $$;

-- Returns how many of the newest p_most ended tasks of a topic have ended since p_since, in a state from FAILED to
-- SUCCEEDED.
CREATE FUNCTION taskq_internal.recent_ends(p_topic_id int, p_since timestamptz, p_most int) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN (SELECT count(*) FROM (
                SELECT e.completed, e.state FROM taskq_internal.ended e
                WHERE e.topic_id = p_topic_id ORDER BY e.sequence DESC LIMIT p_most) n
            WHERE n.completed >= p_since AND n.state BETWEEN :FAILED AND :SUCCEEDED);
END $$;
