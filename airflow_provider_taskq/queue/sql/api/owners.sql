-- Owners: names with leases, named locks, and workers that are on or off.

CREATE FUNCTION taskq.register(
    p_owner text, p_lease interval DEFAULT '5 minutes', p_resume boolean DEFAULT true, p_claim bigint DEFAULT NULL
) RETURNS TABLE (name text, fence bigint, lease interval, lease_until timestamptz, resumed boolean)
LANGUAGE plpgsql SET lock_timeout = '1min' AS $$
#variable_conflict use_column
DECLARE
    v_owner taskq_internal.owner;
BEGIN
    PERFORM taskq_internal.check_name('an owner', p_owner);
    PERFORM taskq_internal.check_duration(format('owner %L: the lease', p_owner), p_lease);
    IF p_claim IS NOT NULL THEN
        PERFORM FROM taskq_internal.owner o
        WHERE o.name = p_owner AND o.fence IS NOT NULL AND (o.fence = p_claim OR o.claim_fence = p_claim)
          AND taskq_internal.may_act_as(o.registered_by)
        FOR UPDATE;
        IF NOT FOUND THEN
            PERFORM taskq_internal.raise_lease_lost(p_owner, p_claim);
        END IF;
    END IF;
    INSERT INTO taskq_internal.owner AS o (name, fence, lease, lease_until, seen, registered_by)
    VALUES (p_owner, nextval('taskq_internal.fence'), p_lease, clock_timestamp() + p_lease, clock_timestamp(),
            taskq_internal.acting_role())
    ON CONFLICT (name) DO UPDATE SET  -- a new fence: other owners may have drawn greater ones during the wait
        fence = nextval('taskq_internal.fence'), claim_fence = p_claim, lease = p_lease,
        lease_until = clock_timestamp() + p_lease, seen = clock_timestamp(), registered_by = excluded.registered_by,
        deferred_until = NULL
    WHERE taskq_internal.may_act_as(o.registered_by)
    RETURNING o.* INTO v_owner;
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_error('42501', format(
            'owner %L was registered by another role than %I, which is limited to topics: register another name. %s',
            p_owner, taskq_internal.acting_role(), taskq_internal.common_role_remedy()));
    END IF;
    IF NOT p_resume THEN
        PERFORM taskq_internal.require_read_committed('register() after a crash');
        PERFORM taskq_internal.count_crash(v_owner.owner_id);
    END IF;
    RETURN QUERY SELECT v_owner.name, v_owner.fence, v_owner.lease, v_owner.lease_until,
                        EXISTS (SELECT FROM taskq_internal.live l WHERE l.holder = v_owner.owner_id);
EXCEPTION WHEN lock_not_available THEN
    PERFORM taskq_internal.raise_error('TQ000', format(
        'owner %L cannot be registered: a transaction that has used the name is open for longer than a minute. End it,'
        ' and register again; taskq health names open transactions', p_owner));
END $$;
COMMENT ON FUNCTION taskq.register IS
'Registers an owner for p_lease under a new, greater fence. Tasks that the name still holds stay ACTIVE under the new
fence. The column resumed tells whether there are such tasks. With p_resume false, the process that held them has died:
they have had a crash, as by taskq.expire. A caller with the earlier fence loses access to them. With p_claim it
continues the claim that was made under this fence, so that each attempt of a job locks out the attempt before it, and
raises TQ005 unless this is the current fence or the current registration continues the claim, too. The call is atomic
against taskq.expire. Waits for transactions that use the name, for at most a minute: then it raises TQ000. Raises TQ008
for an invalid lease or name, and insufficient_privilege for a name that another role has registered.';

CREATE FUNCTION taskq.heartbeat(p_owner text, p_fence bigint) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    v_until timestamptz;
BEGIN
    UPDATE taskq_internal.owner SET lease_until = clock_timestamp() + lease, seen = clock_timestamp()
    WHERE name = p_owner AND fence = p_fence AND taskq_internal.may_act_as(registered_by) RETURNING lease_until
        INTO v_until;
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_lease_lost(p_owner, p_fence);
    END IF;
    RETURN v_until;
