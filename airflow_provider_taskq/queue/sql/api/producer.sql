-- Producers: push, offer and drop tasks. The list form of push is in change/push.sql.

CREATE FUNCTION taskq.push_task(
    topic text, identifier text, payload json DEFAULT NULL, reference text DEFAULT NULL,
    insertion text DEFAULT 'APPEND', delay interval DEFAULT NULL, available_at timestamptz DEFAULT NULL,
    priority int DEFAULT 0, ttl interval DEFAULT NULL, suspended boolean DEFAULT false
) RETURNS bigint LANGUAGE sql AS $$
    SELECT taskq.push(topic, identifier, payload::text, reference, insertion, delay, available_at, priority, ttl,
                      suspended)
$$;
COMMENT ON FUNCTION taskq.push_task IS
'Stores one task like taskq.push, under a name with a single signature. It is for clients that find a function by the
names of its arguments and not by their types, such as PostgREST.';

CREATE FUNCTION taskq.first_pushed(p_topic text, p_since bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'INSERT')).topic_id;
BEGIN
    RETURN (SELECT t.sequence FROM taskq_internal.task t
            WHERE t.topic_id = v_topic_id AND t.sequence >= p_since AND t.pushed_in = pg_current_xact_id()
            ORDER BY t.sequence LIMIT 1);
