-- Push: tasks come in, all of them or none, in the order in which they were given.

-- Stores tasks at the end of a topic and returns their sequences in input order, NULL for one not stored.
-- Each array but the first may be NULL, or holds a value or NULL per task; payloads are JSON texts.
-- p_offset and p_since are for a push in several calls of one transaction: the number of tasks sent before
-- (errors name positions counted from 0), and the first sequence of the whole push. The arrays of dependencies go
-- together: the place of a task in this call, counted from 0, and the topic and the identifier that it depends on.
CREATE FUNCTION taskq.push(
    p_topic text, p_insertion text, p_identifiers text[], p_payloads text[] DEFAULT NULL,
    p_references text[] DEFAULT NULL, p_suspended boolean[] DEFAULT NULL,
    p_available_at timestamptz[] DEFAULT NULL, p_delays interval[] DEFAULT NULL,
    p_ttls interval[] DEFAULT NULL, p_priorities int[] DEFAULT NULL,
    p_offset int DEFAULT 0, p_since bigint DEFAULT NULL,
    p_depend_places int[] DEFAULT NULL, p_depend_topics text[] DEFAULT NULL, p_depend_identifiers text[] DEFAULT NULL
) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_topic     taskq.topic := taskq.keep_topic(p_topic);
    v_floor     bigint := taskq.open_log();
    v_now       timestamptz := clock_timestamp();
    v_sequences bigint[];
    v_states    smallint[];
BEGIN
    IF p_insertion IS NULL OR p_insertion NOT IN ('APPEND', 'SUPERSEDE', 'REPLACE', 'DELETE') THEN
        PERFORM taskq.refuse('TQ002', format('insertion %L is none of APPEND, SUPERSEDE, REPLACE, DELETE', p_insertion));
    END IF;
    PERFORM taskq.check_tasks(v_topic, p_identifiers, p_payloads, p_available_at, p_delays, p_ttls, p_priorities,
                              p_offset);
    IF p_insertion <> 'APPEND' THEN
        PERFORM taskq.displace(v_topic.topic_id, p_insertion, p_identifiers, p_since);
    END IF;
    IF p_insertion <> 'APPEND' OR p_suspended IS NOT NULL THEN
        v_states := taskq.states_of_push(p_insertion, p_identifiers, p_suspended);
    END IF;
    v_sequences := taskq.draw_sequences(cardinality(p_identifiers));
    IF v_topic.notify AND cardinality(v_sequences) > 0 THEN
        PERFORM taskq.wake(p_topic);
    END IF;
    INSERT INTO taskq.task (sequence, created, due, pushed_in, topic_id, priority, identifier, reference, ttl, payload)
    SELECT n.sequence, v_now, coalesce(n.available_at, v_now + n.delay, v_now), pg_current_xact_id(),
           v_topic.topic_id, coalesce(n.priority, 0), n.identifier, n.reference, n.ttl, n.payload::json
    FROM unnest(v_sequences, p_identifiers, p_payloads, p_references, p_available_at, p_delays, p_ttls, p_priorities, v_states)
         AS n (sequence, identifier, payload, reference, available_at, delay, ttl, priority, state)
    WHERE n.state IS DISTINCT FROM 0;
    INSERT INTO taskq.live (sequence, available_at, topic_id, priority, identifier)
    SELECT n.sequence, coalesce(n.available_at, v_now + n.delay, v_now), v_topic.topic_id, coalesce(n.priority, 0), n.identifier
    FROM unnest(v_sequences, p_identifiers, p_available_at, p_delays, p_priorities, v_states)
         AS n (sequence, identifier, available_at, delay, priority, state)
    WHERE coalesce(n.state, 1) = 1;
    IF v_states IS NULL AND p_depend_places IS NULL THEN
        RETURN v_sequences;
    END IF;
    INSERT INTO taskq.ended (sequence, available_at, topic_id, state, descent, identifier)
    SELECT n.sequence, coalesce(n.available_at, v_now + n.delay, v_now), v_topic.topic_id, n.state,
           CASE WHEN n.state = 8 THEN CASE WHEN n.suspended THEN 4 ELSE 1 END END, n.identifier
    FROM unnest(v_sequences, p_identifiers, p_available_at, p_delays, v_states, p_suspended)
         AS n (sequence, identifier, available_at, delay, state, suspended)
    WHERE n.state IN (4, 8);
    IF p_depend_places IS NOT NULL THEN
        PERFORM taskq.depend(v_topic, v_sequences, p_offset, p_depend_places, p_depend_topics, p_depend_identifiers);
    END IF;
    IF v_states IS NULL THEN
        RETURN v_sequences;
    END IF;
    RETURN ARRAY(SELECT CASE WHEN n.state <> 0 THEN n.sequence END
                 FROM unnest(v_sequences, v_states) WITH ORDINALITY AS n (sequence, state, place) ORDER BY n.place);
END $$;

