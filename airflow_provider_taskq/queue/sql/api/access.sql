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
     'push offer offer_many lock_offers drop first_pushed install_ticks last_tick'),
    ('producer consumer', true, 'notify open_stage check_stage commit_stage close_stage'),
    ('producer consumer reader', true, 'topics policy'),
    ('producer consumer', false, 'begin_stream_batch'),
    ('consumer', true,
     'register heartbeat draw_fence release held max_claim poll poll_batch claim has_unclaimed watch
      junction release_groups_once complete exchange held_bounds held_slice claim_batch
      defer_held_tasks count_staged prune_stages expire maintain advance acquire_partition renew_partitions read_partition advance_partition release_partition
      record_handling_times begin_drain end_drain'),
    ('consumer reader', true,
     'owner owners ready ready_many topic_status watch_tasks task events log_end log_bounds log_slice progress
      is_worker_active find_drain count_ended_by find_failed_by'),
    ('consumer', false, 'lock unlock set_worker_active'),
    ('reader', true,
     'timeline explain latest page count task_bounds task_slice newest format_duration state_name statistics
      error_groups browse_holders browse_ticks browse_tasks find_tasks find_claimed find_pushed newest_sequences
      dependencies task_texts browse_topics'),
    ('reader', false,
     'throughput results resolve health log_blockers explain_ready explain_held explain_ended explain_dependency
      explain_turn oldest_due oldest_due_by_topic partition_states skipped_events handling_times
      workers browse_owners browse_locks browse_groups browse_held search_tasks audit_trail')
) AS l (kinds, by_topic, functions)
CROSS JOIN LATERAL regexp_split_to_table(l.kinds, ' ') AS k (kind)
CROSS JOIN LATERAL regexp_split_to_table(l.functions, '\s+') AS f (function)
UNION ALL SELECT DISTINCT 'operator', p.proname::text, false FROM pg_proc p
WHERE p.pronamespace = 'taskq'::regnamespace AND p.proname NOT IN ('grant_access', 'revoke_access');
COMMENT ON VIEW taskq.privileges IS
'The functions of this schema that each kind of role may call (see taskq.grant_access). With by_topic true, a role that
is limited to topics may call the function, too.';

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

-- A check looks a privilege on this view up in a microsecond, and PostgreSQL applies memberships, the owner and
-- superusers. A role that is limited to topics has none.
CREATE VIEW taskq.every_topic AS SELECT WHERE false;
COMMENT ON VIEW taskq.every_topic IS
'A view without rows. Privileges on this view stand for access to every topic: INSERT to push, DELETE to push with the
insertion DELETE, UPDATE to consume, SELECT to read.';

-- The grants that count. The stored grants name their roles, because only names survive a restore on another server.
-- They count only with the privilege on the schema that each grant gives: PostgreSQL stores it for the role itself,
-- ends it with DROP OWNED, and restores it by name. So a role does not get the access of a dropped role of its name.
CREATE VIEW taskq_internal.granted AS
SELECT a.*, r.oid AS role_id FROM taskq_internal.access a JOIN pg_roles r ON r.rolname = a.role
JOIN pg_namespace n ON n.nspname = 'taskq' AND n.nspacl @> makeaclitem(r.oid, n.nspowner, 'USAGE', false);

CREATE FUNCTION taskq.grant_access(role text, kind text, topics text[] DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM taskq_internal.check_name('a topic', u.topic) FROM unnest(grant_access.topics) AS u (topic);
    IF (grant_access.kind IN ('producer', 'consumer', 'reader') AND grant_access.topics IS DISTINCT FROM '{}'
        OR grant_access.kind = 'operator' AND grant_access.topics IS NULL) IS NOT TRUE THEN
        PERFORM taskq_internal.raise_error('TQ000', format('access %L to topics %L: expected producer, consumer or '
            'reader with at least one topic, or NULL for every topic, or operator, which cannot be limited to topics',
            grant_access.kind, grant_access.topics));
    END IF;
    PERFORM taskq_internal.forget_dropped_roles();
    DELETE FROM taskq_internal.access a WHERE a.role = grant_access.role AND a.kind = grant_access.kind
        AND (grant_access.topics IS NULL OR a.topic = '');
    INSERT INTO taskq_internal.access (role, kind, topic)
    SELECT grant_access.role, grant_access.kind, u.topic
    FROM unnest(coalesce(grant_access.topics, ARRAY[''])) AS u (topic) ON CONFLICT DO NOTHING;
    PERFORM taskq_internal.apply_grants(grant_access.role);
END $$;
COMMENT ON FUNCTION taskq.grant_access IS
'Grants a role one kind of access: producer, consumer, reader or operator. Several grants add up. The queue stores the
grant and repeats it after an upgrade. The argument topics limits the role to these topics, which need not exist yet,
also if it had access to every topic before. With topics NULL the role may use every topic. An operator cannot be
limited. Only the owner of the schema may call this function. Raises TQ000 for an unknown kind, and TQ008 for an invalid
name of a topic.';

CREATE FUNCTION taskq.revoke_access(role text, kind text DEFAULT NULL, topics text[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM taskq_internal.forget_dropped_roles();
    DELETE FROM taskq_internal.access a
    WHERE a.role = revoke_access.role AND (revoke_access.kind IS NULL OR a.kind = revoke_access.kind)
      AND (revoke_access.topics IS NULL OR a.topic = ANY (revoke_access.topics));
    PERFORM taskq_internal.apply_grants(revoke_access.role);
END $$;
COMMENT ON FUNCTION taskq.revoke_access IS
'Revokes access that taskq.grant_access has granted to a role: all kinds, one kind, or one kind for the named topics.
Only the owner of the schema may call this function.';

CREATE FUNCTION taskq_internal.forget_dropped_roles() RETURNS void LANGUAGE sql AS $$
    DELETE FROM taskq_internal.access a WHERE a.role NOT IN (SELECT g.role FROM taskq_internal.granted g)
$$;

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
        UNION SELECT 'INSERT ON taskq.staged, taskq.staged_junction' FROM granted WHERE kind IN ('consumer', 'operator')
        UNION SELECT 'INSERT ON taskq.staged_task' FROM granted WHERE kind IN ('producer', 'operator')
        UNION SELECT g.rights || ' ON taskq.every_topic' FROM granted g WHERE g.every_topic
        UNION SELECT 'SELECT ON ' || c.oid::regclass  -- the first two may be missing, as readable views are optional
        FROM granted g JOIN pg_class c ON c.relname IN ('tasks', 'topic_summaries', 'task_info')
            AND c.relnamespace = 'taskq'::regnamespace
        WHERE g.every_topic AND g.kind IN ('reader', 'operator')
    LOOP
        EXECUTE format('GRANT %s TO %I', v_grant, p_role);
    END LOOP;
END $$;

-- Returns the calling role: the role of SET ROLE, or else the role that logged in. Inside a SECURITY DEFINER function,
-- current_user is the owner of the function. So this function does not show the owner of a function that calls a verb
-- for other roles.
CREATE FUNCTION taskq_internal.acting_role() RETURNS name LANGUAGE sql STABLE AS $$
    SELECT coalesce(nullif(current_setting('role'), 'none'), session_user)::name
$$;

-- Returns whether the calling role has one of these rights, such as 'SELECT, UPDATE', on a topic, or with p_topic NULL
-- on every topic. The planner inlines the body, so that the usual check takes a microsecond.
CREATE FUNCTION taskq_internal.may_access(p_topic text, p_rights text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user)::name,
                               'taskq.every_topic'::regclass, p_rights)
        OR taskq_internal.may_access_topic(p_topic, p_rights)
$$;

-- Returns whether the calling role, which lacks these rights on every topic, has one of them on a topic. While no role
-- is limited to topics, the privilege to call the function suffices, because the caller may be a SECURITY DEFINER
-- function whose owner has the right.
CREATE FUNCTION taskq_internal.may_access_topic(p_topic text, p_rights text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM taskq_internal.granted g
                   WHERE g.topic = p_topic AND string_to_array(g.rights, ', ') && string_to_array(p_rights, ', ')
                     AND pg_has_role(taskq_internal.acting_role(), g.role_id, 'USAGE'))
        OR NOT EXISTS (SELECT FROM taskq_internal.access a WHERE a.topic <> '');
END $$;

-- Raises insufficient_privilege unless the calling role has one of these rights on a topic. A NULL topic stands for
-- every topic.
CREATE FUNCTION taskq_internal.check_access(p_topic text, p_rights text) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT taskq_internal.may_access(p_topic, p_rights) THEN
        PERFORM taskq_internal.raise_error('42501', format('role %I may not %s %s', taskq_internal.acting_role(),
            CASE p_rights WHEN 'INSERT' THEN 'push to' WHEN 'DELETE' THEN 'push with DELETE to' WHEN 'UPDATE'
                THEN 'consume' ELSE 'read' END,
            coalesce(format('topic %L', p_topic), 'every topic')));
    END IF;
END $$;

-- Returns the topic with this name if the calling role has one of these rights on it. Raises insufficient_privilege if
-- the role has none of them, whether or not the topic exists. Raises TQ001 if the topic does not exist.
CREATE FUNCTION taskq_internal.accessible_topic(p_topic text, p_rights text) RETURNS taskq_internal.topic
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT taskq_internal.may_access(p_topic, p_rights) THEN
        PERFORM taskq_internal.check_access(p_topic, p_rights);
    END IF;
    RETURN taskq_internal.find_topic(p_topic);
END $$;

-- Returns whether the calling role may use an owner that the role p_registered_by registered. A role may use the owners
-- that it registered itself, and all owners if it may consume every topic.
CREATE FUNCTION taskq_internal.may_act_as(p_registered_by name) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p_registered_by = taskq_internal.acting_role() OR taskq_internal.may_access(NULL, 'UPDATE')
$$;

-- Raises insufficient_privilege if another role opened a stage, unless the calling role may consume every topic, or for
-- a push may push to every topic. The number of a stage is not secret: it stands in options, plans and logs of jobs.
CREATE FUNCTION taskq_internal.check_stage_access(p_stage uuid) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (SELECT FROM taskq_internal.stage s
               WHERE s.stage = p_stage AND s.opened_by <> taskq_internal.acting_role()
                 AND NOT has_table_privilege(taskq_internal.acting_role(), 'taskq.every_topic',
                                             CASE WHEN s.fence IS NULL THEN 'INSERT' ELSE 'UPDATE' END)) THEN
        PERFORM taskq_internal.raise_error('42501', format(
            'stage %s was opened by another role than %I, which is limited to topics', p_stage,
            taskq_internal.acting_role()));
    END IF;
END $$;

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
