-- Planner settings. Each public function has a profile of them, which the functions that it calls inherit. The settings
-- leave the planner one choice, so that a cached plan is right whatever the statistics say.
--
-- A function of taskq_internal may be called under several profiles. So it reads one table at a time by an array of
-- sequences, or one row at a time by a subquery that stays a lookup (LATERAL with LIMIT or OFFSET 0).

-- The profiles: which plan nodes are on and off, other settings, and the functions. A function in no list has the
-- profile `lookup`. A profile turns on what the callers of its functions may have turned off.
CREATE VIEW taskq_internal.planner_profile AS
SELECT v.profile, v.nodes, v.settings, f.function
FROM (VALUES
    -- Rows in the order of an index.
    ('poll', '-seqscan -bitmapscan +nestloop -hashjoin -mergejoin -sort', 'SET plan_cache_mode = force_generic_plan',
     'poll poll_batch claim claim_batch ready push revive topic_status watch_tasks oldest_due
      browse_topics explain health resolve'),
    ('lookup', '-seqscan -bitmapscan -hashjoin -mergejoin', 'SET plan_cache_mode = force_generic_plan', ''),
    -- Joins of rows with long arrays.
    ('arrays', '-seqscan -nestloop +hashjoin -mergejoin', 'SET plan_cache_mode = force_generic_plan',
     'complete held offer_many cancel change_waiting reassign junction release_groups_once watch_groups install_ticks
      uninstall_ticks'),
    -- Two tables in the order of their sequences. work_mem keeps 50,000 rows out of temporary files.
    ('slice', '-seqscan -bitmapscan -nestloop -hashjoin',
     'SET plan_cache_mode = force_custom_plan SET work_mem = ''32MB''',
     'held_bounds held_slice log_slice commit_stage'),
    ('search', '-seqscan', 'SET plan_cache_mode = force_custom_plan SET work_mem = ''32MB''',
     'task_bounds task_slice'),
    -- The rows between two moments, by the block range index of ended.completed.
    ('span', '-seqscan -indexscan -nestloop', 'SET plan_cache_mode = force_custom_plan',
     'statistics results count_ended_by'),
    -- Whole tables, no table, or only calls of public functions.
    ('none', NULL, NULL,
     'count throughput purge_owners log_blockers grant_access revoke_access exchange offer push_task notify state_name
      format_duration')) AS v (profile, nodes, settings, functions)
CROSS JOIN LATERAL regexp_split_to_table(v.functions, '\s+') AS f (function);

-- Gives each public function the settings of its profile.
--
-- A server before PostgreSQL 17 plans topic_id = x AND sequence = ANY (array) in two ways: by both conditions or, if it
-- estimates a small topic, by the topic alone, which reads the whole topic for a few rows. It underestimates a busy
-- topic while the table is not analyzed, or if thousands of other topics are small. With costs for rows only, it
-- chooses by the number of rows. An index entry keeps a small cost. At the usual cost, ten lookups would cost more than
-- the four rows that a server assumes for a table that was never analyzed. Without a cost, a full index scan would be
-- free. Bitmaps are off, because at such costs a server would combine whole indexes for a few rows.
CREATE FUNCTION taskq_internal.set_planner_settings() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_function record;
BEGIN
    FOR v_function IN
        SELECT p.oid::regprocedure AS name, f.profile, f.settings, string_agg(format('SET enable_%s = %s',
                   substr(n.node, 2), CASE left(n.node, 1) WHEN '+' THEN 'on' ELSE 'off' END), ' ') AS nodes
        FROM pg_proc p JOIN taskq_internal.planner_profile f ON f.function = coalesce((
            SELECT l.function FROM taskq_internal.planner_profile l WHERE l.function = p.proname), '')
        CROSS JOIN LATERAL string_to_table(f.nodes, ' ') AS n (node)
        WHERE p.pronamespace = 'taskq'::regnamespace GROUP BY p.oid, f.profile, f.settings
    LOOP
        EXECUTE format('ALTER FUNCTION %s %s %s %s', v_function.name, v_function.nodes, v_function.settings,
            CASE WHEN current_setting('server_version_num')::int < 170000
                      AND v_function.profile IN ('poll', 'lookup', 'arrays')
                 THEN 'SET random_page_cost = 0 SET seq_page_cost = 0 SET cpu_operator_cost = 0'
                      ' SET cpu_index_tuple_cost = 0.0001 SET enable_bitmapscan = off' END);
    END LOOP;
END $$;
