-- Administration: actions of an operator on READY tasks, purges, and the audit of the actions of users on the page and
-- the command line.

CREATE FUNCTION taskq.pause_task(p_topic text, p_sequence bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_task taskq_internal.live := taskq_internal.lock_ready_task(p_topic, p_sequence);
BEGIN
    IF v_task.waits = :WAITS_RESUME THEN
        RETURN false;
    END IF;
    UPDATE taskq_internal.live SET waits = :WAITS_RESUME, available_at = taskq_internal.due_time(v_task),
        due_again = NULL
    WHERE topic_id = v_task.topic_id AND sequence = p_sequence;
    PERFORM taskq_internal.record_ready_change(v_task, :HISTORY_PAUSED, NULL);
    RETURN true;
END $$;
COMMENT ON FUNCTION taskq.pause_task IS
'Pauses a READY task. Polls do not return it until a call of resume_task, run_now or set_due. Returns false if the task
was paused already. Raises TQ001 for an unknown topic, and TQ003 if the task is not READY or another transaction is
claiming it.';

CREATE FUNCTION taskq.resume_task(p_topic text, p_sequence bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_task taskq_internal.live := taskq_internal.lock_ready_task(p_topic, p_sequence);
BEGIN
    IF v_task.waits <> :WAITS_RESUME THEN
        RETURN false;
    END IF;
    PERFORM taskq_internal.set_due_time(
        v_task, CASE WHEN v_task.attempt > 0 THEN clock_timestamp() ELSE taskq_internal.original_due_time(v_task) END,
        :HISTORY_RESUMED);
    RETURN true;
END $$;
COMMENT ON FUNCTION taskq.resume_task IS
'Resumes a paused task. A retry becomes due now. Any other task becomes due at the time that its push set. Returns false
if the task was not paused. Raises TQ001 for an unknown topic, and TQ003 if the task is not READY or another transaction
is claiming it.';

CREATE FUNCTION taskq.set_due(p_topic text, p_sequence bigint, p_due timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_task taskq_internal.live := taskq_internal.lock_ready_task(p_topic, p_sequence);
BEGIN
    IF NOT taskq_internal.is_moment(p_due) THEN
        PERFORM taskq_internal.raise_error('TQ002', format(
            'topic %L, sequence %s: %s is outside the years 1 to 9999', p_topic, p_sequence, p_due));
    END IF;
    PERFORM taskq_internal.set_due_time(
        v_task, coalesce(p_due, taskq_internal.original_due_time(v_task)), :HISTORY_DUE_SET);
END $$;
COMMENT ON FUNCTION taskq.set_due IS
'Sets the time at which a READY task is due. With p_due NULL the task is due again at the time that its push set. Raises
TQ001 for an unknown topic, TQ002 for a time outside the years 1 to 9999, and TQ003 if the task is not READY or another
transaction is claiming it.';

CREATE FUNCTION taskq.set_attempts(p_topic text, p_sequence bigint, p_attempts int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_task  taskq_internal.live := taskq_internal.lock_ready_task(p_topic, p_sequence);
    v_topic taskq_internal.topic := taskq_internal.find_topic(p_topic);
BEGIN
    IF p_attempts IS NULL OR p_attempts NOT BETWEEN 0 AND v_topic.max_attempts - 1 THEN
        PERFORM taskq_internal.raise_error('TQ002',
            format('topic %L, sequence %s: the number of counted attempts must be %s, not %s', p_topic, p_sequence,
            CASE v_topic.max_attempts WHEN 1 THEN '0' ELSE '0 to ' || v_topic.max_attempts - 1 END, p_attempts));
    END IF;
    UPDATE taskq_internal.live SET attempt = p_attempts, late = true, elapsed = NULL,
        waits = CASE WHEN waits IN (:WAITS_DEPENDENCIES, :WAITS_RESUME) THEN waits
                     WHEN p_attempts > 0 AND v_topic.probe THEN :WAITS_PROBE
                     WHEN waits = :WAITS_PROBE THEN :WAITS_NOTHING ELSE waits END
    WHERE topic_id = v_task.topic_id AND sequence = p_sequence;
    PERFORM taskq_internal.record_ready_change(v_task, :HISTORY_ATTEMPTS_SET, p_attempts);
END $$;
COMMENT ON FUNCTION taskq.set_attempts IS
'Sets the number of counted attempts of a READY task to p_attempts. With 0 the task is as after its push. With
max_attempts - 1 it has one attempt left. Raises TQ001 for an unknown topic, TQ002 for a number out of range, and TQ003
if the task is not READY or another transaction is claiming it.';

CREATE FUNCTION taskq.run_now(p_topic text, p_sequences bigint[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_task  taskq_internal.live;
    v_count bigint := 0;
BEGIN
    FOR v_task IN SELECT * FROM taskq_internal.lock_ready_tasks(p_topic, p_sequences) LOOP
        IF v_task.waits = :WAITS_RESUME OR taskq_internal.due_time(v_task) > v_now THEN
            PERFORM taskq_internal.set_due_time(v_task, v_now, :HISTORY_DUE_SET);
            v_count := v_count + 1;
        END IF;
    END LOOP;
    RETURN v_count;
END $$;
COMMENT ON FUNCTION taskq.run_now IS
'Makes READY tasks due now, including paused tasks. Dependencies, a probe and the pause of the topic still block the
tasks. Returns how many tasks changed. Raises TQ001 for an unknown topic. Raises TQ003, and changes nothing, if a task
is not READY or another transaction is claiming it; the error names the first such task.';

CREATE FUNCTION taskq.set_priority(p_topic text, p_sequences bigint[], p_priority int) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_task  taskq_internal.live;
    v_count bigint := 0;
BEGIN
    IF p_priority IS NULL OR p_priority NOT BETWEEN -100 AND 100 THEN
        PERFORM taskq_internal.raise_error('TQ002', format(
            'topic %L: a priority is between -100 and 100, not %s', p_topic, coalesce(p_priority::text, 'NULL')));
    END IF;
    FOR v_task IN SELECT * FROM taskq_internal.lock_ready_tasks(p_topic, p_sequences) LOOP
        CONTINUE WHEN v_task.priority = p_priority;
        PERFORM taskq_internal.add_fronts(v_task.topic_id, ARRAY[p_priority]);
        UPDATE taskq_internal.live SET priority = p_priority, late = true WHERE topic_id = v_task.topic_id
            AND sequence = v_task.sequence;
        PERFORM taskq_internal.record_ready_change(v_task, :HISTORY_PRIORITY_SET, p_priority);
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;
COMMENT ON FUNCTION taskq.set_priority IS
'Sets the priority of READY tasks to p_priority, from -100 to 100. Polls return higher priorities first. The priority
lasts until the task ends: a reset task and a copy have the priority of the push. Returns how many tasks changed. Raises
TQ001 for an unknown topic, TQ002 for a priority out of range, and TQ003 as taskq.run_now does.';

CREATE FUNCTION taskq.cancel(p_topic text, p_sequences bigint[]) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_task  taskq_internal.live;
    v_count bigint := 0;
BEGIN
    FOR v_task IN SELECT * FROM taskq_internal.lock_ready_tasks(p_topic, p_sequences) LOOP
        PERFORM taskq_internal.record_ready_change(v_task, :HISTORY_CANCELED, NULL);
        DELETE FROM taskq_internal.live WHERE topic_id = v_task.topic_id AND sequence = v_task.sequence;
        INSERT INTO taskq_internal.ended (sequence, completed, available_at, topic_id, attempt, state, crashes,
            redelivered, identifier, error, error_summary)
        SELECT v_task.sequence, clock_timestamp(), taskq_internal.due_time(v_task), v_task.topic_id, v_task.attempt,
               :FILTERED, v_task.crashes, v_task.redelivered, v_task.identifier, v_task.error, v_task.error_summary;
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;
COMMENT ON FUNCTION taskq.cancel IS
'Ends READY tasks as FILTERED without running them. A user can revive them. Tasks that depend on them keep waiting.
Returns how many tasks it canceled. Raises TQ001 for an unknown topic, and TQ003 as taskq.run_now does.';

CREATE FUNCTION taskq.purge_past_ttl(p_topic text, p_size int) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
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
    v_found := taskq_internal.without_dependents(v_topic.topic_id, v_found);
    PERFORM taskq_internal.delete_tasks(v_topic.topic_id, v_found);
    RETURN cardinality(v_found);
END $$;
COMMENT ON FUNCTION taskq.purge_past_ttl IS
'Removes tasks that have failed and are past their ttl: FAILED tasks, and retries that are also past the retry horizon
of the topic. It removes the p_size lowest sequences of each state. If the topic has no horizon, a READY task stays
until it is FAILED. A task without a ttl stays, and one on which a waiting task depends. Returns how many tasks it removed. Never waits: a task that another
transaction holds stays. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.release_tasks(p_owner text, p_fence bigint, p_sequences bigint[]) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_owner_id bigint := taskq_internal.require_lease(p_owner, p_fence);
    v_back     bigint[];
BEGIN
    WITH back AS (
        UPDATE taskq_internal.live l SET holder = NULL, polled = NULL, attempt = l.attempt - 1, late = true,
            waits = taskq_internal.waits_after_release(l.topic_id, l.attempt, l.waits),
            available_at = (SELECT t.due FROM taskq_internal.task t WHERE t.topic_id = l.topic_id
                            AND t.sequence = l.sequence)
        WHERE l.holder = v_owner_id AND l.sequence = ANY (p_sequences)
          AND l.sequence BETWEEN (SELECT min(s) FROM unnest(p_sequences) s)
                             AND (SELECT max(s) FROM unnest(p_sequences) s)  -- see complete.sql
        RETURNING l.sequence)
    SELECT coalesce(array_agg(b.sequence), '{}') INTO v_back FROM back b;
    IF cardinality(v_back) <> cardinality(p_sequences) THEN
        PERFORM taskq_internal.raise_not_held(p_owner, p_fence, p_sequences, v_back);
    END IF;
    RETURN cardinality(v_back);
END $$;
COMMENT ON FUNCTION taskq.release_tasks IS
'Makes some of an owner''s tasks READY again, in their original place. The attempt is not counted. Returns how many
tasks it released. Raises TQ005 if the owner has no lease under the fence, and TQ004 for tasks that the owner does not
hold.';

CREATE FUNCTION taskq.purge(p_topic text, p_from bigint, p_to bigint, p_state int, p_size bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
BEGIN
    IF p_state NOT BETWEEN :ACTIVE AND :REDUNDANT THEN
        PERFORM taskq_internal.raise_error('TQ000', format('state %s is none of 0 ACTIVE to 8 REDUNDANT', p_state));
    END IF;
    RETURN taskq_internal.purge_by_state(
        v_topic_id, coalesce(p_state, :FAILED), coalesce(p_state, :REDUNDANT), true, p_from, p_to, p_size);
END $$;
COMMENT ON FUNCTION taskq.purge IS
'Removes the p_size lowest tasks between the sequences p_from and p_to, both included. A bound of NULL is open. With
p_state it removes only tasks in this state. With p_state NULL it removes tasks in the states FAILED to REDUNDANT, and
keeps ACTIVE, READY and EXPIRED tasks. The latest task of an identifier on which a waiting task depends stays. Returns
how many tasks it removed. Never waits: a task that another transaction holds stays. Raises TQ001 for an unknown topic, and TQ000 for an unknown state.';

CREATE FUNCTION taskq.purge_all(p_topic text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
BEGIN
    RETURN taskq_internal.purge_by_state(v_topic_id, :ACTIVE, :READY, false, NULL, NULL, NULL)
         + taskq_internal.purge_by_state(v_topic_id, :EXPIRED, :REDUNDANT, false, NULL, NULL, NULL);
END $$;
COMMENT ON FUNCTION taskq.purge_all IS
'Removes every task of a topic, including held tasks. Returns how many tasks it removed. Never waits: a task that
another transaction holds stays. Raises TQ001 for an unknown topic.';

-- The function scans the ended tasks once, and only if there is an owner to remove.
CREATE FUNCTION taskq.purge_owners(p_older_than interval) RETURNS bigint
LANGUAGE plpgsql SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_found bigint[];
    v_named bigint[];
    v_count bigint;
BEGIN
    PERFORM taskq_internal.require_read_committed('purge_owners()');
    DELETE FROM taskq_internal.drain
        WHERE coalesce(finished, began) <= clock_timestamp() - taskq_internal.clamp_age(p_older_than);
    v_found := ARRAY(SELECT o.owner_id FROM taskq_internal.owner o
                     WHERE (o.fence IS NULL OR o.lease_until < clock_timestamp())
                       AND o.seen <= clock_timestamp() - taskq_internal.clamp_age(p_older_than)
                     FOR UPDATE SKIP LOCKED);
    IF cardinality(v_found) = 0 THEN
        RETURN 0;
    END IF;
    v_named := ARRAY(SELECT DISTINCT l.holder FROM taskq_internal.live l JOIN unnest(v_found) AS u (owner_id)
                    ON u.owner_id = l.holder
                    UNION
                    SELECT DISTINCT e.holder FROM taskq_internal.ended e JOIN unnest(v_found) AS u (owner_id)
                        ON u.owner_id = e.holder);
    DELETE FROM taskq_internal.owner WHERE owner_id = ANY (v_found) AND owner_id <> ALL (v_named);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
COMMENT ON FUNCTION taskq.purge_owners IS
'Removes owners that did not register, send a heartbeat or release for p_older_than. Such an owner also has no valid
lease, holds no tasks, and no stored task names it. Also removes the reports of drains of that age. Skips an owner that
another transaction is using. Returns how many owners it removed. Raises TQ000 above READ COMMITTED.';

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
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
BEGIN
    RETURN ARRAY(SELECT l.sequence FROM taskq_internal.live l
                 WHERE l.topic_id = v_topic_id AND l.sequence = ANY (p_sequences) AND l.holder IS NULL
                     AND :READY = ANY (p_states)
                 ORDER BY l.sequence FOR UPDATE SKIP LOCKED)
        || ARRAY(SELECT e.sequence FROM taskq_internal.ended e
                 WHERE e.topic_id = v_topic_id AND e.sequence = ANY (p_sequences) AND e.state BETWEEN :EXPIRED
                     AND :SUCCEEDED AND e.state = ANY (p_states)
                 ORDER BY e.sequence FOR UPDATE SKIP LOCKED);
END $$;
COMMENT ON FUNCTION taskq.lock_tasks IS
'Locks those of the given tasks that are in one of the given states, which are READY and EXPIRED to SUCCEEDED. Returns
their sequences in order. Skips tasks that another transaction holds or whose state has changed. An action on the result
of an earlier search calls it first. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.purge_sequences(p_topic text, p_sequences bigint[], p_states int[]) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
    v_live     bigint[] := ARRAY(SELECT l.sequence FROM taskq_internal.live l
                                 WHERE l.topic_id = v_topic_id AND l.sequence = ANY (p_sequences) AND l.holder IS NULL
                                     AND :READY = ANY (p_states)
                                 FOR UPDATE SKIP LOCKED);
    v_ended    bigint[] := ARRAY(SELECT e.sequence FROM taskq_internal.ended e
                                 WHERE e.topic_id = v_topic_id AND e.sequence = ANY (p_sequences)
                                     AND e.state = ANY (p_states)
                                 FOR UPDATE SKIP LOCKED);
    v_gone     bigint[] := taskq_internal.without_dependents(v_topic_id, v_live || v_ended);
BEGIN
    PERFORM taskq_internal.delete_tasks(v_topic_id, v_gone);
    RETURN cardinality(v_gone);
END $$;
COMMENT ON FUNCTION taskq.purge_sequences IS
'Removes those of the given tasks that are in one of the given states, that no owner holds, and on which no waiting task
depends. Returns how many tasks it removed. Never waits: a task that another transaction holds stays. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.count_lapsed(p_grace interval, OUT owners bigint, OUT tasks bigint)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_lapsed bigint[] := ARRAY(SELECT o.owner_id FROM taskq_internal.owner o
                               WHERE o.fence IS NOT NULL
                                   AND o.lease_until < clock_timestamp() - taskq_internal.clamp_age(p_grace)
                                   LIMIT 1000);
BEGIN
    owners := cardinality(v_lapsed);
    tasks := (SELECT count(*) FROM (SELECT FROM taskq_internal.live l WHERE l.holder = ANY (v_lapsed) LIMIT 1000) n);
END $$;
COMMENT ON FUNCTION taskq.count_lapsed IS
'Returns the number of leases that lapsed more than p_grace ago, and the number of tasks held under them. Each count
stops at 1,000.';

-- Locks a READY task until the transaction ends. Never waits. Raises TQ003 if the task is not READY or does not exist,
-- or if another transaction is claiming it.
CREATE FUNCTION taskq_internal.lock_ready_task(p_topic text, p_sequence bigint) RETURNS taskq_internal.live
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
    v_task     taskq_internal.live;
BEGIN
    SELECT * INTO v_task FROM taskq_internal.live l
    WHERE l.topic_id = v_topic_id AND l.sequence = p_sequence AND l.holder IS NULL FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_error('TQ003',
                format('topic %L, sequence %s: only a READY task can be paused, resumed or changed, and this one %s',
            p_topic, p_sequence, coalesce('is '
                    || nullif(taskq_internal.task_state_name(v_topic_id, p_sequence), 'READY'), 'is being claimed')));
    END IF;
    RETURN v_task;
END $$;

-- Locks READY tasks in the order of their sequences until the transaction ends. Never waits. Raises TQ003 if a task is
-- not READY or does not exist, or if another transaction is claiming it. The error names the first such task.
CREATE FUNCTION taskq_internal.lock_ready_tasks(p_topic text, p_sequences bigint[]) RETURNS SETOF taskq_internal.live
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
    v_held     bigint[];
    v_missing  bigint;
BEGIN
    v_held := ARRAY(SELECT l.sequence FROM taskq_internal.live l
                    WHERE l.topic_id = v_topic_id AND l.sequence = ANY (p_sequences) AND l.holder IS NULL
                    ORDER BY l.sequence FOR UPDATE SKIP LOCKED);
    v_missing := (SELECT min(u.sequence) FROM (SELECT unnest(p_sequences) EXCEPT SELECT unnest(v_held)) u (sequence));
    IF v_missing IS NOT NULL THEN
        PERFORM taskq_internal.raise_error('TQ003',
                format('topic %L, sequence %s: only a READY task can be changed or canceled, and this one %s',
            p_topic, v_missing, coalesce('is '
                    || nullif(taskq_internal.task_state_name(v_topic_id, v_missing), 'READY'), 'is being claimed')));
    END IF;
    RETURN QUERY SELECT * FROM taskq_internal.live l WHERE l.topic_id = v_topic_id AND l.sequence = ANY (v_held)
        ORDER BY l.sequence;
END $$;

-- Returns the due time of a waiting task. Besides this time, the task may wait for a dependency, a probe or a pause.
CREATE FUNCTION taskq_internal.due_time(p_task taskq_internal.live) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN p_task.waits = :WAITS_DEPENDENCIES
        THEN coalesce(p_task.due_again, taskq_internal.original_due_time(p_task)) ELSE p_task.available_at END;
END $$;

-- Returns the due time that the push of a task set.
CREATE FUNCTION taskq_internal.original_due_time(p_task taskq_internal.live) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    RETURN (SELECT t.due FROM taskq_internal.task t WHERE t.topic_id = p_task.topic_id
            AND t.sequence = p_task.sequence);
END $$;

-- Changes the due time of a task whose row this transaction holds, and records the change. It also ends the pause of a
-- paused task, which then waits for its dependencies or for the probe again.
CREATE FUNCTION taskq_internal.set_due_time(p_task taskq_internal.live, p_due timestamptz, p_kind int) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_waits smallint := p_task.waits;
BEGIN
    IF v_waits = :WAITS_RESUME THEN
        v_waits := CASE
            WHEN p_task.attempt > 0 AND (SELECT p.probe FROM taskq_internal.topic p WHERE p.topic_id = p_task.topic_id)
                THEN :WAITS_PROBE
            WHEN EXISTS (SELECT FROM taskq_internal.dependency d WHERE d.topic_id = p_task.topic_id
                         AND d.sequence = p_task.sequence)
                THEN :WAITS_DEPENDENCIES
            ELSE :WAITS_NOTHING END;
        -- With -infinity the next poll checks the dependencies.
        UPDATE taskq_internal.live SET waits = v_waits, late = true, available_at = '-infinity'
        WHERE topic_id = p_task.topic_id AND sequence = p_task.sequence;
    END IF;
    UPDATE taskq_internal.live SET late = true,
        available_at = CASE WHEN v_waits = :WAITS_DEPENDENCIES THEN available_at ELSE p_due END,
        due_again = CASE WHEN v_waits = :WAITS_DEPENDENCIES THEN p_due ELSE due_again END
    WHERE topic_id = p_task.topic_id AND sequence = p_task.sequence;
    PERFORM taskq_internal.record_ready_change(p_task, p_kind, NULL);
END $$;

-- Records a change of a READY task in the history. p_other is the new number of attempts or the new priority.
CREATE FUNCTION taskq_internal.record_ready_change(p_task taskq_internal.live, p_kind int, p_other bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO taskq_internal.history (happened, topic_id, sequence, kind, state, attempt, other, actor, role)
    SELECT clock_timestamp(), p_task.topic_id, p_task.sequence, p_kind, :READY, p_task.attempt, p_other,
        taskq_internal.current_actor(), session_user
$$;

-- Removes tasks in the states p_low to p_high, in batches that limit the server's memory. The states are either ACTIVE
-- and READY, or among the others. With p_spare it keeps the tasks on which waiting tasks depend.
CREATE FUNCTION taskq_internal.purge_by_state(
    p_topic_id int, p_low int, p_high int, p_spare boolean, p_from bigint, p_to bigint, p_size bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_batch bigint;
    v_next  bigint := p_from;
    v_found bigint[];
    v_gone  bigint[];
    v_count bigint := 0;
BEGIN
    LOOP
        v_batch := least(50000, p_size - v_count);
        EXIT WHEN v_batch <= 0;
        v_found := CASE WHEN p_high <= :READY
            THEN taskq_internal.lock_live_tasks(p_topic_id, p_low, p_high, v_next, p_to, v_batch)
                        ELSE taskq_internal.lock_ended(p_topic_id, p_low, p_high, v_next, p_to, v_batch) END;
        v_gone := CASE WHEN p_spare THEN taskq_internal.without_dependents(p_topic_id, v_found) ELSE v_found END;
        PERFORM taskq_internal.delete_tasks(p_topic_id, v_gone);
        v_count := v_count + cardinality(v_gone);
        EXIT WHEN cardinality(v_found) < v_batch;
        v_next := v_found[v_batch] + 1;
    END LOOP;
    RETURN v_count;
END $$;

-- Returns the tasks among p_sequences on which no waiting task depends: a task depends on the latest of an identifier.
CREATE FUNCTION taskq_internal.without_dependents(p_topic_id int, p_sequences bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    IF NOT taskq_internal.has_dependents(p_topic_id) THEN
        RETURN p_sequences;
    END IF;
    RETURN ARRAY(
        SELECT t.sequence FROM taskq_internal.task t
        WHERE t.topic_id = p_topic_id AND t.sequence = ANY (p_sequences) AND NOT (
            EXISTS (SELECT FROM taskq_internal.dependency d
                    WHERE d.on_topic_id = p_topic_id AND d.on_identifier = t.identifier AND d.waiting OFFSET 0)
            AND NOT EXISTS (SELECT FROM taskq_internal.task n WHERE n.identifier = t.identifier
                            AND n.topic_id = p_topic_id AND n.sequence > t.sequence OFFSET 0)));
END $$;

-- Locks the p_size lowest ACTIVE or READY tasks in a range of sequences and in the states p_low to p_high. Returns
-- their sequences in order. Never waits: it leaves out tasks that another transaction holds.
CREATE FUNCTION taskq_internal.lock_live_tasks(
    p_topic_id int, p_low int, p_high int, p_from bigint, p_to bigint, p_size bigint
) RETURNS bigint[] LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_from bigint := coalesce(p_from, 0);
    v_to   bigint := coalesce(p_to, 9223372036854775807);
BEGIN
    RETURN ARRAY(SELECT l.sequence FROM taskq_internal.live l
                 WHERE l.topic_id = p_topic_id
                   AND CASE WHEN l.holder IS NULL THEN :READY ELSE :ACTIVE END BETWEEN p_low AND p_high
                   AND l.sequence BETWEEN v_from AND v_to
                 ORDER BY l.sequence LIMIT p_size FOR UPDATE SKIP LOCKED);
END $$;

-- Deletes tasks whose rows this transaction holds, and all their related rows. Wakes the tasks that depend on them.
CREATE FUNCTION taskq_internal.delete_tasks(p_topic_id int, p_sequences bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_identifiers text[] := '{}';
BEGIN
    IF taskq_internal.has_dependents(p_topic_id) THEN
        v_identifiers := ARRAY(SELECT DISTINCT t.identifier FROM taskq_internal.task t
                               WHERE t.topic_id = p_topic_id AND t.sequence = ANY (p_sequences));
    END IF;
    DELETE FROM taskq_internal.live WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    DELETE FROM taskq_internal.ended WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    DELETE FROM taskq_internal.task WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    DELETE FROM taskq_internal.dependency WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    DELETE FROM taskq_internal.history WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    DELETE FROM taskq_internal.skipped_event WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    IF cardinality(v_identifiers) > 0 THEN
        PERFORM taskq_internal.wake_dependents(p_topic_id, v_identifiers);
    END IF;
END $$;
