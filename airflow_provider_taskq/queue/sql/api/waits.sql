-- Watch: one look for all who wait, whatever they wait for.

-- Looks once for any number of waits of three kinds. The arrays of a kind go together; each row of the answer names its kind
-- and the place in its arrays, counted from 1.
--   ready     how many tasks of a topic could be polled under a condition, counted to a limit, in `number`, and for how many
--             seconds the oldest due one has waited, in `waited`, where `p_aged` asks for it
--   state     the state of the newest task of an identifier, in `number`; NULL where it has none yet
--   juncture  how many groups a wait still waits for, after it has released those that are complete (taskq.juncture), in
--             `number`; p_places tells for each identifier the wait, p_groups the number of its group
-- A topic that nobody knows gives -1.
CREATE FUNCTION taskq.watch(
    p_ready_topics text[], p_limits int[], p_conditions text[], p_aged boolean[],
    p_state_topics text[], p_state_identifiers text[],
    p_names text[], p_juncture_topics text[], p_junctions text[], p_places int[], p_groups int[], p_identifiers text[]
) RETURNS TABLE (kind text, "position" int, number int, waited double precision) LANGUAGE plpgsql
AS $$
BEGIN
    RETURN QUERY
    SELECT w.kind, w."position", w.number, w.waited
    FROM taskq.watch_tasks(p_ready_topics, p_limits, p_conditions, p_aged, p_state_topics, p_state_identifiers) w;
    RETURN QUERY
    SELECT 'juncture', j.place, j.number, NULL::double precision
    FROM taskq.watch_junctures(p_names, p_juncture_topics, p_junctions, p_places, p_groups, p_identifiers) j;
END $$;

-- The part of a look that changes nothing: for who waits for no juncture, by a role that may only read, or on a standby.
CREATE FUNCTION taskq.watch_tasks(
    p_ready_topics text[], p_limits int[], p_conditions text[], p_aged boolean[], p_state_topics text[], p_state_identifiers text[]
) RETURNS TABLE (kind text, "position" int, number int, waited double precision) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'ready', u.place::int, n.number, CASE WHEN u.aged AND n.number > 0
           THEN extract(epoch FROM clock_timestamp() - (taskq.longest_due(t.topic_id)).since)::double precision END
    FROM unnest(p_ready_topics, p_limits, p_conditions, p_aged) WITH ORDINALITY AS u (topic, bound, condition, aged, place)
    LEFT JOIN taskq.topic t ON t.name = u.topic
    CROSS JOIN LATERAL (
        -- Two index probes tell most topics, and cost a tenth of the count.
        SELECT CASE WHEN t.topic_id IS NULL THEN -1
                    WHEN EXISTS (SELECT FROM taskq.live l WHERE l.topic_id = t.topic_id AND l.holder IS NULL AND l.waits <= 0)
                      OR EXISTS (SELECT FROM taskq.live l WHERE l.topic_id = t.topic_id AND l.holder IS NULL AND l.waits > 0)
                    THEN taskq.count_ready(t, least(u.bound, taskq.most_tasks()), u.condition) ELSE 0 END AS number
        OFFSET 0) n;
    RETURN QUERY
    SELECT 'state', u.place::int, CASE WHEN t.topic_id IS NULL THEN -1 ELSE taskq.newest_state(t.topic_id, u.identifier) END,
           NULL::double precision
    FROM unnest(p_state_topics, p_state_identifiers) WITH ORDINALITY AS u (topic, identifier, place)
    LEFT JOIN taskq.topic t ON t.name = u.topic;
END $$;

-- The junctures of a look: how many groups each wait still waits for, -1 where its topic is not known. Never waits for another
-- transaction: where the topic's tables are being moved, `number` is NULL, and the next look will tell.
CREATE FUNCTION taskq.watch_junctures(p_names text[], p_topics text[], p_junctions text[], p_places int[], p_groups int[], p_identifiers text[])
RETURNS TABLE (place int, number int) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_wait record;
BEGIN
    FOR v_wait IN
        WITH member AS (SELECT m.place, array_agg(m.identifier) AS identifiers, array_agg(m.number) AS numbers
                        FROM unnest(p_places, p_groups, p_identifiers) AS m (place, number, identifier) GROUP BY m.place)
        SELECT u.place::int, u.name, u.topic, u.junction, t.topic_id, coalesce(m.identifiers, '{}') AS identifiers,
               coalesce(m.numbers, '{}') AS numbers
        FROM unnest(p_names, p_topics, p_junctions) WITH ORDINALITY AS u (name, topic, junction, place)
        LEFT JOIN member m ON m.place = u.place
        LEFT JOIN taskq.topic t ON t.name = u.topic
        ORDER BY u.place
    LOOP
        place := v_wait.place;
        number := NULL;
        IF v_wait.topic_id IS NULL THEN
            number := -1;
        ELSIF taskq.try_keep_topic(v_wait.topic_id) THEN
            number := cardinality(taskq.juncture(v_wait.name, v_wait.topic, v_wait.identifiers, v_wait.numbers, v_wait.junction));
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- The state of the newest task of an identifier; NULL where there is none.
CREATE FUNCTION taskq.newest_state(p_topic_id int, p_identifier text) RETURNS int LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_sequence bigint;
    v_state    int;
BEGIN
    SELECT t.sequence INTO v_sequence FROM taskq.task t
    WHERE t.identifier = p_identifier AND t.topic_id = p_topic_id ORDER BY t.sequence DESC LIMIT 1;
    SELECT e.state INTO v_state FROM taskq.ended e WHERE e.topic_id = p_topic_id AND e.sequence = v_sequence;
    IF FOUND OR v_sequence IS NULL THEN
        RETURN v_state;
    END IF;
    RETURN (SELECT (l.holder IS NULL)::int FROM taskq.live l WHERE l.topic_id = p_topic_id AND l.sequence = v_sequence);
END $$;

-- Sends the topic's name on the channel `taskq`. Every worker and every wait that listens and that waits on the topic then looks at
-- once. Nothing depends on the notification. Call it after the commit, as a transaction of its own: PostgreSQL commits one
-- transaction with notifications at a time. For a topic whose policy has `notify`, a push calls it in the pushing transaction.
CREATE FUNCTION taskq.wake(p_topic text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('taskq', p_topic)
$$;
