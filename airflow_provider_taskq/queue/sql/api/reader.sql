-- Readers: tasks, counts and results, why a task is not running, and waits for many topics at once.

CREATE FUNCTION taskq.task(p_topic text, VARIADIC p_sequences bigint[]) RETURNS SETOF taskq.task_info
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT, UPDATE')).topic_id;
BEGIN
    RETURN QUERY SELECT * FROM taskq.task_info i WHERE i.topic_id = v_topic_id AND i.sequence = ANY (p_sequences);
END $$;
COMMENT ON FUNCTION taskq.task IS
'Returns one or more tasks with all their columns, except the history, in no order. A sequence without a task in the
topic has no row. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.latest(p_topic text, p_identifiers text[]) RETURNS SETOF taskq.task_info
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic_id  int := (taskq_internal.accessible_topic(p_topic, 'SELECT')).topic_id;
    v_sequences bigint[];
BEGIN
    v_sequences := ARRAY(
        SELECT n.sequence FROM (SELECT DISTINCT u.identifier FROM unnest(p_identifiers) AS u (identifier)) d
        CROSS JOIN LATERAL (SELECT t.sequence FROM taskq_internal.task t
                            WHERE t.identifier = d.identifier AND t.topic_id = v_topic_id
                            ORDER BY t.sequence DESC LIMIT 1) n);
    RETURN QUERY SELECT * FROM taskq.task_info i WHERE i.topic_id = v_topic_id AND i.sequence = ANY (v_sequences);
END $$;
COMMENT ON FUNCTION taskq.latest IS
'Returns the task with the highest sequence of each identifier. An identifier without tasks has no row. Raises TQ001 for
an unknown topic.';

