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
SELECT 'producer' AS kind, unnest(ARRAY[
    'push', 'push_task', 'offer', 'offer_many', 'lock_offers', 'drop', 'first_pushed', 'open_push', 'check_push', 'push_staged',
    'abandon_push', 'install_ticks', 'last_tick', 'notify', 'topics', 'policy']) AS function, true AS by_topic
UNION ALL SELECT 'producer', unnest(ARRAY['begin_stream_batch']), false
UNION ALL SELECT 'consumer', unnest(ARRAY[
    'register', 'take_over', 'heartbeat', 'draw_fence', 'release', 'owner', 'owners', 'held', 'max_claim', 'poll',
    'poll_batch', 'claim', 'has_unclaimed', 'ready', 'ready_many', 'topic_status', 'watch', 'watch_tasks', 'junction', 'release_groups_once',
    'notify', 'task', 'complete', 'exchange', 'held_bounds', 'held_slice', 'open_stage', 'check_stage',
    'complete_staged', 'claim_batch', 'defer_held_tasks', 'count_staged',
    'completed_in_stage', 'finish_stage', 'abandon_stage', 'prune_stages', 'expire', 'maintain', 'events', 'log_end',
    'log_bounds', 'log_slice', 'progress', 'advance', 'topics', 'policy', 'acquire_partition',
    'renew_partitions', 'read_partition', 'advance_partition', 'release_partition',
    'record_handling_times', 'is_worker_active', 'begin_drain', 'end_drain', 'find_drain', 'count_ended_by',
    'find_failed_by']), true
UNION ALL SELECT 'consumer', unnest(ARRAY['lock', 'unlock', 'begin_stream_batch', 'set_worker_active']), false
UNION ALL SELECT 'reader', unnest(ARRAY[
    'topics', 'policy', 'owners', 'owner', 'ready', 'ready_many', 'topic_status', 'watch_tasks', 'task', 'timeline',
    'explain', 'latest', 'page', 'count', 'task_bounds', 'task_slice', 'events', 'log_end', 'log_bounds', 'log_slice',
    'progress', 'newest', 'format_duration', 'state_name', 'statistics', 'error_groups', 'is_worker_active',
    'browse_holders', 'browse_ticks', 'browse_tasks', 'find_tasks', 'find_claimed', 'find_pushed', 'newest_sequences',
    'dependencies', 'task_texts', 'find_drain', 'count_ended_by', 'find_failed_by', 'browse_topics']), true
UNION ALL SELECT 'reader', unnest(ARRAY[
    'throughput', 'results', 'resolve', 'health', 'log_blockers', 'explain_ready', 'explain_ended',
    'explain_dependency', 'explain_turn', 'oldest_due', 'oldest_due_by_topic', 'partition_states', 'skipped_events', 'handling_times',
    'topic_errors', 'stuck_owners', 'workers', 'browse_owners', 'browse_locks', 'browse_groups', 'browse_held',
    'search_tasks', 'audit_trail', 'count_lapsed']), false
UNION ALL SELECT DISTINCT 'operator', p.proname::text, false FROM pg_proc p
WHERE p.pronamespace = 'taskq'::regnamespace AND p.proname NOT IN ('grant_access', 'revoke_access');
COMMENT ON VIEW taskq.privileges IS
'The functions of this schema that each kind of role may call (see taskq.grant_access). With by_topic true, a role that
is limited to topics may call the function, too.';

-- Records the installed migrations, which clients compare with those of their own release. The record is a view, and not
-- a table, so that a copy of the schema without rows has it, and TRUNCATE does not empty it.
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

-- Privileges on this view, which has no rows, are the rights on every topic: INSERT to push, DELETE to push with the
-- insertion DELETE, UPDATE to consume, SELECT to read. A role that is limited to topics has none of them. A check looks
-- a privilege up in a microsecond, and PostgreSQL applies memberships, the owner and superusers.
CREATE VIEW taskq.every_topic AS SELECT WHERE false;
COMMENT ON VIEW taskq.every_topic IS
'A view without rows. Privileges on this view stand for access to every topic: INSERT to push, DELETE to push with the
insertion DELETE, UPDATE to consume, SELECT to read.';

