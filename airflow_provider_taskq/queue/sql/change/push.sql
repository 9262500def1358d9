-- Push: stores tasks in the given order, all of them or none. Offer: stores a task unless a task of its identifier
-- waits.
--
-- A waiting task is READY and not held. Scheduled tasks and retries are waiting tasks too. A row that another
-- transaction has locked counts as held. So an offer never waits for a consumer: it creates a task instead.
--
-- An offer locks the bucket of its identifier in taskq_internal.identifier_lock until the transaction ends. A second
-- offer of the identifier waits for that lock, and then looks for the waiting task in a new statement, whose snapshot
-- sees the commit of the first offer. The older snapshot of REPEATABLE READ would miss that task, so offers raise an
-- error there.
--
-- The row of the waiting task stays locked too, even if the offer changes nothing. Otherwise a poll could hand the task
-- out before the offering transaction commits the data that the task is about, and no later task would see that data.
--
-- push stands here and not with the other public functions, because schedules, offers and stages push by it.

CREATE FUNCTION taskq.push(
    topic text, identifier text, payload text DEFAULT NULL, reference text DEFAULT NULL,
    insertion text DEFAULT 'APPEND', delay interval DEFAULT NULL, available_at timestamptz DEFAULT NULL,
    priority int DEFAULT 0, ttl interval DEFAULT NULL, suspended boolean DEFAULT false
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic    taskq_internal.topic := taskq_internal.lock_topic_shared(topic, 'INSERT');
    v_floor    bigint := taskq_internal.announce_push();
    v_now      timestamptz := clock_timestamp();
    v_due      timestamptz := v_now;
    v_front    timestamptz;
    v_pushed   timestamptz;
    v_depended boolean;
    v_sequence bigint;
BEGIN
    -- The array form handles a task that it may reject, or that needs more than two rows, because only the array form
    -- has the rules. This function stores a plain task in half the time.
    IF (identifier ~ '\S' AND length(identifier) <= 500 AND coalesce(octet_length(reference) <= 2000, true)
        AND coalesce(octet_length(payload) <= v_topic.max_payload_bytes, true)
        AND taskq_internal.has_unstorable_escape(payload) IS NOT TRUE
            AND coalesce(priority BETWEEN -100 AND 100, true)) IS NOT TRUE
       OR insertion IS DISTINCT FROM 'APPEND' OR suspended OR available_at IS NOT NULL
       OR NOT taskq_internal.is_duration(delay, interval '0')
           OR NOT taskq_internal.is_duration(ttl, interval '0') THEN
        RETURN (taskq.push(topic, insertion, ARRAY[identifier], ARRAY[payload], ARRAY[reference], ARRAY[suspended],
                           ARRAY[available_at], ARRAY[delay], ARRAY[ttl], ARRAY[priority]))[1];
    END IF;
    IF delay IS NOT NULL THEN
        v_due := v_now + delay;
    END IF;
    IF v_topic.notify THEN
        PERFORM taskq_internal.notify('taskq', topic);  -- taskq.notify costs a call more
    END IF;
    SELECT greatest(f.available_at, (
        SELECT i.available_at FROM taskq_internal.identifier_front i
        WHERE i.topic_id = v_topic.topic_id AND i.identifier = '' ORDER BY i.number DESC LIMIT 1)), f.pushed,
        EXISTS (SELECT FROM taskq_internal.dependency d WHERE d.on_topic_id = v_topic.topic_id
                AND d.on_identifier = push.identifier AND NOT d.waiting)
    INTO v_front, v_pushed, v_depended FROM taskq_internal.front f
    WHERE f.topic_id = v_topic.topic_id AND f.priority = coalesce(push.priority, 0)
    ORDER BY f.priority DESC, f.number DESC LIMIT 1;
    IF NOT FOUND THEN
        PERFORM taskq_internal.add_fronts(v_topic.topic_id, ARRAY[priority]);
    END IF;
    IF (v_pushed BETWEEN v_now - interval '1 minute' AND v_now) IS NOT TRUE THEN
        PERFORM taskq_internal.note_push(v_topic.topic_id, v_now);
    END IF;
    v_sequence := nextval('taskq_internal.task_sequence');
    INSERT INTO taskq_internal.task (sequence, created, due, pushed_in, topic_id, priority, identifier, reference, ttl,
        payload)
    VALUES (v_sequence, v_now, v_due, pg_current_xact_id(), v_topic.topic_id, coalesce(priority, 0), identifier,
            reference, ttl, payload::json);
    INSERT INTO taskq_internal.live (sequence, available_at, topic_id, priority, late, identifier)
    VALUES (v_sequence, v_due, v_topic.topic_id, coalesce(priority, 0), v_due < greatest(v_now, v_front), identifier);
    IF v_depended IS NOT FALSE THEN
        PERFORM taskq_internal.check_dependents_of(v_topic.topic_id, ARRAY[identifier], false);
    END IF;
    RETURN v_sequence;
END $$;
COMMENT ON FUNCTION taskq.push(text, text, text, text, text, interval, timestamptz, int, interval, boolean) IS
'Stores one task and returns its sequence, for example taskq.push(''orders'', ''customer-17'', ''{"total": 12}'',
priority => 5). The payload is a JSON text. The insertion (APPEND, SUPERSEDE, REPLACE or DELETE) decides on older tasks
of the identifier. Give at most one of delay and available_at. The priority is -100 to 100; polls return higher
priorities first. While the task is younger than its ttl, failures are not recorded. With suspended true the task is
stored as SUSPENDED. Never waits for a consumer. Raises TQ001 for an unknown topic, and TQ002 for an invalid task.';

