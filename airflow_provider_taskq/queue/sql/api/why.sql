-- Why: one sentence for whoever asks why a task is not running, and what a topic did lately.

-- Why a task is not running, in one sentence; of one that runs or has ended: that it does. NULL where there is no such task.
CREATE FUNCTION taskq.why(p_topic text, p_sequence bigint) RETURNS text LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_topic taskq.topic := taskq.find_topic(p_topic);
    v_live  taskq.live;
    v_ended record;
BEGIN
    SELECT * INTO v_live FROM taskq.live l WHERE l.topic_id = v_topic.topic_id AND l.sequence = p_sequence;
    IF FOUND THEN
        RETURN CASE WHEN v_live.holder IS NULL THEN taskq.why_waiting(v_topic, v_live) ELSE taskq.why_held(v_live.holder) END;
    END IF;
    SELECT taskq.why_ended(e.state, e.descent, e.attempt, v_topic.max_attempts, o.name) AS why, e.state, e.completed, e.error_summary
    INTO v_ended FROM taskq.ended e LEFT JOIN taskq.owner o ON o.owner_id = e.holder
    WHERE e.topic_id = v_topic.topic_id AND e.sequence = p_sequence;
    IF FOUND THEN
        RETURN concat_ws(': ', format('it is %s%s', taskq.state_name(v_ended.state), CASE WHEN v_ended.completed IS NOT NULL
            THEN format(' since %s', taskq.in_words(statement_timestamp() - taskq.clamp_moment(v_ended.completed))) END), v_ended.why,
            CASE WHEN v_ended.state = 3 THEN v_ended.error_summary END);
    END IF;
    RETURN NULL;
END $$;

-- Of a task that an owner holds: who, and until when at least.
CREATE FUNCTION taskq.why_held(p_holder bigint) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN o.lease_until < statement_timestamp()
        THEN format('it was taken by %s, whose lease lapsed %s ago: the next expire() takes it back', o.name,
                    taskq.in_words(statement_timestamp() - taskq.clamp_moment(o.lease_until)))
        ELSE format('it is running: held by %s, whose lease goes on for another %s', o.name,
                    taskq.in_words(taskq.clamp_moment(o.lease_until) - statement_timestamp())) END
    FROM taskq.owner o WHERE o.owner_id = p_holder
$$;

-- Of a READY task: the first thing that keeps it, else its place in the line.
CREATE FUNCTION taskq.why_waiting(p_topic taskq.topic, p_task taskq.live) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_way text;
BEGIN
    IF p_topic.paused THEN
        RETURN 'its topic is paused';
    ELSIF taskq.due_of(p_task) = taskq.paused_until() THEN
        RETURN 'it is paused, until somebody resumes it';
    ELSIF p_task.waits = 1 THEN
        RETURN format('it %s', taskq.unfulfilled(p_topic.topic_id, p_task.sequence));
    ELSIF p_task.waits = 2 AND p_task.available_at <= statement_timestamp() THEN
        RETURN 'retries of its topic fail, and another one is tried first';
    ELSIF p_task.available_at > statement_timestamp() THEN
        RETURN concat_ws(': ', format('it is %s in %s', CASE WHEN p_task.attempt > 0 THEN 'to be tried again' ELSE 'due' END,
                                      taskq.in_words(taskq.clamp_moment(p_task.available_at) - statement_timestamp())),
                         CASE WHEN p_task.attempt > 0 THEN p_task.error_summary END);
    END IF;
    v_way := taskq.in_the_way(p_topic.topic_id, p_task.sequence);
    RETURN concat_ws('; ', v_way, taskq.why_unserved(p_topic.topic_id),
                     CASE WHEN v_way IS NULL THEN taskq.place_in_line(p_topic.topic_id, p_task.sequence) END);
END $$;

-- That nobody seems to poll a topic, where nobody holds its tasks and none has ended for a minute; NULL where somebody does.
CREATE FUNCTION taskq.why_unserved(p_topic_id int) RETURNS text LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_last timestamptz := (SELECT taskq.clamp_moment(max(n.completed)) FROM (SELECT e.completed FROM taskq.ended e WHERE e.topic_id = p_topic_id
                                                         ORDER BY e.sequence DESC LIMIT 100) n);
BEGIN
    IF v_last > statement_timestamp() - interval '1 minute' OR p_topic_id = ANY (taskq.topics_served()) THEN
        RETURN NULL;
    END IF;
    RETURN 'nobody seems to poll its topic: ' || coalesce(
        'the last task of it ended ' || taskq.in_words(statement_timestamp() - v_last) || ' ago', 'none of its tasks has ended yet');
END $$;

-- The place of a READY task among those that may be polled, looked for among the first thousand.
CREATE FUNCTION taskq.place_in_line(p_topic_id int, p_sequence bigint) RETURNS text LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_place bigint;
BEGIN
    SELECT f.place INTO v_place FROM (
        SELECT l.sequence, row_number() OVER () AS place FROM (
            SELECT n.sequence FROM taskq.live n WHERE n.topic_id = p_topic_id AND n.holder IS NULL AND n.waits <= 0
            ORDER BY n.priority DESC, n.available_at, n.sequence LIMIT 1000) l) f
    WHERE f.sequence = p_sequence;
    RETURN CASE WHEN v_place = 1 THEN 'it is ready, and the next in line'
                WHEN v_place IS NULL THEN 'it is ready, with 1,000 or more before it'
                ELSE format('it is ready, with %s before it', v_place - 1) END;