CREATE FUNCTION taskq.grant_access(role text, kind text, topics text[] DEFAULT NULL, may_delete boolean DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM taskq_internal.forget_dropped_roles();
    PERFORM taskq_internal.check_grant(grant_access.role, grant_access.kind, grant_access.topics);
    PERFORM taskq_internal.check_name('a topic', u.topic) FROM unnest(grant_access.topics) AS u (topic);
    IF grant_access.topics IS NULL THEN
        DELETE FROM taskq_internal.access a WHERE a.role = grant_access.role AND a.kind = grant_access.kind;
    END IF;
    INSERT INTO taskq_internal.access (role, kind, topic, may_delete)
    SELECT grant_access.role, grant_access.kind, u.topic,
           grant_access.kind = 'operator' OR grant_access.kind = 'producer'
               AND coalesce(grant_access.may_delete, grant_access.topics IS NULL)
    FROM (SELECT DISTINCT n.topic FROM unnest(coalesce(grant_access.topics, ARRAY[NULL])) AS n (topic)) u
    ON CONFLICT (role, kind, (coalesce(topic, ''))) DO UPDATE SET may_delete = excluded.may_delete;
    PERFORM taskq_internal.revoke_privileges(grant_access.role);
    PERFORM taskq_internal.grant_privileges(grant_access.role);
END $$;
COMMENT ON FUNCTION taskq.grant_access IS
'Grants a role one kind of access: producer, consumer, reader or operator. Several grants add up. The queue stores the
grant and repeats it after an upgrade. The argument topics limits the role to these topics, which need not exist yet.
With topics NULL the role may use every topic. An operator cannot be limited. The argument may_delete tells whether a
producer may push with the insertion DELETE. With may_delete NULL only a producer of every topic may. Only the owner of
the schema may call this function. Raises TQ000 for an unknown role or kind, and for a limit to a kind that the role
already has for every topic.';

CREATE FUNCTION taskq.revoke_access(role text, kind text DEFAULT NULL, topics text[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM taskq_internal.forget_dropped_roles();
    DELETE FROM taskq_internal.access a
    WHERE a.role = revoke_access.role AND (revoke_access.kind IS NULL OR a.kind = revoke_access.kind)
      AND (revoke_access.topics IS NULL OR a.topic = ANY (revoke_access.topics));
    PERFORM taskq_internal.revoke_privileges(revoke_access.role);
    PERFORM taskq_internal.grant_privileges(revoke_access.role);
END $$;
COMMENT ON FUNCTION taskq.revoke_access IS
'Revokes access that taskq.grant_access has granted to a role: all kinds, one kind, or one kind for the named topics.
Only the owner of the schema may call this function.';

-- Raises TQ000 for a grant that grant_access cannot make.
CREATE FUNCTION taskq_internal.check_grant(p_role text, p_kind text, p_topics text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_kind IS NULL OR p_kind NOT IN ('producer', 'consumer', 'reader', 'operator') THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'access %L is none of producer, consumer, reader, operator', p_kind));
    ELSIF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = p_role) THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'role %L is not known to this server; create it with CREATE ROLE', p_role));
    ELSIF p_topics IS NULL THEN
        RETURN;
    ELSIF p_kind = 'operator' THEN
        PERFORM taskq_internal.raise_error('TQ000', 'access operator cannot be limited to topics');
    ELSIF cardinality(p_topics) = 0 OR array_position(p_topics, NULL) IS NOT NULL OR '' = ANY (p_topics) THEN
        PERFORM taskq_internal.raise_error(
            'TQ000', 'a list of topics has at least one topic, and each has a name; NULL stands for every topic');
    ELSIF EXISTS (SELECT FROM taskq_internal.access a WHERE a.role = p_role AND a.kind = p_kind AND a.topic IS NULL)
        THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'role %L has access %L to every topic; to limit it, call taskq.revoke_access(%1$L, %2$L) first', p_role,
            p_kind));
    END IF;
END $$;

-- Returns whether a role has the privilege on the schema that grant_access gives with each kind of access. The stored
-- grants name their roles, because only names survive a restore on another server. They count only with this privilege:
-- PostgreSQL stores it for the role itself, ends it with DROP OWNED, and restores it by name. So a role does not get the
-- access of a dropped role of its name. A privilege of a group does not count.
CREATE FUNCTION taskq_internal.is_granted(p_role oid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT n.nspacl @> makeaclitem(p_role, n.nspowner, 'USAGE', false)
                     FROM pg_namespace n WHERE n.nspname = 'taskq'), false)
$$;

-- Removes the grants of roles that were dropped.
CREATE FUNCTION taskq_internal.forget_dropped_roles() RETURNS void LANGUAGE sql AS $$
    DELETE FROM taskq_internal.access a
    WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = a.role AND taskq_internal.is_granted(r.oid))
$$;

-- Revokes all privileges of a role on the schema. The owner of the schema keeps its privileges.
CREATE FUNCTION taskq_internal.revoke_privileges(p_role text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
               WHERE n.nspname = 'taskq' AND r.rolname = p_role) THEN
        RETURN;
    END IF;
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA taskq FROM %I', p_role);
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA taskq FROM %I', p_role);
    EXECUTE format('REVOKE ALL ON SCHEMA taskq FROM %I', p_role);
END $$;

