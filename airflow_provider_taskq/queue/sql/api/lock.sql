-- Locks by name: a lease on the database's clock. Who can't get one goes on without it, and nobody ever waits.
--
-- A transaction that is about to change a name's row locks the name's row of taskq_internal.mutex until it ends, and never waits
-- for that. So an open transaction that takes, extends or gives back a lock keeps others out of it, rather than waiting.

-- Takes the lock of that name for p_by, or extends it where p_by has it: for p_at_most from now, and not given back for p_at_least
-- from now. False, and nothing changed, where somebody else has it, or is about to.
CREATE FUNCTION taskq.lock(p_name text, p_by text, p_at_most interval, p_at_least interval) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM taskq.check_lock(p_name, p_by, p_at_most, p_at_least);
    IF NOT taskq.is_free(p_name, p_by) OR NOT taskq.try_name(p_name) OR NOT taskq.is_free(p_name, p_by) THEN
        RETURN false;
    END IF;
    INSERT INTO taskq.lock AS k (name, held_by, locked, at_least, until)
    VALUES (p_name, p_by, v_now, v_now + p_at_least, v_now + p_at_most)
    ON CONFLICT (name) DO UPDATE SET
        held_by = p_by,
        locked = CASE WHEN k.until > v_now THEN k.locked ELSE v_now END,
        at_least = CASE WHEN k.until > v_now THEN greatest(k.at_least, excluded.at_least) ELSE excluded.at_least END,
        until = CASE WHEN k.until > v_now THEN greatest(k.until, excluded.until) ELSE excluded.until END;
    RETURN true;
END $$;

-- Gives the lock of that name back, where p_by has it. Before its p_at_least is over it becomes nobody's until then.
-- False, and nothing changed, where p_by does not have it, or somebody is about to take it.
CREATE FUNCTION taskq.unlock(p_name text, p_by text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT taskq.is_held(p_name, p_by) OR NOT taskq.try_name(p_name) OR NOT taskq.is_held(p_name, p_by) THEN
        RETURN false;
    END IF;
    UPDATE taskq.lock SET held_by = '', until = at_least WHERE name = p_name;
    DELETE FROM taskq.lock WHERE name = p_name AND until <= clock_timestamp();
    RETURN true;
END $$;

-- Refuses a lock of nobody, or for no time (TQ000).
CREATE FUNCTION taskq.check_lock(p_name text, p_by text, p_at_most interval, p_at_least interval) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_by IS NULL OR p_by !~ '\S' THEN
        PERFORM taskq.refuse('TQ000', format('lock %L: who takes it has to have a name', p_name));
    END IF;
    IF p_at_most IS NULL OR p_at_least IS NULL OR p_at_most <= interval '0' OR p_at_least NOT BETWEEN interval '0' AND p_at_most THEN
        PERFORM taskq.refuse('TQ000', format('lock %L: at_most %s has to be more than nothing, and at_least %s between nothing and that',
                                             p_name, p_at_most, p_at_least));
    END IF;
    PERFORM taskq.check_duration(format('lock %L: at_most', p_name), p_at_most);
    PERFORM taskq.check_duration(format('lock %L: at_least', p_name), p_at_least, interval '0');
END $$;

-- Whether p_by may have the lock of that name: nobody has it, p_by does, or it ran out.
CREATE FUNCTION taskq.is_free(p_name text, p_by text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM taskq.lock WHERE name = p_name AND held_by <> p_by AND until > clock_timestamp());
END $$;

-- Whether p_by has the lock of that name.
CREATE FUNCTION taskq.is_held(p_name text, p_by text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM taskq.lock WHERE name = p_name AND held_by = p_by AND until > clock_timestamp());
END $$;

-- Keeps all others from changing the lock of that name until this transaction ends; false where somebody else does so.
CREATE FUNCTION taskq.try_name(p_name text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM taskq_internal.mutex WHERE bucket = taskq.mutex_of(0, p_name) FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END $$;

-- The bucket of taskq_internal.mutex for a name of a kind: 0 locks, 1 prefixes of ticks, 2 stages. Rows, as no outsider can lock
-- them; one in 4,096 pairs of names shares a bucket by chance, and then one waits for the other, or is told that it is taken.
CREATE FUNCTION taskq.mutex_of(p_kind int, p_name text) RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT p_kind * 4096 + (hashtext(p_name) & 4095)
$$;
