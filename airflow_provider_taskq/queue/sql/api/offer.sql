-- Offer: at most one waiting task per identifier, among the transactions that offer.
--
-- A waiting task is READY and not held: scheduled tasks and tasks that wait to be retried are waiting tasks. A row that another
-- transaction has locked counts as held, so an offer never waits for a consumer, and creates a task then.
--
-- An offer locks the bucket of its identifier in taskq_internal.offer_lock until the transaction ends. A second offer of the
-- identifier waits for that lock, and then looks for the waiting task in a new statement, whose snapshot has what the first one
-- committed. With the older snapshot of REPEATABLE READ it would miss that task, so offers are refused there.
--
-- The row of the waiting task stays locked as well, also if the offer changes nothing: a poll could otherwise hand the task out
-- before the offering transaction commits the data that the task is about, and no task would be left that sees that data.

-- Offers one task. outcome: CREATED, UPDATED or IGNORED. if_exists: 'update' gives a waiting task the payload, reference, ttl,
-- priority and schedule of the offer, 'ignore' leaves the waiting task as it is.
CREATE FUNCTION taskq.offer(
    topic text, identifier text, payload text DEFAULT NULL, if_exists text DEFAULT 'update', reference text DEFAULT NULL,
    available_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, ttl interval DEFAULT NULL, priority int DEFAULT 0,
    OUT outcome text, OUT sequence bigint
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT o.outcomes[1], o.sequences[1] INTO outcome, sequence
    FROM taskq.offer_many(topic, if_exists, ARRAY[identifier], ARRAY[payload], ARRAY[reference], ARRAY[available_at], ARRAY[delay],
                          ARRAY[ttl], ARRAY[priority]) o;
END $$;

-- Offers many tasks, all or none. The arrays are those of taskq.push, the results are in input order. An identifier that comes
-- again in the call meets the task that the call created or updated before. p_offset: the number of tasks sent before.
CREATE FUNCTION taskq.offer_many(
    p_topic text, p_if_exists text, p_identifiers text[], p_payloads text[] DEFAULT NULL, p_references text[] DEFAULT NULL,
    p_available_at timestamptz[] DEFAULT NULL, p_delays interval[] DEFAULT NULL, p_ttls interval[] DEFAULT NULL,
    p_priorities int[] DEFAULT NULL, p_offset int DEFAULT 0, OUT outcomes text[], OUT sequences bigint[]
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_topic  taskq.topic := taskq.keep_topic_open(p_topic);
    v_round  bigint[];
    v_places bigint[] := '{}';
    v_made   record;
BEGIN
    IF p_if_exists IS NULL OR p_if_exists NOT IN ('update', 'ignore') THEN
        PERFORM taskq.refuse('TQ008', format('topic %L: if_exists is update or ignore, not %L', p_topic, p_if_exists));
    END IF;
    PERFORM taskq.check_tasks(v_topic, p_identifiers, p_payloads, p_available_at, p_delays, p_ttls, p_priorities, p_offset);
    PERFORM taskq.lock_offers(p_topic, p_identifiers);
    outcomes := '{}';
    sequences := '{}';
    FOR v_round IN  -- the first offer of each identifier, then the second of each, and so on
        SELECT array_agg(n.place ORDER BY n.place)
        FROM (SELECT u.place, row_number() OVER (PARTITION BY u.identifier ORDER BY u.place) AS nth
              FROM unnest(p_identifiers) WITH ORDINALITY AS u (identifier, place)) n
        GROUP BY n.nth ORDER BY n.nth
    LOOP
        IF cardinality(v_round) = cardinality(p_identifiers) THEN
            SELECT d.outcomes, d.sequences INTO outcomes, sequences
            FROM taskq.offer_distinct(v_topic, p_if_exists = 'update', p_identifiers, p_payloads, p_references, p_available_at,
                                      p_delays, p_ttls, p_priorities) d;
            RETURN;
        END IF;
        v_made := taskq.offer_distinct(
            v_topic, p_if_exists = 'update', taskq.picked(p_identifiers, v_round), taskq.picked(p_payloads, v_round),
            taskq.picked(p_references, v_round), taskq.picked(p_available_at, v_round), taskq.picked(p_delays, v_round),
            taskq.picked(p_ttls, v_round), taskq.picked(p_priorities, v_round));
        v_places := v_places || v_round;
        outcomes := outcomes || v_made.outcomes;
        sequences := sequences || v_made.sequences;
    END LOOP;
    SELECT coalesce(array_agg(u.outcome ORDER BY u.place), '{}'), coalesce(array_agg(u.sequence ORDER BY u.place), '{}')
    INTO outcomes, sequences FROM unnest(outcomes, sequences, v_places) AS u (outcome, sequence, place);
END $$;

-- Removes the waiting tasks of an identifier; false if there is none. If all tasks of the identifier were offered, there is at
-- most one. Waits for open offers of the identifier, and leaves out a task that another transaction has locked.
CREATE FUNCTION taskq.drop(topic text, identifier text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq.keep_topic_open(topic)).topic_id;
    v_waiting  bigint[];
BEGIN
    PERFORM taskq.lock_offers(topic, ARRAY[identifier]);
    v_waiting := taskq.lock_waiting(v_topic_id, identifier);
    IF cardinality(v_waiting) = 0 THEN
        RETURN false;
    END IF;
    PERFORM taskq.remove(v_topic_id, v_waiting);
    RETURN true;
END $$;

-- Waits for the open transactions that offer or drop one of these identifiers, and makes later ones wait for this transaction.
-- Buckets are locked in their order, so two calls never wait for each other. Two identifiers share a bucket by chance: one in
-- 65,536 pairs. A call takes one statement for its locks, so a caller that sends many calls locks for all of them first.
CREATE FUNCTION taskq.lock_offers(p_topic text, p_identifiers text[]) RETURNS void LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_buckets int[] := ARRAY(SELECT DISTINCT (hashtext(p_topic || '/' || u.identifier) & 65535) FROM unnest(p_identifiers) AS u (identifier));
BEGIN
    PERFORM taskq.need_read_committed('tasks are offered and dropped');
    PERFORM FROM taskq_internal.offer_lock b WHERE b.bucket = ANY (v_buckets) ORDER BY b.bucket FOR UPDATE;
END $$;

-- The newest waiting task of each identifier, NULL where there is none, locked; in input order. The caller holds lock_offers.
CREATE FUNCTION taskq.lock_newest_waiting(p_topic_id int, p_identifiers text[]) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN ARRAY(SELECT w.sequence FROM unnest(p_identifiers) WITH ORDINALITY AS u (identifier, place)
                 LEFT JOIN LATERAL (
                     SELECT b.sequence FROM taskq.live b
                     WHERE b.topic_id::bigint = p_topic_id AND b.identifier = u.identifier AND b.holder IS NULL
                     ORDER BY b.sequence DESC LIMIT 1 FOR UPDATE SKIP LOCKED) w ON true
                 ORDER BY u.place);
END $$;

-- All waiting tasks of an identifier that no other transaction has locked, locked.
CREATE FUNCTION taskq.lock_waiting(p_topic_id int, p_identifier text) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN ARRAY(SELECT b.sequence FROM taskq.live b
                 WHERE b.topic_id::bigint = p_topic_id AND b.identifier = p_identifier AND b.holder IS NULL FOR UPDATE SKIP LOCKED);
END $$;

-- Offers tasks of different identifiers, for which the caller holds lock_offers. Results in input order.
CREATE FUNCTION taskq.offer_distinct(
    p_topic taskq.topic, p_update boolean, p_identifiers text[], p_payloads text[], p_references text[],
    p_available_at timestamptz[], p_delays interval[], p_ttls interval[], p_priorities int[],
    OUT outcomes text[], OUT sequences bigint[]
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_waiting bigint[] := taskq.lock_newest_waiting(p_topic.topic_id, p_identifiers);
    v_updated bigint[] := '{}';
    v_missing bigint[];
    v_created bigint[];
BEGIN
    IF p_update THEN
        v_updated := taskq.replace_waiting(p_topic.topic_id, v_waiting, p_payloads, p_references, p_available_at, p_delays, p_ttls,
                                           p_priorities);
        IF p_topic.notify AND cardinality(v_updated) > 0 THEN  -- may be due earlier; a task that is created is pushed below
            PERFORM taskq.wake(p_topic.name);
        END IF;
    END IF;
    v_missing := ARRAY(SELECT u.place FROM unnest(v_waiting) WITH ORDINALITY AS u (sequence, place)
                       WHERE u.sequence IS NULL ORDER BY u.place);
    IF cardinality(v_missing) = cardinality(p_identifiers) THEN
        v_created := taskq.push(p_topic.name, 'APPEND', p_identifiers, p_payloads, p_references, NULL, p_available_at, p_delays,
                                p_ttls, p_priorities);
    ELSIF cardinality(v_missing) > 0 THEN
        v_created := taskq.push(
            p_topic.name, 'APPEND', taskq.picked(p_identifiers, v_missing), taskq.picked(p_payloads, v_missing),
            taskq.picked(p_references, v_missing), NULL, taskq.picked(p_available_at, v_missing),
            taskq.picked(p_delays, v_missing), taskq.picked(p_ttls, v_missing), taskq.picked(p_priorities, v_missing));
    END IF;
    SELECT array_agg(CASE WHEN w.sequence IS NULL THEN 'CREATED' WHEN w.sequence = ANY (v_updated) THEN 'UPDATED' ELSE 'IGNORED' END
                     ORDER BY w.place),
           array_agg(coalesce(w.sequence, c.sequence) ORDER BY w.place)
    INTO outcomes, sequences
    FROM unnest(v_waiting) WITH ORDINALITY AS w (sequence, place)
    LEFT JOIN unnest(v_missing, v_created) AS c (place, sequence) ON c.place = w.place;
END $$;

-- Gives waiting tasks, whose rows this transaction has locked, what was offered, and returns the sequences of those that differed.
-- Sequences may be NULL; the other arrays are those of taskq.push. Payloads are compared as texts.
--
-- An offer without a due time asks for a task that is due at once. A task that is due already keeps its place in the order then.
-- A paused task stays paused, and a task that waits for dependencies or a probe waits on: the offer changes when they are due then.
-- Attempts and the last error stay.
CREATE FUNCTION taskq.replace_waiting(
    p_topic_id int, p_sequences bigint[], p_payloads text[], p_references text[], p_available_at timestamptz[], p_delays interval[],
    p_ttls interval[], p_priorities int[]
) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_now     timestamptz := clock_timestamp();
    v_changed bigint[];
    v_dues    timestamptz[];
    v_paused  boolean[];
BEGIN
    SELECT array_agg(c.sequence), array_agg(c.due), array_agg(c.paused) INTO v_changed, v_dues, v_paused
    FROM (SELECT t.sequence, s.due AS was_due, coalesce(n.available_at, v_now + n.delay, least(s.due, v_now)) AS due, w.paused,
                 (t.payload::text, t.reference, t.ttl, t.priority::int) IS DISTINCT FROM
                 (n.payload, n.reference, n.ttl, coalesce(n.priority, 0)) AS differs
          FROM unnest(p_sequences, p_payloads, p_references, p_available_at, p_delays, p_ttls, p_priorities)
               AS n (sequence, payload, reference, available_at, delay, ttl, priority)
          JOIN (SELECT * FROM taskq.task WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) t USING (sequence)
          JOIN (SELECT * FROM taskq.live WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) l USING (sequence)
          CROSS JOIN LATERAL (SELECT CASE WHEN l.waits = 1 THEN coalesce(l.due_again, t.due) ELSE l.available_at END AS due) d
          CROSS JOIN LATERAL (SELECT d.due = taskq.paused_until() AS paused) w
          CROSS JOIN LATERAL (SELECT CASE WHEN w.paused THEN t.due ELSE d.due END AS due) s) c
    WHERE c.differs OR c.due <> c.was_due;
    IF v_changed IS NULL THEN
        RETURN '{}';
    END IF;
    UPDATE taskq.task t SET payload = n.payload::json, reference = n.reference, ttl = n.ttl, priority = coalesce(n.priority, 0), due = c.due
    FROM unnest(p_sequences, p_payloads, p_references, p_ttls, p_priorities) AS n (sequence, payload, reference, ttl, priority)
    JOIN unnest(v_changed, v_dues) AS c (sequence, due) USING (sequence)
    WHERE t.topic_id = p_topic_id AND t.sequence = ANY (v_changed) AND t.sequence = n.sequence;
    UPDATE taskq.live l SET
        priority = coalesce(n.priority, 0),
        available_at = CASE WHEN l.waits = 1 OR c.paused THEN l.available_at ELSE c.due END,
        due_again = CASE WHEN c.paused THEN l.due_again END
    FROM unnest(p_sequences, p_priorities) AS n (sequence, priority)
    JOIN unnest(v_changed, v_dues, v_paused) AS c (sequence, due, paused) USING (sequence)
    WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_changed) AND l.sequence = n.sequence;
    RETURN v_changed;
END $$;