CREATE FUNCTION taskq.push(
    topic text, identifier text, payload jsonb, reference text DEFAULT NULL, insertion text DEFAULT 'APPEND',
    delay interval DEFAULT NULL, available_at timestamptz DEFAULT NULL, priority int DEFAULT 0,
    ttl interval DEFAULT NULL, suspended boolean DEFAULT false
) RETURNS bigint LANGUAGE sql AS $$
    SELECT taskq.push(topic, identifier, payload::text, reference, insertion, delay, available_at, priority, ttl,
                      suspended)
$$;
COMMENT ON FUNCTION taskq.push(text, text, jsonb, text, text, interval, timestamptz, int, interval, boolean) IS
'Stores one task with a payload of type jsonb, like taskq.push with a text, for example taskq.push(''orders'', id::text,
to_jsonb(NEW)).';

CREATE FUNCTION taskq.push(
    p_topic text, p_insertion text, p_identifiers text[], p_payloads text[] DEFAULT NULL,
    p_references text[] DEFAULT NULL, p_suspended boolean[] DEFAULT NULL, p_available_at timestamptz[] DEFAULT NULL,
    p_delays interval[] DEFAULT NULL, p_ttls interval[] DEFAULT NULL, p_priorities int[] DEFAULT NULL,
    p_offset int DEFAULT 0, p_since bigint DEFAULT NULL, p_depend_places int[] DEFAULT NULL,
    p_depend_topics text[] DEFAULT NULL, p_depend_identifiers text[] DEFAULT NULL
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_topic     taskq_internal.topic := taskq_internal.lock_topic_shared(p_topic, 'INSERT');
    v_floor     bigint := taskq_internal.announce_push();
    v_now       timestamptz;
    v_sequences bigint[];
    v_states    smallint[];
BEGIN
    IF p_insertion IS NULL OR p_insertion NOT IN ('APPEND', 'SUPERSEDE', 'REPLACE', 'DELETE') THEN
        PERFORM taskq_internal.raise_error('TQ002', format(
            'insertion %L is none of APPEND, SUPERSEDE, REPLACE, DELETE', p_insertion));
    END IF;
    PERFORM taskq_internal.check_tasks(
        v_topic, p_identifiers, p_payloads, p_references, p_available_at, p_delays, p_ttls, p_priorities, p_offset);
    IF p_insertion = 'DELETE' THEN
        PERFORM taskq_internal.check_access(p_topic, 'DELETE');
    END IF;
    IF p_insertion <> 'APPEND' THEN
        PERFORM taskq_internal.displace_older_tasks(v_topic.topic_id, p_insertion, p_identifiers, p_since);
    END IF;
    IF p_insertion <> 'APPEND' OR p_suspended IS NOT NULL THEN
        v_states := taskq_internal.push_states(p_insertion, p_identifiers, p_suspended);
    END IF;
    v_now := clock_timestamp();
    v_sequences := taskq_internal.draw_sequences(cardinality(p_identifiers));
    PERFORM taskq_internal.store_tasks(v_topic, v_now, v_sequences, p_identifiers, p_payloads, p_references,
                                       p_suspended, p_available_at, p_delays, p_ttls, p_priorities, v_states);
    IF p_depend_places IS NOT NULL THEN
        PERFORM taskq_internal.add_dependencies(
            v_topic, v_sequences, p_offset, p_depend_places, p_depend_topics, p_depend_identifiers);
    END IF;
    IF v_states IS NULL THEN
        RETURN v_sequences;
    END IF;
    RETURN ARRAY(SELECT CASE WHEN n.state <> :NOT_STORED THEN n.sequence END
                 FROM unnest(v_sequences, v_states) WITH ORDINALITY AS n (sequence, state, place) ORDER BY n.place);
END $$;
COMMENT ON FUNCTION taskq.push(
    text, text, text[], text[], text[], boolean[], timestamptz[], interval[], interval[], int[], int, bigint, int[],
        text[], text[]) IS
'Stores many tasks, all of them or none. Returns their sequences in input order, with NULL for a task that DELETE did
not store. p_insertion decides on older tasks of the identifiers, as in the push of one task. Each array except
p_identifiers may be NULL; otherwise it has a value or NULL for each task. Payloads are JSON texts. The p_depend arrays
have one element for each dependency: the position of the task in this call, from 0, and the topic and identifier that
the task depends on. A push may take several calls in one transaction. Then p_offset is the number of tasks in the
earlier calls, which errors add to positions, and p_since is the first sequence of the push. All its calls have the same
p_insertion, and between them the transaction pushes no other task to the topic. Raises TQ001 for an unknown topic.
Raises TQ002 for an invalid task, and names its position from 0. After an error no task is stored.';

-- Stores new tasks, with sequences that were drawn after p_now. They are READY, or in the states p_states, of which
-- NOT_STORED leaves a task out. Tasks that depend on these identifiers wait again.
CREATE FUNCTION taskq_internal.store_tasks(
    p_topic taskq_internal.topic, p_now timestamptz, p_sequences bigint[], p_identifiers text[], p_payloads text[],
    p_references text[], p_suspended boolean[], p_available_at timestamptz[], p_delays interval[], p_ttls interval[],
    p_priorities int[], p_states smallint[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_late_before timestamptz := taskq_internal.front_time(p_topic.topic_id, p_priorities, p_now);
BEGIN
    IF p_topic.notify AND cardinality(p_sequences) > 0 THEN
        PERFORM taskq_internal.notify('taskq', p_topic.name);
    END IF;
    INSERT INTO taskq_internal.task (sequence, created, due, pushed_in, topic_id, priority, identifier, reference, ttl,
        payload)
    SELECT n.sequence, p_now, coalesce(n.available_at, p_now + n.delay, p_now), pg_current_xact_id(),
           p_topic.topic_id, coalesce(n.priority, 0), n.identifier, n.reference, n.ttl, n.payload::json
    -- PostgreSQL copies each array into a store of its own if unnest is in FROM, but not if it is in a select list.
    FROM (SELECT unnest(p_sequences) AS sequence, unnest(p_identifiers) AS identifier, unnest(p_payloads) AS payload,
                 unnest(p_references) AS reference, unnest(p_available_at) AS available_at, unnest(p_delays) AS delay,
                 unnest(p_ttls) AS ttl, unnest(p_priorities) AS priority, unnest(p_states) AS state) n
    WHERE n.state IS DISTINCT FROM :NOT_STORED;
    INSERT INTO taskq_internal.live (sequence, available_at, topic_id, priority, late, identifier)
    SELECT n.sequence, coalesce(n.available_at, p_now + n.delay, p_now), p_topic.topic_id, coalesce(n.priority, 0),
        coalesce(n.available_at, p_now + n.delay, p_now) < v_late_before, n.identifier
    FROM (SELECT unnest(p_sequences) AS sequence, unnest(p_identifiers) AS identifier,
                 unnest(p_available_at) AS available_at, unnest(p_delays) AS delay, unnest(p_priorities) AS priority,
                 unnest(p_states) AS state) n
    WHERE coalesce(n.state, :READY) = :READY;
    IF p_states IS NOT NULL THEN
        INSERT INTO taskq_internal.ended (sequence, available_at, topic_id, state, descent, identifier)
        SELECT n.sequence, coalesce(n.available_at, p_now + n.delay, p_now), p_topic.topic_id, n.state,
               CASE WHEN n.state = :REDUNDANT THEN CASE WHEN n.suspended THEN :SUSPENDED ELSE :READY END END,
               n.identifier
        FROM unnest(p_sequences, p_identifiers, p_available_at, p_delays, p_states, p_suspended)
             AS n (sequence, identifier, available_at, delay, state, suspended)
        WHERE n.state IN (:SUSPENDED, :REDUNDANT);
    END IF;
    PERFORM taskq_internal.check_dependents_of(p_topic.topic_id, p_identifiers, false);
END $$;

-- Raises TQ002 for the first task that breaks a rule. The error names its position.
CREATE FUNCTION taskq_internal.check_tasks(
    p_topic taskq_internal.topic, p_identifiers text[], p_payloads text[], p_references text[],
    p_available_at timestamptz[], p_delays interval[], p_ttls interval[], p_priorities int[], p_offset int
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_place  int;
    v_reason text;
BEGIN
    SELECT n.place, n.reason INTO v_place, v_reason FROM (
        SELECT place, CASE
            WHEN (identifier COLLATE "C" BETWEEN '!' AND '~' OR identifier ~ '\S') IS NOT TRUE
                THEN 'its identifier is blank'
            WHEN length(identifier) > 500 THEN
                format('its identifier has %s characters, more than 500', length(identifier))
            WHEN octet_length(reference) > 2000 THEN  -- as check_name says
                format('its reference has %s bytes, more than 2000', octet_length(reference))
            WHEN priority NOT BETWEEN -100 AND 100 THEN format('its priority %s is outside -100..100', priority)
            WHEN available_at IS NOT NULL AND delay IS NOT NULL THEN 'it has both available_at and delay'
            WHEN NOT taskq_internal.is_moment(available_at) THEN 'its available_at is outside the years 1 to 9999'
            WHEN NOT taskq_internal.is_duration(delay, interval '0')
                THEN 'its delay is negative, or longer than 3650 days'
            WHEN NOT taskq_internal.is_duration(ttl, interval '0') THEN 'its ttl is negative, or longer than 3650 days'
            WHEN octet_length(payload) > p_topic.max_payload_bytes THEN
                format('its payload has %s bytes, more than the %s that topic %L takes',
                       octet_length(payload), p_topic.max_payload_bytes, p_topic.name)
            WHEN taskq_internal.has_unstorable_escape(payload) THEN 'its payload holds a NUL or a lone surrogate'
            END AS reason
        FROM (SELECT generate_series(1, greatest(
                         cardinality(p_identifiers), cardinality(p_payloads), cardinality(p_references),
                         cardinality(p_available_at), cardinality(p_delays), cardinality(p_ttls),
                         cardinality(p_priorities))) AS place,
                     unnest(p_identifiers) AS identifier, unnest(p_payloads) AS payload,
                     unnest(p_references) AS reference, unnest(p_available_at) AS available_at,
                     -- PostgreSQL materializes unnest in FROM, but not in the select list.
                     unnest(p_delays) AS delay, unnest(p_ttls) AS ttl, unnest(p_priorities) AS priority) u
    ) n WHERE n.reason IS NOT NULL ORDER BY n.place LIMIT 1;
    IF FOUND THEN
        PERFORM taskq_internal.raise_error('TQ002', format(
            'topic %L, task at position %s: %s', p_topic.name, p_offset + v_place - 1, v_reason));
    END IF;
END $$;

-- Returns the state in which each task of a push is stored: READY or SUSPENDED. If the insertion is not APPEND and the
-- identifier comes again later in the push, the state is REDUNDANT, or NOT_STORED under DELETE.
CREATE FUNCTION taskq_internal.push_states(p_insertion text, p_identifiers text[], p_suspended boolean[])
RETURNS smallint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY(
        SELECT CASE WHEN n.again AND p_insertion = 'DELETE' THEN :NOT_STORED
                    WHEN n.again AND p_insertion <> 'APPEND' THEN :REDUNDANT
                    WHEN n.suspended THEN :SUSPENDED
                    ELSE :READY END
        FROM (SELECT place, suspended,
                     lead(place) OVER (PARTITION BY identifier COLLATE "C" ORDER BY place) IS NOT NULL AS again
              FROM unnest(p_identifiers, p_suspended) WITH ORDINALITY AS u (identifier, suspended, place)) n
        ORDER BY n.place)::smallint[]
$$;

-- Applies the insertion to the older tasks of these identifiers. Never waits: a row that another transaction holds
-- counts as ACTIVE. Usually a poll or a completion holds it. If another push displaces the same row, the tasks of both
-- pushes remain.
--
-- In a push of several calls, the earlier call that pushed an identifier has displaced all its older tasks. So a later
-- call displaces only the newest task of the identifier, which it finds in one step. A lookup of all its tasks would
-- visit the tasks of each earlier call again, and the index entries of the rows that these calls have deleted.
--
-- Each query makes one index lookup for each identifier or sequence, because a subquery that locks, or has an order,
-- stays a lookup. No statistics can make such a lookup expensive:
--
-- - If the statistics know a single identifier, "identifier = x" may read the whole topic by the primary key. Only the
--   index of identifiers gives the order of the query without a sort.
-- - "holder IS NULL" may read a partial index as a whole, where the query has no identifier. The CASE matches none.
CREATE FUNCTION taskq_internal.displace_older_tasks(
    p_topic_id int, p_insertion text, p_identifiers text[], p_since bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_identifiers text[] := ARRAY(SELECT DISTINCT u.identifier COLLATE "C" FROM unnest(p_identifiers)
                                  AS u (identifier));
    v_newest      bigint[];
    v_older       bigint[] := '{}';  -- of an identifier that an earlier call has pushed, the newest task
    v_waiting     bigint[];
    v_ended       bigint[];
BEGIN
    IF p_since IS NOT NULL THEN
        v_newest := taskq_internal.newest_of_push(p_topic_id, v_identifiers, p_since);
        v_older := array_remove(v_newest, NULL);
    END IF;
    IF cardinality(v_older) > 0 THEN
        v_identifiers := ARRAY(SELECT u.identifier FROM unnest(v_identifiers, v_newest) AS u (identifier, sequence)
                               WHERE u.sequence IS NULL);
    END IF;
    v_waiting := ARRAY(
        SELECT l.sequence FROM unnest(v_identifiers) AS u (identifier)
        CROSS JOIN LATERAL (
            SELECT b.sequence FROM taskq_internal.live b
            WHERE b.topic_id::bigint = p_topic_id AND b.identifier = u.identifier AND b.holder IS NULL
            FOR UPDATE SKIP LOCKED) l
        UNION ALL
        SELECT l.sequence FROM unnest(v_older) AS u (sequence)
        CROSS JOIN LATERAL (
            SELECT b.sequence FROM taskq_internal.live b
            WHERE b.topic_id = p_topic_id AND b.sequence = u.sequence
              AND CASE WHEN b.holder IS NULL THEN :READY ELSE :ACTIVE END = :READY
            FOR UPDATE SKIP LOCKED) l);
    IF p_insertion IN ('REPLACE', 'DELETE') THEN
        v_older := v_older || ARRAY(SELECT t.sequence FROM unnest(v_identifiers) AS u (identifier)
                                    CROSS JOIN LATERAL (
                                        SELECT b.sequence FROM taskq_internal.task b
                                        WHERE b.topic_id = p_topic_id
                                          AND (b.identifier, b.topic_id) >= (u.identifier, p_topic_id)
                                          AND (b.identifier, b.topic_id) <= (u.identifier, p_topic_id)
                                        ORDER BY b.identifier, b.sequence) t);
    END IF;
    v_ended := ARRAY(
        SELECT e.sequence FROM unnest(v_older) AS u (sequence)
        CROSS JOIN LATERAL (
            SELECT b.sequence FROM taskq_internal.ended b
            WHERE b.topic_id = p_topic_id AND b.sequence = u.sequence
              AND (p_insertion = 'DELETE' OR b.state BETWEEN :EXPIRED AND :SUCCEEDED)
            FOR UPDATE SKIP LOCKED) e);
    IF p_insertion = 'DELETE' THEN
        PERFORM taskq_internal.delete_tasks(p_topic_id, v_waiting || v_ended, false);
        RETURN;
    END IF;
    PERFORM taskq_internal.end_waiting(p_topic_id, v_waiting, :REDUNDANT);
    UPDATE taskq_internal.ended SET descent = state, state = :REDUNDANT
    WHERE topic_id = p_topic_id AND sequence = ANY (v_ended);
END $$;

-- Returns the newest task of each identifier that this transaction has pushed since p_since, in input order, and NULL
-- for an identifier without one. Only the index of identifiers gives the order of the query, so no statistics lead the
-- planner to walk through the tasks of other identifiers. The two bounds are one place in that index.
CREATE FUNCTION taskq_internal.newest_of_push(p_topic_id int, p_identifiers text[], p_since bigint) RETURNS bigint[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(SELECT n.sequence FROM unnest(p_identifiers) WITH ORDINALITY AS u (identifier, place)
                 LEFT JOIN LATERAL (
                     SELECT b.sequence FROM taskq_internal.task b
                     WHERE b.topic_id = p_topic_id AND b.pushed_in = pg_current_xact_id()
                       AND (b.identifier, b.topic_id) <= (u.identifier, p_topic_id)
                       AND (b.identifier, b.topic_id, b.sequence) >= (u.identifier, p_topic_id, p_since)
                     ORDER BY b.identifier DESC, b.sequence DESC LIMIT 1) n ON true
                 ORDER BY u.place);
END $$;

-- Ends READY tasks whose rows this transaction holds: as FILTERED, or as REDUNDANT, which have no time of an end.
CREATE FUNCTION taskq_internal.end_waiting(p_topic_id int, p_sequences bigint[], p_state int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM taskq_internal.live l WHERE l.topic_id = p_topic_id AND l.sequence = ANY (p_sequences)
        RETURNING l.*)
    INSERT INTO taskq_internal.ended (sequence, completed, available_at, topic_id, attempt, state, descent, crashes,
        redelivered, identifier, error, error_summary)
    SELECT g.sequence, CASE WHEN p_state <> :REDUNDANT THEN clock_timestamp() END, g.available_at, g.topic_id,
           g.attempt, p_state, CASE WHEN p_state = :REDUNDANT THEN :READY END, g.crashes, g.redelivered,
           g.identifier, g.error, g.error_summary
    FROM gone g;
END $$;
