-- Blocking: what keeps a READY task out of the indexes that a poll reads. This is its dependencies (live.waits =
-- DEPENDENCIES), the probe of its topic (PROBE), or a user that has to resume it (RESUME).
--
-- The end of a dependency wakes the tasks that wait for it: they become late, and the next poll checks them. The push
-- of a newer task of the identifier makes tasks wait again that could be claimed. The transaction that makes a task
-- wait and the one that ends its dependency can miss each other. So a poll that finds nothing, or that advances
-- fronts, also looks at some of the tasks that wait. It writes only if it finds one that need not.

-- The dependencies of tasks, with the newest task of each identifier, its state if it has ended, and its topic. The
-- subqueries stay lookups under every profile of the planner.
CREATE VIEW taskq_internal.dependency_state AS
SELECT d.*, n.sequence AS on_sequence,
       (SELECT e.state FROM taskq_internal.ended e WHERE e.topic_id = d.on_topic_id AND e.sequence = n.sequence),
       (SELECT p.name FROM taskq_internal.topic p WHERE p.topic_id = d.on_topic_id) AS on_topic
FROM taskq_internal.dependency d
LEFT JOIN LATERAL (SELECT t.sequence FROM taskq_internal.task t
                   WHERE t.identifier = d.on_identifier AND t.topic_id = d.on_topic_id
                   ORDER BY t.sequence DESC LIMIT 1) n ON true;

-- Returns the tasks among p_sequences whose dependencies are all fulfilled. A dependency is fulfilled if the latest
-- task of its identifier has SUCCEEDED. If no task of the identifier is left, it is what the last check found.
CREATE FUNCTION taskq_internal.fulfilled_dependents(p_topic_id int, p_sequences bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    -- OFFSET 0 keeps the planner from joining the tasks with all dependencies of the topic. It looks each task up
    -- instead.
    RETURN ARRAY(
        SELECT u.sequence FROM unnest(p_sequences) AS u (sequence)
        WHERE NOT EXISTS (
            SELECT FROM taskq_internal.dependency_state d
            WHERE d.topic_id = p_topic_id AND d.sequence = u.sequence AND (d.on_sequence IS NOT NULL OR d.waiting)
              AND d.state IS DISTINCT FROM :SUCCEEDED
            OFFSET 0));
END $$;

-- Checks READY tasks with dependencies, whose rows this transaction holds. Polls may then claim the fulfilled tasks in
-- their place, or promote them if they are retries that wait for the probe. The others wait. Returns the fulfilled
-- tasks.
CREATE FUNCTION taskq_internal.check_dependents(p_topic_id int, p_sequences bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_fulfilled bigint[] := taskq_internal.fulfilled_dependents(p_topic_id, p_sequences);
    v_rest bigint[] := ARRAY(SELECT unnest(p_sequences) EXCEPT SELECT unnest(v_fulfilled));
BEGIN
    -- Each outcome has its own statement, and each task its own lookup. So no plan compares a row with a whole array,
    -- and none joins: the profiles of the callers allow different kinds of joins.
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
) RETURNS void LANGUAGE plpgsql AS $$
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

-- Updates the tasks that depend on these identifiers of a topic. With p_ended, a task of each has ended or was removed:
-- the tasks that wait are woken, and the next poll checks them. Otherwise a newer task was pushed: the others wait
-- again, and the dependencies of ended tasks are forgotten, so that the next push does not read them. Never waits: it
-- leaves out the tasks that another transaction has locked, so one that a poll is claiming counts as ACTIVE.
CREATE FUNCTION taskq_internal.check_dependents_of(p_topic_id int, p_identifiers text[], p_ended boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_own    record;  -- the topic and the sequences of dependents
    v_locked bigint[];
BEGIN
    IF NOT EXISTS (SELECT FROM taskq_internal.dependency d
                   WHERE d.on_topic_id = p_topic_id AND d.waiting = p_ended) THEN
        RETURN;
    END IF;
    FOR v_own IN
        SELECT d.topic_id, array_agg(DISTINCT d.sequence) AS sequences
        FROM (SELECT DISTINCT i.identifier COLLATE "C" AS identifier FROM unnest(p_identifiers) AS i (identifier)) u
        CROSS JOIN LATERAL (
            SELECT w.topic_id, w.sequence FROM taskq_internal.dependency w
            WHERE w.on_topic_id = p_topic_id AND w.on_identifier = u.identifier AND w.waiting = p_ended
            OFFSET 0) d
        GROUP BY d.topic_id
    LOOP
        v_locked := ARRAY(
            SELECT l.sequence FROM taskq_internal.live l
            WHERE l.topic_id = v_own.topic_id AND l.sequence = ANY (v_own.sequences) AND l.holder IS NULL
              AND CASE WHEN p_ended THEN l.waits = :WAITS_DEPENDENCIES AND NOT l.late
                       ELSE l.waits = :WAITS_NOTHING END
            FOR UPDATE SKIP LOCKED);
        IF p_ended THEN
            UPDATE taskq_internal.live SET late = true WHERE topic_id = v_own.topic_id AND sequence = ANY (v_locked);
        ELSE
            PERFORM taskq_internal.check_dependents(v_own.topic_id, v_locked);
            UPDATE taskq_internal.dependency SET waiting = NULL WHERE ctid = ANY (ARRAY(
                SELECT d.ctid FROM taskq_internal.dependency d
                WHERE d.topic_id = v_own.topic_id AND d.sequence = ANY (v_own.sequences)
                  AND NOT EXISTS (SELECT FROM taskq_internal.live l
                                  WHERE l.topic_id = v_own.topic_id AND l.sequence = d.sequence OFFSET 0)
                FOR UPDATE SKIP LOCKED));
        END IF;
    END LOOP;
END $$;

-- Promotes the tasks that missed_dependents returns. Returns whether there were any.
CREATE FUNCTION taskq_internal.promote_missed(p_topic_id int) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_missed bigint[] := taskq_internal.missed_dependents(p_topic_id);
BEGIN
    IF cardinality(v_missed) = 0 THEN
        RETURN false;
    END IF;
    RETURN taskq_internal.check_dependents(p_topic_id, ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_missed) AND l.holder IS NULL
          AND l.waits + 0 = :WAITS_DEPENDENCIES
        FOR UPDATE SKIP LOCKED)) <> '{}';
END $$;

-- Returns those of 25 tasks that wait for dependencies, whose dependencies are fulfilled and which are due. The tasks
-- follow a random hash in the order of the hashes of their sequences, so that each task has the same chance.
CREATE FUNCTION taskq_internal.missed_dependents(p_topic_id int) RETURNS bigint[] LANGUAGE plpgsql AS $$
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

-- Checks woken tasks in polled order, until a poll may claim p_size of them. With p_size NULL it checks all of them.
CREATE FUNCTION taskq_internal.promote_dependents(p_topic_id int, p_size int) RETURNS void LANGUAGE plpgsql AS $$
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