END $$;
COMMENT ON FUNCTION taskq.heartbeat IS
'Renews a lease for its full length from now, even if the lease has lapsed. Returns the new end of the lease. Raises
TQ005 if the owner has no lease under the fence.';

-- The owner holds the lease until the transaction ends. So a later owner of its tasks claims them after the draw, and
-- draws a greater number.
CREATE FUNCTION taskq.draw_fence(p_owner text, p_fence bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM taskq_internal.require_lease(p_owner, p_fence);
    RETURN nextval('taskq_internal.fence');
END $$;
COMMENT ON FUNCTION taskq.draw_fence IS
'Draws a number for a system outside of the database, which then refuses smaller numbers: it is greater than all fences
before. If an owner draws it after it has claimed a task, it is greater than each number that an earlier owner of the
task has drawn, also if that owner has registered later. The fence of the registration stays p_fence. Raises TQ005 if
the owner has no lease under the fence.';

CREATE FUNCTION taskq.owners(p_within interval)
RETURNS TABLE (name text, fence bigint, lease interval, lease_until timestamptz, resumed boolean)
LANGUAGE sql STABLE AS $$
    SELECT o.name, o.fence, o.lease, o.lease_until, false FROM taskq_internal.owner o
    WHERE o.fence IS NOT NULL AND o.lease_until > clock_timestamp()
      AND (p_within IS NULL OR o.seen >= clock_timestamp() - taskq_internal.clamp_age(p_within))
      AND ((SELECT taskq_internal.may_access(NULL, 'SELECT, UPDATE')) OR o.registered_by = taskq_internal.acting_role())
    ORDER BY o.name
$$;
COMMENT ON FUNCTION taskq.owners IS
'Returns the owners whose lease has not lapsed. With p_within it returns only owners that registered or sent a heartbeat
within this time.';

CREATE FUNCTION taskq.owner(p_owner text, p_claim bigint DEFAULT NULL)
RETURNS TABLE (name text, fence bigint, lease interval, lease_until timestamptz, resumed boolean)
LANGUAGE sql STABLE AS $$
    SELECT o.name, o.fence, o.lease, o.lease_until, false FROM taskq_internal.owner o
    WHERE o.name = p_owner AND o.fence IS NOT NULL AND (p_claim IS NULL OR o.fence = p_claim OR o.claim_fence = p_claim)
      AND (taskq_internal.may_access(NULL, 'SELECT, UPDATE') OR o.registered_by = taskq_internal.acting_role())
$$;
COMMENT ON FUNCTION taskq.owner IS
'Returns the owner with this name, even if its lease has lapsed. Returns no row after the owner released the lease or
taskq.expire ended it. With p_claim it returns the owner only if the owner holds the claim that was made under this
fence.';

CREATE FUNCTION taskq.release(p_owner text, p_fence bigint, p_crashed boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_owner_id bigint;
BEGIN
    PERFORM taskq_internal.require_read_committed('release()');
    UPDATE taskq_internal.owner SET fence = NULL, seen = clock_timestamp()
    WHERE name = p_owner AND fence = p_fence AND taskq_internal.may_act_as(registered_by) RETURNING owner_id
        INTO v_owner_id;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    IF p_crashed THEN
        RETURN taskq_internal.give_back(v_owner_id, true, NULL) + taskq_internal.count_crash(v_owner_id);
    END IF;
    RETURN taskq_internal.give_back(v_owner_id, false, NULL);
END $$;
COMMENT ON FUNCTION taskq.release IS
'Ends the lease of an owner. Its tasks become READY in their original place, and the attempt is not counted. With
p_crashed true, a process died that worked on them: they have had a crash, as by taskq.expire, except those that
taskq.defer_held_tasks deferred. Returns how many tasks it released. Returns 0 if the owner has no lease under the
fence. Raises TQ000 above READ COMMITTED.';

CREATE FUNCTION taskq.expire(
    p_grace interval DEFAULT '0', p_except text[] DEFAULT '{}', p_topic text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int;
    v_count    bigint;
BEGIN
    PERFORM taskq_internal.require_read_committed('expire()');
    IF p_topic IS NOT NULL THEN
        v_topic_id := (taskq_internal.accessible_topic(p_topic, 'UPDATE')).topic_id;
    END IF;
    v_count := (taskq_internal.end_lapsed_leases(p_grace, p_except, v_topic_id, NULL)).count;
    PERFORM taskq.prune_stages();
    RETURN v_count;
END $$;
COMMENT ON FUNCTION taskq.expire IS
'Ends every lease that lapsed more than p_grace ago, except the leases of the owners in p_except. Returns how many tasks
these owners held. The policy of the topic decides on each task. It becomes READY in its original place (redelivered,
the attempt not counted), FAILED after its last permitted crash if the owner held it alone, or EXPIRED. Skips an owner
whose poll, completion or registration is in progress, or whose tasks another transaction removes: a later call ends its
lease. Also removes the rows that executors of these owners have staged. With p_topic it ends only leases of owners that
hold tasks of this topic. Raises TQ001 for an unknown topic, and TQ000 above READ COMMITTED.';

CREATE FUNCTION taskq.held(p_owner text, p_fence bigint, p_topic text)
RETURNS TABLE (sequence bigint, topic text, identifier text, payload json, reference text, attempt int,
               redelivered boolean) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_owner_id bigint := (SELECT o.owner_id FROM taskq_internal.owner o WHERE o.name = p_owner AND o.fence = p_fence
                           AND taskq_internal.may_act_as(o.registered_by));
    v_held     bigint[] := ARRAY(SELECT l.sequence FROM taskq_internal.live l WHERE l.holder = v_owner_id);
    v_topics   int[] := ARRAY(SELECT DISTINCT l.topic_id FROM taskq_internal.live l WHERE l.holder = v_owner_id);
BEGIN
    RETURN QUERY
    SELECT t.sequence, p.name, t.identifier, t.payload, t.reference, l.attempt, l.redelivered
    FROM (SELECT * FROM taskq_internal.live WHERE holder = v_owner_id) l
    JOIN (SELECT * FROM taskq_internal.task WHERE topic_id = ANY (v_topics) AND sequence = ANY (v_held)) t
        USING (sequence)
    JOIN taskq_internal.topic p ON p.topic_id = t.topic_id
    WHERE p_topic IS NULL OR p.name = p_topic
    ORDER BY l.priority DESC, l.available_at, l.sequence;
END $$;
COMMENT ON FUNCTION taskq.held IS
'Returns the tasks that an owner holds under p_fence, in the order of the polls. With p_topic NULL it returns the tasks
of all topics. Returns no row if the owner has no lease under p_fence, or if the topic is unknown.';

CREATE FUNCTION taskq.max_claim(p_owner text, p_fence bigint) RETURNS int LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN taskq_internal.max_claim((SELECT o.owner_id FROM taskq_internal.owner o
                                     WHERE o.name = p_owner AND o.fence = p_fence
                                       AND taskq_internal.may_act_as(o.registered_by)));
END $$;
COMMENT ON FUNCTION taskq.max_claim IS
'Returns the most tasks that an owner may claim together, because it holds tasks that have had a crash. Returns NULL if
it holds no such task.';

CREATE FUNCTION taskq.lock(p_name text, p_by text, p_at_most interval, p_at_least interval) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM taskq_internal.check_name('a lock', p_name), taskq_internal.check_name('the holder of a lock', p_by),
        taskq_internal.check_duration(format('lock %L: at_most', p_name), p_at_most),
        taskq_internal.check_duration(format('lock %L: at_least', p_name), p_at_least, interval '0');
    IF p_at_least > p_at_most THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'lock %L: at_least %s is longer than at_most %s', p_name, p_at_least, p_at_most));
    END IF;
    -- A caller that cannot get the lock does not take the mutex, which would keep the holder from extending it.
    IF EXISTS (SELECT FROM taskq_internal.lock k WHERE k.name = p_name AND k.held_by <> p_by AND k.until > v_now)
        OR NOT pg_try_advisory_xact_lock(taskq_internal.mutex(:LOCK_NAME, p_name)) THEN
        RETURN false;
    END IF;
    INSERT INTO taskq_internal.lock AS k (name, held_by, locked, at_least, until)
    VALUES (p_name, p_by, v_now, v_now + p_at_least, v_now + p_at_most)
    ON CONFLICT (name) DO UPDATE SET
        held_by = p_by,
        locked = CASE WHEN k.until > v_now THEN k.locked ELSE v_now END,
        at_least = CASE WHEN k.until > v_now THEN greatest(k.at_least, excluded.at_least) ELSE excluded.at_least END,
        until = CASE WHEN k.until > v_now THEN greatest(k.until, excluded.until) ELSE excluded.until END
    WHERE k.held_by = p_by OR k.until <= v_now;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION taskq.lock IS
'Acquires the named lock for p_by, or extends it, for p_at_most. taskq.unlock does not free the lock before p_at_least.
Returns false if another holder has the lock. Never waits. Raises TQ000 if p_at_least is longer than p_at_most, and
TQ008 for an invalid duration or name.';

CREATE FUNCTION taskq.unlock(p_name text, p_by text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM taskq_internal.lock WHERE name = p_name AND held_by = p_by AND until > clock_timestamp())
        OR NOT pg_try_advisory_xact_lock(taskq_internal.mutex(:LOCK_NAME, p_name)) THEN
        RETURN false;
    END IF;
    UPDATE taskq_internal.lock SET held_by = '',
        until = least(at_least, clock_timestamp() + (at_least - locked))  -- the clock may have been set back
    WHERE name = p_name AND held_by = p_by AND until > clock_timestamp();
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM taskq_internal.lock WHERE name = p_name AND until <= clock_timestamp();
    RETURN true;
END $$;
COMMENT ON FUNCTION taskq.unlock IS
'Releases the named lock. Other holders can acquire it only after its p_at_least. Returns false if p_by does not hold
the lock. Never waits.';

CREATE FUNCTION taskq.set_worker_active(p_name text, p_active boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_before boolean;
BEGIN
    PERFORM taskq_internal.check_name('a worker', p_name);
    SELECT w.active INTO v_before FROM taskq_internal.worker w WHERE w.name = p_name FOR UPDATE;
    INSERT INTO taskq_internal.worker AS w (name, active, changed) VALUES (p_name, p_active, clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET active = p_active, changed = excluded.changed WHERE w.active <> p_active;
    IF v_before IS DISTINCT FROM p_active THEN
        PERFORM taskq_internal.notify('taskq_worker', left(p_name, 1000));
    END IF;
    RETURN v_before;
END $$;
COMMENT ON FUNCTION taskq.set_worker_active IS
'Activates or deactivates the workers with this name, and notifies the channel taskq_worker. Returns the earlier value,
or NULL if there was none. Raises TQ008 for an invalid name.';

CREATE FUNCTION taskq.is_worker_active(p_name text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT w.active FROM taskq_internal.worker w WHERE w.name = p_name
$$;
COMMENT ON FUNCTION taskq.is_worker_active IS
'Returns whether the workers with this name are active. Returns NULL if no call of set_worker_active has set it.';

CREATE FUNCTION taskq.workers() RETURNS TABLE (name text, active boolean, changed timestamptz) LANGUAGE sql STABLE AS $$
    SELECT w.name, w.active, w.changed FROM taskq_internal.worker w ORDER BY w.name
$$;
COMMENT ON FUNCTION taskq.workers IS
'Returns the names of workers and whether they are active.';

CREATE FUNCTION taskq.forget_worker(p_name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM taskq_internal.worker WHERE name = p_name;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION taskq.forget_worker IS
'Removes the setting of taskq.set_worker_active for this name. Returns false if there is none.';
