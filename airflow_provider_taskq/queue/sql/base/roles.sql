-- Roles: what the kinds of access let a role do, and the rights that the installer grants.
--
-- Access: the schema taskq has everything that roles may use, and the schema taskq_internal has the rest. Every
-- function of taskq runs with the rights of the schema's owner, so a role needs no right on a table. A role may call
-- the functions of the kinds of access that it was granted.
--
-- A producer pushes tasks and installs ticks. A consumer claims and completes tasks, and reads the log. A reader sees
-- tasks, owners and health, and changes nothing. An operator may call all of these functions, and the functions that
-- change topics and the tasks of others.
--
-- A consumer that pushes follow-ups needs the kinds consumer and producer. docs/production/roles.md lists every
-- function, and a test compares the list. Only the owner installs and upgrades the schema.

-- Which kind of role may call which functions. With by_topic true, a role that is limited to topics may call the
-- function, too. Such a function checks the topic or the owner, or changes nothing of other topics. A function of this
-- schema that is in no list is for operators. Only the owner of the schema may call grant_access and revoke_access.
CREATE VIEW taskq.privileges AS
SELECT k.kind, f.function, l.by_topic
FROM (VALUES
    ('producer', true,
     'push push_task offer offer_many lock_offers drop first_pushed install_ticks last_tick'),
    ('producer consumer', true, 'notify open_stage check_stage commit_stage close_stage'),
    ('producer consumer reader', true, 'topics policy'),
    ('producer consumer', false, 'begin_stream_batch'),
    ('consumer', true,
     'register heartbeat draw_fence release held max_claim poll poll_batch claim watch_groups junction
      release_groups_once complete exchange held_bounds held_slice claim_batch defer_held_tasks count_staged
      prune_stages expire maintain advance acquire_partition read_partition advance_partition release_partition
      begin_drain end_drain'),
    ('consumer reader', true,
     'owner owners ready topic_status watch_tasks task events log_end task_bounds log_slice progress
      is_worker_active find_drain count_ended_by'),
    ('consumer', false, 'lock unlock set_worker_active'),
    ('reader', true,
     'timeline explain latest count task_slice format_duration state_name statistics
      error_groups browse_holders browse_ticks find_tasks find_claimed
      dependencies browse_topics'),
    ('reader', false,
     'throughput results resolve health log_blockers explain_task oldest_due partition_states skipped_events
      workers browse_owners browse_locks browse_held search_tasks audit_trail')
) AS l (kinds, by_topic, functions)
CROSS JOIN LATERAL regexp_split_to_table(l.kinds, ' ') AS k (kind)
CROSS JOIN LATERAL regexp_split_to_table(l.functions, '\s+') AS f (function)
UNION ALL SELECT DISTINCT 'operator', p.proname::text, false FROM pg_proc p
WHERE p.pronamespace = 'taskq'::regnamespace AND p.proname NOT IN ('grant_access', 'revoke_access');
COMMENT ON VIEW taskq.privileges IS
'The functions of this schema that each kind of role may call (see taskq.grant_access). With by_topic true, a role that
is limited to topics may call the function, too.';

CREATE FUNCTION taskq_internal.forget_dropped_roles() RETURNS void LANGUAGE sql AS $$
    DELETE FROM taskq_internal.access a WHERE a.role NOT IN (SELECT g.role FROM taskq.granted g)
$$;

-- Revokes the privileges of a role, or with p_role NULL of all others than the owner, on the objects of both schemas:
-- those of earlier releases, those that default privileges have granted to new objects, and those that were granted
-- without taskq.grant_access. A relation of the schema taskq without a comment is not of TaskQ (queue/schema.py), and
-- keeps its privileges.
CREATE FUNCTION taskq_internal.revoke_privileges(p_role text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_right record;
BEGIN
    FOR v_right IN
        WITH schemas AS (SELECT n.* FROM pg_namespace n WHERE n.nspname IN ('taskq', 'taskq_internal')),
        objects AS (
            SELECT format('SCHEMA %I', n.nspname) AS what, n.nspowner AS owner, n.nspacl AS acl FROM schemas n
            UNION ALL SELECT format('ROUTINE %s', p.oid::regprocedure), p.proowner, p.proacl
            FROM pg_proc p JOIN schemas n ON n.oid = p.pronamespace
            UNION ALL SELECT format(CASE c.relkind WHEN 'S' THEN 'SEQUENCE %s' ELSE 'TABLE %s' END, c.oid::regclass),
                c.relowner, x.acl
            FROM pg_class c JOIN schemas n ON n.oid = c.relnamespace CROSS JOIN LATERAL (
                SELECT c.relacl AS acl UNION ALL SELECT a.attacl FROM pg_attribute a WHERE a.attrelid = c.oid) x
            WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
              AND (n.nspname = 'taskq_internal' OR obj_description(c.oid, 'pg_class') IS NOT NULL))
        SELECT DISTINCT o.what, coalesce(quote_ident(r.rolname), 'PUBLIC') AS role
        FROM objects o CROSS JOIN LATERAL aclexplode(o.acl) AS x LEFT JOIN pg_roles r ON r.oid = x.grantee
        WHERE x.grantee <> o.owner AND (p_role IS NULL OR r.rolname = p_role)
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s CASCADE', v_right.what, v_right.role);
    END LOOP;
END $$;

-- Gives a role the privileges of its grants on the functions and views that the schema has now, and no others.
CREATE FUNCTION taskq_internal.apply_grants(p_role text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_grant text;
BEGIN
    PERFORM taskq_internal.revoke_privileges(p_role);
    FOR v_grant IN
        WITH granted AS (SELECT a.kind, min(a.rights) AS rights, min(a.topic) = '' AS every_topic
                         FROM taskq_internal.access a WHERE a.role = p_role GROUP BY a.kind)
        SELECT 'USAGE ON SCHEMA taskq' FROM granted
        UNION SELECT 'SELECT ON taskq.migrations, taskq.privileges' FROM granted
        UNION SELECT 'EXECUTE ON FUNCTION ' || p.oid::regprocedure
        FROM granted g JOIN taskq.privileges r ON r.kind = g.kind AND (g.every_topic OR r.by_topic)
        JOIN pg_proc p ON p.proname = r.function AND p.pronamespace = 'taskq'::regnamespace
        UNION SELECT 'INSERT ON taskq.staged' FROM granted WHERE kind IN ('consumer', 'operator')
        UNION SELECT 'INSERT ON taskq.staged_task' FROM granted WHERE kind <> 'reader'
        UNION SELECT g.rights || ' ON taskq.every_topic' FROM granted g WHERE g.every_topic
        UNION SELECT 'SELECT ON ' || c.oid::regclass  -- the first two may be missing, as readable views are optional
        FROM granted g JOIN pg_class c ON c.relname IN ('tasks', 'topic_summaries', 'task_info')
            AND c.relnamespace = 'taskq'::regnamespace
        WHERE g.every_topic AND g.kind IN ('reader', 'operator')
    LOOP
        EXECUTE format('GRANT %s TO %I', v_grant, p_role);
    END LOOP;
END $$;

-- Secures the schema after an installation has replaced its functions. Only granted roles may call them. Public
-- functions run with the owner's rights and do not use the caller's search path. Roles get their earlier grants again.
-- JIT is off: before PostgreSQL 18 the planner adds a high cost for a disabled plan node, which would start a
-- compilation that takes longer than any verb.
CREATE FUNCTION taskq_internal.secure_schema() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_function regprocedure;
BEGIN
    PERFORM taskq_internal.forget_dropped_roles();
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA taskq, taskq_internal FROM PUBLIC;
    PERFORM taskq_internal.revoke_privileges();
    FOR v_function IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'taskq'::regnamespace LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off',
                       v_function);
    END LOOP;
    PERFORM taskq_internal.apply_grants(r.role) FROM (SELECT DISTINCT a.role FROM taskq_internal.access a) r;
END $$;

-- Records the installed migrations, which clients compare with those of their own release. The record is a view, not a
-- table, so that a copy of the schema without rows has it, and TRUNCATE does not empty it.
CREATE FUNCTION taskq_internal.record_migrations(p_numbers int[], p_names text[], p_checksums text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'CREATE OR REPLACE VIEW taskq.migrations AS ' || (
        SELECT string_agg(format('SELECT %s AS number, %L::text AS name, %L::text AS checksum', u.number, u.name,
                                 u.checksum), ' UNION ALL ' ORDER BY u.number)
        FROM unnest(p_numbers, p_names, p_checksums) AS u (number, name, checksum));
    COMMENT ON VIEW taskq.migrations IS
    'The installed migrations with their checksums. Number 0 stands for all functions, and -1 for the optional views.';
END $$;
