-- Health: what slows or threatens the queue, in sentences. Everything here is read with bounds, so that it costs
-- milliseconds however many tasks there are, and needs no rights beyond those on the schema: what a role may not see is said.
-- The server's part is here, the work's part in health_work.sql.

-- All findings, the worst first. severity: critical, warning, notice, fine; each subject has at least one row, so that
-- a page or an alarm sees its value also while it is fine. value: seconds, rows, bytes or transactions, as `detail`
-- says; pid: the session to look at; topic, sequence and owner: what it is about, where it is about one. p_patience: how long a due
-- task, or a lapsed lease, may wait without being named.
CREATE FUNCTION taskq.health(p_patience interval DEFAULT '5 minutes')
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text) LANGUAGE sql AS $$
    SELECT f.* FROM (
        SELECT s.*, NULL::text, NULL::bigint, NULL::text FROM (
        SELECT * FROM taskq.health_of_vacuum()
        UNION ALL SELECT * FROM taskq.health_of_horizon()
        UNION ALL SELECT * FROM taskq.health_of_waits()
        UNION ALL SELECT * FROM taskq.health_of_numbers()
        UNION ALL SELECT * FROM taskq.health_of_indexes()
        UNION ALL SELECT * FROM taskq.health_of_leftovers()
        ) s
        UNION ALL SELECT * FROM taskq.health_of_leases(taskq.clamp_age(p_patience))
        UNION ALL SELECT * FROM taskq.health_of_topics(taskq.clamp_age(p_patience))
        UNION ALL SELECT * FROM taskq.health_of_dependencies()
        UNION ALL SELECT * FROM taskq.health_of_failures()
        UNION ALL SELECT * FROM taskq.health_of_logs()
        UNION ALL SELECT * FROM taskq.health_of_moves()
    ) f (severity, subject, detail, value, pid, topic, sequence, owner)
    ORDER BY array_position(ARRAY['critical', 'warning', 'notice', 'fine'], f.severity), f.subject, f.value DESC NULLS LAST
$$;

-- How bad a value is, by the three bounds from which on it is.
CREATE FUNCTION taskq.severity(p_value numeric, p_notice numeric, p_warning numeric, p_critical numeric)
RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_value >= p_critical THEN 'critical' WHEN p_value >= p_warning THEN 'warning'
                WHEN p_value >= p_notice THEN 'notice' ELSE 'fine' END
$$;

-- A duration for people: two units at most, such as 3 h 20 min.
CREATE FUNCTION taskq.in_words(p_duration interval) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE WHEN s < 120 THEN s || ' s'
                WHEN s < 7200 THEN s / 60 || ' min'
                WHEN s < 172800 THEN s / 3600 || ' h' || CASE WHEN s % 3600 >= 60 THEN ' ' || s % 3600 / 60 || ' min' ELSE '' END
                ELSE s / 86400 || ' days' END
    FROM (SELECT floor(greatest(0, extract(epoch FROM p_duration)))::bigint AS s) n
$$;

-- Rows that are dead and not yet vacuumed, by table: against the number at which autovacuum begins.
CREATE FUNCTION taskq.health_of_vacuum()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int) LANGUAGE plpgsql AS $$
DECLARE
    v_off text := (SELECT string_agg(name || ' is off', ' and ') FROM pg_settings
                   WHERE name IN ('autovacuum', 'track_counts') AND setting = 'off');
BEGIN
    IF v_off IS NOT NULL THEN
        RETURN QUERY SELECT 'critical', 'autovacuum', format('%s in this server: dead rows stay, and every poll walks over them', v_off),
                            NULL::bigint, NULL::int;
    END IF;
    RETURN QUERY
    SELECT w.severity, 'dead rows',
           format('table taskq.%I has %s dead rows, of %s in all; autovacuum %s, and the table was %s', w.name, w.dead, w.dead + w.alive,
                  CASE WHEN w.disabled THEN 'is switched off for it' ELSE 'begins at ' || round(w.bound) END,
                  coalesce('vacuumed last ' || taskq.in_words(clock_timestamp() - w.vacuumed) || ' ago', 'never vacuumed')),
           w.dead, NULL::int
    FROM (SELECT t.*, row_number() OVER (ORDER BY t.dead >= 1000 DESC, t.dead / t.bound DESC) AS place,
                 CASE WHEN t.dead < 1000 THEN 'fine' WHEN t.disabled THEN 'critical'
                      ELSE taskq.severity(t.dead / greatest(t.bound, 1000), 2, 10, 100) END AS severity  -- a small table is emptied by thousands
          FROM taskq.vacuum_state() t) w
    WHERE w.place = 1 OR w.place <= 5 AND w.severity <> 'fine';