-- Grants a role the privileges of its kinds of access on the functions and views that the schema has now.
CREATE FUNCTION taskq_internal.grant_privileges(p_role text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_access   record;
    v_function regprocedure;
    v_view     regclass;
BEGIN
    FOR v_access IN SELECT a.kind, bool_or(a.topic IS NULL) AS every_topic, bool_and(a.may_delete) AS may_delete
                    FROM taskq_internal.access a WHERE a.role = p_role GROUP BY a.kind LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA taskq TO %I', p_role);
        EXECUTE format('GRANT SELECT ON taskq.migrations, taskq.privileges TO %I', p_role);
        FOR v_function IN SELECT p.oid FROM pg_proc p JOIN taskq.privileges r ON r.function = p.proname
                          WHERE p.pronamespace = 'taskq'::regnamespace AND r.kind = v_access.kind
                            AND (v_access.every_topic OR r.by_topic) LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, p_role);
        END LOOP;
        IF v_access.kind IN ('consumer', 'operator') THEN
            EXECUTE format('GRANT INSERT ON taskq.staged, taskq.staged_junction TO %I', p_role);
            -- Such a row tells whether a decision is continued (taskq_internal.apply_follow_ups). Without the columns
            -- of a task it pushes nothing.
            EXECUTE format('GRANT INSERT (stage, part, attempt, place, parent, suspended) ON taskq.staged_task TO %I',
                           p_role);
        END IF;
        IF v_access.kind IN ('producer', 'operator') THEN
            EXECUTE format('GRANT INSERT ON taskq.staged_task TO %I', p_role);
        END IF;
        CONTINUE WHEN NOT v_access.every_topic;
        EXECUTE format('GRANT %s ON taskq.every_topic TO %I',
                       array_to_string(taskq_internal.rights_of(v_access.kind, v_access.may_delete), ', '), p_role);
        IF v_access.kind IN ('reader', 'operator') THEN
            -- In an installation without the readable views, the first two views do not exist.
            FOR v_view IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'taskq'::regnamespace
                          AND c.relname IN ('tasks', 'topic_summaries', 'task_info') LOOP
                EXECUTE format('GRANT SELECT ON %s TO %I', v_view, p_role);
            END LOOP;
        END IF;
    END LOOP;
END $$;

-- Returns the privileges on taskq.every_topic that stand for a kind of access.
CREATE FUNCTION taskq_internal.rights_of(p_kind text, p_may_delete boolean) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_kind WHEN 'producer' THEN CASE WHEN p_may_delete THEN ARRAY['INSERT', 'DELETE']
        ELSE ARRAY['INSERT'] END
                       WHEN 'consumer' THEN ARRAY['UPDATE']
                       WHEN 'reader' THEN ARRAY['SELECT']
                       WHEN 'operator' THEN ARRAY['INSERT', 'DELETE', 'UPDATE', 'SELECT'] END
$$;

-- Returns the calling role: the role of SET ROLE, or else the role that logged in. Inside a SECURITY DEFINER function,
-- current_user is the owner of the function. So this function does not show the owner of a function that calls a verb
-- for other roles.
CREATE FUNCTION taskq_internal.acting_role() RETURNS name LANGUAGE sql STABLE AS $$
    SELECT coalesce(nullif(current_setting('role'), 'none'), session_user)::name
$$;

-- Returns whether the calling role has one of these rights, such as 'SELECT, UPDATE', on every topic. The planner
-- inlines the body, so a check takes a microsecond.
CREATE FUNCTION taskq_internal.may_access_all(p_rights text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user)::name,
                               'taskq.every_topic'::regclass, p_rights)
$$;

