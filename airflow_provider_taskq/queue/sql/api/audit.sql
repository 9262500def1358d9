-- What people do by a page or a command line, and the trail that it leaves.

-- Enters an action of this transaction in the trail, under the name that taskq.actor() gives; refuses where nobody is said to act.
-- The actor is what the client says. session_user is the role that logged in: SET ROLE and function owners do not change it.
CREATE FUNCTION taskq.note_action(p_action text, p_topic text, p_what text, p_count bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF taskq.actor() IS NULL THEN
        PERFORM taskq.refuse('TQ000', 'an action that leaves a trail needs somebody who acts: call acting() first');
    END IF;
    INSERT INTO taskq.audit (happened, actor, role, action, topic, what, count)
    VALUES (clock_timestamp(), taskq.actor(), session_user, p_action, p_topic, left(p_what, 2000), p_count);
END $$;

-- The trail, the newest first, of a topic or of all, before a place in it.
CREATE FUNCTION taskq.audit_trail(p_topic text, p_after bigint, p_size int)
RETURNS TABLE (audit_id bigint, happened timestamptz, actor text, role text, action text, topic text, what text, count bigint)
LANGUAGE sql STABLE AS $$
    SELECT a.audit_id, a.happened, a.actor, a.role, a.action, a.topic, a.what, a.count FROM taskq.audit a
    WHERE (p_topic IS NULL OR a.topic = p_topic) AND a.audit_id < coalesce(p_after, 9223372036854775807)
    ORDER BY a.audit_id DESC LIMIT greatest(p_size, 0)
$$;

-- Those of these tasks that are in one of these states, READY or EXPIRED to SUCCEEDED, locked, in order. Leaves out what another transaction
-- holds, and what has come to another state: for who acts on what a filter found a moment ago.
CREATE FUNCTION taskq.hold_found(p_topic text, p_sequences bigint[], p_states int[]) RETURNS bigint[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
BEGIN
    RETURN ARRAY(SELECT l.sequence FROM taskq.live l
                 WHERE l.topic_id = v_topic_id AND l.sequence = ANY (p_sequences) AND l.holder IS NULL AND 1 = ANY (p_states)
                 ORDER BY l.sequence FOR UPDATE SKIP LOCKED)
        || ARRAY(SELECT e.sequence FROM taskq.ended e
                 WHERE e.topic_id = v_topic_id AND e.sequence = ANY (p_sequences) AND e.state BETWEEN 2 AND 6 AND e.state = ANY (p_states)
                 ORDER BY e.sequence FOR UPDATE SKIP LOCKED);
END $$;

-- Removes those of these tasks that are in one of these states, never one that is held, and returns how many. Never waits: what
-- another transaction holds stays.
CREATE FUNCTION taskq.purge_named(p_topic text, p_sequences bigint[], p_states int[]) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_live     bigint[] := ARRAY(SELECT l.sequence FROM taskq.live l
                                 WHERE l.topic_id = v_topic_id AND l.sequence = ANY (p_sequences) AND l.holder IS NULL AND 1 = ANY (p_states)
                                 FOR UPDATE SKIP LOCKED);
    v_ended    bigint[] := ARRAY(SELECT e.sequence FROM taskq.ended e
                                 WHERE e.topic_id = v_topic_id AND e.sequence = ANY (p_sequences) AND e.state = ANY (p_states)
                                 FOR UPDATE SKIP LOCKED);
BEGIN
    PERFORM taskq.remove(v_topic_id, v_live || v_ended);
    RETURN cardinality(v_live || v_ended);
END $$;

-- How many leases lapsed more than p_grace ago, and how many tasks are held under them, both up to a thousand.
CREATE FUNCTION taskq.count_lapsed(p_grace interval, OUT owners bigint, OUT tasks bigint) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_lapsed bigint[] := ARRAY(SELECT o.owner_id FROM taskq.owner o
                               WHERE o.fence IS NOT NULL AND o.lease_until < clock_timestamp() - taskq.clamp_age(p_grace) LIMIT 1000);
BEGIN
    owners := cardinality(v_lapsed);
    tasks := (SELECT count(*) FROM (SELECT FROM taskq.live l WHERE l.holder = ANY (v_lapsed) LIMIT 1000) n);
END $$;
