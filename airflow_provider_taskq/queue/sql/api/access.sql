-- Access: who may do what. The functions that the clients call run with the rights of the schema's owner, so that a
-- role needs no right on any table; and a role may call only what it was granted, by kind:
--
--   producer   push, recurring tasks too; the topics and their policies
--   consumer   work: leases, polls, completions, junctions, stages, locks, and the log with its progress
--   reader     look at tasks, counts, owners and health, without changing anything
--   operator   all of these, and what changes topics, takes leases, revives, reassigns, releases, purges
--
-- A consumer that pushes follow-ups is granted both kinds. docs/operations.md lists every function; a test compares. Installing and upgrading stay with the schema's owner.

-- The functions that clients call, by the kind that may call them first; operators may call all.
CREATE FUNCTION taskq.entrances() RETURNS TABLE (kind text, name text) LANGUAGE sql IMMUTABLE AS $$
    SELECT 'producer', unnest(ARRAY['push', 'push_one', 'offer', 'offer_many', 'lock_offers', 'drop', 'first_pushed', 'open_push', 'check_push', 'push_staged', 'abandon_push', 'begin_batch',
        'install_ticks', 'wake', 'topics', 'policy_of'])
    UNION ALL SELECT 'consumer', unnest(ARRAY[
        'register', 'take_over', 'heartbeat', 'release', 'owner_named', 'owners', 'held', 'poll', 'poll_batch', 'claim', 'has_unclaimed', 'ready', 'ready_many', 'topic_status',
        'watch', 'watch_tasks', 'junction', 'juncture', 'wake', 'task', 'complete', 'exchange', 'held_bounds', 'held_slice', 'open_stage', 'check_stage', 'complete_staged', 'stage_results',
        'claim_batch', 'lay_aside', 'stage_size', 'stage_pushed', 'wake_staged', 'carried_out', 'abandon_stage', 'prune_stages', 'expire', 'lock', 'unlock', 'begin_batch', 'events', 'log_end', 'log_bounds', 'log_slice', 'progress', 'advance', 'topics', 'policy_of',
        'join_readers', 'lead', 'keep_leading', 'read_led', 'advance_led', 'stop_leading', 'give_back', 'note_handling',
        'set_worker', 'worker_is_active', 'begin_drain', 'end_drain', 'drain_named', 'ended_by', 'failed_by'])
    UNION ALL SELECT 'reader', unnest(ARRAY[
        'topics', 'policy_of', 'owners', 'owner_named', 'ready', 'ready_many', 'topic_status', 'watch_tasks', 'task', 'timeline', 'why', 'throughput', 'latest', 'page', 'count', 'results', 'resolve',
        'task_bounds', 'task_slice', 'events', 'log_end', 'log_bounds', 'log_slice', 'progress', 'health', 'log_holders', 'newest', 'why_ready', 'why_ended', 'unfulfilled', 'in_the_way', 'longest_due', 'in_words',
        'state_name', 'readers', 'statistics', 'handling_times', 'errors', 'error_groups', 'stuck_owners', 'workers', 'worker_is_active',
        'browse_topics', 'browse_owners', 'browse_holders', 'browse_locks', 'browse_readers', 'browse_ticks', 'browse_tasks', 'browse_held',
        'find_tasks', 'search_tasks', 'claimed_by', 'pushed_between', 'newest_of', 'dependencies_of', 'texts_of', 'audit_trail', 'count_lapsed', 'drain_named', 'ended_by', 'failed_by'])
    UNION ALL SELECT 'operator', unnest(ARRAY[
        'create_topic', 'alter_topic', 'set_paused', 'drop_topic', 'revive', 'reassign', 'purge_junctures', 'purge', 'purge_all',
        'purge_owners', 'purge_streams', 'forget_stream', 'forget_readers', 'pause_task', 'resume_task', 'set_due', 'set_attempts', 'run_now', 'set_priority', 'cancel', 'purge_outlived', 'uninstall_ticks', 'topic_is_held', 'begin_move', 'make_tables', 'keep_out', 'let_in',
        'close_shared', 'move_rows', 'undo_move', 'leave_move', 'move_back', 'drop_vacant', 'note_action', 'hold_found', 'purge_named', 'forget_worker'])
$$;

-- Grants a role what a kind of user needs (see above), and remembers it, so that it outlives upgrades.
CREATE FUNCTION taskq.grant_access(p_role text, p_kind text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_kind IS NULL OR p_kind NOT IN ('producer', 'consumer', 'reader', 'operator') THEN
        PERFORM taskq.refuse('TQ000', format('access %L is none of producer, consumer, reader, operator', p_kind));
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = p_role) THEN
        PERFORM taskq.refuse('TQ000', format('role %L is not known to this server; create it with CREATE ROLE', p_role));
    END IF;
    INSERT INTO taskq.access (role, kind) VALUES (p_role, p_kind) ON CONFLICT DO NOTHING;
    PERFORM taskq.open_to(p_role, p_kind);
END $$;

-- Takes back from a role what it was granted here, all kinds.
CREATE FUNCTION taskq.revoke_access(p_role text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM taskq.access WHERE role = p_role;
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA taskq FROM %I', p_role);
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA taskq FROM %I', p_role);
    EXECUTE format('REVOKE ALL ON SCHEMA taskq FROM %I', p_role);
END $$;

-- Gives a role the rights of a kind on the functions and views as they are now.
CREATE FUNCTION taskq.open_to(p_role text, p_kind text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_entrance regprocedure;
    v_view     regclass;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA taskq TO %I', p_role);
    EXECUTE format('GRANT SELECT ON taskq.migration TO %I', p_role);
    FOR v_entrance IN SELECT p.oid FROM pg_proc p JOIN taskq.entrances() e ON e.name = p.proname
                      WHERE p.pronamespace = 'taskq'::regnamespace AND (e.kind = p_kind OR p_kind = 'operator') LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_entrance, p_role);
    END LOOP;
    IF p_kind IN ('consumer', 'operator') THEN
        EXECUTE format('GRANT INSERT ON taskq.staged, taskq.staged_junction TO %I', p_role);
        -- Whether a decision is continued (see follow_ups.sql). Without the columns of a task such a row pushes nothing.
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

-- Closes the schema after its functions were made anew: nobody may call any of them but by a grant, the entrances run
-- with the owner's rights and resolve nothing by the caller's search path, and the roles get back what they had. No JIT:
-- what a function switches off counts as costly before PostgreSQL 18, and a compilation takes longer than any verb.
CREATE FUNCTION taskq.close_schema() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_entrance regprocedure;
    v_access   taskq.access;
BEGIN
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA taskq FROM PUBLIC;
    FOR v_entrance IN SELECT DISTINCT p.oid FROM pg_proc p JOIN taskq.entrances() e ON e.name = p.proname
                      WHERE p.pronamespace = 'taskq'::regnamespace LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off', v_entrance);
    END LOOP;
    FOR v_access IN SELECT * FROM taskq.access WHERE role IN (SELECT rolname FROM pg_roles) LOOP
        PERFORM taskq.open_to(v_access.role, v_access.kind);
    END LOOP;
END $$;
