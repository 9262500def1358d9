-- Leases: owners of tasks, named locks, and the activation of workers.
--
-- An owner is a name with a lease on the server's clock and a fence, which locks out earlier users of the name. The
-- lease ends when the owner releases it, or when taskq.expire ends it after it has lapsed.
--
-- A named lock is a lease for one holder. A program that cannot get the lock goes on without it. A transaction that
-- changes a lock holds the advisory lock of its name until the transaction ends, and never waits for it. So an open
-- transaction keeps other programs from the lock without making them wait.

-- Ends the lapsed leases of owners that hold tasks of a topic, for a poll that has found nothing. Never waits, and
-- writes nothing if there are none. Returns whether it gave a task back.
CREATE FUNCTION taskq_internal.take_back_lapsed(p_topic_id int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN EXISTS (SELECT FROM taskq_internal.owner o WHERE o.fence IS NOT NULL AND o.lease_until < v_now)
        AND current_setting('transaction_isolation') = 'read committed'
        AND (taskq_internal.end_lapsed_leases('0', '{}', p_topic_id, NULL)).count > 0;
END $$;

-- Counts a crash for each task that an owner holds, and takes the tasks from it. This is the one place that counts
-- crashes. The policy of the topic decides on each task. A task that was held with others is never FAILED: one of the
-- others may be the cause. Returns how many tasks the owner held.
CREATE FUNCTION taskq_internal.count_crash(p_holder bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_tasks int := (SELECT count(*) FROM taskq_internal.live WHERE holder = p_holder);
BEGIN
    IF v_tasks = 0 THEN
        RETURN 0;
    END IF;
    INSERT INTO taskq_internal.history (happened, due, polled, topic_id, sequence, kind, state, attempt, holder)
    SELECT clock_timestamp(), l.available_at, l.polled, l.topic_id, l.sequence, :HISTORY_LAPSED, :ACTIVE, l.attempt,
        o.name
    FROM taskq_internal.live l JOIN taskq_internal.owner o ON o.owner_id = l.holder WHERE l.holder = p_holder;
    WITH gone AS (
        DELETE FROM taskq_internal.live l USING taskq_internal.topic p
        WHERE l.holder = p_holder AND p.topic_id = l.topic_id
          AND (p.on_expiry = 'expire' OR v_tasks = 1 AND l.crashes + 1 >= p.max_crashes)
        RETURNING l.*, p.on_expiry = 'redeliver' AS failed)
    INSERT INTO taskq_internal.ended (sequence, completed, available_at, holder, polled, topic_id, attempt, state,
        crashes, redelivered, identifier, error, error_summary)
    SELECT g.sequence, CASE WHEN g.failed THEN clock_timestamp() END, g.available_at, g.holder,
           CASE WHEN g.failed THEN g.polled END, g.topic_id, g.attempt - 1,
           CASE WHEN g.failed THEN :FAILED ELSE :EXPIRED END, g.crashes + 1, g.redelivered, g.identifier,
           CASE WHEN g.failed THEN n.error ELSE g.error END, CASE WHEN g.failed THEN n.error ELSE g.error_summary END
    FROM gone g
    CROSS JOIN LATERAL (SELECT format('given up after crash %s: its owner died or lost its lease while it held this '
                                      'task alone', g.crashes + 1) AS error) n;
    PERFORM taskq_internal.give_back(p_holder, false, v_tasks);
    RETURN v_tasks;
END $$;

-- Returns how many of p_tasks that were held during a crash may be claimed together again: at most half of them, and
-- few enough that a task is alone when its crashes reach the topic's maximum. 100 tasks with a maximum of 3 are claimed
-- ten by ten after their first crash, and one by one after the second. A crash makes at most a hundred groups of its
-- tasks, so with more than 10,000 tasks it takes more crashes.
CREATE FUNCTION taskq_internal.max_claim_after_crash(p_tasks int, p_crashes int, p_max_crashes int) RETURNS int
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(1, ceil(p_tasks / 100.0)::int, CASE WHEN p_crashes < p_max_crashes - 1 THEN least(p_tasks / 2,
        floor(power(p_tasks, (p_max_crashes - 1 - p_crashes)::float8 / (p_max_crashes - p_crashes)) + 1e-9)::int) END)
$$;

-- Makes held tasks READY in their original place, without counting the attempt: all tasks of a holder, or those that it
-- has deferred. After a crash p_crashed is the number of tasks that were held together. In a topic with a probe, a
-- retry waits for the probe. The next poll checks a task with dependencies, because a newer task of one may have been
-- pushed while the task was held. Returns how many tasks it changed.
CREATE FUNCTION taskq_internal.give_back(p_holder bigint, p_deferred_only boolean, p_crashed int) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    UPDATE taskq_internal.live l SET holder = NULL, polled = NULL, attempt = l.attempt - 1, late = true,
        waits = CASE
            WHEN l.attempt > 1 AND (SELECT p.probe FROM taskq_internal.topic p WHERE p.topic_id = l.topic_id)
                THEN :WAITS_PROBE
            WHEN EXISTS (SELECT FROM taskq_internal.dependency d WHERE d.topic_id = l.topic_id
                         AND d.sequence = l.sequence) THEN :WAITS_DEPENDENCIES
            ELSE :WAITS_NOTHING END,
        available_at = (SELECT t.due FROM taskq_internal.task t WHERE t.topic_id = l.topic_id
                        AND t.sequence = l.sequence),
        crashes = l.crashes + CASE WHEN p_crashed IS NULL THEN 0 ELSE 1 END,
        redelivered = l.redelivered OR p_crashed IS NOT NULL,
        max_claim = CASE WHEN p_crashed IS NULL THEN l.max_claim ELSE least(
            l.max_claim, taskq_internal.max_claim_after_crash(p_crashed, l.crashes + 1, (
                SELECT p.max_crashes FROM taskq_internal.topic p WHERE p.topic_id = l.topic_id))) END
    WHERE l.holder = p_holder AND (NOT p_deferred_only OR taskq_internal.is_deferred(l));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Ends the leases that lapsed more than p_grace ago, except those of the owners in p_except, each with all of its
-- tasks. With p_topic_id it ends only leases of owners that hold tasks of this topic. Never waits: skips an owner whose
-- poll, completion or registration is in progress, or one of whose tasks another transaction removes. Returns how many
-- tasks these owners held, and in more whether p_until has passed before the last lease.
CREATE FUNCTION taskq_internal.end_lapsed_leases(
    p_grace interval, p_except text[], p_topic_id int, p_until timestamptz, OUT count bigint, OUT more boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_owner bigint;
BEGIN
    count := 0;
    more := false;
    FOREACH v_owner IN ARRAY ARRAY(
        SELECT o.owner_id FROM taskq_internal.owner o
        WHERE o.fence IS NOT NULL AND o.lease_until < clock_timestamp() - taskq_internal.clamp_age(p_grace)
          AND o.name <> ALL (p_except)
          AND (p_topic_id IS NULL OR EXISTS (
              SELECT FROM taskq_internal.live l WHERE l.holder = o.owner_id AND l.topic_id = p_topic_id))
        FOR UPDATE SKIP LOCKED)
    LOOP
        more := coalesce(count > 0 AND clock_timestamp() >= p_until, false);
        EXIT WHEN more;
        IF (SELECT count(*) FROM taskq_internal.live WHERE holder = v_owner)
            = (SELECT count(*) FROM (SELECT FROM taskq_internal.live WHERE holder = v_owner FOR UPDATE SKIP LOCKED) l)
        THEN
            UPDATE taskq_internal.owner SET fence = NULL WHERE owner_id = v_owner;
            count := count + taskq_internal.count_crash(v_owner);
        END IF;
    END LOOP;
END $$;

-- Returns the most tasks that the owner may hold together, because it holds tasks that have had a crash. Returns NULL
-- if it holds none, except deferred ones, on which the owner does not work any more.
CREATE FUNCTION taskq_internal.max_claim(p_holder bigint) RETURNS int LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT min(l.max_claim) FROM taskq_internal.live l
            WHERE l.holder = p_holder AND NOT taskq_internal.is_deferred(l));
END $$;

-- Returns whether the owner of a held task has deferred it.
CREATE FUNCTION taskq_internal.is_deferred(p_task taskq_internal.live) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM taskq_internal.owner o
                   WHERE o.owner_id = p_task.holder AND p_task.polled <= o.deferred_until)
$$;

-- Raises TQ005 for an owner that has no lease under a fence.
CREATE FUNCTION taskq_internal.raise_lease_lost(p_owner text, p_fence bigint) RETURNS void LANGUAGE sql AS $$
    SELECT taskq_internal.raise_error('TQ005', CASE WHEN EXISTS (
            SELECT FROM taskq_internal.owner o
            WHERE o.name = p_owner AND (o.fence = p_fence OR o.fence IS NOT NULL AND o.claim_fence = p_fence)
              AND NOT taskq_internal.may_act_as(o.registered_by))
        THEN format('the lease of owner %L under fence %s belongs to another role than %I. %s', p_owner, p_fence,
                    taskq_internal.acting_role(), taskq_internal.common_role_remedy())
        ELSE format('the lease of owner %L under fence %s is gone: it expired, was released, or the name was '
                    'registered again', p_owner, p_fence) END)
$$;

-- Returns what lets several roles of one program, such as those that a secrets manager creates, use the same owners.
CREATE FUNCTION taskq_internal.common_role_remedy() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT format('Roles of one program act as one role after: ALTER ROLE %I SET role = ''their common role''',
                  taskq_internal.acting_role())
$$;

-- Returns the number of an owner that has a lease under p_fence, and keeps the lease from ending until the transaction
-- ends. A lapsed lease counts until taskq.expire ends it. Waits for a transaction that is ending the lease. Raises
-- TQ005 if the owner has no such lease.
CREATE FUNCTION taskq_internal.require_lease(p_owner text, p_fence bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_owner_id bigint;
BEGIN
    SELECT owner_id INTO v_owner_id FROM taskq_internal.owner
    WHERE name = p_owner AND fence = p_fence AND taskq_internal.may_act_as(registered_by) FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_lease_lost(p_owner, p_fence);
    END IF;
    RETURN v_owner_id;
END $$;

-- Returns the number of an owner for a poll, which never waits and needs a lease that has not lapsed. Returns NULL
-- while another transaction is ending the lease. Raises TQ005 if the owner has no such lease.
CREATE FUNCTION taskq_internal.require_running_lease(p_owner text, p_fence bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_owner_id bigint;
    v_until    timestamptz;
BEGIN
    SELECT owner_id INTO v_owner_id FROM taskq_internal.owner
    WHERE name = p_owner AND fence = p_fence AND lease_until > clock_timestamp()
        AND taskq_internal.may_act_as(registered_by)
    FOR KEY SHARE SKIP LOCKED;
    IF FOUND THEN
        RETURN v_owner_id;
    END IF;
    v_until := (SELECT lease_until FROM taskq_internal.owner
                WHERE name = p_owner AND fence = p_fence AND taskq_internal.may_act_as(registered_by));
    IF v_until IS NULL THEN
        PERFORM taskq_internal.raise_lease_lost(p_owner, p_fence);
    ELSIF v_until <= clock_timestamp() THEN
        PERFORM taskq_internal.raise_error('TQ005', format(
            'the lease of owner %L under fence %s has lapsed; a heartbeat renews it', p_owner, p_fence));
    END IF;
    RETURN NULL;
END $$;