END $$;

-- The tables of the schema with their dead and living rows, and the number of dead ones at which autovacuum begins.
CREATE FUNCTION taskq.vacuum_state()
RETURNS TABLE (name name, dead bigint, alive bigint, bound numeric, disabled boolean, vacuumed timestamptz) LANGUAGE sql STABLE AS $$
    SELECT c.relname, s.n_dead_tup, s.n_live_tup,
           coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold')::numeric)
           + coalesce(o.scale, current_setting('autovacuum_vacuum_scale_factor')::numeric) * greatest(c.reltuples, 0)::numeric + 1,
           coalesce(o.disabled, false), greatest(s.last_autovacuum, s.last_vacuum)
    FROM pg_class c
    JOIN pg_stat_user_tables s ON s.relid = c.oid
    LEFT JOIN LATERAL (
        SELECT max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold')::numeric AS threshold,
               max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor')::numeric AS scale,
               bool_or(NOT option_value::boolean) FILTER (WHERE option_name = 'autovacuum_enabled') AS disabled
        FROM pg_options_to_table(c.reloptions)) o ON true
    WHERE c.relnamespace = 'taskq'::regnamespace AND c.relkind = 'r'
$$;

-- Who keeps vacuum from removing what died since: open transactions, standbys, replication slots, prepared transactions.
CREATE FUNCTION taskq.health_of_horizon()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT CASE WHEN h.since IS NULL THEN taskq.severity(h.age, 100000, 10000000, 500000000)
                ELSE taskq.severity(extract(epoch FROM clock_timestamp() - h.since), 60, 600, 3600) END,
           'oldest transaction',
           h.who || ' keeps vacuum from removing what died since: '
           || coalesce('open for ' || taskq.in_words(clock_timestamp() - h.since) || ', ', '') || h.age || ' transactions ago'
           || coalesce(', ' || h.state, ''),
           coalesce(extract(epoch FROM clock_timestamp() - h.since)::bigint, h.age), h.pid
    FROM taskq.horizon() h ORDER BY h.age DESC LIMIT 3;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'fine', 'oldest transaction', 'nobody keeps vacuum from removing what is dead', 0::bigint, NULL::int;
    END IF;
    IF NOT pg_has_role('pg_read_all_stats', 'USAGE') THEN
        RETURN QUERY SELECT 'notice', 'what this role sees', format('role %I sees other roles'' sessions by pid, application and age'
            ' only, not since when they are open nor what they do: GRANT pg_read_all_stats TO %1$I', current_user), NULL::bigint, NULL::int;
    END IF;
END $$;

