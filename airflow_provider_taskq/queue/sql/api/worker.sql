-- Workers by name: whether they are to work, whatever processes there are of them.

-- Says that workers of a name are to work, or not, and tells all that listen on the channel `taskq_worker` once that is committed.
-- Returns what was said before; NULL where nothing was.
CREATE FUNCTION taskq.set_worker(p_name text, p_active boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_before boolean;
BEGIN
    SELECT w.active INTO v_before FROM taskq.worker w WHERE w.name = p_name FOR UPDATE;
    INSERT INTO taskq.worker AS w (name, active, changed) VALUES (p_name, p_active, clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET active = p_active, changed = excluded.changed WHERE w.active <> p_active;
    IF v_before IS DISTINCT FROM p_active THEN
        PERFORM pg_notify('taskq_worker', left(p_name, 1000));
    END IF;
    RETURN v_before;
END $$;

-- Whether workers of a name are to work; NULL where nobody has said.
CREATE FUNCTION taskq.worker_is_active(p_name text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT w.active FROM taskq.worker w WHERE w.name = p_name
$$;

-- All that was said of workers, by name.
CREATE FUNCTION taskq.workers() RETURNS TABLE (name text, active boolean, changed timestamptz) LANGUAGE sql STABLE AS $$
    SELECT w.name, w.active, w.changed FROM taskq.worker w ORDER BY w.name
$$;

-- Forgets what was said of workers of a name; false where nothing was.
CREATE FUNCTION taskq.forget_worker(p_name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM taskq.worker WHERE name = p_name;
    RETURN FOUND;
END $$;
