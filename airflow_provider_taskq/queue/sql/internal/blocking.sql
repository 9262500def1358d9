-- Blocking: what keeps a READY task out of the indexes that a poll reads. This is its dependencies (live.waits =
-- DEPENDENCIES), the probe of its topic (PROBE), or a user that has to resume it (RESUME).
--
-- The end of a dependency wakes the tasks that wait for it: they become late, and the next poll checks them. The push
-- of a newer task of the identifier makes tasks wait again that could be claimed. The transaction that makes a task
-- wait and the one that ends its dependency can miss each other. So a poll that finds nothing also looks at some of the
-- tasks that wait. It writes only if it finds one that need not.

-- Returns the tasks among p_sequences whose dependencies are all fulfilled. A dependency is fulfilled if the latest
-- task of its identifier has SUCCEEDED. If no task of the identifier is left, it is what the last check found.
CREATE FUNCTION taskq_internal.fulfilled_dependents(p_topic_id int, p_sequences bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    -- OFFSET 0 keeps the planner from joining the tasks with all dependencies of the topic. It looks each task up
    -- instead.
    RETURN ARRAY(
        SELECT u.sequence FROM unnest(p_sequences) AS u (sequence)
        WHERE NOT EXISTS (
            SELECT FROM taskq_internal.dependency d
            LEFT JOIN LATERAL (SELECT t.sequence FROM taskq_internal.task t
                               WHERE t.identifier = d.on_identifier AND t.topic_id = d.on_topic_id
                               ORDER BY t.sequence DESC LIMIT 1) latest ON true
            WHERE d.topic_id = p_topic_id AND d.sequence = u.sequence AND (latest.sequence IS NOT NULL OR d.waiting)
              AND (SELECT e.state FROM taskq_internal.ended e
                   WHERE e.topic_id = d.on_topic_id AND e.sequence = latest.sequence) IS DISTINCT FROM :SUCCEEDED
            OFFSET 0));
END $$;

-- Checks READY tasks with dependencies, whose rows this transaction holds. Polls may then claim the fulfilled tasks in
-- their place, or promote them if they are retries that wait for the probe. The others wait. Returns the fulfilled
-- tasks.
CREATE FUNCTION taskq_internal.check_dependents(p_topic_id int, p_sequences bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_fulfilled bigint[] := taskq_internal.fulfilled_dependents(p_topic_id, p_sequences);
    v_rest bigint[] := ARRAY(SELECT unnest(p_sequences) EXCEPT SELECT unnest(v_fulfilled));
BEGIN
    -- Each outcome has its own statement, and each task its own lookup. So no plan compares a row with a whole array,
    -- and none joins: callers forbid different kinds of joins.
    IF cardinality(v_fulfilled) > 0 THEN
        UPDATE taskq_internal.live l SET late = true, waits = CASE
            WHEN l.attempt > 0 AND (SELECT p.probe FROM taskq_internal.topic p WHERE p.topic_id = p_topic_id)
            THEN :WAITS_PROBE ELSE :WAITS_NOTHING END
        WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_fulfilled);
        UPDATE taskq_internal.dependency d SET waiting = false
        -- This condition keeps the planner from the index dependency_waiting.
        WHERE d.topic_id = p_topic_id AND d.sequence = ANY (v_fulfilled) AND d.waiting IS DISTINCT FROM false;
    END IF;
    IF cardinality(v_rest) > 0 THEN
        UPDATE taskq_internal.live SET late = false, waits = :WAITS_DEPENDENCIES
        WHERE topic_id = p_topic_id AND sequence = ANY (v_rest);
        UPDATE taskq_internal.dependency d SET waiting = true
        WHERE d.topic_id = p_topic_id AND d.sequence = ANY (v_rest) AND d.waiting IS NOT TRUE
          -- A dependency whose tasks were removed after their success stays fulfilled.
          AND EXISTS (SELECT FROM taskq_internal.task t WHERE t.identifier = d.on_identifier
                      AND t.topic_id = d.on_topic_id OFFSET 0);
    END IF;
    RETURN v_fulfilled;
END $$;

-- Stores the dependencies of a push, and makes the tasks wait. The three arrays have one element for each dependency:
-- the place of the task in p_sequences, from 0, and the topic and identifier that the task depends on. Raises TQ002 for
-- an identifier without a task, and for a dependency of a task on its own identifier, which could never be fulfilled.
CREATE FUNCTION taskq_internal.add_dependencies(
    p_topic taskq_internal.topic, p_sequences bigint[], p_offset int, p_places int[], p_topics text[],
    p_identifiers text[]
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_unknown record;
BEGIN
    IF NOT taskq_internal.may_access(NULL, 'INSERT') THEN
        PERFORM taskq_internal.check_access(u.topic, 'SELECT, INSERT, UPDATE') FROM (SELECT DISTINCT unnest(p_topics))
            AS u (topic);
    END IF;
    SELECT u.place, u.topic, u.identifier INTO v_unknown
    FROM unnest(p_places, p_topics, p_identifiers) AS u (place, topic, identifier)
    WHERE NOT EXISTS (
        SELECT FROM taskq_internal.task t
        WHERE t.identifier = u.identifier
          AND t.topic_id = (SELECT p.topic_id FROM taskq_internal.topic p WHERE p.name = u.topic)
          AND t.sequence < p_sequences[u.place + 1]
        OFFSET 0)
    ORDER BY u.place LIMIT 1;
    IF FOUND THEN
        PERFORM taskq_internal.raise_error('TQ002', format(
            'topic %L, task at position %s: it depends on topic %L, identifier %L, which has no task', p_topic.name,
            p_offset + v_unknown.place, v_unknown.topic, v_unknown.identifier));
    END IF;
    INSERT INTO taskq_internal.dependency (topic_id, sequence, on_topic_id, on_identifier)
    SELECT DISTINCT p_topic.topic_id, p_sequences[u.place + 1],
        (SELECT p.topic_id FROM taskq_internal.topic p WHERE p.name = u.topic),
           u.identifier
    FROM unnest(p_places, p_topics, p_identifiers) AS u (place, topic, identifier)
    WHERE EXISTS (  -- DELETE does not store a task whose identifier comes again later in the push
        SELECT FROM taskq_internal.task t WHERE t.topic_id = p_topic.topic_id
            AND t.sequence = p_sequences[u.place + 1] OFFSET 0);
    PERFORM taskq_internal.check_dependents(p_topic.topic_id,
            ARRAY(SELECT DISTINCT p_sequences[u.place + 1] FROM unnest(p_places) AS u (place)));
END $$;

-- Wakes the tasks that wait for these identifiers of a topic, so that the next poll checks them. Never waits, and
-- leaves out the tasks that another transaction has locked.
CREATE FUNCTION taskq_internal.wake_dependents(p_topic_id int, p_identifiers text[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_dependents record;
BEGIN
    FOR v_dependents IN SELECT * FROM taskq_internal.dependents_of(p_topic_id, p_identifiers, true) LOOP
        UPDATE taskq_internal.live SET late = true
        WHERE topic_id = v_dependents.topic_id AND sequence = ANY (ARRAY(
            SELECT l.sequence FROM taskq_internal.live l
            WHERE l.topic_id = v_dependents.topic_id AND l.sequence = ANY (v_dependents.sequences)
              AND l.holder IS NULL AND l.waits + 0 = :WAITS_DEPENDENCIES AND NOT l.late
            FOR UPDATE SKIP LOCKED));
    END LOOP;
END $$;

-- Makes the tasks wait again that depend on these identifiers, of which a newer task was pushed. Never waits: a task
-- that a poll is claiming counts as ACTIVE. Forgets the dependencies of tasks that have ended, so that the next push
-- does not read them.
CREATE FUNCTION taskq_internal.park_dependents(p_topic_id int, p_identifiers text[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_dependents record;
BEGIN
    FOR v_dependents IN SELECT * FROM taskq_internal.dependents_of(p_topic_id, p_identifiers, false) LOOP
        PERFORM taskq_internal.check_dependents(v_dependents.topic_id, ARRAY(
            SELECT l.sequence FROM taskq_internal.live l
            WHERE l.topic_id = v_dependents.topic_id AND l.sequence = ANY (v_dependents.sequences)
              AND l.holder IS NULL AND l.waits + 0 <= :WAITS_NOTHING
            FOR UPDATE SKIP LOCKED));
        UPDATE taskq_internal.dependency SET waiting = NULL WHERE ctid = ANY (ARRAY(
            SELECT d.ctid FROM taskq_internal.dependency d
            WHERE d.topic_id = v_dependents.topic_id AND d.sequence = ANY (v_dependents.sequences)
              AND NOT EXISTS (SELECT FROM taskq_internal.live l
                              WHERE l.topic_id = v_dependents.topic_id AND l.sequence = d.sequence OFFSET 0)
            FOR UPDATE SKIP LOCKED));
    END LOOP;
END $$;

-- Returns the tasks that depend on these identifiers of a topic, by their own topics: those that wait for one, or those
-- that do not.
CREATE FUNCTION taskq_internal.dependents_of(p_on_topic_id int, p_identifiers text[], p_waiting boolean)
RETURNS TABLE (topic_id int, sequences bigint[]) LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    IF EXISTS (SELECT FROM taskq_internal.dependency d
               WHERE d.on_topic_id = p_on_topic_id AND d.waiting = p_waiting) THEN
        RETURN QUERY
        SELECT d.topic_id, array_agg(DISTINCT d.sequence)
        FROM (SELECT DISTINCT i.identifier COLLATE "C" AS identifier FROM unnest(p_identifiers) AS i (identifier)) u
        CROSS JOIN LATERAL (
            SELECT w.topic_id, w.sequence FROM taskq_internal.dependency w
            WHERE w.on_topic_id = p_on_topic_id AND w.on_identifier = u.identifier AND w.waiting = p_waiting
            OFFSET 0) d
        GROUP BY d.topic_id;
    END IF;
END $$;

-- Promotes tasks that have waited long enough, before a poll of up to p_size tasks reads the indexes. A promoted task
-- stays in these indexes until a poll claims it. Only a poll of batches makes the retries wait again that it left.
-- Returns whether any task waited.
CREATE FUNCTION taskq_internal.promote_waiting(
    p_topic taskq_internal.topic, p_size int, p_lifo boolean, p_condition text
) RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_now     timestamptz := clock_timestamp();
    v_woken   bigint;
    v_retries bigint;
BEGIN
    -- The orders are ones that only live_woken and live_waiting have. Otherwise a plan made while the table was empty
    -- could use any index.
    SELECT (SELECT l.sequence FROM taskq_internal.live l
            WHERE l.topic_id = p_topic.topic_id AND l.holder IS NULL AND l.waits = :WAITS_DEPENDENCIES AND l.late
            ORDER BY -l.priority, l.available_at, l.sequence LIMIT 1),
           (SELECT l.sequence FROM taskq_internal.live l
            WHERE l.topic_id = p_topic.topic_id AND l.holder IS NULL AND l.waits > :WAITS_NOTHING
              AND l.waits = :WAITS_PROBE AND l.available_at <= v_now
            ORDER BY l.available_at, l.sequence LIMIT 1)
    INTO v_woken, v_retries;
    IF coalesce(v_woken, v_retries) IS NULL THEN
        RETURN false;
    END IF;
    PERFORM taskq_internal.promote_dependents(p_topic.topic_id, CASE WHEN p_condition <> 'BATCH' THEN p_size END);
    PERFORM taskq_internal.promote_retries(p_topic, p_size, p_lifo, p_condition);
    RETURN true;
END $$;

-- Checks woken tasks in polled order, until a poll may claim p_size of them. With p_size NULL it checks all of them.
CREATE FUNCTION taskq_internal.promote_dependents(p_topic_id int, p_size int) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_last  taskq_internal.live;  -- skips the dead index entries of tasks that this call has moved
    v_woken bigint[];
    v_freed bigint := 0;
BEGIN
    v_last.priority := 101;
    v_last.available_at := '-infinity';
    v_last.sequence := 0;
    LOOP
        v_woken := ARRAY(SELECT l.sequence FROM taskq_internal.live l
                         WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits = :WAITS_DEPENDENCIES AND l.late
                           AND (-l.priority, l.available_at, l.sequence) > (-v_last.priority, v_last.available_at,
                                                                            v_last.sequence)
                         ORDER BY -l.priority, l.available_at, l.sequence LIMIT greatest(p_size - v_freed, 100)
                         FOR UPDATE SKIP LOCKED);
        EXIT WHEN cardinality(v_woken) = 0;
        SELECT * INTO v_last FROM taskq_internal.live
        WHERE topic_id = p_topic_id AND sequence = v_woken[cardinality(v_woken)];
        v_freed := v_freed + cardinality(taskq_internal.check_dependents(p_topic_id, v_woken));
        EXIT WHEN v_freed >= p_size;
    END LOOP;
END $$;

-- Wakes the tasks that missed_dependents returns. Returns whether there were any.
CREATE FUNCTION taskq_internal.wake_missed(p_topic_id int) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_missed bigint[] := taskq_internal.missed_dependents(p_topic_id);
BEGIN
    IF cardinality(v_missed) > 0 THEN
        UPDATE taskq_internal.live SET late = true WHERE topic_id = p_topic_id AND sequence = ANY (ARRAY(
            SELECT l.sequence FROM taskq_internal.live l
            WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_missed) AND l.holder IS NULL
              AND l.waits + 0 = :WAITS_DEPENDENCIES
            FOR UPDATE SKIP LOCKED));
    END IF;
    RETURN FOUND;
END $$;

-- Returns those of 25 tasks that wait for dependencies, whose dependencies are fulfilled and which are due. The tasks
-- follow a random hash in the order of the hashes of their sequences, so that each task has the same chance.
CREATE FUNCTION taskq_internal.missed_dependents(p_topic_id int) RETURNS bigint[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_from int := floor(random() * 4294967296) - 2147483648;
BEGIN
    RETURN taskq_internal.fulfilled_dependents(p_topic_id, ARRAY(
        SELECT n.sequence FROM (
            SELECT a.* FROM (
                (SELECT l.sequence, l.available_at FROM taskq_internal.live l
                 WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits = :WAITS_DEPENDENCIES AND NOT l.late
                   AND hashint8(l.sequence) >= v_from ORDER BY hashint8(l.sequence) LIMIT 25)
                UNION ALL
                (SELECT l.sequence, l.available_at FROM taskq_internal.live l
                 WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits = :WAITS_DEPENDENCIES AND NOT l.late
                   AND hashint8(l.sequence) < v_from ORDER BY hashint8(l.sequence) LIMIT 25)) a
            LIMIT 25) n
        WHERE n.available_at <= clock_timestamp()));
END $$;

-- Promotes retries that wait for the probe of their topic. While retries succeed, it promotes the due ones in polled
-- order. While they fail, it promotes the next retry in turn, which is then the probe (see may_probe).
--
-- Two polls never promote a probe at once, because each locks the row of the last probe as it read it. A poll that
-- promotes no probe locks nothing. No completion waits for a poll, because no completion changes this row.
CREATE FUNCTION taskq_internal.promote_retries(
    p_topic taskq_internal.topic, p_size int, p_lifo boolean, p_condition text
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_now     timestamptz := clock_timestamp();
    v_probe   record := taskq_internal.may_probe(p_topic, v_now, p_condition);
    v_retries bigint[];
    v_locked  bigint[];
BEGIN
    IF NOT v_probe.allowed THEN
        RETURN;
    END IF;
    v_retries := taskq_internal.retries_to_promote(p_topic, v_probe.failing, v_now, p_size, p_lifo, p_condition);
    IF v_probe.failing THEN
        PERFORM FROM taskq_internal.probe p
        WHERE p.topic_id = p_topic.topic_id AND p.xmin = v_probe.version AND cardinality(v_retries) > 0
        FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        UPDATE taskq_internal.probe SET sequences = v_retries, period = v_probe.period
        WHERE topic_id = p_topic.topic_id;
    END IF;
    v_locked := ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_topic.topic_id AND l.sequence = ANY (v_retries || v_probe.sequences) AND l.holder IS NULL
          AND CASE WHEN l.sequence = ANY (v_retries) THEN l.waits + 0 = :WAITS_PROBE
                   ELSE l.waits + 0 <= :WAITS_NOTHING END
        FOR UPDATE SKIP LOCKED);
    UPDATE taskq_internal.live l SET late = true, waits = CASE
        -- The last probe, which no poll under the condition can claim, gives its place to this one.
        WHEN l.sequence <> ALL (v_retries) THEN :WAITS_PROBE ELSE :WAITS_NOTHING END
    WHERE l.topic_id = p_topic.topic_id AND l.sequence = ANY (v_locked);
END $$;

-- Returns the retries to promote: the retries of up to p_size identifiers for a poll of batches, or else up to p_size
-- retries.
CREATE FUNCTION taskq_internal.retries_to_promote(
    p_topic taskq_internal.topic, p_failing boolean, p_now timestamptz, p_size int, p_lifo boolean, p_condition text
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_retries bigint[];
BEGIN
    IF p_failing THEN
        v_retries := taskq_internal.retry_in_turn(p_topic.topic_id, p_now, p_condition);
    ELSE
        v_retries := taskq_internal.due_retries(p_topic.topic_id, p_now, p_size, p_lifo, p_condition);
    END IF;
    RETURN CASE WHEN p_condition = 'BATCH' THEN taskq_internal.retries_of_same_groups(p_topic.topic_id, v_retries)
        ELSE v_retries END;
END $$;

-- Returns at most one task: the due retry whose last failure is the longest ago, whatever its priority. Under a
-- condition it returns only a retry that has the turn of its identifier. Among retries that failed in one call it
-- returns the first by priority, then by sequence.
CREATE FUNCTION taskq_internal.retry_in_turn(p_topic_id int, p_now timestamptz, p_condition text) RETURNS bigint[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_sequence bigint;
BEGIN
    FOR v_sequence IN
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits = :WAITS_PROBE AND l.available_at <= p_now
        ORDER BY l.failed_at NULLS FIRST, l.priority DESC, l.sequence
    LOOP
        IF taskq_internal.may_promote(p_topic_id, v_sequence, p_condition) THEN
            RETURN ARRAY[v_sequence];
        END IF;
    END LOOP;
    RETURN '{}';
END $$;

-- Returns the given retries and the other retries of their identifiers, because a poll hands out a batch as a whole.
CREATE FUNCTION taskq_internal.retries_of_same_groups(p_topic_id int, p_sequences bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN taskq_internal.fulfilled_dependents(p_topic_id, ARRAY(
        SELECT a.sequence
        FROM (SELECT DISTINCT l.identifier FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
              AND l.sequence = ANY (p_sequences)) u
        CROSS JOIN LATERAL (
            SELECT b.sequence FROM taskq_internal.live b
            WHERE b.identifier = u.identifier AND b.topic_id = p_topic_id AND b.attempt > 0
                AND coalesce(b.polled, 'infinity') = 'infinity' AND b.holder IS NULL AND b.waits + 0 = :WAITS_PROBE
            OFFSET 0) a));
END $$;

-- Returns the first p_size due retries that wait for the probe, in polled order. Under a condition it returns only
-- retries that have the turn of their identifier, because a probe that no poll can claim would block the other retries.
CREATE FUNCTION taskq_internal.due_retries(
    p_topic_id int, p_now timestamptz, p_size int, p_lifo boolean, p_condition text
) RETURNS bigint[] LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_priority smallint := 101;
    v_sequence bigint;
    v_due      bigint[] := '{}';
BEGIN
    LOOP
        SELECT l.priority INTO v_priority FROM taskq_internal.live l
        WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits = :WAITS_PROBE AND l.priority < v_priority
        ORDER BY l.priority DESC LIMIT 1;
        EXIT WHEN NOT FOUND OR cardinality(v_due) >= p_size;
        FOR v_sequence IN
            SELECT r.sequence FROM (
                (SELECT l.sequence FROM taskq_internal.live l
                 WHERE NOT p_lifo AND l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits = :WAITS_PROBE
                   AND l.priority = v_priority AND l.available_at <= p_now ORDER BY l.available_at, l.sequence)
                UNION ALL
                (SELECT l.sequence FROM taskq_internal.live l
                 WHERE p_lifo AND l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits = :WAITS_PROBE
                   AND l.priority = v_priority AND l.available_at <= p_now ORDER BY l.available_at DESC,
                       l.sequence DESC)) r
        LOOP
            IF taskq_internal.may_promote(p_topic_id, v_sequence, p_condition) THEN
                v_due := v_due || v_sequence;
            END IF;
            EXIT WHEN cardinality(v_due) >= p_size;
        END LOOP;
    END LOOP;
    RETURN v_due;
END $$;

-- Returns whether a poll under a condition could claim a retry: its dependencies are fulfilled, and it has its turn.
CREATE FUNCTION taskq_internal.may_promote(p_topic_id int, p_sequence bigint, p_condition text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN cardinality(taskq_internal.fulfilled_dependents(p_topic_id, ARRAY[p_sequence])) = 1
        AND (p_condition = 'NONE' OR taskq_internal.has_turn(p_topic_id, p_sequence, p_condition));
END $$;

-- Returns whether an attempted task has the turn of its identifier, and no task blocks the identifier.
CREATE FUNCTION taskq_internal.has_turn(p_topic_id int, p_sequence bigint, p_condition text) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_identifier text := (SELECT l.identifier FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
                          AND l.sequence = p_sequence);
BEGIN
    RETURN (SELECT CASE WHEN p_condition = 'BATCH' THEN a.holder IS NULL ELSE a.sequence = p_sequence END
            FROM (SELECT) one
            LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, v_identifier, true) i ON true
            CROSS JOIN LATERAL taskq_internal.turn_of_identifier(p_topic_id, v_identifier, i.claimed_at) a)
       AND (SELECT e.sequence FROM taskq_internal.ended e
            WHERE e.identifier = v_identifier AND e.topic_id = p_topic_id AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED)
              AND e.state = ANY (taskq_internal.blocking_states(p_condition)) ORDER BY e.state, e.sequence
                  LIMIT 1) IS NULL
       AND (p_condition <> 'BATCH' OR NOT EXISTS (
            SELECT FROM taskq_internal.live a WHERE a.identifier = v_identifier AND a.topic_id = p_topic_id
                AND a.attempt > 0 AND coalesce(a.polled, 'infinity') = 'infinity' AND a.holder IS NULL
                AND (a.available_at > clock_timestamp() OR a.waits IN (:WAITS_DEPENDENCIES, :WAITS_RESUME))));
END $$;

-- Returns whether a poll may promote retries of a topic, and whether they fail: then it may promote one, as the probe.
-- period, sequences and version are those of the last probe. While retries fail, the last probe has to be over: no
-- owner holds it, and no poll under the condition can claim it. Also, since its failure, a retry has to have become due
-- or the topic's first delay to have passed. The delay of the failed task does not count: it grows, and the other
-- retries would wait for it.
CREATE FUNCTION taskq_internal.may_probe(
    p_topic taskq_internal.topic, p_now timestamptz, p_condition text, OUT allowed boolean, OUT failing boolean,
    OUT period int, OUT sequences bigint[], OUT version xid
) LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_result taskq_internal.probe_result;
BEGIN
    SELECT * INTO v_result FROM taskq_internal.probe_result r
    WHERE p_topic.probe AND r.topic_id = p_topic.topic_id AND r.failing;
    failing := FOUND;
    period := v_result.period;
    SELECT CASE WHEN p.period = v_result.period THEN p.sequences ELSE '{}' END, p.xmin INTO sequences, version
    FROM taskq_internal.probe p WHERE p.topic_id = p_topic.topic_id AND failing;
    allowed := NOT failing OR NOT EXISTS (
            SELECT FROM taskq_internal.live l
            WHERE l.topic_id = p_topic.topic_id AND l.sequence = ANY (sequences)
              AND (l.holder IS NOT NULL OR l.waits + 0 <= :WAITS_NOTHING AND l.available_at <= p_now
                   AND p_condition <> 'BATCH' AND taskq_internal.may_promote(l.topic_id, l.sequence, p_condition)))
        AND (v_result.failed_at IS NULL OR v_result.failed_at + least(p_topic.base, p_topic.max_delay) <= p_now
             OR (SELECT l.sequence FROM taskq_internal.live l
                 WHERE l.topic_id = p_topic.topic_id AND l.holder IS NULL AND l.waits = :WAITS_PROBE
                   AND l.available_at > v_result.failed_at AND l.available_at <= p_now
                 ORDER BY l.available_at, l.sequence LIMIT 1) IS NOT NULL);
END $$;

-- Returns whether any task may wait for the end of other tasks.
CREATE FUNCTION taskq_internal.has_waiting_tasks() RETURNS boolean
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    RETURN EXISTS (SELECT FROM taskq_internal.dependency)  -- an index of those that wait has dead entries
        OR EXISTS (SELECT FROM taskq_internal.topic WHERE probe);
END $$;

-- Wakes the dependents of the tasks that SUCCEEDED in a call of complete, and updates the probe.
CREATE FUNCTION taskq_internal.update_waiting(p_topic_id int, p_sequences bigint[], p_results smallint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_topic taskq_internal.topic;
BEGIN
    PERFORM taskq_internal.wake_dependents(p_topic_id, ARRAY(
        SELECT e.identifier FROM taskq_internal.ended e WHERE e.topic_id = p_topic_id AND e.sequence = ANY (p_sequences)
            AND e.state = :SUCCEEDED));
    SELECT * INTO v_topic FROM taskq_internal.topic WHERE topic_id = p_topic_id;
    IF v_topic.probe THEN
        PERFORM taskq_internal.update_probe(v_topic, p_sequences, p_results);
    END IF;
END $$;

-- Updates a topic's probe after tasks have ended or returned to READY in this transaction. A recorded failure marks the
-- topic as failing. For a failure of the probe it stores the time, which delays the next probe (may_probe). Any other
-- decision on a retry marks the topic as no longer failing. It writes only changes, so that completions do not wait for
-- each other.
CREATE FUNCTION taskq_internal.update_probe(p_topic taskq_internal.topic, p_sequences bigint[], p_results smallint[])
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_result taskq_internal.probe_result;
    v_probe  bigint[];
    v_failed bigint[];
    v_ok     boolean;
BEGIN
    v_failed := ARRAY(SELECT l.sequence FROM taskq_internal.live l WHERE l.topic_id = p_topic.topic_id
                      AND l.sequence = ANY (p_sequences)
                        AND l.waits + 0 = :WAITS_PROBE  -- + 0: not by live_waiting
                      UNION ALL
                      SELECT e.sequence FROM taskq_internal.ended e WHERE e.topic_id = p_topic.topic_id
                          AND e.sequence = ANY (p_sequences) AND e.state = :FAILED);
    SELECT * INTO v_result FROM taskq_internal.probe_result WHERE topic_id = p_topic.topic_id AND failing;
    SELECT p.sequences INTO v_probe FROM taskq_internal.probe p
    WHERE p.topic_id = p_topic.topic_id AND p.period = v_result.period;
    IF cardinality(v_failed) > 0 AND v_result.failing IS NULL THEN
        INSERT INTO taskq_internal.probe_result AS r (topic_id, failing) VALUES (p_topic.topic_id, true)
        ON CONFLICT (topic_id) DO UPDATE SET failing = true, failed_at = NULL, period = r.period + 1;
        INSERT INTO taskq_internal.probe (topic_id) VALUES (p_topic.topic_id) ON CONFLICT DO NOTHING;
        PERFORM taskq_internal.demote_retries(p_topic.topic_id);
    ELSIF v_probe && v_failed THEN
        UPDATE taskq_internal.probe_result SET failed_at = clock_timestamp() WHERE topic_id = p_topic.topic_id;
    ELSIF v_result.failing AND cardinality(v_failed) = 0 THEN
        v_ok := EXISTS (SELECT FROM taskq_internal.ended e WHERE e.topic_id = p_topic.topic_id
                        AND e.sequence = ANY (p_sequences) AND e.attempt > 1)
             OR v_probe && ARRAY(SELECT u.sequence FROM unnest(p_sequences, p_results) AS u (sequence, result)
                     WHERE u.result <> :FAILURE);
        IF v_ok THEN
            UPDATE taskq_internal.probe_result SET failing = false WHERE topic_id = p_topic.topic_id;
        END IF;
    END IF;
END $$;

-- Makes promoted retries wait for the probe again: those of a topic whose retries now fail, and those that a poll of
-- batches has left, so that no other poll splits their group. Never waits: it leaves out the retries that a poll is
-- claiming. The order is one that only live_late has.
CREATE FUNCTION taskq_internal.demote_retries(p_topic_id int) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_retries bigint[] := ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING AND l.late AND l.attempt > 0
        ORDER BY l.priority + 0, l.available_at, l.sequence FOR UPDATE SKIP LOCKED);
BEGIN
    UPDATE taskq_internal.live SET waits = :WAITS_PROBE
    WHERE topic_id = p_topic_id AND sequence = ANY (v_retries);
END $$;

-- Returns the tasks that a poll would promote now: woken and missed dependents that are fulfilled and due, and up to
-- p_limit retries. It changes nothing.
CREATE FUNCTION taskq_internal.waiting_to_promote(p_topic taskq_internal.topic, p_limit int, p_condition text)
RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_probe record := taskq_internal.may_probe(p_topic, v_now, p_condition);
    v_tasks bigint[] := ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_topic.topic_id AND l.holder IS NULL AND l.waits = :WAITS_DEPENDENCIES AND l.late
          AND l.available_at <= v_now AND (l.attempt = 0 OR NOT p_topic.probe));
BEGIN
    v_tasks := taskq_internal.fulfilled_dependents(p_topic.topic_id, v_tasks)
        || taskq_internal.missed_dependents(p_topic.topic_id);
    IF v_probe.allowed THEN
        v_tasks := v_tasks || taskq_internal.retries_to_promote(p_topic, v_probe.failing, v_now, p_limit, false,
            p_condition);
    END IF;
    RETURN v_tasks;
END $$;
