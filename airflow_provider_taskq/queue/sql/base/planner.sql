-- Sets planner costs on servers before PostgreSQL 17. Such a server plans topic_id = x AND sequence = ANY (array) in
-- two ways: by both conditions or, if it estimates a small topic, by the topic alone, which reads the whole topic for a
-- few rows. It underestimates a busy topic while the table is not analyzed, or if thousands of other topics are small.
-- With costs for rows only, it chooses by the number of rows.
--
-- An index entry keeps a small cost. At the usual cost, ten lookups would cost more than the four rows that a server
-- assumes for a table that was never analyzed. Without a cost, a full index scan would be free. Bitmaps are off,
-- because at such costs a server would combine whole indexes for a few rows.
CREATE FUNCTION taskq_internal.set_planner_costs() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_function regprocedure;
BEGIN
    IF current_setting('server_version_num')::int >= 170000 THEN
        RETURN;
    END IF;
    FOR v_function IN SELECT p.oid FROM pg_proc p
                      WHERE p.pronamespace IN ('taskq'::regnamespace, 'taskq_internal'::regnamespace)
                        AND p.prosrc ~ '(sequence|identifier) = ANY \(' LOOP
        EXECUTE format('ALTER FUNCTION %s SET random_page_cost = 0 SET seq_page_cost = 0 SET cpu_operator_cost = 0'
                       ' SET cpu_index_tuple_cost = 0.0001 SET enable_bitmapscan = off', v_function);
    END LOOP;
END $$;