-- Returns whether the calling role has one of these rights on a topic.
CREATE FUNCTION taskq_internal.may_access(p_topic text, p_rights text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT taskq_internal.may_access_all(p_rights) OR taskq_internal.may_access_topic(p_topic, p_rights)
$$;

-- Returns whether the calling role, which lacks these rights on every topic, has one of them on a topic. While no role
-- is limited in one of these rights, the privilege to call the function suffices, because the caller may be a SECURITY
-- DEFINER function whose owner has the right.
CREATE FUNCTION taskq_internal.may_access_topic(p_topic text, p_rights text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_rights text[] := string_to_array(p_rights, ', ');
BEGIN
    RETURN EXISTS (SELECT FROM taskq_internal.access a JOIN pg_roles r ON r.rolname = a.role
                   WHERE a.topic = p_topic AND taskq_internal.rights_of(a.kind, a.may_delete) && v_rights
                     AND pg_has_role(taskq_internal.acting_role(), r.oid, 'USAGE') AND taskq_internal.is_granted(r.oid))
        OR NOT EXISTS (SELECT FROM taskq_internal.access a
                       WHERE a.topic IS NOT NULL AND taskq_internal.rights_of(a.kind, true) && v_rights
                          OR a.kind = 'producer' AND NOT a.may_delete AND 'DELETE' = ANY (v_rights));
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
DECLARE
    v_topic taskq_internal.topic;
BEGIN
    IF NOT taskq_internal.may_access(p_topic, p_rights) THEN
        PERFORM taskq_internal.check_access(p_topic, p_rights);
    END IF;
    SELECT * INTO v_topic FROM taskq_internal.topic WHERE name = p_topic;
    IF NOT FOUND THEN
        v_topic := taskq_internal.find_topic(p_topic);
    END IF;
    RETURN v_topic;
END $$;

-- Returns whether the calling role may use an owner that the role p_registered_by registered. A role may use the owners
-- that it registered itself, and all owners if it may consume every topic.
CREATE FUNCTION taskq_internal.may_act_as(p_registered_by name) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT taskq_internal.may_access_all('UPDATE') OR p_registered_by = taskq_internal.acting_role()
        OR taskq_internal.may_access_topic(NULL, 'UPDATE')
$$;

-- Returns whether the calling role may see the owners that other roles registered.
CREATE FUNCTION taskq_internal.may_see_all_owners() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT taskq_internal.may_access_all('SELECT, UPDATE') OR taskq_internal.may_access_topic(NULL, 'SELECT, UPDATE')
$$;

-- Raises insufficient_privilege if another role opened a stage, unless the calling role has p_right on every topic.
-- The number of a stage is not secret: it stands in options, plans and logs of jobs.
CREATE FUNCTION taskq_internal.check_stage_access(p_stage uuid, p_right text) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (SELECT FROM taskq_internal.stage s WHERE s.stage = p_stage
               AND s.opened_by <> taskq_internal.acting_role())
        AND NOT taskq_internal.may_access(NULL, p_right) THEN
        PERFORM taskq_internal.raise_error('42501', format(
            'stage %s was opened by another role than %I, which is limited to topics', p_stage,
            taskq_internal.acting_role()));
    END IF;
END $$;

-- Revokes all privileges of others than the owner on the objects of both schemas: those of earlier releases, those that
-- default privileges have granted to new objects, and those that were granted without taskq.grant_access. An object of
-- the schema taskq without a comment is not of TaskQ (queue/schema.py), and keeps its privileges.
CREATE FUNCTION taskq_internal.revoke_all_privileges() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_right record;
BEGIN
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA taskq, taskq_internal FROM PUBLIC;
    FOR v_right IN
        WITH schemas AS (SELECT n.* FROM pg_namespace n WHERE n.nspname IN ('taskq', 'taskq_internal')),
        relations AS (
            SELECT c.*, format(CASE c.relkind WHEN 'S' THEN 'SEQUENCE %s' ELSE 'TABLE %s' END, c.oid::regclass) AS what
            FROM pg_class c JOIN schemas n ON n.oid = c.relnamespace
            WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
              AND (n.nspname = 'taskq_internal' OR obj_description(c.oid, 'pg_class') IS NOT NULL)),
        objects AS (
            SELECT format('SCHEMA %I', n.nspname) AS what, n.nspowner AS owner, n.nspacl AS acl FROM schemas n
            UNION ALL SELECT format('ROUTINE %s', p.oid::regprocedure), p.proowner, p.proacl
            FROM pg_proc p JOIN schemas n ON n.oid = p.pronamespace
            UNION ALL SELECT r.what, r.relowner, r.relacl FROM relations r
            UNION ALL SELECT r.what, r.relowner, a.attacl FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid)
        SELECT DISTINCT o.what, x.grantee FROM objects o CROSS JOIN LATERAL aclexplode(o.acl) AS x
        WHERE x.grantee <> o.owner LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s CASCADE', v_right.what,
                       CASE v_right.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(v_right.grantee)) END);
    END LOOP;
END $$;

-- Secures the schema after an installation has replaced its functions. Only granted roles may call them. Public
-- functions run with the owner's rights and do not use the caller's search path. Roles get their earlier grants again.
-- JIT is off: before PostgreSQL 18 the planner adds a high cost for a disabled plan node, which would start a
-- compilation that takes longer than any verb.
CREATE FUNCTION taskq_internal.secure_schema() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_function regprocedure;
    v_role     name;
BEGIN
    PERFORM taskq_internal.forget_dropped_roles();
    PERFORM taskq_internal.revoke_all_privileges();
    FOR v_function IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'taskq'::regnamespace LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off',
                       v_function);
    END LOOP;
    FOR v_role IN SELECT DISTINCT a.role FROM taskq_internal.access a LOOP
        PERFORM taskq_internal.grant_privileges(v_role);
    END LOOP;
END $$;
