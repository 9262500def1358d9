-- Access: whether the calling role may use a topic, act as an owner, or see a stage. Each public function asks here
-- first.

-- Returns the calling role: the role of SET ROLE, or else the role that logged in. Inside a SECURITY DEFINER function,
-- current_user is the owner of the function. So this function does not show the owner of a function that calls a verb
-- for other roles.
CREATE FUNCTION taskq_internal.acting_role() RETURNS name LANGUAGE sql STABLE AS $$
    SELECT coalesce(nullif(current_setting('role'), 'none'), session_user)::name
$$;

-- Returns whether the calling role has one of these rights, such as 'SELECT, UPDATE', on a topic, or with p_topic NULL
-- on every topic. The planner inlines the body, so that the usual check takes a microsecond.
CREATE FUNCTION taskq_internal.may_access(p_topic text, p_rights text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user)::name,
                               'taskq.every_topic'::regclass, p_rights)
        OR taskq_internal.may_access_topic(p_topic, p_rights)
$$;

-- Returns whether the calling role, which lacks these rights on every topic, has one of them on a topic. While no role
-- is limited to topics, the privilege to call the function suffices, because the caller may be a SECURITY DEFINER
-- function whose owner has the right.
CREATE FUNCTION taskq_internal.may_access_topic(p_topic text, p_rights text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM taskq.granted g
                   WHERE g.topic = p_topic AND string_to_array(g.rights, ', ') && string_to_array(p_rights, ', ')
                     AND pg_has_role(taskq_internal.acting_role(), g.role_id, 'USAGE'))
        OR NOT EXISTS (SELECT FROM taskq_internal.access a WHERE a.topic <> '');
END $$;

-- Raises insufficient_privilege unless the calling role has one of these rights on a topic. A NULL topic stands for
-- every topic.
CREATE FUNCTION taskq_internal.check_access(p_topic text, p_rights text) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT taskq_internal.may_access(p_topic, p_rights) THEN
        PERFORM taskq_internal.raise_error('42501', format('role %I may not %s %s', taskq_internal.acting_role(),
            CASE p_rights WHEN 'INSERT' THEN 'push to' WHEN 'DELETE' THEN 'push with DELETE to' WHEN 'UPDATE'
                THEN 'consume' ELSE 'read' END,
            coalesce(format('topic %L', p_topic), 'every topic')));
    END IF;
END $$;

-- Returns the topic with this name. Raises TQ001 if it does not exist.
CREATE FUNCTION taskq_internal.find_topic(p_topic text) RETURNS taskq_internal.topic LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic taskq_internal.topic;
BEGIN
    SELECT * INTO v_topic FROM taskq_internal.topic WHERE name = p_topic;
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_error('TQ001', format(
            'topic %L is not known; create it with create_topic', p_topic));
    END IF;
    RETURN v_topic;
END $$;

-- Returns the topic with this name if the calling role has one of these rights on it. Raises insufficient_privilege if
-- the role has none of them, whether or not the topic exists. Raises TQ001 if the topic does not exist.
CREATE FUNCTION taskq_internal.accessible_topic(p_topic text, p_rights text) RETURNS taskq_internal.topic
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT taskq_internal.may_access(p_topic, p_rights) THEN
        PERFORM taskq_internal.check_access(p_topic, p_rights);
    END IF;
    RETURN taskq_internal.find_topic(p_topic);
END $$;

-- Returns whether the calling role may use an owner that the role p_registered_by registered. A role may use the owners
-- that it registered itself, and all owners if it may consume every topic.
CREATE FUNCTION taskq_internal.may_act_as(p_registered_by name) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p_registered_by = taskq_internal.acting_role() OR taskq_internal.may_access(NULL, 'UPDATE')
$$;

-- The grants that count. The stored grants name their roles, because only names survive a restore on another server.
-- They count only with the privilege on the schema that each grant gives: PostgreSQL stores it for the role itself,
-- ends it with DROP OWNED, and restores it by name. So a role does not get the access of a dropped role of its name.
CREATE VIEW taskq.granted AS
SELECT a.*, r.oid AS role_id FROM taskq_internal.access a JOIN pg_roles r ON r.rolname = a.role
JOIN pg_namespace n ON n.nspname = 'taskq' AND n.nspacl @> makeaclitem(r.oid, n.nspowner, 'USAGE', false);
COMMENT ON VIEW taskq.granted IS
'What taskq.grant_access has granted to the roles that exist: for each kind a row, or one for each topic. An empty topic
stands for every topic. Only the owner of the schema may read it.';

-- Raises insufficient_privilege if another role opened a stage, unless the calling role may consume every topic, or for
-- a push may push to every topic. The number of a stage is not secret: it stands in options, plans and logs of jobs.
CREATE FUNCTION taskq_internal.check_stage_access(p_stage uuid) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (SELECT FROM taskq_internal.stage s
               WHERE s.stage = p_stage AND s.opened_by <> taskq_internal.acting_role()
                 AND NOT has_table_privilege(taskq_internal.acting_role(), 'taskq.every_topic',
                                             CASE WHEN s.fence IS NULL THEN 'INSERT' ELSE 'UPDATE' END)) THEN
        PERFORM taskq_internal.raise_error('42501', format(
            'stage %s was opened by another role than %I, which is limited to topics', p_stage,
            taskq_internal.acting_role()));
    END IF;
END $$;

-- Returns the topic with this name, which no transaction can drop until this one ends. Waits for a transaction that
-- drops it. If the topic was then created again, it returns the new topic. Above READ COMMITTED the snapshot does not
-- show this, so there it locks the row as well: a topic that was dropped in the meantime causes a serialization
-- failure.
CREATE FUNCTION taskq_internal.lock_topic_shared(p_topic text, p_rights text) RETURNS taskq_internal.topic
LANGUAGE plpgsql AS $$
DECLARE
    v_kept  int;
    v_topic taskq_internal.topic;
    v_done  text;
BEGIN
    IF NOT taskq_internal.may_access(p_topic, p_rights) THEN
        PERFORM taskq_internal.check_access(p_topic, p_rights);
    END IF;
    LOOP
        -- Inlined, because a call of find_topic costs 2 us.
        SELECT * INTO v_topic FROM taskq_internal.topic WHERE name = p_topic;
        IF NOT FOUND THEN
            v_topic := taskq_internal.find_topic(p_topic);
        END IF;
        EXIT WHEN v_topic.topic_id = v_kept;
        v_kept := v_topic.topic_id;
        v_done := pg_advisory_xact_lock_shared(taskq_internal.topic_lock(v_kept));
    END LOOP;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM FROM taskq_internal.topic WHERE topic_id = v_kept FOR KEY SHARE;
    END IF;
    RETURN v_topic;
END $$;

-- Returns the person that acts in this transaction, as the page and the command line set it in taskq.actor. Returns
-- NULL for programs. Any client may set it, so history and audit also store session_user, the role that logged in.
CREATE FUNCTION taskq_internal.current_actor() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT nullif(left(current_setting('taskq.actor', true), 200), '')
$$;
