-- Watch: one call for many waits, junctions of groups, and counts of the READY tasks of a topic by what blocks them.

CREATE FUNCTION taskq.watch(
    p_ready_topics text[], p_limits int[], p_conditions text[], p_aged boolean[], p_state_topics text[],
    p_state_identifiers text[], p_names text[], p_juncture_topics text[], p_junctions text[], p_places int[],
    p_groups int[], p_identifiers text[]
) RETURNS TABLE (kind text, "position" int, number int, waited double precision) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT w.kind, w."position", w.number, w.waited
    FROM taskq.watch_tasks(p_ready_topics, p_limits, p_conditions, p_aged, p_state_topics, p_state_identifiers) w;
    RETURN QUERY
    SELECT 'juncture', j.place, j.number, NULL::double precision
    FROM taskq_internal.watch_groups(p_names, p_juncture_topics, p_junctions, p_places, p_groups, p_identifiers) j;
END $$;
COMMENT ON FUNCTION taskq.watch IS
'Answers many waits in one call. Each row has the kind of its wait and the position in the arrays of that kind, from 1.
The kind ready returns how many tasks of a topic a poll could claim, up to a limit. With p_aged it also returns for how
many seconds the oldest task has been due. The kind state returns the state of the newest task of an identifier, or NULL
if the identifier has no task. The kind juncture releases the complete groups and returns how many groups still wait.
The number is -1 for an unknown topic.';

CREATE FUNCTION taskq.watch_tasks(
    p_ready_topics text[], p_limits int[], p_conditions text[], p_aged boolean[], p_state_topics text[],
    p_state_identifiers text[]
) RETURNS TABLE (kind text, "position" int, number int, waited double precision) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'ready', u.place::int, n.number, CASE WHEN u.aged AND n.number > 0
           THEN extract(epoch FROM clock_timestamp() - (taskq.oldest_due(t.topic_id)).since)::double precision END
    FROM unnest(p_ready_topics, p_limits, p_conditions, p_aged) WITH ORDINALITY
        AS u (topic, bound, condition, aged, place)
    LEFT JOIN taskq_internal.topic t ON t.name = u.topic AND taskq_internal.may_access(u.topic, 'SELECT, UPDATE')
    CROSS JOIN LATERAL (
        -- Two index probes decide most topics, and cost a tenth of the count.
        SELECT CASE WHEN t.topic_id IS NULL THEN -1
                    WHEN EXISTS (SELECT FROM taskq_internal.due_fronts(t.topic_id, 101, clock_timestamp()))
                      OR EXISTS (SELECT FROM taskq_internal.live l WHERE l.topic_id = t.topic_id AND l.holder IS NULL
                                 AND l.waits > :WAITS_NOTHING)
                    THEN taskq_internal.count_ready(t, least(u.bound, taskq_internal.max_tasks()), u.condition)
                        ELSE 0 END AS number
        OFFSET 0) n;
    RETURN QUERY
    SELECT 'state', u.place::int, CASE WHEN t.topic_id IS NULL THEN -1
        ELSE taskq_internal.newest_state(t.topic_id, u.identifier) END,
           NULL::double precision
    FROM unnest(p_state_topics, p_state_identifiers) WITH ORDINALITY AS u (topic, identifier, place)
    LEFT JOIN taskq_internal.topic t ON t.name = u.topic AND taskq_internal.may_access(u.topic, 'SELECT, UPDATE');
END $$;
COMMENT ON FUNCTION taskq.watch_tasks IS
'Answers the waits of the kinds ready and state, like taskq.watch. It changes nothing, so readers may call it, also on a
standby.';

-- Notifies a channel, unless half of the server's queue of notifications is in use. If that queue is full, because a
-- listener stays in a transaction, PostgreSQL fails each COMMIT of a notification. No program depends on one, and the
-- second half is left to other programs. The look at the usage also lets PostgreSQL empty the queue. PostgreSQL inlines
-- this form of function.
CREATE FUNCTION taskq_internal.notify(p_channel text, p_payload text) RETURNS void LANGUAGE sql AS $$
    SELECT CASE WHEN pg_notification_queue_usage() < 0.5 THEN pg_notify(p_channel, p_payload) END
$$;

CREATE FUNCTION taskq.notify(p_topic text) RETURNS void LANGUAGE sql AS $$
    SELECT taskq_internal.notify('taskq', p_topic)
