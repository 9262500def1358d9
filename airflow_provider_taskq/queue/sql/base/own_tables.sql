-- Own tables of a topic, from its creation to its drop. They are named task_N, live_N and ended_N, where N is the
-- number of the topic. Topics with own tables have the numbers from :FIRST_OWN_TOPIC on, and the shared tables take the
-- numbers below. There is no default partition, which ATTACH would have to scan.

-- Creates the own tables of a topic, with the columns, indexes and storage parameters of the shared tables. Other
-- sessions read and write all tables meanwhile: ATTACH locks only other changes of the tables out.
CREATE FUNCTION taskq_internal.create_own_tables(p_topic_id int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_table   text;
    v_own     text;
    v_options text;
    v_grantee oid;
BEGIN
    FOREACH v_table IN ARRAY ARRAY['task', 'live', 'ended'] LOOP
        v_own := v_table || '_' || p_topic_id;
        v_options := (SELECT ' WITH (' || array_to_string(c.reloptions, ', ') || ')' FROM pg_class c
                      WHERE c.oid = format('taskq_internal.%I_shared', v_table)::regclass);
        EXECUTE format('CREATE TABLE taskq_internal.%I (LIKE taskq_internal.%I INCLUDING ALL)%s', v_own, v_table,
                       v_options);
        FOR v_grantee IN SELECT DISTINCT x.grantee FROM pg_class c, aclexplode(c.relacl) x  -- of default privileges
                         WHERE c.oid = format('taskq_internal.%I', v_own)::regclass AND x.grantee <> c.relowner LOOP
            EXECUTE format('REVOKE ALL ON taskq_internal.%I FROM %s', v_own,
                           CASE v_grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(v_grantee)) END);
        END LOOP;
        EXECUTE format('ALTER TABLE taskq_internal.%I ATTACH PARTITION taskq_internal.%I FOR VALUES FROM (%s) TO (%s)',
                       v_table, v_own, p_topic_id, p_topic_id + 1);
    END LOOP;
END $$;

-- Drops the own tables of a topic. This needs the tables of all topics for itself, until the transaction ends. So it
-- waits for at most a few times 10 ms, because all other calls queue behind it. Then it raises lock_not_available.
CREATE FUNCTION taskq_internal.drop_own_tables(p_topic_id int) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    v_tables text := (SELECT string_agg(format('taskq_internal.%I', t || '_' || p_topic_id), ', ')
                      FROM unnest(ARRAY['task', 'live', 'ended']) AS t);
BEGIN
    -- This lock ends an autovacuum of the tables after deadlock_timeout, and no call waits for it.
    EXECUTE format('LOCK TABLE %s IN SHARE UPDATE EXCLUSIVE MODE', v_tables);
    PERFORM set_config('lock_timeout', '10ms', true);
    EXECUTE format('DROP TABLE %s', v_tables);
END $$;