END $$;

-- How many tasks of each topic ended in each of the states FAILED to SUCCEEDED, by spans of time up to now: spans counted back, 0 the last one. Reads at most
-- p_pages pages of what has ended, a random share of them where there are more, and multiplies: so it costs the same for ten
-- million tasks as for ten thousand. sampled: the share that was read.
CREATE FUNCTION taskq.throughput(p_span interval, p_spans int, p_topic text DEFAULT NULL, p_pages int DEFAULT 2000)
RETURNS TABLE (topic text, span int, state int, count bigint, sampled double precision) LANGUAGE plpgsql
SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_table record;
    v_pages bigint;
    v_share double precision;
    v_reach interval;
BEGIN
    PERFORM taskq.check_duration('throughput: the span', p_span);
    v_reach := CASE WHEN p_spans * extract(epoch FROM p_span) < 31536000000 THEN p_spans * p_span ELSE interval '365000 days' END;
    FOR v_table IN SELECT c.oid::regclass AS name, pg_relation_size(c.oid) / current_setting('block_size')::int AS pages
                   FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid WHERE h.inhparent = 'taskq.ended'::regclass LOOP
        v_share := least(100, 100.0 * p_pages / greatest(v_table.pages, 1));
        RETURN QUERY EXECUTE format(
            'SELECT p.name, n.span, n.state, round(n.count * 100 / $1)::bigint, $1 / 100 FROM (
                 SELECT e.topic_id, e.state::int, floor(extract(epoch FROM $2 - e.completed) / $3)::int AS span, count(*) AS count
                 FROM %s e %s WHERE e.completed > $2 - $4 AND e.completed <= $2 AND e.state BETWEEN 3 AND 6
                 GROUP BY 1, 2, 3) n
             JOIN taskq.topic p ON p.topic_id = n.topic_id WHERE $5 IS NULL OR p.name = $5',
            v_table.name, CASE WHEN v_share < 100 THEN format('TABLESAMPLE SYSTEM (%s)', v_share) ELSE '' END)
        USING v_share, v_now, extract(epoch FROM p_span), v_reach, p_topic;
    END LOOP;
END $$;

-- What a task that waits for dependencies waits for: a sentence about the first that is not fulfilled.
CREATE FUNCTION taskq.unfulfilled(p_topic_id int, p_sequence bigint) RETURNS text LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_first record;
BEGIN
    SELECT p.name, d.on_identifier, n.sequence, coalesce(e.state, 1) AS state INTO v_first
    FROM taskq.dependency d
    CROSS JOIN LATERAL (SELECT t.sequence FROM taskq.task t WHERE t.identifier = d.on_identifier AND t.topic_id = d.on_topic_id
                        ORDER BY t.sequence DESC LIMIT 1) n
    LEFT JOIN taskq.ended e ON e.topic_id = d.on_topic_id AND e.sequence = n.sequence
    LEFT JOIN taskq.topic p ON p.topic_id = d.on_topic_id
    WHERE d.topic_id = p_topic_id AND d.sequence = p_sequence AND e.state IS DISTINCT FROM 6 LIMIT 1;
    RETURN CASE WHEN NOT FOUND THEN 'its dependencies are fulfilled: the next poll looks again'
                ELSE format('waits for %s of topic %s (sequence %s, %s)', v_first.on_identifier, v_first.name, v_first.sequence,
                            CASE WHEN v_first.state = 1 THEN 'not ended' ELSE taskq.state_name(v_first.state) END) END;
END $$;

-- Why a READY task is not running, by its columns in taskq.live.
CREATE FUNCTION taskq.why_ready(p_paused boolean, p_topic_id int, p_sequence bigint, p_waits smallint, p_attempt int, p_due timestamptz)
RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN p_paused THEN 'the topic is paused'
                WHEN p_due = taskq.paused_until() THEN 'paused, until somebody resumes it'
                WHEN p_waits = 1 THEN taskq.unfulfilled(p_topic_id, p_sequence)
                WHEN p_waits = 2 THEN 'waits for the retry that its topic tries first'
                WHEN p_due > statement_timestamp() THEN
                    format('%s in %s', CASE WHEN p_attempt > 0 THEN 'tried again' ELSE 'due' END, taskq.in_words(taskq.clamp_moment(p_due) - statement_timestamp()))
                ELSE concat_ws('; ', 'may be polled', taskq.in_the_way(p_topic_id, p_sequence)) END;
END $$;

-- Why a task in one of the other states is in it; NULL of one that ended without a failure. p_owner: the name of its last owner.
CREATE FUNCTION taskq.why_ended(p_state smallint, p_descent smallint, p_attempt int, p_max_attempts int, p_owner text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_state = 2 THEN format('the lease of %s ran out; it waits to be revived', p_owner)
                WHEN p_state = 3 AND p_attempt < p_max_attempts THEN
                    format('given up at attempt %s; now its topic allows %s', p_attempt, p_max_attempts)
                WHEN p_state = 3 THEN format('given up after %s of %s attempts', p_attempt, p_max_attempts)
                WHEN p_state = 4 THEN 'waits to be released or revived'
                WHEN p_descent IS NOT NULL THEN 'was ' || taskq.state_name(p_descent) END
$$;