END $$;
COMMENT ON FUNCTION taskq.first_pushed IS
'Returns the lowest sequence from p_since on that this transaction has pushed to a topic and that is still stored.
Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.offer(
    topic text, identifier text, payload text DEFAULT NULL, if_exists text DEFAULT 'update',
    reference text DEFAULT NULL, available_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL,
    ttl interval DEFAULT NULL, priority int DEFAULT 0, OUT outcome text, OUT sequence bigint
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT o.outcomes[1], o.sequences[1] INTO outcome, sequence
    FROM taskq.offer_many(topic, if_exists, ARRAY[identifier], ARRAY[payload], ARRAY[reference], ARRAY[available_at],
                          ARRAY[delay], ARRAY[ttl], ARRAY[priority]) o;
END $$;
COMMENT ON FUNCTION taskq.offer IS
'Stores a task, unless a task of the identifier already waits: it is READY and not held. If if_exists is ''update'', the
offer updates that task. If it is ''ignore'', the task does not change. If it is ''ignore_held'', a held task counts
like a waiting one. Give at most one of delay and available_at. Returns the outcome, which is CREATED, UPDATED or
IGNORED, and the sequence of the waiting task. Waits for open offers of the identifier. Raises TQ001 for an unknown
topic, TQ002 for an invalid task, TQ008 for an invalid if_exists, and TQ000 above READ COMMITTED.';

CREATE FUNCTION taskq.offer_many(
    p_topic text, p_if_exists text, p_identifiers text[], p_payloads text[] DEFAULT NULL,
    p_references text[] DEFAULT NULL, p_available_at timestamptz[] DEFAULT NULL, p_delays interval[] DEFAULT NULL,
    p_ttls interval[] DEFAULT NULL, p_priorities int[] DEFAULT NULL, p_offset int DEFAULT 0, OUT outcomes text[],
    OUT sequences bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_topic  taskq_internal.topic := taskq_internal.lock_topic_shared(p_topic, 'INSERT');
    v_from   int := 1;
    v_to     int;
    v_before int;
    v_made   record;
BEGIN
    IF p_if_exists IS NULL OR p_if_exists NOT IN ('update', 'ignore', 'ignore_held') THEN
        PERFORM taskq_internal.raise_error('TQ008', format(
            'topic %L: if_exists is update, ignore or ignore_held, not %L', p_topic, p_if_exists));
    END IF;
    PERFORM taskq_internal.check_tasks(
        v_topic, p_identifiers, p_payloads, p_references, p_available_at, p_delays, p_ttls, p_priorities, p_offset);
    PERFORM taskq.lock_offers(p_topic, p_identifiers);
    outcomes := '{}';
    sequences := '{}';
    -- An identifier that comes again begins another part, whose offer finds the task of the earlier one.
    FOR v_to, v_before IN
        SELECT n.place - 1, n.before FROM (
            SELECT u.place, lag(u.place) OVER (PARTITION BY u.identifier COLLATE "C" ORDER BY u.place) AS before
            FROM unnest(p_identifiers) WITH ORDINALITY AS u (identifier, place)
            UNION ALL SELECT cardinality(p_identifiers) + 1, cardinality(p_identifiers)) n
        WHERE n.before IS NOT NULL ORDER BY n.place
    LOOP
        CONTINUE WHEN v_before < v_from;
        v_made := taskq_internal.offer_distinct(
            v_topic, p_if_exists, p_identifiers[v_from:v_to], p_payloads[v_from:v_to], p_references[v_from:v_to],
            p_available_at[v_from:v_to], p_delays[v_from:v_to], p_ttls[v_from:v_to], p_priorities[v_from:v_to]);
        outcomes := outcomes || v_made.outcomes;
        sequences := sequences || v_made.sequences;
        v_from := v_to + 1;
    END LOOP;
END $$;
COMMENT ON FUNCTION taskq.offer_many IS
'Offers many tasks like taskq.offer, all of them or none. The arrays have one element for each task, as in taskq.push.
Returns the results in input order. If an identifier is repeated, its later offers find the task of the first one.
p_offset is the number of tasks in earlier calls, which errors add to positions. Raises the errors of taskq.offer: TQ001
for an unknown topic, TQ002, TQ008 and TQ000.';

CREATE FUNCTION taskq.drop(topic text, identifier text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.lock_topic_shared(topic, 'INSERT')).topic_id;
BEGIN
    PERFORM taskq.lock_offers(topic, ARRAY[identifier]);
    RETURN taskq_internal.delete_tasks(v_topic_id, ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id::bigint = v_topic_id AND l.identifier = "drop".identifier AND l.holder IS NULL
        FOR UPDATE SKIP LOCKED), false) > 0;
END $$;
COMMENT ON FUNCTION taskq.drop IS
'Removes the waiting tasks of an identifier. A task that another transaction has locked stays. Waits for open offers
of the identifier. Returns false if it removed no task. Raises TQ001 for an unknown topic, and TQ000 above READ
COMMITTED.';

-- The function locks the buckets in their order, so two calls never wait for each other. Two identifiers share a bucket
-- by chance with a probability of 1 in 65,536.
CREATE FUNCTION taskq.lock_offers(p_topic text, p_identifiers text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_buckets int[] := ARRAY(SELECT DISTINCT 65536 + (hashtext(p_topic || '/' || u.identifier) & 65535)
                             FROM unnest(p_identifiers) AS u (identifier));
BEGIN
    PERFORM taskq_internal.check_access(p_topic, 'INSERT');
    PERFORM taskq_internal.require_read_committed('an offer');
    PERFORM FROM taskq_internal.identifier_lock b WHERE b.bucket = ANY (v_buckets) ORDER BY b.bucket FOR UPDATE;
    IF NOT FOUND AND cardinality(v_buckets) > 0 THEN
        PERFORM pg_advisory_xact_lock(taskq_internal.mutex(:LOCK_ROWS, ''));
        PERFORM taskq_internal.create_rows();
        PERFORM FROM taskq_internal.identifier_lock b WHERE b.bucket = ANY (v_buckets) ORDER BY b.bucket FOR UPDATE;
    END IF;
END $$;
COMMENT ON FUNCTION taskq.lock_offers IS
'Locks identifiers for the offers and drops of this transaction. It locks them in one order, so two calls never
deadlock. A caller that offers in several calls locks all identifiers first. Raises TQ000 above READ COMMITTED.';