-- Stores one task like a push of just that task under APPEND, in half the time. What might be refused goes the way of many,
-- so that there is one place that says what is wrong.
CREATE FUNCTION taskq.push_one(
    p_topic text, p_identifier text, p_payload text, p_reference text, p_available_at timestamptz, p_delay interval,
    p_ttl interval, p_priority int
) RETURNS bigint LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_topic    taskq.topic := taskq.keep_topic(p_topic);
    v_floor    bigint := taskq.open_log();
    v_now      timestamptz := clock_timestamp();
    v_due      timestamptz := v_now;
    v_sequence bigint;
BEGIN
    IF (p_identifier ~ '\S' AND length(p_identifier) <= 500 AND coalesce(octet_length(p_payload) <= v_topic.max_payload_bytes, true)
        AND taskq.may_be_unreadable(p_payload) IS NOT TRUE AND coalesce(p_priority BETWEEN -100 AND 100, true)) IS NOT TRUE
       OR p_available_at IS NOT NULL OR NOT taskq.is_duration(p_delay, interval '-3650 days')
       OR NOT taskq.is_duration(p_ttl, interval '0') THEN
        RETURN (taskq.push(p_topic, 'APPEND', ARRAY[p_identifier], ARRAY[p_payload], ARRAY[p_reference], NULL, ARRAY[p_available_at],
                           ARRAY[p_delay], ARRAY[p_ttl], ARRAY[p_priority]))[1];
    END IF;
    IF p_delay IS NOT NULL THEN
        v_due := v_now + p_delay;
    END IF;
    IF v_topic.notify THEN
        PERFORM taskq.wake(p_topic);
    END IF;
    v_sequence := nextval('taskq.task_sequence');
    INSERT INTO taskq.task (sequence, created, due, pushed_in, topic_id, priority, identifier, reference, ttl, payload)
    VALUES (v_sequence, v_now, v_due, pg_current_xact_id(), v_topic.topic_id, coalesce(p_priority, 0), p_identifier,
            p_reference, p_ttl, p_payload::json);
    INSERT INTO taskq.live (sequence, available_at, topic_id, priority, identifier)
    VALUES (v_sequence, v_due, v_topic.topic_id, coalesce(p_priority, 0), p_identifier);
    RETURN v_sequence;
END $$;

