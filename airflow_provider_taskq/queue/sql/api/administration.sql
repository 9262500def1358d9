-- Tending: what an operator does to single tasks that wait, and how a worker gives some of its tasks back.

-- When a paused task is due: never, told from a time that anybody would set.
CREATE FUNCTION taskq.paused_until() RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT timestamptz '4999-12-03 10:15:30Z'
$$;

-- Pauses a READY task: it is not handed out until it is resumed or given another due time. False where it was paused already.
CREATE FUNCTION taskq.pause_task(p_topic text, p_sequence bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_task taskq.live := taskq.hold_waiting(p_topic, p_sequence);
BEGIN
    IF taskq.due_of(v_task) = taskq.paused_until() THEN
        RETURN false;
    END IF;
    PERFORM taskq.put_off(v_task, taskq.paused_until(), 6);
    RETURN true;
END $$;

-- Resumes a paused task: one that waits to be retried is due now, any other in its old place. False where it was not paused.
CREATE FUNCTION taskq.resume_task(p_topic text, p_sequence bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_task taskq.live := taskq.hold_waiting(p_topic, p_sequence);
BEGIN
    IF taskq.due_of(v_task) <> taskq.paused_until() THEN
        RETURN false;
    END IF;
    PERFORM taskq.put_off(v_task, CASE WHEN v_task.attempt > 0 THEN clock_timestamp() ELSE taskq.due_as_pushed(v_task) END, 7);
    RETURN true;
END $$;

-- Sets when a READY task is due; NULL: in its old place.
CREATE FUNCTION taskq.set_due(p_topic text, p_sequence bigint, p_due timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_task taskq.live := taskq.hold_waiting(p_topic, p_sequence);
BEGIN
    IF NOT taskq.is_moment(p_due) THEN
        PERFORM taskq.refuse('TQ002', format('topic %L, sequence %s: %s lies outside of the years 1 to 9999', p_topic, p_sequence, p_due));
    END IF;
    PERFORM taskq.put_off(v_task, coalesce(p_due, taskq.due_as_pushed(v_task)), 8);
END $$;

-- Sets how many attempts of a READY task count: 0 is a task just pushed, max_attempts - 1 one with a last attempt left.
CREATE FUNCTION taskq.set_attempts(p_topic text, p_sequence bigint, p_attempts int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_task  taskq.live := taskq.hold_waiting(p_topic, p_sequence);
    v_topic taskq.topic := taskq.find_topic(p_topic);
BEGIN
    IF p_attempts IS NULL OR p_attempts NOT BETWEEN 0 AND v_topic.max_attempts - 1 THEN
        PERFORM taskq.refuse('TQ002', format('topic %L, sequence %s: of %s attempts %s may count, not %s', p_topic, p_sequence,
            v_topic.max_attempts, CASE v_topic.max_attempts WHEN 1 THEN 'none' ELSE '0 to ' || v_topic.max_attempts - 1 END, p_attempts));
    END IF;
    UPDATE taskq.live SET attempt = p_attempts,
        waits = CASE WHEN waits = 1 THEN 1 WHEN p_attempts > 0 AND v_topic.probe THEN 2 WHEN waits = 2 THEN 0 ELSE waits END
    WHERE topic_id = v_task.topic_id AND sequence = p_sequence;
    PERFORM taskq.note_waiting(v_task, 9, p_attempts);
END $$;

-- A READY task, held until this transaction ends. Never waits: refuses one that is not READY, is unknown, or is being taken
-- right now (TQ003).
CREATE FUNCTION taskq.hold_waiting(p_topic text, p_sequence bigint) RETURNS taskq.live LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_task     taskq.live;
BEGIN
    SELECT * INTO v_task FROM taskq.live l
    WHERE l.topic_id = v_topic_id AND l.sequence = p_sequence AND l.holder IS NULL FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM taskq.refuse('TQ003', format('topic %L, sequence %s: only a READY task can be paused, resumed or changed, and this one %s',
            p_topic, p_sequence, coalesce('is ' || nullif(taskq.state_of(v_topic_id, p_sequence), 'READY'), 'is being taken')));
    END IF;
    RETURN v_task;
END $$;

-- Makes READY tasks due now that are due later, paused ones too, and returns how many. What else a task waits for, it still waits
-- for: its dependencies, the probe and the pause of its topic. Refuses as taskq.hold_all_waiting does.
CREATE FUNCTION taskq.run_now(p_topic text, p_sequences bigint[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_task  taskq.live;
    v_count bigint := 0;
BEGIN
    FOR v_task IN SELECT * FROM taskq.hold_all_waiting(p_topic, p_sequences) LOOP
        IF taskq.due_of(v_task) > v_now THEN
            PERFORM taskq.put_off(v_task, v_now, 8);
            v_count := v_count + 1;
        END IF;
    END LOOP;
    RETURN v_count;
END $$;

-- Sets the priority of READY tasks, -100 to 100, higher first, and returns how many had another. It lasts until the task ends: one
-- that is started anew, and a copy, have the priority that was pushed. Refuses as taskq.hold_all_waiting does.
CREATE FUNCTION taskq.set_priority(p_topic text, p_sequences bigint[], p_priority int) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_task  taskq.live;
    v_count bigint := 0;
BEGIN
    IF p_priority IS NULL OR p_priority NOT BETWEEN -100 AND 100 THEN
        PERFORM taskq.refuse('TQ002', format('topic %L: a priority is between -100 and 100, not %s', p_topic, coalesce(p_priority::text, 'NULL')));
    END IF;
    FOR v_task IN SELECT * FROM taskq.hold_all_waiting(p_topic, p_sequences) LOOP
        CONTINUE WHEN v_task.priority = p_priority;
        UPDATE taskq.live SET priority = p_priority WHERE topic_id = v_task.topic_id AND sequence = v_task.sequence;
        PERFORM taskq.note_waiting(v_task, 10, p_priority);
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;

-- Ends READY tasks as FILTERED without running them, and returns how many. They can be started anew like all that has ended. Tasks
-- that depend on them keep waiting. Refuses as taskq.hold_all_waiting does.
CREATE FUNCTION taskq.cancel(p_topic text, p_sequences bigint[]) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    v_task  taskq.live;
    v_count bigint := 0;
BEGIN
    FOR v_task IN SELECT * FROM taskq.hold_all_waiting(p_topic, p_sequences) LOOP
        PERFORM taskq.note_waiting(v_task, 11, NULL);
        DELETE FROM taskq.live WHERE topic_id = v_task.topic_id AND sequence = v_task.sequence;
        INSERT INTO taskq.ended (sequence, completed, available_at, topic_id, attempt, state, crashes, redelivered, identifier, error,
                                 error_summary)
        SELECT v_task.sequence, clock_timestamp(), taskq.due_of(v_task), v_task.topic_id, v_task.attempt, 5, v_task.crashes, v_task.redelivered,
               v_task.identifier, v_task.error, v_task.error_summary;
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;

-- READY tasks in order of sequence, held until this transaction ends. Never waits: refuses (TQ003), naming the first, tasks that are
-- not READY, are unknown, or are being taken right now.
CREATE FUNCTION taskq.hold_all_waiting(p_topic text, p_sequences bigint[]) RETURNS SETOF taskq.live LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_held     bigint[];
    v_missing  bigint;
BEGIN
    v_held := ARRAY(SELECT l.sequence FROM taskq.live l
                    WHERE l.topic_id = v_topic_id AND l.sequence = ANY (p_sequences) AND l.holder IS NULL
                    ORDER BY l.sequence FOR UPDATE SKIP LOCKED);
    v_missing := (SELECT min(u.sequence) FROM (SELECT unnest(p_sequences) EXCEPT SELECT unnest(v_held)) u (sequence));
    IF v_missing IS NOT NULL THEN
        PERFORM taskq.refuse('TQ003', format('topic %L, sequence %s: only a READY task can be changed or canceled, and this one %s',
            p_topic, v_missing, coalesce('is ' || nullif(taskq.state_of(v_topic_id, v_missing), 'READY'), 'is being taken')));
    END IF;
    RETURN QUERY SELECT * FROM taskq.live l WHERE l.topic_id = v_topic_id AND l.sequence = ANY (v_held) ORDER BY l.sequence;
END $$;

-- When a task that waits is due, whatever it waits for beside that.
CREATE FUNCTION taskq.due_of(p_task taskq.live) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN p_task.waits = 1 THEN coalesce(p_task.due_again, taskq.due_as_pushed(p_task)) ELSE p_task.available_at END;
END $$;

-- When a task was due as it was pushed.
CREATE FUNCTION taskq.due_as_pushed(p_task taskq.live) RETURNS timestamptz LANGUAGE plpgsql STABLE
SET enable_seqscan = off AS $$
BEGIN
    RETURN (SELECT t.due FROM taskq.task t WHERE t.topic_id = p_task.topic_id AND t.sequence = p_task.sequence);
END $$;

-- Gives a task, whose row this transaction holds, another due time, and notes it.
CREATE FUNCTION taskq.put_off(p_task taskq.live, p_due timestamptz, p_kind int) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off AS $$
BEGIN
    UPDATE taskq.live SET
        available_at = CASE WHEN waits = 1 THEN available_at ELSE p_due END,
        due_again = CASE WHEN waits = 1 THEN p_due ELSE due_again END
    WHERE topic_id = p_task.topic_id AND sequence = p_task.sequence;
    PERFORM taskq.note_waiting(p_task, p_kind, NULL);
END $$;

-- Notes in the history what is done to a READY task. p_other: the new number of attempts, of kind 9.
CREATE FUNCTION taskq.note_waiting(p_task taskq.live, p_kind int, p_other bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO taskq.history (happened, topic_id, sequence, kind, state, attempt, other, actor, role)
    SELECT clock_timestamp(), p_task.topic_id, p_task.sequence, p_kind, 1, p_task.attempt, p_other, taskq.actor(), session_user
$$;

-- Removes tasks with an error that have expired, the p_size lowest of each state, and returns how many: FAILED tasks that have
-- outlived their time to live, and READY tasks that have also outlived the horizon of the topic. A READY task has retries left
-- until then; without a horizon until it is FAILED. A task without a time to live never expires. Never waits: what another
-- transaction holds stays.
CREATE FUNCTION taskq.purge_outlived(p_topic text, p_size int) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_topic taskq.topic := taskq.find_topic(p_topic);
    v_now   timestamptz := clock_timestamp();
    v_found bigint[];
BEGIN
    v_found := ARRAY(
        SELECT l.sequence FROM taskq.live l JOIN taskq.task t ON t.topic_id = l.topic_id AND t.sequence = l.sequence
        WHERE l.topic_id = v_topic.topic_id AND l.attempt > 0 AND l.holder IS NULL AND l.error IS NOT NULL
          AND t.created + coalesce(t.ttl, v_topic.ttl) <= v_now AND t.created + v_topic.horizon <= v_now
        ORDER BY l.sequence LIMIT greatest(p_size, 0) FOR UPDATE OF l SKIP LOCKED)
     || ARRAY(
        SELECT e.sequence FROM taskq.ended e JOIN taskq.task t ON t.topic_id = v_topic.topic_id AND t.sequence = e.sequence
        WHERE e.topic_id::bigint = v_topic.topic_id AND e.state::int IN (2, 3, 4) AND e.state::int = 3 AND e.error IS NOT NULL
          AND t.created + coalesce(t.ttl, v_topic.ttl) <= v_now
        ORDER BY e.sequence LIMIT greatest(p_size, 0) FOR UPDATE OF e SKIP LOCKED);
    PERFORM taskq.remove(v_topic.topic_id, v_found);
    RETURN cardinality(v_found);
END $$;

-- Gives some of an owner's tasks back: READY in their old place, the attempt not counted, as taskq.release does with all.
-- Returns how many. Refuses a lease that is gone (TQ005) and tasks that the owner does not hold (TQ004).
CREATE FUNCTION taskq.give_back(p_owner text, p_fence bigint, p_sequences bigint[]) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
    v_owner_id bigint := taskq.hold_lease(p_owner, p_fence);
    v_back     bigint[];
BEGIN
    WITH back AS (
        UPDATE taskq.live l SET holder = NULL, polled = NULL, attempt = l.attempt - 1, waits = taskq.waits_again(l.topic_id, l.attempt, l.waits),
            available_at = (SELECT t.due FROM taskq.task t WHERE t.topic_id = l.topic_id AND t.sequence = l.sequence)
        WHERE l.holder = v_owner_id AND l.sequence = ANY (p_sequences) RETURNING l.sequence)
    SELECT coalesce(array_agg(b.sequence), '{}') INTO v_back FROM back b;
    IF cardinality(v_back) <> cardinality(p_sequences) THEN
        PERFORM taskq.refuse_not_held(p_owner, p_fence, p_sequences, v_back);
    END IF;
    RETURN cardinality(v_back);
END $$;
