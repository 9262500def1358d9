-- Staged pushes: executors stage tasks, and their driver pushes all of them in one transaction. A repeated call of the
-- driver pushes nothing.

CREATE FUNCTION taskq.open_push() RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_stage uuid := gen_random_uuid();
BEGIN
    PERFORM taskq_internal.prune_staged_tasks();
    INSERT INTO taskq_internal.stage (stage, opened_by) VALUES (v_stage, taskq_internal.acting_role());
    RETURN v_stage;
END $$;
COMMENT ON FUNCTION taskq.open_push IS
'Opens a stage for tasks that executors stage. Returns the ID of the stage. Also removes the stages that dead drivers
have left.';

-- The removal of a stage waits for the end of the transactions that have passed this check. So an attempt that outlives
-- its job leaves no rows in the stage.
CREATE FUNCTION taskq.check_push(p_stage uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(taskq_internal.mutex(:LOCK_STAGE, p_stage::text));
    -- The driver of a stream opens no stage, so the first executor opens it.
    IF NOT EXISTS (SELECT FROM taskq_internal.stage WHERE stage = p_stage) THEN
        INSERT INTO taskq_internal.stage (stage, opened_by) VALUES (p_stage, taskq_internal.acting_role())
        ON CONFLICT DO NOTHING;
    END IF;
    PERFORM taskq_internal.check_stage_access(p_stage, 'INSERT');
    IF EXISTS (SELECT FROM taskq_internal.stage WHERE stage = p_stage AND committed IS NOT NULL) THEN
        PERFORM taskq_internal.raise_error('TQ007', format(
            'stage %s was committed or abandoned: it accepts no more tasks', p_stage));
    END IF;
END $$;
COMMENT ON FUNCTION taskq.check_push IS
'Checks that a stage still accepts tasks. An executor that stages tasks calls it as its last statement. Raises TQ007 if
the stage was committed or abandoned.';

CREATE FUNCTION taskq.push_staged(
    p_stage uuid, p_topic text, p_insertion text, p_parts int[], p_attempts bigint[], p_counts bigint[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_done bigint;
BEGIN
    IF NOT taskq_internal.close_push(p_stage) THEN
        RETURN (SELECT completed FROM taskq_internal.stage WHERE stage = p_stage);
    END IF;
    PERFORM taskq_internal.check_staged_tasks(p_stage, p_parts, p_attempts, p_counts);
    v_done := taskq_internal.push_from_stage(p_stage, p_topic, p_insertion, p_parts, p_attempts);
    IF v_done <> (SELECT coalesce(sum(c), 0) FROM unnest(p_counts) AS c) THEN
        PERFORM taskq_internal.raise_error('TQ007', format(
            'stage %s was removed while it was pushed: run the job again', p_stage));
    END IF;
    UPDATE taskq_internal.stage SET completed = v_done WHERE stage = p_stage;
    RETURN v_done;
END $$;
COMMENT ON FUNCTION taskq.push_staged IS
'Pushes the staged tasks of the successful attempt of each part, in the order of part and place. Returns how many tasks
it pushed. All tasks go to p_topic. With p_topic NULL each task names its own topic. The arrays p_parts, p_attempts and
p_counts name, for each part, its successful attempt and the number of tasks that this attempt staged. A repeated call
returns the same number and changes nothing. Raises TQ007 if the counts differ, and the errors of taskq.push.';

CREATE FUNCTION taskq.abandon_push(p_stage uuid) RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_count bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(taskq_internal.mutex(:LOCK_STAGE, p_stage::text));
    PERFORM taskq_internal.close_push(p_stage);
    DELETE FROM taskq.staged_task WHERE stage = p_stage;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    DELETE FROM taskq.staged_junction WHERE stage = p_stage;
    RETURN v_count;
END $$;
COMMENT ON FUNCTION taskq.abandon_push IS
'Removes the staged rows of a stage. Returns how many tasks were staged. The stage accepts no more rows. A committed
stage stays committed.';

CREATE FUNCTION taskq.begin_stream_batch(p_stream text, p_batch bigint, p_query text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_last taskq_internal.stream;
BEGIN
    PERFORM taskq_internal.require_read_committed('begin_stream_batch()');
    PERFORM taskq_internal.check_name('a stream', p_stream);
    INSERT INTO taskq_internal.stream AS s (name, batch, committed, query)
        VALUES (p_stream, p_batch, clock_timestamp(), p_query)
    ON CONFLICT (name) DO UPDATE SET batch = p_batch, committed = clock_timestamp(), query = coalesce(p_query, s.query)
    WHERE s.batch < p_batch AND (s.query = p_query) IS NOT FALSE;
    IF FOUND THEN
        RETURN true;
    END IF;
    SELECT * INTO v_last FROM taskq_internal.stream WHERE name = p_stream;
    IF v_last.query <> p_query THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'stream %L belongs to another query, which has committed up to batch %s. A new checkpoint numbers'
            ' its batches from 0 again, and they would be lost as repetitions. Use another name for the'
            ' stream, or remove the old stream with taskq.forget_stream', p_stream, v_last.batch));
    END IF;
    RETURN false;
END $$;
COMMENT ON FUNCTION taskq.begin_stream_batch IS
'Records in this transaction that a stream commits a batch. p_query is the ID of the query in Spark''s checkpoint. Waits
for another run of the same stream. Returns false if the stream has already committed this batch or a later one. Raises
TQ000 if another query uses the name, and TQ008 for an invalid name.';

CREATE FUNCTION taskq.forget_stream(p_stream text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM taskq_internal.stream WHERE name = p_stream;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION taskq.forget_stream IS
'Removes a stream, so that a query with a new checkpoint can use its name. Returns false if there is no such stream.';

CREATE FUNCTION taskq.purge_streams(p_older_than interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    DELETE FROM taskq_internal.stream WHERE committed < clock_timestamp() - taskq_internal.clamp_age(p_older_than);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
COMMENT ON FUNCTION taskq.purge_streams IS
'Removes streams that have committed no batch for p_older_than. Returns how many streams it removed. A removed stream
that continues later may push its last batch twice.';

-- Marks the stage of a push as committed, so that it accepts no more tasks. Returns false if it was committed before, or
-- is a stage of decisions. Waits for a transaction that does the same.
CREATE FUNCTION taskq_internal.close_push(p_stage uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO taskq_internal.stage (stage, opened_by) VALUES (p_stage, taskq_internal.acting_role())
    ON CONFLICT DO NOTHING;
    PERFORM taskq_internal.check_stage_access(p_stage, 'INSERT');
    UPDATE taskq_internal.stage SET completed = 0, committed = clock_timestamp()
    WHERE stage = p_stage AND committed IS NULL AND fence IS NULL;
    RETURN FOUND;
END $$;

-- Raises TQ007 if the stage has more or fewer tasks of a successful attempt than the attempt reported. The server has
-- then crashed and lost them, or prune_staged_tasks has removed them after a day.
CREATE FUNCTION taskq_internal.check_staged_tasks(p_stage uuid, p_parts int[], p_attempts bigint[], p_counts bigint[])
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_short record;
BEGIN
    SELECT w.part, w.count AS reported, s.count AS found INTO v_short
    FROM unnest(p_parts, p_attempts, p_counts) AS w (part, attempt, count)
    CROSS JOIN LATERAL (SELECT count(*) FROM taskq.staged_task t
                        WHERE t.stage = p_stage AND t.part = w.part AND t.attempt = w.attempt) s
    WHERE s.count <> w.count LIMIT 1;
    IF FOUND THEN
        PERFORM taskq_internal.raise_error('TQ007', format(
            'stage %s has %s of the %s tasks that part %s reported: run the job again', p_stage, v_short.found,
            v_short.reported, v_short.part));
    END IF;
END $$;

-- Pushes the tasks that these attempts have staged, in chunks that limit the server's memory. Returns how many tasks it
-- pushed. An error names an invalid task by its place among all tasks, and by its identifier.
CREATE FUNCTION taskq_internal.push_from_stage(
    p_stage uuid, p_topic text, p_insertion text, p_parts int[], p_attempts bigint[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_done   bigint := 0;
    v_before bigint;
    v_since  bigint;
    v_place  bigint;
    v_last   bigint;
    v_try    record;
    v_chunk  record;
BEGIN
    FOR v_try IN SELECT * FROM unnest(p_parts, p_attempts) AS w (part, attempt) ORDER BY w.part LOOP
        v_before := v_done;
        v_place := -1;
        LOOP
            v_last := taskq_internal.chunk_end(p_stage, v_try.part, v_try.attempt, v_place);
            EXIT WHEN v_last IS NULL;
            FOR v_chunk IN SELECT * FROM taskq_internal.staged_chunk(p_stage, v_try.part, v_try.attempt, v_place,
                    v_last, p_topic) LOOP
                v_since := least(v_since, taskq_internal.push_chunk(v_chunk, p_insertion, v_since));
                v_done := v_done + cardinality(v_chunk.identifiers);
            END LOOP;
            v_place := v_last;
        END LOOP;
    END LOOP;
    RETURN v_done;
EXCEPTION WHEN SQLSTATE 'TQ002' OR data_exception OR statement_too_complex THEN
    PERFORM taskq_internal.raise_staged_error(
        SQLSTATE, SQLERRM, v_before, v_chunk.places, v_chunk.identifiers, v_chunk.payloads);
    RETURN NULL;
END $$;

-- Returns the last place of the next chunk after p_place: 10,000 tasks, or 8 MB of payload. Returns NULL if no tasks
-- are left.
CREATE FUNCTION taskq_internal.chunk_end(p_stage uuid, p_part int, p_attempt bigint, p_place bigint) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN (SELECT max(n.place) FROM (
        SELECT s.place, sum(coalesce(octet_length(s.payload), 0)) OVER (ORDER BY s.place ROWS UNBOUNDED PRECEDING)
                        - coalesce(octet_length(s.payload), 0) AS before
        FROM taskq.staged_task s
        WHERE s.stage = p_stage AND s.part = p_part AND s.attempt = p_attempt AND s.place > p_place
        ORDER BY s.place LIMIT 10000) n WHERE n.before < 8000000);
END $$;

-- Returns a chunk as arrays for taskq.push, with one row for each topic. If tasks have dependencies, each run of tasks
-- of the same topic has a row, so that every task comes after the tasks before it. With p_topic all tasks go to that
-- topic, which takes half the time.
CREATE FUNCTION taskq_internal.staged_chunk(
    p_stage uuid, p_part int, p_attempt bigint, p_place bigint, p_last bigint, p_topic text
) RETURNS TABLE (topic text, places bigint[], identifiers text[], payloads text[], refs text[], suspended boolean[],
                 available_at timestamptz[], delays interval[], ttls interval[], priorities int[], depends text[])
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    v_arrays text := 'array_agg(n.place), array_agg(n.identifier),
        CASE WHEN count(n.payload) > 0 THEN array_agg(n.payload) END,
        CASE WHEN count(n.reference) > 0 THEN array_agg(n.reference) END,
        CASE WHEN bool_or(n.suspended) THEN array_agg(n.suspended) END,
        CASE WHEN count(n.available_at) > 0 THEN array_agg(n.available_at) END,
        CASE WHEN count(n.delay) > 0 THEN array_agg(n.delay) END, CASE WHEN count(n.ttl) > 0 THEN array_agg(n.ttl) END,
        CASE WHEN count(n.priority) > 0 THEN array_agg(n.priority) END,
        CASE WHEN count(n.depends_on) > 0 THEN array_agg(n.depends_on) END';
    v_rows   text := 'FROM taskq.staged_task s
        WHERE s.stage = $1 AND s.part = $2 AND s.attempt = $3 AND s.place > $4 AND s.place <= $5';
BEGIN
    IF p_topic IS NOT NULL THEN
        RETURN QUERY EXECUTE format('SELECT $6, %s FROM (SELECT s.* %s ORDER BY s.place) n HAVING count(*) > 0',
                                    v_arrays, v_rows)
            USING p_stage, p_part, p_attempt, p_place, p_last, p_topic;
        RETURN;
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT min(n.topic), %s
         FROM (SELECT m.*, CASE WHEN bool_or(m.depends_on IS NOT NULL) OVER () THEN sum(m.turn) OVER (ORDER BY m.place)
                                ELSE dense_rank() OVER (ORDER BY m.topic) END AS run
               FROM (SELECT s.*, (s.topic IS DISTINCT FROM lag(s.topic) OVER (ORDER BY s.place))::int AS turn %s) m
               ORDER BY run, place) n
         GROUP BY n.run ORDER BY n.run', v_arrays, v_rows)
        USING p_stage, p_part, p_attempt, p_place, p_last;
END $$;

-- Pushes one row of taskq_internal.staged_chunk. Returns its first sequence.
CREATE FUNCTION taskq_internal.push_chunk(p_chunk record, p_insertion text, p_since bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_places    int[];
    v_topics    text[];
    v_names     text[];
    v_sequences bigint[];
BEGIN
    IF p_chunk.topic IS NULL THEN
        PERFORM taskq_internal.raise_error('TQ002', 'task at position 0: it names no topic, and no option does');
    END IF;
    IF p_chunk.depends IS NOT NULL THEN
        SELECT array_agg(u.place - 1), array_agg(d.pair ->> 0), array_agg(d.pair ->> 1) INTO v_places, v_topics, v_names
        FROM unnest(p_chunk.depends) WITH ORDINALITY AS u (list, place)
        CROSS JOIN LATERAL json_array_elements(u.list::json) AS d (pair);
    END IF;
    v_sequences := taskq.push(p_chunk.topic, p_insertion, p_chunk.identifiers, p_chunk.payloads, p_chunk.refs,
                              p_chunk.suspended, p_chunk.available_at, p_chunk.delays, p_chunk.ttls, p_chunk.priorities,
                              0, p_since, v_places, v_topics, v_names);
    RETURN (SELECT min(u.sequence) FROM unnest(v_sequences) AS u (sequence));
END $$;

-- Raises the error of a chunk again. The error names the position of the task among all pushed tasks, and never its
-- payload.
CREATE FUNCTION taskq_internal.raise_staged_error(
    p_code text, p_message text, p_before bigint, p_places bigint[], p_identifiers text[], p_payloads text[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_number int := substring(p_message FROM '^(?:topic .*?, )?task at position (\d+): ')::int + 1;
    v_reason text := p_message;
BEGIN
    IF p_code <> 'TQ002' THEN
        v_number := (SELECT min(u.number) FROM unnest(p_payloads) WITH ORDINALITY AS u (payload, number)
                     WHERE NOT taskq_internal.is_json(u.payload));
        v_reason := CASE WHEN v_number IS NULL THEN p_message ELSE 'task at position 0: its payload is not JSON' END;
    END IF;
    IF v_number IS NOT NULL THEN
        v_reason := regexp_replace(v_reason, 'task at position \d+', format('task at position %s (identifier %L)',
            p_before + p_places[v_number], left(p_identifiers[v_number], 100)));
    END IF;
    PERFORM taskq_internal.raise_error('TQ002', v_reason);
END $$;

-- Returns whether a text is JSON. Returns true for NULL.
CREATE FUNCTION taskq_internal.is_json(p_text text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM p_text::json;
    RETURN true;
EXCEPTION WHEN data_exception OR statement_too_complex THEN
    RETURN false;
END $$;

-- Removes the rows that dead drivers have staged: under a fence that no longer exists, or without a fence more than a
-- day ago. A job that stages for longer than a day fails at its commit. One session prunes at a time; the others return
-- 0. Returns how many stages it removed. The query walks the index from stage to stage, so its cost grows with the
-- stages and not with their tasks.
CREATE FUNCTION taskq_internal.prune_staged_tasks() RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_known          uuid[];
    v_dead           uuid[];
    v_dead_junctions uuid[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(taskq_internal.mutex(:LOCK_PRUNE, '')) THEN
        RETURN 0;
    END IF;
    v_known := ARRAY(
        WITH RECURSIVE known AS (
            (SELECT s.stage FROM taskq.staged_task s ORDER BY s.stage LIMIT 1)
            UNION ALL
            SELECT (SELECT s.stage FROM taskq.staged_task s WHERE s.stage > k.stage ORDER BY s.stage LIMIT 1)
            FROM known k WHERE k.stage IS NOT NULL)
        SELECT k.stage FROM known k WHERE k.stage IS NOT NULL);
    v_dead := taskq_internal.lock_dead_stages(v_known) || taskq_internal.lock_dead_pushes(v_known);
    DELETE FROM taskq.staged_task WHERE stage = ANY (v_dead);
    v_dead_junctions := taskq_internal.lock_dead_stages(ARRAY(
        SELECT s.stage FROM taskq_internal.stage s
        WHERE EXISTS (SELECT FROM taskq.staged_junction j WHERE j.stage = s.stage)));
    DELETE FROM taskq.staged_junction WHERE stage = ANY (v_dead_junctions);
    DELETE FROM taskq_internal.stage WHERE stage = ANY (ARRAY(  -- a driver repeats a commit for at most a minute
        SELECT s.stage FROM taskq_internal.stage s
        WHERE coalesce(s.committed, s.opened) < clock_timestamp() - interval '1 day' AND s.fence IS NULL
        FOR UPDATE SKIP LOCKED));
    RETURN cardinality(v_dead);
END $$;

-- Locks up to 500 of the given stages whose tasks were staged for a push more than a day ago, and returns them. Never
-- waits: leaves out a stage if an executor stages tasks in it, or if another transaction abandons it.
CREATE FUNCTION taskq_internal.lock_dead_pushes(p_stages uuid[]) RETURNS uuid[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_old uuid[] := ARRAY(
        SELECT k.stage FROM unnest(p_stages) AS k (stage)
        CROSS JOIN LATERAL (SELECT t.staged FROM taskq.staged_task t WHERE t.stage = k.stage LIMIT 1) f
        WHERE f.staged < clock_timestamp() - interval '1 day'
          AND NOT EXISTS (SELECT FROM taskq_internal.stage s WHERE s.stage = k.stage AND s.fence IS NOT NULL)
        LIMIT 500);
BEGIN
    RETURN ARRAY(SELECT u.stage FROM unnest(v_old) AS u (stage)
                 WHERE pg_try_advisory_xact_lock(taskq_internal.mutex(:LOCK_STAGE, u.stage::text)));
END $$;