$$;
COMMENT ON FUNCTION taskq.notify IS
'Sends the topic''s name on the channel taskq, so that listening workers and waits check the topic at once. Call it
after the commit, in a transaction of its own: PostgreSQL commits one transaction with notifications at a time. If the
topic''s policy has notify, a push calls it. Sends nothing while half of the server''s queue of notifications is in
use, because a COMMIT with a notification fails once that queue is full.';

CREATE FUNCTION taskq.junction(p_topic text, p_identifiers text[], p_groups int[], p_junction text) RETURNS text[]
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM taskq_internal.check_junction(p_junction);
    RETURN (taskq_internal.release_groups((taskq_internal.lock_topic_shared(p_topic, 'UPDATE')).topic_id,
            p_identifiers, p_groups, p_junction)).identifiers;
END $$;
COMMENT ON FUNCTION taskq.junction IS
'Releases groups of identifiers: their SUSPENDED tasks become READY. p_identifiers and p_groups have one element for
each member: an identifier and the number of its group. The call releases a group if each of its identifiers has a
SUSPENDED task (SINGULAR), or a task in any state but REDUNDANT (ETERNAL), before the call. Returns the identifiers of
the released tasks. Never waits: a group with a task that another transaction holds stays for a later call. Raises TQ001
for an unknown topic, and TQ000 for an unknown junction.';

CREATE FUNCTION taskq.release_groups_once(
    p_name text, p_topic text, p_identifiers text[], p_groups int[], p_junction text
) RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.lock_topic_shared(p_topic, 'UPDATE')).topic_id;
    v_open     int[];
    v_released int[];
BEGIN
    PERFORM taskq_internal.check_name('a wait', p_name);
    PERFORM taskq_internal.check_junction(p_junction);
    v_open := ARRAY(
        SELECT k.number FROM taskq_internal.group_keys(p_identifiers, p_groups, p_junction) k
        WHERE NOT EXISTS (SELECT FROM taskq_internal.group_release j WHERE j.name = p_name AND j.topic_id = v_topic_id
                          AND j.key = k.key)
        ORDER BY k.number);
    v_released := (SELECT (taskq_internal.release_groups(v_topic_id, array_agg(m.identifier), array_agg(m.number),
            p_junction)).numbers
                   FROM unnest(p_identifiers, p_groups) AS m (identifier, number) WHERE m.number = ANY (v_open));
    INSERT INTO taskq_internal.group_release (name, topic_id, key, released)
    SELECT DISTINCT p_name, v_topic_id, k.key, clock_timestamp()
        FROM taskq_internal.group_keys(p_identifiers, p_groups, p_junction) k
    WHERE k.number = ANY (v_released)
    ON CONFLICT DO NOTHING;
    RETURN ARRAY(SELECT unnest(v_open) EXCEPT SELECT unnest(v_released) ORDER BY 1);
END $$;
COMMENT ON FUNCTION taskq.release_groups_once IS
'Releases groups like taskq.junction, each group once for p_name. Returns the numbers of the groups that still wait. The
queue recognizes a group by its identifiers. It remembers released groups until taskq.purge_group_releases removes them.
Raises TQ001 for an unknown topic, TQ008 for an invalid name, and TQ000 for an unknown junction.';

