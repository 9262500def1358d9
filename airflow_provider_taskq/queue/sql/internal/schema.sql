-- The planner: what older servers have to be told.

-- Tells servers before PostgreSQL 17 how to plan, once all functions are made. They plan `topic_id = x AND sequence = ANY
-- (array)` in two ways: by both conditions, or, where they take the topic for a small one, by the topic alone, reading all
-- of it for a few rows. They do take a busy topic for a small one while the table was not analysed, or where thousands of
-- others are small. With costs of rows only, they choose by what counts here, the number of rows. An index entry keeps a
-- small cost: at the usual one, ten lookups would cost more than a topic of four rows, which is what a server assumes of a
-- table that was never analysed; at none, reading an index from end to end would cost nothing. Bitmaps are off, as at such costs
-- a server would combine whole indexes for a few rows. Later servers know the first way only.
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
