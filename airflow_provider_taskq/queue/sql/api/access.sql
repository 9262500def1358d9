-- Access: the schema taskq holds what roles may use, the schema taskq_internal all else. Every function of taskq
-- runs with the rights of the schema's owner, so a role needs no right on a table. A role may call the functions of
-- the kinds that it was granted:
--
-- The kind producer pushes tasks and installs ticks. A consumer claims, completes, and reads the log. A reader looks
-- at tasks, owners and health, and changes nothing. An operator may call all of these, and the functions that change
-- topics and the tasks of others.
--
-- A consumer that pushes follow-ups needs both kinds. docs/operations.md lists every function; a test compares. Only
-- the owner installs and upgrades the schema.

-- Which kind of role may call which functions. A function of this schema that is in no list is for operators. Only the owner of
-- the schema may call grant_access and revoke_access.
CREATE VIEW taskq.privileges AS
SELECT 'producer' AS kind, unnest(ARRAY[
    'push', 'offer', 'offer_many', 'lock_offers', 'drop', 'first_pushed', 'open_push', 'check_push',
    'push_staged', 'abandon_push', 'begin_stream_batch', 'install_ticks', 'notify', 'topics', 'policy']) AS function
UNION ALL SELECT 'consumer', unnest(ARRAY[
    'register', 'take_over', 'heartbeat', 'release', 'owner', 'owners', 'held', 'poll', 'poll_batch', 'claim',
    'has_unclaimed', 'ready', 'ready_many', 'topic_status', 'watch', 'watch_tasks', 'junction', 'release_groups_once', 'notify',
    'task', 'complete', 'exchange', 'held_bounds', 'held_slice', 'open_stage', 'check_stage', 'complete_staged',
    'stage_results', 'claim_batch', 'defer_held_tasks', 'count_staged', 'count_stage_pushed', 'notify_stage_topics', 'completed_in_stage',
    'abandon_stage', 'prune_stages', 'expire', 'lock', 'unlock', 'begin_stream_batch', 'events', 'log_end', 'log_bounds',
    'log_slice', 'progress', 'advance', 'topics', 'policy', 'join_group', 'acquire_partition', 'renew_partitions', 'read_partition',
    'advance_partition', 'release_partition', 'release_tasks', 'record_handling_times', 'set_worker_active', 'is_worker_active', 'begin_drain',
    'end_drain', 'find_drain', 'count_ended_by', 'find_failed_by'])
UNION ALL SELECT 'reader', unnest(ARRAY[
    'topics', 'policy', 'owners', 'owner', 'ready', 'ready_many', 'topic_status', 'watch_tasks', 'task',
    'timeline', 'explain', 'throughput', 'latest', 'page', 'count', 'results', 'resolve', 'task_bounds', 'task_slice',
    'events', 'log_end', 'log_bounds', 'log_slice', 'progress', 'health', 'log_blockers', 'newest', 'explain_ready',
    'explain_ended', 'explain_dependency', 'explain_turn', 'oldest_due', 'format_duration', 'state_name', 'partition_states', 'statistics',
    'handling_times', 'topic_errors', 'error_groups', 'stuck_owners', 'workers', 'is_worker_active', 'browse_topics',
    'browse_owners', 'browse_holders', 'browse_locks', 'browse_groups', 'browse_ticks', 'browse_tasks',
    'browse_held', 'find_tasks', 'search_tasks', 'find_claimed', 'find_pushed', 'newest_sequences', 'dependencies',
    'task_texts', 'audit_trail', 'count_lapsed', 'find_drain', 'count_ended_by', 'find_failed_by'])
UNION ALL SELECT DISTINCT 'operator', p.proname::text FROM pg_proc p
WHERE p.pronamespace = 'taskq'::regnamespace AND p.proname NOT IN ('grant_access', 'revoke_access');
COMMENT ON VIEW taskq.privileges IS
'Which kind of role (see taskq.grant_access) may call which function of this schema.';

