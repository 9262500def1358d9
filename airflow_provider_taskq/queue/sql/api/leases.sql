-- Owners: a name, a lease on the server's clock, and a fence that locks out whoever used the name before.

-- Registers a name under a new, greater fence. Tasks that the name still holds are taken over, all of them or,
-- where expire() came first, none: both lock the owner's row before they look.
CREATE FUNCTION taskq.register(p_owner text, p_lease interval)
RETURNS TABLE (name text, fence bigint, lease interval, lease_until timestamptz, resumed boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_owner taskq.owner;
BEGIN
    PERFORM taskq.check_duration(format('owner %L: the lease', p_owner), p_lease);
    INSERT INTO taskq.owner AS o (name, fence, lease, lease_until, seen)
    VALUES (p_owner, nextval('taskq.fence'), p_lease, clock_timestamp() + p_lease, clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET  -- drawn anew, as the wait for the row may have let others pass
        fence = nextval('taskq.fence'), claim_fence = NULL, lease = p_lease,
        lease_until = clock_timestamp() + p_lease, seen = clock_timestamp()
    RETURNING o.* INTO v_owner;
    RETURN QUERY SELECT v_owner.name, v_owner.fence, v_owner.lease, v_owner.lease_until,
                        EXISTS (SELECT FROM taskq.live l WHERE l.holder = v_owner.owner_id);
END $$;

-- Registers a name under a new, greater fence to continue the claim that was made under fence p_claim. Refuses (TQ005)
-- unless that registration is current, or one that took the claim over: so each try of a job locks out the try before
-- it, and a job whose claim was replaced by a later one cannot take the tasks of that one.
CREATE FUNCTION taskq.take_over(p_owner text, p_claim bigint, p_lease interval)
RETURNS TABLE (name text, fence bigint, lease interval, lease_until timestamptz, resumed boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_owner taskq.owner;
BEGIN
    PERFORM taskq.check_duration(format('owner %L: the lease', p_owner), p_lease);
    UPDATE taskq.owner o SET
        fence = nextval('taskq.fence'), claim_fence = p_claim, lease = p_lease,
        lease_until = clock_timestamp() + p_lease, seen = clock_timestamp()
    WHERE o.name = p_owner AND o.fence IS NOT NULL AND (o.fence = p_claim OR o.claim_fence = p_claim)
    RETURNING o.* INTO v_owner;
    IF NOT FOUND THEN
        PERFORM taskq.refuse_lease(p_owner, p_claim);
    END IF;
    RETURN QUERY SELECT v_owner.name, v_owner.fence, v_owner.lease, v_owner.lease_until,
                        EXISTS (SELECT FROM taskq.live l WHERE l.holder = v_owner.owner_id);
END $$;

-- Extends a lease by its length, a lapsed one too; refuses once it is gone (TQ005).
CREATE FUNCTION taskq.heartbeat(p_owner text, p_fence bigint) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    v_until timestamptz;
BEGIN
    UPDATE taskq.owner SET lease_until = clock_timestamp() + lease, seen = clock_timestamp()
    WHERE name = p_owner AND fence = p_fence RETURNING lease_until INTO v_until;
    IF NOT FOUND THEN
        PERFORM taskq.refuse_lease(p_owner, p_fence);
    END IF;
    RETURN v_until;
END $$;

-- Refuses an owner whose lease is gone (TQ005).
CREATE FUNCTION taskq.refuse_lease(p_owner text, p_fence bigint) RETURNS void LANGUAGE sql AS $$
    SELECT taskq.refuse('TQ005', format(
        'the lease of owner %L under fence %s is gone: it expired, was released, or the name was registered anew',
        p_owner, p_fence))
$$;

-- The number of an owner whose lease is not gone, and stays so until this transaction ends. Lapsed or not:
-- a lease lapses by time, but is gone only when somebody took it. Waits for whoever is taking it right now.
CREATE FUNCTION taskq.hold_lease(p_owner text, p_fence bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_owner_id bigint;
BEGIN
    SELECT owner_id INTO v_owner_id FROM taskq.owner WHERE name = p_owner AND fence = p_fence FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM taskq.refuse_lease(p_owner, p_fence);
    END IF;
    RETURN v_owner_id;
END $$;

-- The same for a poll, which never waits and needs a lease that has not lapsed (else TQ005): NULL while
-- another transaction is about to take the lease away.
CREATE FUNCTION taskq.hold_running_lease(p_owner text, p_fence bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_owner_id bigint;
BEGIN
    SELECT owner_id INTO v_owner_id FROM taskq.owner
    WHERE name = p_owner AND fence = p_fence AND lease_until > clock_timestamp() FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND AND NOT EXISTS (SELECT FROM taskq.owner WHERE name = p_owner AND fence = p_fence
                                 AND lease_until > clock_timestamp()) THEN
        IF EXISTS (SELECT FROM taskq.owner WHERE name = p_owner AND fence = p_fence) THEN
            PERFORM taskq.refuse('TQ005', format(
                'the lease of owner %L under fence %s has lapsed; a heartbeat renews it', p_owner, p_fence));
        END IF;
        PERFORM taskq.refuse_lease(p_owner, p_fence);
    END IF;
    RETURN v_owner_id;
END $$;

-- The owners whose lease has not lapsed; with p_within only those that gave a sign of life so recently.
CREATE FUNCTION taskq.owners(p_within interval)
RETURNS TABLE (name text, fence bigint, lease interval, lease_until timestamptz, resumed boolean)
LANGUAGE sql STABLE AS $$
    SELECT o.name, o.fence, o.lease, o.lease_until, false FROM taskq.owner o
    WHERE o.fence IS NOT NULL AND o.lease_until > clock_timestamp()
      AND (p_within IS NULL OR o.seen >= clock_timestamp() - taskq.clamp_age(p_within))
    ORDER BY o.name
$$;

-- The owner of that name whose lease is not gone, lapsed or not; no row where there is none. With p_claim: only if it
-- holds the claim that was made under this fence, under that fence or after take_over.
CREATE FUNCTION taskq.owner_named(p_owner text, p_claim bigint DEFAULT NULL)
RETURNS TABLE (name text, fence bigint, lease interval, lease_until timestamptz, resumed boolean)
LANGUAGE sql STABLE AS $$
    SELECT o.name, o.fence, o.lease, o.lease_until, false FROM taskq.owner o
    WHERE o.name = p_owner AND o.fence IS NOT NULL
      AND (p_claim IS NULL OR o.fence = p_claim OR o.claim_fence = p_claim)
$$;
