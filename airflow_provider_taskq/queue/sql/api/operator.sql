-- Operators: change waiting tasks, revive and reassign ended ones, purge, and keep the audit.

CREATE FUNCTION taskq.cancel(p_topic text, p_sequences bigint[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
    v_found    bigint[] := taskq_internal.lock_named(v_topic_id, p_topic, p_sequences, ARRAY[:READY]);
BEGIN
    PERFORM taskq_internal.record_change(v_topic_id, :HISTORY_CANCELED, v_found);
    PERFORM taskq_internal.end_waiting(v_topic_id, v_found, :FILTERED);
    RETURN cardinality(v_found);
END $$;
COMMENT ON FUNCTION taskq.cancel IS
'Ends READY tasks as FILTERED without running them, all of them or none. A user can revive them. Tasks that depend on
them keep waiting. Returns how many tasks it canceled. Raises TQ001 for an unknown topic, and TQ003 as
taskq.change_waiting does.';

CREATE FUNCTION taskq.purge_past_ttl(p_topic text, p_size int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic taskq_internal.topic := taskq_internal.find_topic(p_topic);
    v_now   timestamptz := clock_timestamp();
    v_found bigint[];
BEGIN
    v_found := ARRAY(
        SELECT l.sequence FROM taskq_internal.live l JOIN taskq_internal.task t ON t.topic_id = l.topic_id
            AND t.sequence = l.sequence
        WHERE l.topic_id = v_topic.topic_id AND l.attempt > 0 AND l.holder IS NULL
          AND t.created + coalesce(t.ttl, v_topic.ttl) <= v_now AND t.created + v_topic.horizon <= v_now
        ORDER BY l.sequence LIMIT greatest(p_size, 0) FOR UPDATE OF l SKIP LOCKED)
     || ARRAY(
        SELECT e.sequence FROM taskq_internal.ended e JOIN taskq_internal.task t ON t.topic_id = v_topic.topic_id
            AND t.sequence = e.sequence
        WHERE e.topic_id::bigint = v_topic.topic_id AND e.state::int IN (:EXPIRED, :FAILED, :SUSPENDED)
          AND e.state::int = :FAILED AND t.created + coalesce(t.ttl, v_topic.ttl) <= v_now
        ORDER BY e.sequence LIMIT greatest(p_size, 0) FOR UPDATE OF e SKIP LOCKED);
    RETURN taskq_internal.delete_tasks(v_topic.topic_id, v_found, true);
END $$;
COMMENT ON FUNCTION taskq.purge_past_ttl IS
'Removes tasks that have failed and are past their ttl: FAILED tasks, and retries that are also past the retry horizon
of the topic. It removes the p_size lowest sequences of each state. If the topic has no horizon, a READY task stays
until it is FAILED. A task without a ttl stays, and one on which a waiting task depends. Returns how many tasks it
removed. Never waits: a task that another transaction holds stays. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.change_waiting(
    p_topic text, p_sequences bigint[], p_due timestamptz DEFAULT NULL, p_priority int DEFAULT NULL,
    p_attempts int DEFAULT NULL, p_paused boolean DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic taskq_internal.topic := taskq_internal.find_topic(p_topic);
    v_now   timestamptz := clock_timestamp();
    v_kind  int := CASE WHEN p_paused THEN :HISTORY_PAUSED WHEN NOT p_paused THEN :HISTORY_RESUMED
                        WHEN p_attempts IS NOT NULL THEN :HISTORY_ATTEMPTS_SET
                        WHEN p_priority IS NOT NULL THEN :HISTORY_PRIORITY_SET ELSE :HISTORY_DUE_SET END;
    v_wrong text := CASE
        WHEN NOT taskq_internal.is_moment(p_due) THEN p_due || ' is outside the years 1 to 9999'
        WHEN p_priority NOT BETWEEN -100 AND 100 THEN 'a priority is between -100 and 100, not ' || p_priority
        WHEN p_attempts NOT BETWEEN 0 AND v_topic.max_attempts - 1 THEN format(
            'the number of counted attempts must be 0 to %s, not %s', v_topic.max_attempts - 1, p_attempts) END;
    v_found bigint[];
    v_count bigint;
BEGIN
    IF v_wrong IS NOT NULL THEN
        PERFORM taskq_internal.raise_error('TQ002', format('topic %L: %s', p_topic, v_wrong));
    END IF;
    v_found := taskq_internal.lock_named(v_topic.topic_id, p_topic, p_sequences, ARRAY[:READY]);
    IF p_priority IS NOT NULL THEN
        PERFORM taskq_internal.add_fronts(v_topic.topic_id, ARRAY[p_priority]);
    END IF;
    WITH changed AS MATERIALIZED (
        SELECT l.sequence, l.attempt AS was_attempt, n.*, CASE
                   WHEN n.paused THEN :WAITS_RESUME
                   WHEN l.waits <> :WAITS_RESUME AND (p_attempts IS NULL OR l.waits = :WAITS_DEPENDENCIES) THEN l.waits
                   WHEN n.attempt > 0 AND v_topic.probe THEN :WAITS_PROBE
                   WHEN EXISTS (SELECT FROM taskq_internal.dependency d
                                WHERE d.topic_id = v_topic.topic_id AND d.sequence = l.sequence)
                       THEN :WAITS_DEPENDENCIES
                   ELSE :WAITS_NOTHING END AS waits
        FROM taskq_internal.live l
        JOIN (SELECT * FROM taskq_internal.task WHERE topic_id = v_topic.topic_id AND sequence = ANY (v_found)) t
            USING (topic_id, sequence)
        CROSS JOIN LATERAL (SELECT l.available_at AS due, l.waits = :WAITS_RESUME AS paused) o
        CROSS JOIN LATERAL (
            SELECT coalesce(p_attempts, l.attempt) AS attempt, coalesce(p_priority, l.priority) AS priority,
                   coalesce(p_paused, o.paused AND p_due IS NULL) AS paused, CASE
                       WHEN p_due <= v_now AND o.due <= v_now THEN o.due
                       WHEN p_due IS NOT NULL THEN p_due
                       WHEN NOT p_paused AND o.paused THEN CASE WHEN l.attempt > 0 THEN v_now ELSE t.due END
                       ELSE o.due END AS due) n
        WHERE l.topic_id = v_topic.topic_id AND l.sequence = ANY (v_found)
          AND (n.attempt, n.priority, n.paused, n.due) IS DISTINCT FROM (l.attempt, l.priority, o.paused, o.due)
    ), recorded AS (
        INSERT INTO taskq_internal.history (happened, topic_id, sequence, kind, state, attempt, other, actor, role)
        SELECT v_now, v_topic.topic_id, c.sequence, v_kind, :READY, c.was_attempt, coalesce(p_attempts, p_priority),
               taskq_internal.current_actor(), session_user
        FROM changed c
    )
    UPDATE taskq_internal.live l SET attempt = c.attempt, priority = c.priority, waits = c.waits, late = true,
        available_at = c.due, elapsed = CASE WHEN p_attempts IS NULL THEN l.elapsed END
    FROM changed c
    WHERE l.topic_id = v_topic.topic_id AND l.sequence = ANY (v_found) AND l.sequence = c.sequence;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
COMMENT ON FUNCTION taskq.change_waiting IS
'Changes READY tasks, all of them or none. An argument of NULL changes nothing. p_due is the time at which the tasks are
due; it ends their pause. A task that is due already keeps its place if p_due has passed. p_priority is -100 to 100, and
lasts until the task ends: a reset task and a copy have the priority of the push. p_attempts is the number of counted
attempts: max_attempts - 1 leaves one. No poll returns a task that is paused. When p_paused false resumes it, a retry
becomes due now, and any other task when its push set. Dependencies, a probe and the pause of the topic still block the
tasks. Returns how many tasks changed. Raises TQ001 for an unknown topic, and TQ002 for a value out of range. Raises
TQ003 if a task is not READY or another transaction is claiming it.';

CREATE FUNCTION taskq.purge(
    p_topic text, p_from bigint, p_to bigint, p_state int, p_size bigint, p_sequences bigint[] DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
    v_lowest   int := coalesce(p_state, CASE WHEN p_sequences IS NULL THEN :FAILED ELSE :READY END);
BEGIN
    IF p_state NOT BETWEEN :ACTIVE AND :REDUNDANT THEN
        PERFORM taskq_internal.raise_error('TQ000', format('state %s is none of 0 ACTIVE to 8 REDUNDANT', p_state));
    END IF;
    RETURN taskq_internal.purge_states(
        v_topic_id, ARRAY(SELECT generate_series(v_lowest, coalesce(p_state, :REDUNDANT))), true, p_sequences, p_from,
        p_to, p_size);
END $$;
COMMENT ON FUNCTION taskq.purge IS
'Removes the tasks in p_sequences that no owner holds, or with p_sequences NULL the p_size lowest tasks between p_from
and p_to, both included, in the states FAILED to REDUNDANT: it keeps ACTIVE, READY and EXPIRED tasks. A bound of NULL is
open. With p_state it removes only tasks in this state. The latest task of an identifier on which a waiting task depends
stays. Returns how many tasks it removed. Never waits: a task that another transaction holds stays. Raises TQ001 for an
unknown topic, and TQ000 for an unknown state.';

CREATE FUNCTION taskq.purge_all(p_topic text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
BEGIN
    RETURN taskq_internal.purge_states(v_topic_id, ARRAY[:ACTIVE, :READY], false, NULL, NULL, NULL, NULL)
         + taskq_internal.purge_states(v_topic_id, ARRAY(SELECT generate_series(:EXPIRED, :REDUNDANT)), false, NULL,
                                       NULL, NULL, NULL);
END $$;
COMMENT ON FUNCTION taskq.purge_all IS
'Removes every task of a topic, including held tasks. Returns how many tasks it removed. Never waits: a task that
another transaction holds stays. Raises TQ001 for an unknown topic.';

-- The function scans the ended tasks once, and only if there is an owner to remove.
CREATE FUNCTION taskq.purge_owners(p_older_than interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_last  timestamptz := clock_timestamp() - taskq_internal.clamp_age(p_older_than);
    v_found bigint[];
    v_count bigint;
BEGIN
    PERFORM taskq_internal.require_read_committed('purge_owners()');
    DELETE FROM taskq_internal.drain WHERE coalesce(finished, began) <= v_last;
    DELETE FROM taskq_internal.stream WHERE committed <= v_last;
    DELETE FROM taskq_internal.group_release WHERE released <= v_last;
    v_found := ARRAY(SELECT o.owner_id FROM taskq_internal.owner o
                     WHERE (o.fence IS NULL OR o.lease_until < clock_timestamp()) AND o.seen <= v_last
                     FOR UPDATE SKIP LOCKED);
    IF cardinality(v_found) = 0 THEN
        RETURN 0;
    END IF;
    DELETE FROM taskq_internal.owner WHERE owner_id = ANY (v_found) AND owner_id NOT IN (
        SELECT l.holder FROM taskq_internal.live l WHERE l.holder IS NOT NULL
        UNION SELECT e.holder FROM taskq_internal.ended e WHERE e.holder IS NOT NULL);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
COMMENT ON FUNCTION taskq.purge_owners IS
'Removes owners that did not register, send a heartbeat or release for p_older_than. Such an owner also has no valid
lease, holds no tasks, and no stored task names it. Skips an owner that another transaction is using. Also removes what
else has a name and has not been used for that time: reports of drains, the last batches of streams, and the groups that
sensors have released. A removed stream that continues may push its last batch twice. Returns how many owners it
removed. Raises TQ000 above READ COMMITTED.';

-- The client names the actor. session_user is the role that logged in: neither SET ROLE nor the owner of a function
-- changes it.
CREATE FUNCTION taskq.record_action(p_action text, p_topic text, p_what text, p_count bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF taskq_internal.current_actor() IS NULL THEN
        PERFORM taskq_internal.raise_error('TQ000', 'record_action() needs an actor: call set_actor() first');
    END IF;
    IF p_topic IS NOT NULL THEN
        PERFORM taskq_internal.check_name('a topic', p_topic);
    END IF;
    INSERT INTO taskq_internal.audit (happened, actor, role, action, topic, what, count)
    VALUES (clock_timestamp(), taskq_internal.current_actor(), session_user, p_action, p_topic, left(p_what, 2000),
            p_count);
END $$;
COMMENT ON FUNCTION taskq.record_action IS
'Stores an action of this transaction in the audit. The entry names the actor from the setting taskq.actor, and
session_user as the role. p_what describes the tasks and how the user selected them. p_count is the number of tasks.
Raises TQ000 if no actor is set.';

CREATE FUNCTION taskq.audit_trail(p_topic text, p_after bigint, p_size int)
RETURNS TABLE (audit_id bigint, happened timestamptz, actor text, role text, action text, topic text, what text,
               count bigint)
LANGUAGE sql STABLE AS $$
    SELECT a.audit_id, a.happened, a.actor, a.role, a.action, a.topic, a.what, a.count FROM taskq_internal.audit a
    WHERE (p_topic IS NULL OR a.topic = p_topic) AND a.audit_id < coalesce(p_after, 9223372036854775807)
    ORDER BY a.audit_id DESC LIMIT greatest(p_size, 0)
$$;
COMMENT ON FUNCTION taskq.audit_trail IS
'Returns up to p_size audit entries of a topic whose audit_id is below p_after, the newest first. With p_topic NULL it
returns the entries of all topics. With p_after NULL it begins with the newest entry.';

CREATE FUNCTION taskq.lock_tasks(p_topic text, p_sequences bigint[], p_states int[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN taskq_internal.lock_selected(
        (taskq_internal.find_topic(p_topic)).topic_id, p_states, p_sequences, NULL, NULL, NULL);
END $$;
COMMENT ON FUNCTION taskq.lock_tasks IS
'Locks those of the given tasks that are in one of the given states, which are not ACTIVE. Returns their sequences in
order. Skips tasks that another transaction holds or whose state has changed. An action on the result
of an earlier search calls it first. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.revive(
    p_topic text, p_revival text DEFAULT 'RESET', p_sequences bigint[] DEFAULT NULL, p_state int DEFAULT NULL,
    p_from bigint DEFAULT 0, p_to bigint DEFAULT NULL, p_size bigint DEFAULT NULL
) RETURNS TABLE (old bigint, new bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.lock_topic_shared(p_topic, 'UPDATE')).topic_id;
    v_old      bigint[];
    v_new      bigint[];
BEGIN
    IF p_revival IS NULL OR p_revival NOT IN ('RESET', 'APPEND', 'SUPERSEDE', 'REPLACE') THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'revival %L is none of RESET, APPEND, SUPERSEDE, REPLACE', p_revival));
    END IF;
    v_old := taskq_internal.lock_ended(v_topic_id, p_topic, p_sequences, p_state, p_from, p_to, p_size);
    IF p_revival = 'RESET' THEN
        PERFORM taskq_internal.reset_tasks(v_topic_id, v_old);
        v_new := v_old;
    ELSE
        v_new := taskq_internal.recreate_tasks(v_topic_id, p_revival, v_old);
    END IF;
    RETURN QUERY SELECT * FROM unnest(v_old, v_new);
END $$;
COMMENT ON FUNCTION taskq.revive IS
'Revives ended tasks (EXPIRED to SUCCEEDED): the tasks in p_sequences, or the p_size lowest tasks in p_state from p_from
to p_to. With p_revival RESET the tasks become READY again. With APPEND, SUPERSEDE or REPLACE they become RECREATED, and
the call pushes copies. Returns each sequence with the sequence that continues it. Never waits: a call with p_state
leaves out tasks that another transaction holds, and a call with p_sequences revives all tasks or none. Raises TQ001 for
an unknown topic, TQ003 for a task that has not ended or that another transaction holds, and TQ000 for contradicting
arguments.';

CREATE FUNCTION taskq.reassign(
    p_topic text, p_result int, p_sequences bigint[], p_state int, p_from bigint, p_to bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
    v_state    bigint := p_result + :RESULT_TO_STATE::bigint;
    v_found    bigint[];
BEGIN
    IF p_result IS NULL OR p_result NOT BETWEEN :FAILURE AND :SUCCESS THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'result %s is none of 0 FAILURE, 1 SUSPENSION, 2 FILTER, 3 SUCCESS', p_result));
    END IF;
    v_found := taskq_internal.lock_ended(v_topic_id, p_topic, p_sequences, p_state, p_from, p_to,
                                CASE WHEN p_state = v_state THEN 0 END);
    PERFORM taskq_internal.record_change(v_topic_id, :HISTORY_REASSIGNED, v_found,
                                         array_fill(v_state, ARRAY[cardinality(v_found)]));
    UPDATE taskq_internal.ended SET state = v_state, completed = coalesce(completed, clock_timestamp())
    WHERE topic_id = v_topic_id AND sequence = ANY (v_found);
    PERFORM taskq_internal.check_dependents_of(v_topic_id, ARRAY(
        SELECT e.identifier FROM taskq_internal.ended e
        WHERE e.topic_id = v_topic_id AND e.sequence = ANY (v_found)), p_result = :SUCCESS);
    RETURN cardinality(v_found);
END $$;
COMMENT ON FUNCTION taskq.reassign IS
'Changes the result of ended tasks to p_result, which is 0 FAILURE, 1 SUSPENSION, 2 FILTER or 3 SUCCESS. The tasks keep
their output. The arguments select the tasks as in taskq.revive. Returns how many tasks it changed. Raises TQ001 for an
unknown topic, and the other errors of taskq.revive.';

CREATE FUNCTION taskq.maintain(
    p_owners_excepted text[] DEFAULT '{}', OUT expired bigint, OUT purged bigint, OUT more boolean
) LANGUAGE plpgsql AS $$
DECLARE
    v_rest boolean;
BEGIN
    PERFORM taskq_internal.require_read_committed('maintain()');
    SELECT e.count, e.more INTO expired, more FROM taskq_internal.end_lapsed_leases(
        '0', p_owners_excepted, NULL, clock_timestamp() + interval '50 milliseconds') e;
    PERFORM taskq.prune_stages();
    SELECT r.count, r.more INTO purged, v_rest FROM taskq_internal.run_retention() r;
    more := more OR v_rest;
END $$;
COMMENT ON FUNCTION taskq.maintain IS
'Keeps the queue healthy. Ends lapsed leases like taskq.expire, except the leases of the owners in p_owners_excepted.
Removes ended tasks that are older than keep_succeeded or keep_failed of their topic. The column expired counts the
tasks that the ended leases held, and the column purged the removed tasks. If more is true, work is left: call the
function again soon. A call removes at most 500 tasks of a topic and 2,000 in all. After a run over all topics, no call
of any session removes tasks for a minute. Never waits. Raises TQ000 above READ COMMITTED.';

-- The settings apply to the functions below, too: each read walks an index, up to its limit.
CREATE FUNCTION taskq.health(p_patience interval DEFAULT '5 minutes')
RETURNS TABLE (severity text, subject text, detail text, value bigint, pid int, topic text, sequence bigint, owner text,
               remedy text) LANGUAGE sql AS $$
    WITH patience AS (SELECT taskq_internal.clamp_age(p_patience) AS patience),
    found AS MATERIALIZED (
        SELECT 'waiting tasks' AS subject, f.* FROM patience, taskq_internal.health_of_topics(patience) f
        UNION ALL SELECT 'lapsed leases', f.* FROM patience, taskq_internal.health_of_leases(patience) f
        UNION ALL SELECT 'long leases', f.* FROM taskq_internal.health_of_long_leases() f
        UNION ALL SELECT 'failures', f.* FROM taskq_internal.health_of_failures(clock_timestamp() - interval '1 hour') f
        UNION ALL SELECT 'dependencies', f.* FROM taskq_internal.health_of_dependencies() f
        UNION ALL SELECT 'ended partitions', f.* FROM taskq_internal.health_of_partitions() f
        UNION ALL SELECT 'open transactions', f.* FROM taskq_internal.health_of_transactions() f
        UNION ALL SELECT 'notifications', f.* FROM taskq_internal.health_of_notifications() f
        UNION ALL SELECT 'upkeep', f.* FROM patience, taskq_internal.health_of_upkeep(patience) f)
    SELECT a.severity, s.subject, coalesce(f.detail, s.fine), coalesce(f.value, 0), f.pid, f.topic, f.sequence, f.owner,
        CASE WHEN a.severity <> 'fine' THEN f.remedy END
    FROM (VALUES
        ('waiting tasks', 'no task has been due for longer than ' || taskq.format_duration(p_patience)),
        ('lapsed leases', 'no lease has lapsed'),
        ('long leases', 'no lease or lock reaches further than its length'),
        ('failures', 'no task has FAILED in the last hour'),
        ('dependencies', 'no task waits for one that has ended otherwise than by success'),
        ('ended partitions', 'no error has ended a partition of a consumer group'),
        ('open transactions', 'no transaction keeps vacuum from dead rows, or readers of a log from new tasks'),
        ('upkeep', 'programs call taskq.maintain(), and no consumer group keeps tasks of the first 100 topics'),
        ('notifications', NULL)) s (subject, fine)
    LEFT JOIN found f ON f.subject = s.subject
    CROSS JOIN LATERAL (SELECT coalesce(f.severity, 'fine') AS severity) a
    ORDER BY array_position(ARRAY['critical', 'warning', 'notice', 'fine'], a.severity), s.subject, f.value DESC
$$;
COMMENT ON FUNCTION taskq.health IS
'Returns health findings, the worst first. The severity is critical, warning, notice or fine. Each subject has at least
one row. The unit of value is seconds, rows or transactions, as detail says. The columns pid, topic, sequence and owner
name the object of the finding. The column remedy has a command of taskq or an SQL statement that ends the condition or
shows its cause, or NULL. A due task or a lapsed lease may wait for p_patience before a finding reports it. The cost
depends on the number of topics, and not on the number of tasks.';