-- Everything that holds back the oldest row version that vacuum may remove from this database's tables.
CREATE FUNCTION taskq.horizon()
RETURNS TABLE (who text, age bigint, since timestamptz, state text, pid int) LANGUAGE sql AS $$
    SELECT CASE WHEN a.backend_type = 'walsender' THEN 'a standby with hot_standby_feedback' ELSE 'a session' END
           || format(' (pid %s, application %s)', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed')),
           greatest(age(a.backend_xmin), age(a.backend_xid))::bigint, a.xact_start,
           a.state || ' since ' || taskq.in_words(clock_timestamp() - a.state_change)
           || coalesce(', its last statement began ' || taskq.in_words(clock_timestamp() - a.query_start) || ' ago', ''), a.pid
    FROM pg_stat_activity a
    WHERE coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL AND a.pid <> pg_backend_pid()
      AND (a.datname IS NULL OR a.datname = current_database())
      AND a.usesysid IS NOT NULL  -- neither autovacuum's launcher nor its workers, though some roles are not told what it is
      AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
    UNION ALL
    SELECT format('replication slot %I', s.slot_name), age(s.xmin)::bigint, NULL,
           CASE WHEN s.active THEN 'in use' ELSE 'not in use: pg_drop_replication_slot() if nobody will come back for it' END, s.active_pid
    FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
    UNION ALL
    SELECT format('prepared transaction %L', p.gid), age(p.transaction)::bigint, p.prepared, 'COMMIT PREPARED or ROLLBACK PREPARED ends it', NULL
    FROM pg_prepared_xacts p WHERE p.database = current_database()
$$;

-- Sessions that have waited for a lock of the queue's for a second or more, with the pid of the one that they wait for.
CREATE FUNCTION taskq.health_of_waits()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT taskq.severity(w.seconds, 1, 10, 60), 'waits for locks',
           format('session %s has waited for %s s for %s, which session %s holds', w.pid, w.seconds, w.what, w.blocker), w.seconds, w.blocker
    FROM (SELECT l.pid, extract(epoch FROM clock_timestamp() - s.since)::bigint AS seconds, (pg_blocking_pids(l.pid))[1] AS blocker,
                 CASE l.locktype WHEN 'relation' THEN 'the table ' || l.relation::regclass
                                 WHEN 'advisory' THEN 'a topic' ELSE 'a row' END AS what
          FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
          -- The lock of a topic is awaited in steps of 2 seconds (taskq.await_topic_lock), all of them in one statement.
          CROSS JOIN LATERAL (SELECT CASE l.locktype WHEN 'advisory' THEN least(a.query_start, l.waitstart) ELSE l.waitstart END AS since) s
          WHERE NOT l.granted AND s.since < clock_timestamp() - interval '1 second'
            AND (l.locktype = 'advisory' AND l.classid = taskq.topic_lock_class()::oid OR EXISTS (
                SELECT FROM pg_locks o JOIN pg_class c ON c.oid = o.relation
                WHERE o.pid = l.pid AND o.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                  AND c.relnamespace IN ('taskq'::regnamespace, 'taskq_internal'::regnamespace)))
          ORDER BY s.since LIMIT 5) w;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'fine', 'waits for locks', 'no session has waited for a second for a lock of the queue', 0::bigint, NULL::int;
    END IF;
END $$;

-- Numbers that run out: transactions and multixacts until they are frozen, and the values of sequences.
CREATE FUNCTION taskq.health_of_numbers()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT taskq.severity(n.age, greatest(300000000, 1.5 * n.bound), 1000000000, 1600000000), 'numbers that run out',
           format('the oldest %s of this database is %s old; autovacuum freezes from %s on, and the server stops taking writes at 2100000000',
                  n.what, n.age, n.bound), n.age, NULL::int
    FROM (SELECT 'transaction' AS what, age(d.datfrozenxid)::bigint AS age, current_setting('autovacuum_freeze_max_age')::bigint AS bound
          FROM pg_database d WHERE d.datname = current_database()
          UNION ALL
          SELECT 'multixact', mxid_age(d.datminmxid)::bigint, current_setting('autovacuum_multixact_freeze_max_age')::bigint
          FROM pg_database d WHERE d.datname = current_database()) n;
    RETURN QUERY
    SELECT taskq.severity(s.last_value::numeric / s.max_value, 0.5, 0.8, 0.95), 'numbers that run out',
           format('sequence %I.%I is at %s of %s', s.schemaname, s.sequencename, s.last_value, s.max_value), s.last_value, NULL::int
    FROM pg_sequences s WHERE s.schemaname = 'taskq' AND s.last_value IS NOT NULL
    ORDER BY s.last_value::numeric / s.max_value DESC LIMIT 1;
END $$;

-- Indexes of the hot table that are much larger than their entries need: told by the pages that vacuum saw last.
CREATE FUNCTION taskq.health_of_indexes()
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT 'notice', 'bloated indexes',
           format('index taskq.%I has %s for %s entries, some %s each: REINDEX INDEX CONCURRENTLY taskq.%1$I makes it small again',
                  b.name, pg_size_pretty(b.bytes), b.entries, pg_size_pretty(b.bytes / greatest(b.entries, 1))),
           b.bytes, NULL::int
    FROM (SELECT i.relname AS name, i.relpages::bigint * current_setting('block_size')::bigint AS bytes, greatest(i.reltuples, 0)::bigint AS entries
          FROM pg_inherits h JOIN pg_index x ON x.indrelid = h.inhrelid JOIN pg_class i ON i.oid = x.indexrelid
          WHERE h.inhparent = 'taskq.live'::regclass) b
    WHERE b.bytes >= 67108864 AND b.bytes > 8 * b.entries * 150
    ORDER BY b.bytes DESC LIMIT 5;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'fine', 'bloated indexes', 'no index of taskq.live is much larger than its entries need', NULL::bigint, NULL::int;
    END IF;
END $$;