-- The installed migrations. Clients compare them with their own release.
CREATE VIEW taskq.migrations AS SELECT number, name, checksum, applied FROM taskq_internal.migration;
COMMENT ON VIEW taskq.migrations IS
'The installed migrations with their checksums. Number 0 stands for all functions, -1 for the optional views.';

CREATE FUNCTION taskq.grant_access(p_role text, p_kind text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_kind IS NULL OR p_kind NOT IN ('producer', 'consumer', 'reader', 'operator') THEN
        PERFORM taskq_internal.raise_error('TQ000', format('access %L is none of producer, consumer, reader, operator', p_kind));
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = p_role) THEN
        PERFORM taskq_internal.raise_error('TQ000', format('role %L is not known to this server; create it with CREATE ROLE', p_role));
    END IF;
    INSERT INTO taskq_internal.access (role, kind) VALUES (p_role, p_kind) ON CONFLICT DO NOTHING;
    PERFORM taskq_internal.grant_kind(p_role, p_kind);
END $$;
COMMENT ON FUNCTION taskq.grant_access IS
'Grants a role one kind of access: producer, consumer, reader or operator. The queue stores the grant and repeats it
after an upgrade. A role may have several kinds. Only the owner of the schema may call it. Errors: TQ000 for an
unknown role or kind.';

CREATE FUNCTION taskq.revoke_access(p_role text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM taskq_internal.access WHERE role = p_role;
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA taskq FROM %I', p_role);
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA taskq FROM %I', p_role);
    EXECUTE format('REVOKE ALL ON SCHEMA taskq FROM %I', p_role);
END $$;
COMMENT ON FUNCTION taskq.revoke_access IS
'Revokes everything that grant_access has granted to a role. Only the owner of the schema may call it.';

-- Gives a role the rights of a kind on the functions and views as they are now.
CREATE FUNCTION taskq_internal.grant_kind(p_role text, p_kind text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_function regprocedure;
    v_view     regclass;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA taskq TO %I', p_role);
    EXECUTE format('GRANT SELECT ON taskq.migrations, taskq.privileges TO %I', p_role);
    FOR v_function IN SELECT p.oid FROM pg_proc p JOIN taskq.privileges r ON r.function = p.proname
                      WHERE p.pronamespace = 'taskq'::regnamespace AND r.kind = p_kind LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, p_role);
    END LOOP;
    IF p_kind IN ('consumer', 'operator') THEN
        EXECUTE format('GRANT INSERT ON taskq.staged, taskq.staged_junction TO %I', p_role);
        -- Whether a decision is continued (see stages.sql). Without the columns of a task such a row pushes nothing.
        EXECUTE format('GRANT INSERT (stage, part, attempt, place, parent, suspended) ON taskq.staged_task TO %I', p_role);
    END IF;
    IF p_kind IN ('producer', 'operator') THEN
        EXECUTE format('GRANT INSERT ON taskq.staged_task TO %I', p_role);
    END IF;
    IF p_kind IN ('reader', 'operator') THEN
        FOR v_view IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'taskq'::regnamespace  -- the first two may be left out
                      AND c.relname IN ('tasks', 'topics_at_a_glance', 'task_info') LOOP
            EXECUTE format('GRANT SELECT ON %s TO %I', v_view, p_role);
        END LOOP;
    END IF;
END $$;

-- Secures the schema after its functions were replaced. Only granted roles may call them. Public functions run with the owner's
-- rights and do not use the caller's search path. Roles get their earlier grants again. JIT is off: before PostgreSQL 18 the planner
-- adds a high cost for a disabled plan node, which would start a compilation that takes longer than any verb.
CREATE FUNCTION taskq_internal.secure_schema() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_function regprocedure;
    v_access   taskq_internal.access;
BEGIN
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA taskq, taskq_internal FROM PUBLIC;
    FOR v_function IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'taskq'::regnamespace LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off', v_function);
    END LOOP;
    FOR v_access IN SELECT * FROM taskq_internal.access WHERE role IN (SELECT rolname FROM pg_roles) LOOP
        PERFORM taskq_internal.grant_kind(v_access.role, v_access.kind);
    END LOOP;
END $$;