CREATE FUNCTION taskq.count(
    p_topic text, p_recent boolean, p_state int, p_identifier text, p_reference text, p_from bigint, p_to bigint
) RETURNS TABLE (topic text, state int, count bigint, last bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (SELECT topic_id FROM taskq_internal.topic WHERE name = p_topic);
    -- EXECUTE plans with the values, so that a condition of NULL costs nothing.
    v_where    text := '($7 IS NULL OR s.topic_id = $1) AND s.sequence >= $2 AND ($3 IS NULL OR s.sequence <= $3)';
    v_rows     text := format(
        CASE WHEN coalesce(p_identifier, p_reference) IS NULL THEN
            'SELECT s.topic_id, s.sequence, s.identifier,
                    CASE WHEN s.holder IS NULL THEN :READY ELSE :ACTIVE END AS state
             FROM taskq_internal.live s WHERE %1$s
             UNION ALL SELECT s.topic_id, s.sequence, s.identifier, s.state FROM taskq_internal.ended s WHERE %1$s'
        ELSE
            'SELECT s.topic_id, s.sequence, s.identifier, coalesce(
                 (SELECT CASE WHEN l.holder IS NULL THEN :READY ELSE :ACTIVE END FROM taskq_internal.live l
                  WHERE l.topic_id = s.topic_id AND l.sequence = s.sequence),
                 (SELECT e.state FROM taskq_internal.ended e
                  WHERE e.topic_id = s.topic_id AND e.sequence = s.sequence)) AS state
             FROM taskq_internal.task s
             WHERE %1$s AND ($4 IS NULL OR s.identifier = $4) AND ($5 IS NULL OR s.reference = $5)' END, v_where);
BEGIN
    PERFORM taskq_internal.check_access(p_topic, 'SELECT');
    IF p_recent THEN
        v_rows := format('SELECT DISTINCT ON (r.topic_id, r.identifier) r.* FROM (%s) r
                          ORDER BY r.topic_id, r.identifier, r.sequence DESC', v_rows);
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT p.name, c.state::int, c.count, c.last FROM taskq_internal.topic p
         LEFT JOIN (SELECT n.topic_id, n.state, count(*), max(n.sequence) AS last FROM (%s) n
                    WHERE $6 IS NULL OR n.state = $6 GROUP BY n.topic_id, n.state) c ON c.topic_id = p.topic_id
         WHERE $7 IS NULL OR p.name = $7 ORDER BY p.name, c.state', v_rows)
        USING v_topic_id, p_from, p_to, p_identifier, p_reference, p_state, p_topic;
END $$;
COMMENT ON FUNCTION taskq.count IS
'Returns how many tasks of a topic are in each state, with the highest sequence of each count. With p_topic NULL it
returns the counts of all topics. A filter of NULL matches every task. With p_recent true it counts only the newest task
of each identifier in the range. Returns no row for an unknown topic.';

CREATE FUNCTION taskq.results(p_since timestamptz, p_until timestamptz)
RETURNS TABLE (topic text, result int, count bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.name, c.state - :RESULT_TO_STATE, c.count FROM taskq_internal.topic p
    LEFT JOIN (SELECT e.topic_id, e.state, count(*) AS count FROM taskq_internal.ended e
               WHERE e.completed BETWEEN coalesce(p_since, '-infinity') AND coalesce(p_until, 'infinity')
                 AND e.state BETWEEN :FAILED AND :SUCCEEDED GROUP BY e.topic_id, e.state) c USING (topic_id)
    ORDER BY p.name, c.state;
END $$;
COMMENT ON FUNCTION taskq.results IS
'Returns how many tasks completed from p_since to p_until, both included, by topic and result. A bound of NULL is open.
A topic without such tasks has one row with NULLs.';

CREATE FUNCTION taskq.resolve(p_moment timestamptz, p_preceding boolean) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT taskq_internal.resolve(ARRAY(SELECT topic_id FROM taskq_internal.topic), p_moment, p_preceding)
$$;
COMMENT ON FUNCTION taskq.resolve IS
'Returns the first sequence of all topics that was created at or after a moment. With p_preceding true it returns the
last sequence that was created at or before the moment. Returns NULL if there is none. After a clock was set back by
more than ten seconds, the same times occur in two places, and the result may be at either.';

CREATE FUNCTION taskq.explain(p_topic text, p_sequence bigint, OUT reason text, OUT waits_normally boolean)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic    taskq_internal.topic := taskq_internal.accessible_topic(p_topic, 'SELECT');
    v_live     taskq_internal.live;
    v_last     timestamptz;
    v_unserved text;  -- if no owner holds its tasks, and none has ended for a minute
BEGIN
    SELECT * INTO v_live FROM taskq_internal.live l WHERE l.topic_id = v_topic.topic_id AND l.sequence = p_sequence;
    reason := taskq.explain_task(v_topic.topic_id, p_sequence);
    IF v_live.sequence IS NOT NULL AND v_live.holder IS NULL THEN
        waits_normally := v_live.attempt = 0 AND v_live.available_at > statement_timestamp()
            AND v_live.waits <= :WAITS_NOTHING AND NOT v_topic.paused;
        IF NOT v_topic.paused AND v_live.waits <= :WAITS_NOTHING AND v_live.available_at <= statement_timestamp() THEN
            v_last := taskq_internal.last_completed(v_topic.topic_id);
            IF (v_last > statement_timestamp() - interval '1 minute') IS NOT TRUE
                AND v_topic.topic_id <> ALL (taskq_internal.served_topics()) THEN
                v_unserved := 'no worker seems to poll its topic: ' || coalesce(
                    'the last task of it ended ' || taskq.format_duration(statement_timestamp() - v_last) || ' ago',
                    'none of its tasks has ended yet');
            END IF;
            waits_normally := reason IS NULL AND v_unserved IS NULL;
            reason := concat_ws('; ', reason, v_unserved, CASE WHEN reason IS NULL THEN coalesce((
                SELECT CASE WHEN f.place = 1 THEN 'it is ready, and the next in line'
                            ELSE format('it is ready, with %s before it', f.place - 1) END
                FROM (SELECT n.sequence, row_number() OVER () AS place
                      FROM (SELECT l.sequence FROM taskq_internal.live l
                            WHERE l.topic_id = v_topic.topic_id AND l.holder IS NULL AND l.waits <= :WAITS_NOTHING
                            ORDER BY l.priority DESC, l.available_at, l.sequence LIMIT 1000) n) f
                WHERE f.sequence = p_sequence LIMIT 1), 'it is ready, with 1,000 or more before it') END);
        END IF;
    END IF;
END $$;
COMMENT ON FUNCTION taskq.explain IS
'Explains in one sentence why a task is not running, or that it runs or has ended. Returns a NULL reason for an unknown
task. waits_normally is true for a READY task that waits only for its first due time, or for tasks before it in a topic
that workers poll. It is false for any other READY task, and NULL for a task that is not READY. Raises TQ001 for an
unknown topic.';

CREATE FUNCTION taskq.timeline(p_topic text, p_sequence bigint)
RETURNS TABLE (happened timestamptz, what text, state int, attempt int, holder text, actor text, role text,
               other bigint, error text, error_summary text, waited interval, ran interval)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT')).topic_id;
    v_created  timestamptz := (SELECT t.created FROM taskq_internal.task t WHERE t.topic_id = v_topic_id
                               AND t.sequence = p_sequence);
BEGIN
    RETURN QUERY
    SELECT n.happened,  -- the kinds between pushed and held are those of HistoryKind in queue/models.py
           (ARRAY['pushed', 'failed', 'lapsed', 'reset', 'recreated', 'reassigned', 'paused', 'resumed', 'due set',
                  'attempts set', 'priority set', 'canceled', 'held', 'ended'])[n.kind + 1],
           n.state::int, n.attempt, n.holder, n.actor, n.role, n.other, n.error, n.error_summary,
           CASE WHEN n.polled IS NOT NULL THEN greatest(taskq_internal.clamp_moment(n.polled)
                - taskq_internal.clamp_moment(greatest(v_created, n.due)), '0') END,
           taskq_internal.run_time(n.polled, n.until)
    FROM (
        SELECT h.happened, h.kind, h.state, h.attempt, h.holder, h.actor, h.role, h.other, h.error, h.error_summary,
               h.due, h.polled, h.happened AS until
        FROM (SELECT * FROM taskq_internal.history m WHERE m.sequence = p_sequence AND m.topic_id = v_topic_id
              ORDER BY m.happened DESC LIMIT 200) h
        UNION ALL
        SELECT v_created, 0, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE v_created IS NOT NULL
        UNION ALL
        SELECT l.polled, 12, :ACTIVE, l.attempt,
               (SELECT o.name FROM taskq_internal.owner o WHERE o.owner_id = l.holder), NULL, NULL, NULL, NULL, NULL,
               l.available_at, l.polled, statement_timestamp()
        FROM taskq_internal.live l WHERE l.topic_id = v_topic_id AND l.sequence = p_sequence AND l.holder IS NOT NULL
        UNION ALL
        SELECT e.completed, 13, e.state, e.attempt,
               (SELECT o.name FROM taskq_internal.owner o WHERE o.owner_id = e.holder), NULL, NULL, NULL,
               e.error, e.error_summary, e.available_at, e.polled, e.completed
        FROM taskq_internal.ended e WHERE e.topic_id = v_topic_id AND e.sequence = p_sequence) n
    ORDER BY n.kind > 11, n.kind > 0, n.happened;
END $$;
COMMENT ON FUNCTION taskq.timeline IS
'Returns the history of a task, the oldest entry first: its push, the last 200 entries, and its end. The column what is
pushed, failed, lapsed, reset, recreated, reassigned, paused, resumed, due set, attempts set, priority set, canceled,
held or ended. The column state has the state before the entry. For held and ended it has the current state. The column
waited tells how long the attempt waited for its poll, from its due time or from a later push, and ran how long it ran.
Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.watch_tasks(
    p_ready_topics text[], p_limits int[], p_conditions text[], p_aged boolean[], p_state_topics text[],
    p_state_identifiers text[]
) RETURNS TABLE (kind text, "position" int, number int, waited double precision) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT 'ready', u.place::int, n.number, CASE WHEN u.aged AND n.number > 0
           THEN (SELECT extract(epoch FROM clock_timestamp() - d.since)::double precision
                 FROM taskq.oldest_due(NULL, t.topic_id) d) END
    FROM unnest(p_ready_topics, p_limits, p_conditions, p_aged) WITH ORDINALITY
        AS u (topic, bound, condition, aged, place)
    LEFT JOIN taskq_internal.topic t ON t.name = u.topic AND taskq_internal.may_access(u.topic, 'SELECT, UPDATE')
    CROSS JOIN LATERAL (
        -- Two index probes decide most topics, and cost a tenth of the count.
        SELECT CASE WHEN t.topic_id IS NULL THEN -1
                    WHEN EXISTS (SELECT FROM taskq_internal.due_fronts(t.topic_id, 101, clock_timestamp()))
                      OR EXISTS (SELECT FROM taskq_internal.live l WHERE l.topic_id = t.topic_id AND l.holder IS NULL
                                 AND l.waits > :WAITS_NOTHING)
                    THEN taskq_internal.count_ready(t, least(u.bound, :MAX_TASKS), u.condition)
                        ELSE 0 END AS number
        OFFSET 0) n;
    RETURN QUERY
    SELECT 'state', u.place::int, CASE WHEN t.topic_id IS NULL THEN -1
        ELSE (SELECT i.state FROM taskq.task_info i WHERE i.topic_id = t.topic_id AND i.sequence = (
                  SELECT n.sequence FROM taskq_internal.task n WHERE n.identifier = u.identifier
                      AND n.topic_id = t.topic_id ORDER BY n.sequence DESC LIMIT 1)) END,
           NULL::double precision
    FROM unnest(p_state_topics, p_state_identifiers) WITH ORDINALITY AS u (topic, identifier, place)
    LEFT JOIN taskq_internal.topic t ON t.name = u.topic AND taskq_internal.may_access(u.topic, 'SELECT, UPDATE');
END $$;
COMMENT ON FUNCTION taskq.watch_tasks IS
'Answers many waits in one call. Each row has the kind of its wait and the position in the arrays of that kind, from 1.
The kind ready returns how many tasks of a topic a poll could claim, up to a limit. With p_aged it also returns for how
many seconds the oldest task has been due. The kind state returns the state of the newest task of an identifier, or NULL
if the identifier has no task. The number is -1 for an unknown topic. The function changes nothing, so readers may call
it, also on a standby.';

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
                          AND j.key = k.key OFFSET 0)
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
queue recognizes a group by its identifiers. It remembers released groups until taskq.purge_owners removes them.
Raises TQ001 for an unknown topic, TQ008 for an invalid name, and TQ000 for an unknown junction.';

CREATE FUNCTION taskq.watch_groups(
    p_names text[], p_topics text[], p_junctions text[], p_places int[], p_groups int[], p_identifiers text[]
) RETURNS TABLE ("position" int, number int) LANGUAGE sql AS $$
    SELECT u.place::int, CASE WHEN t.topic_id IS NULL THEN -1
        WHEN pg_try_advisory_xact_lock_shared(taskq_internal.topic_lock(t.topic_id))
        THEN cardinality(taskq.release_groups_once(u.name, u.topic, coalesce(m.identifiers, '{}'),
                                                   coalesce(m.numbers, '{}'), u.junction)) END
    FROM unnest(p_names, p_topics, p_junctions) WITH ORDINALITY AS u (name, topic, junction, place)
    LEFT JOIN taskq_internal.topic t ON t.name = u.topic AND taskq_internal.may_access(u.topic, 'UPDATE')
    LEFT JOIN (SELECT m.place, array_agg(m.identifier) AS identifiers, array_agg(m.number) AS numbers
               FROM unnest(p_places, p_groups, p_identifiers) AS m (place, number, identifier)
               GROUP BY m.place) m ON m.place = u.place
$$;
COMMENT ON FUNCTION taskq.watch_groups IS
'Answers many waits for groups in one call, like taskq.release_groups_once. Each row has the position of a wait in
p_names, from 1, and how many of its groups still wait, or -1 for an unknown topic. An element of p_places is the
position of the wait of an identifier. Never waits: while a transaction drops the topic, the number is NULL.';

CREATE FUNCTION taskq.topic_status(p_topics text[], p_conditions text[], p_cap int)
RETURNS TABLE ("position" int, ready bigint, scheduled bigint, retrying bigint, blocked bigint, paused bigint,
               running bigint, topic_paused boolean, paused_by text, paused_since timestamptz)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (SELECT h.topic_id, count(*) AS held FROM taskq_internal.first_held h GROUP BY 1)
    SELECT u.place::int, r.ready, w.scheduled, greatest(w.retrying - (w.due - w.ready) - w.probing, 0),
           greatest(w.blocked + w.probing + CASE WHEN t.paused THEN 0 ELSE w.due END - r.ready, 0),
           w.paused + CASE WHEN t.paused THEN w.due ELSE 0 END,
           coalesce((SELECT least(h.held, p_cap) FROM held h WHERE h.topic_id = t.topic_id), 0),
           t.paused, t.paused_by, t.paused_since
    FROM unnest(p_topics, p_conditions) WITH ORDINALITY AS u (topic, condition, place)
    JOIN taskq_internal.topic t ON t.name = u.topic AND taskq_internal.may_access(u.topic, 'SELECT, UPDATE')
    CROSS JOIN LATERAL taskq_internal.count_waiting(t.topic_id, greatest(p_cap, 0)) w
    CROSS JOIN LATERAL (SELECT CASE WHEN w.due + w.blocked + w.probing > 0
                        THEN taskq_internal.count_ready(t, p_cap, u.condition) ELSE 0 END::bigint AS ready
                        OFFSET 0) r;
END $$;
COMMENT ON FUNCTION taskq.topic_status IS
'Returns the number of READY tasks of each topic, under a condition, by what blocks them. Tasks are ready, scheduled
(due later, never attempted), retrying (due later, attempted before), blocked (by a dependency, a probe, a task of the
identifier, or an open poll) or paused. The column running has the number of held tasks. Each count stops at p_cap. The
column position is the position in the arrays, from 1. An unknown topic has no row.';