-- The lowest sequence of a topic that this transaction pushed from p_since on and that is still stored.
CREATE FUNCTION taskq.first_pushed(p_topic text, p_since bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
BEGIN
    RETURN (SELECT t.sequence FROM taskq.task t
            WHERE t.topic_id = v_topic_id AND t.sequence >= p_since AND t.pushed_in = pg_current_xact_id()
            ORDER BY t.sequence LIMIT 1);
END $$;

-- Refuses the first task that breaks a rule (TQ002), naming its position.
CREATE FUNCTION taskq.check_tasks(
    p_topic taskq.topic, p_identifiers text[], p_payloads text[], p_available_at timestamptz[], p_delays interval[],
    p_ttls interval[], p_priorities int[], p_offset int
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_place  int;
    v_reason text;
BEGIN
    SELECT n.place, n.reason INTO v_place, v_reason FROM (
        SELECT place, CASE
            WHEN (identifier COLLATE "C" BETWEEN '!' AND '~' OR identifier ~ '\S') IS NOT TRUE THEN 'its identifier is blank'
            WHEN length(identifier) > 500 THEN
                format('its identifier has %s characters, more than 500', length(identifier))
            WHEN priority NOT BETWEEN -100 AND 100 THEN format('its priority %s is outside -100..100', priority)
            WHEN available_at IS NOT NULL AND delay IS NOT NULL THEN 'it has both available_at and delay'
            WHEN NOT taskq.is_moment(available_at) THEN 'its available_at lies outside of the years 1 to 9999'
            WHEN NOT taskq.is_duration(delay, interval '-3650 days') THEN 'its delay is longer than 3650 days'
            WHEN NOT taskq.is_duration(ttl, interval '0') THEN 'its ttl is negative, or longer than 3650 days'
            WHEN octet_length(payload) > p_topic.max_payload_bytes THEN
                format('its payload has %s bytes, more than the %s that topic %L takes',
                       octet_length(payload), p_topic.max_payload_bytes, p_topic.name)
            WHEN taskq.may_be_unreadable(payload) AND taskq.json_defect(payload) IS NOT NULL THEN
                'its payload ' || taskq.json_defect(payload)
            END AS reason
        FROM (SELECT generate_series(1, greatest(cardinality(p_identifiers), cardinality(p_payloads), cardinality(p_available_at),
                                                 cardinality(p_delays), cardinality(p_ttls), cardinality(p_priorities))) AS place,
                     unnest(p_identifiers) AS identifier, unnest(p_payloads) AS payload, unnest(p_available_at) AS available_at,
                     unnest(p_delays) AS delay, unnest(p_ttls) AS ttl, unnest(p_priorities) AS priority) u  -- stored nowhere, unlike unnest in FROM
    ) n WHERE n.reason IS NOT NULL ORDER BY n.place LIMIT 1;
    IF FOUND THEN
        PERFORM taskq.refuse('TQ002', format('topic %L, task at position %s: %s',
                                             p_topic.name, p_offset + v_place - 1, v_reason));
    END IF;
END $$;

-- The state in which each task of a push is stored: READY, SUSPENDED, REDUNDANT where the same identifier comes
-- again later in the push, or 0 (not at all) under DELETE.
CREATE FUNCTION taskq.states_of_push(p_insertion text, p_identifiers text[], p_suspended boolean[])
RETURNS smallint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY(
        SELECT CASE WHEN n.again AND p_insertion = 'DELETE' THEN 0
                    WHEN n.again AND p_insertion <> 'APPEND' THEN 8
                    WHEN n.suspended THEN 4
                    ELSE 1 END
        FROM (SELECT place, suspended, lead(place) OVER (PARTITION BY identifier ORDER BY place) IS NOT NULL AS again
              FROM unnest(p_identifiers, p_suspended) WITH ORDINALITY AS u (identifier, suspended, place)) n
        ORDER BY n.place)::smallint[]
$$;

-- Does to the older tasks of these identifiers what the insertion says. Never waits: a row that another transaction
-- holds counts as ACTIVE. Mostly it is being polled or ended; where it is another push that displaces it too, both
-- pushes stand, as if one had come after a poll.
CREATE FUNCTION taskq.displace(p_topic_id int, p_insertion text, p_identifiers text[], p_since bigint)
RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_lanes   text[] := ARRAY(SELECT DISTINCT u.identifier COLLATE "C" FROM unnest(p_identifiers) AS u (identifier));
    v_waiting bigint[];
    v_ended   bigint[];
BEGIN
    -- One index lookup per identifier. Given "identifier = ANY (array)", a server before PostgreSQL 17 may read all of
    -- the topic and compare each row with the whole array. A subquery that locks, or has an OFFSET, stays a lookup.
    v_waiting := ARRAY(SELECT l.sequence FROM unnest(v_lanes) AS u (identifier)
                       CROSS JOIN LATERAL (
                           SELECT b.sequence FROM taskq.live b
                           WHERE b.topic_id::bigint = p_topic_id AND b.identifier = u.identifier AND b.holder IS NULL
                           FOR UPDATE SKIP LOCKED) l);
    IF p_insertion IN ('REPLACE', 'DELETE') OR p_since IS NOT NULL THEN
        v_ended := ARRAY(SELECT t.sequence FROM unnest(v_lanes) AS u (identifier)
                         CROSS JOIN LATERAL (
                             SELECT b.sequence FROM taskq.task b
                             WHERE b.identifier = u.identifier AND b.topic_id = p_topic_id
                               AND (p_insertion <> 'SUPERSEDE'
                                    OR b.sequence >= p_since AND b.pushed_in = pg_current_xact_id())
                             OFFSET 0) t);
        v_ended := ARRAY(SELECT e.sequence FROM taskq.ended e
                         WHERE e.topic_id = p_topic_id AND e.sequence = ANY (v_ended) FOR UPDATE SKIP LOCKED);
    END IF;
    IF p_insertion = 'DELETE' THEN
        DELETE FROM taskq.live WHERE topic_id = p_topic_id AND sequence = ANY (v_waiting);
        DELETE FROM taskq.ended WHERE topic_id = p_topic_id AND sequence = ANY (v_ended);
        DELETE FROM taskq.task WHERE topic_id = p_topic_id AND sequence = ANY (v_waiting || v_ended);
        DELETE FROM taskq.dependency WHERE topic_id = p_topic_id AND sequence = ANY (v_waiting || v_ended);
        DELETE FROM taskq.history WHERE topic_id = p_topic_id AND sequence = ANY (v_waiting || v_ended);
        RETURN;
    END IF;
    WITH gone AS (
        DELETE FROM taskq.live WHERE topic_id = p_topic_id AND sequence = ANY (v_waiting) RETURNING *)
    INSERT INTO taskq.ended (sequence, available_at, holder, topic_id, attempt, state, descent, crashes, redelivered,
                             identifier, error, error_summary)
    SELECT g.sequence, CASE WHEN g.waits = 1 THEN (  -- that was when to look at its dependencies
               SELECT t.due FROM taskq.task t WHERE t.topic_id = p_topic_id AND t.sequence = g.sequence) ELSE g.available_at END,
           g.holder, g.topic_id, g.attempt, 8, 1, g.crashes, g.redelivered, g.identifier, g.error, g.error_summary
    FROM gone g;
    UPDATE taskq.ended SET descent = state, state = 8
    WHERE topic_id = p_topic_id AND sequence = ANY (v_ended) AND state BETWEEN 2 AND 6;
END $$;