CREATE FUNCTION taskq.purge_group_releases(p_older_than interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    DELETE FROM taskq_internal.group_release
        WHERE released <= clock_timestamp() - taskq_internal.clamp_age(p_older_than);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
COMMENT ON FUNCTION taskq.purge_group_releases IS
'Removes the records of group releases that are older than p_older_than. Returns how many groups it removed.';

CREATE FUNCTION taskq.topic_status(p_topics text[], p_conditions text[], p_cap int)
RETURNS TABLE ("position" int, ready bigint, scheduled bigint, retrying bigint, blocked bigint, paused bigint,
               running bigint, topic_paused boolean, paused_by text, paused_since timestamptz)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (SELECT h.topic_id, h.held FROM taskq_internal.count_held_by_topic() h)
    SELECT u.place::int, r.ready, w.scheduled, greatest(w.retrying - (w.due - w.ready) - w.probing, 0),
           greatest(w.blocked + w.probing + CASE WHEN t.paused THEN 0 ELSE w.due END - r.ready, 0),
           w.paused + CASE WHEN t.paused THEN w.due ELSE 0 END,
           coalesce((SELECT least(h.held, p_cap) FROM held h WHERE h.topic_id = t.topic_id), 0),
           t.paused, t.paused_by, t.paused_since
    FROM unnest(p_topics, p_conditions) WITH ORDINALITY AS u (topic, condition, place)
    JOIN taskq_internal.topic t ON t.name = u.topic AND taskq_internal.may_access(u.topic, 'SELECT, UPDATE')
    CROSS JOIN LATERAL taskq_internal.count_waiting(t.topic_id, greatest(p_cap, 0)) w
    CROSS JOIN LATERAL (SELECT CASE WHEN w.due + w.blocked + w.probing > 0 THEN taskq_internal.count_ready(t, p_cap, u.condition)
                        ELSE 0 END::bigint AS ready
                        OFFSET 0) r;
END $$;
COMMENT ON FUNCTION taskq.topic_status IS
'Returns the number of READY tasks of each topic, under a condition, by what blocks them. Tasks are ready, scheduled
(due later, never attempted), retrying (due later, attempted before), blocked (by a dependency, a probe, a task of the
identifier, or an open poll) or paused. The column running has the number of held tasks. Each count stops at p_cap. The
column position is the position in the arrays, from 1. An unknown topic has no row.';

-- Returns, for each group wait of taskq.watch, how many groups still wait, or -1 for an unknown topic. Never waits:
-- while a move of the topic's tables holds the lock, the number is NULL, and a later call returns it.
CREATE FUNCTION taskq_internal.watch_groups(
    p_names text[], p_topics text[], p_junctions text[], p_places int[], p_groups int[], p_identifiers text[]
) RETURNS TABLE (place int, number int) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_wait record;
BEGIN
    FOR v_wait IN
        WITH member AS (SELECT m.place, array_agg(m.identifier) AS identifiers, array_agg(m.number) AS numbers
                        FROM unnest(p_places, p_groups, p_identifiers) AS m (place, number, identifier)
                            GROUP BY m.place)
        SELECT u.place::int, u.name, u.topic, u.junction, t.topic_id, coalesce(m.identifiers, '{}') AS identifiers,
               coalesce(m.numbers, '{}') AS numbers
        FROM unnest(p_names, p_topics, p_junctions) WITH ORDINALITY AS u (name, topic, junction, place)
        LEFT JOIN member m ON m.place = u.place
        LEFT JOIN taskq_internal.topic t ON t.name = u.topic AND taskq_internal.may_access(u.topic, 'UPDATE')
        ORDER BY u.place
    LOOP
        place := v_wait.place;
        number := NULL;
        IF v_wait.topic_id IS NULL THEN
            number := -1;
        ELSIF pg_try_advisory_xact_lock_shared(taskq_internal.topic_lock(v_wait.topic_id)) THEN
            number := cardinality(taskq.release_groups_once(v_wait.name, v_wait.topic, v_wait.identifiers,
                    v_wait.numbers, v_wait.junction));
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Returns the state of the newest task of an identifier, or NULL if it has no task.
CREATE FUNCTION taskq_internal.newest_state(p_topic_id int, p_identifier text) RETURNS int
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_sequence bigint;
    v_state    int;
BEGIN
    SELECT t.sequence INTO v_sequence FROM taskq_internal.task t
    WHERE t.identifier = p_identifier AND t.topic_id = p_topic_id ORDER BY t.sequence DESC LIMIT 1;
    SELECT e.state INTO v_state FROM taskq_internal.ended e WHERE e.topic_id = p_topic_id AND e.sequence = v_sequence;
    IF FOUND OR v_sequence IS NULL THEN
        RETURN v_state;
    END IF;
    RETURN (SELECT (l.holder IS NULL)::int FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
            AND l.sequence = v_sequence);
END $$;

-- Returns the keys by which the queue recognizes the groups.
CREATE FUNCTION taskq_internal.group_keys(p_identifiers text[], p_groups int[], p_junction text)
RETURNS TABLE (number int, key uuid) LANGUAGE sql IMMUTABLE AS $$
    SELECT m.number, md5(p_junction || jsonb_agg(DISTINCT m.identifier))::uuid
    FROM unnest(p_identifiers, p_groups) AS m (identifier, number) GROUP BY m.number
$$;

-- Raises TQ000 for an unknown junction.
CREATE FUNCTION taskq_internal.check_junction(p_junction text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_junction IS NULL OR p_junction NOT IN ('SINGULAR', 'ETERNAL') THEN
        PERFORM taskq_internal.raise_error('TQ000', format('junction %L is none of SINGULAR, ETERNAL', p_junction));
    END IF;
END $$;

-- Releases groups as taskq.junction describes. Returns the numbers of the released groups, and the identifiers of the
-- released tasks.
CREATE FUNCTION taskq_internal.release_groups(
    p_topic_id int, p_identifiers text[], p_groups int[], p_junction text, OUT identifiers text[], OUT numbers int[]
) LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_suspended bigint[];
    v_of        text[];  -- their identifiers
    v_present   text[];
    v_whole     text[];
    v_held      bigint[];
BEGIN
    identifiers := '{}';
    numbers := '{}';
    SELECT array_agg(e.sequence), array_agg(e.identifier) INTO v_suspended, v_of FROM taskq_internal.ended e
    WHERE e.identifier = ANY (p_identifiers) AND e.topic_id::bigint = p_topic_id AND e.state = :SUSPENDED;
    IF v_of IS NULL THEN
        RETURN;
    END IF;
    v_present := CASE p_junction WHEN 'SINGULAR' THEN v_of
        ELSE taskq_internal.identifiers_with_tasks(p_topic_id, p_identifiers) END;
    v_whole := taskq_internal.identifiers_of_complete_groups(p_identifiers, p_groups, v_present);
    v_held := taskq_internal.lock_selected(p_topic_id, ARRAY[:SUSPENDED], ARRAY(
        SELECT s.sequence FROM unnest(v_suspended, v_of) AS s (sequence, identifier)
        JOIN unnest(v_whole) AS w (identifier) USING (identifier)), NULL, NULL, NULL);
    v_present := ARRAY(SELECT unnest(v_present) EXCEPT
                       SELECT s.identifier FROM unnest(v_suspended, v_of) AS s (sequence, identifier)
                       LEFT JOIN unnest(v_held) AS h (held) ON h.held = s.sequence WHERE h.held IS NULL);
    v_whole := taskq_internal.identifiers_of_complete_groups(p_identifiers, p_groups, v_present);
    SELECT coalesce(array_agg(s.sequence), '{}'), coalesce(array_agg(DISTINCT s.identifier), '{}') INTO v_held,
        identifiers
    FROM unnest(v_suspended, v_of) AS s (sequence, identifier) JOIN unnest(v_whole) AS w (identifier)
        USING (identifier);
    numbers := ARRAY(
        SELECT g.number FROM unnest(p_identifiers, p_groups) AS g (identifier, number)
        LEFT JOIN (SELECT DISTINCT unnest(v_present) AS identifier) p ON p.identifier = g.identifier
        LEFT JOIN unnest(identifiers) AS r (identifier) ON r.identifier = g.identifier
        GROUP BY g.number HAVING bool_and(p.identifier IS NOT NULL) AND bool_or(r.identifier IS NOT NULL));
    PERFORM taskq_internal.reset_tasks(p_topic_id, v_held);
END $$;

-- Returns the identifiers of the groups that have all their identifiers in p_present.
CREATE FUNCTION taskq_internal.identifiers_of_complete_groups(p_identifiers text[], p_groups int[], p_present text[])
RETURNS text[] LANGUAGE plpgsql SET enable_nestloop = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN ARRAY(
        SELECT DISTINCT m.identifier FROM unnest(p_identifiers, p_groups) AS m (identifier, number)
        JOIN (SELECT g.number FROM unnest(p_identifiers, p_groups) AS g (identifier, number)
              LEFT JOIN (SELECT DISTINCT unnest(p_present) AS identifier) p USING (identifier)
              GROUP BY g.number HAVING bool_and(p.identifier IS NOT NULL)) whole USING (number));
END $$;

-- Returns the identifiers that have a task in any state but REDUNDANT. It looks at the newest tasks of each identifier
-- first: the very first one usually suffices.
CREATE FUNCTION taskq_internal.identifiers_with_tasks(p_topic_id int, p_identifiers text[]) RETURNS text[]
LANGUAGE plpgsql SET enable_nestloop = on SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
BEGIN
    RETURN ARRAY(
        SELECT n.identifier FROM (SELECT DISTINCT unnest(p_identifiers) AS identifier) n
        CROSS JOIN LATERAL (
            SELECT FROM taskq_internal.task t WHERE t.identifier = n.identifier AND t.topic_id = p_topic_id
            AND (SELECT e.state FROM taskq_internal.ended e WHERE e.topic_id = p_topic_id
                 AND e.sequence = t.sequence) IS DISTINCT FROM :REDUNDANT
            ORDER BY t.sequence DESC LIMIT 1) newest);
END $$;
