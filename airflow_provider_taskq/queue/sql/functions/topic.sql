-- Topics: a name, a policy, and whether it hands anything out.

-- The topic of that name; refuses an unknown one (TQ001).
CREATE FUNCTION taskq.find_topic(p_topic text) RETURNS taskq.topic LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic taskq.topic;
BEGIN
    SELECT * INTO v_topic FROM taskq.topic WHERE name = p_topic;
    IF NOT FOUND THEN
        PERFORM taskq.refuse('TQ001', format('topic %L is not known; create it with create_topic', p_topic));
    END IF;
    RETURN v_topic;
END $$;

-- The same for clients: a topic with its policy.
CREATE FUNCTION taskq.policy_of(p_topic text) RETURNS taskq.topic LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN taskq.find_topic(p_topic);
END $$;

-- Creates a topic; false, and nothing changed, where it exists.
CREATE FUNCTION taskq.create_topic(
    p_topic text, p_max_attempts int, p_base interval, p_factor double precision, p_max_delay interval,
    p_horizon interval, p_max_elapsed interval, p_jitter double precision, p_probe boolean,
    p_on_expiry text, p_max_crashes int, p_max_payload_bytes int, p_ttl interval
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM taskq.check_policy(p_topic, p_base, p_max_delay, p_horizon, p_max_elapsed, p_ttl);
    INSERT INTO taskq.topic (name, max_attempts, base, factor, max_delay, horizon, max_elapsed, jitter, probe,
                             on_expiry, max_crashes, max_payload_bytes, ttl)
    VALUES (p_topic, p_max_attempts, p_base, p_factor, p_max_delay, p_horizon, p_max_elapsed, p_jitter, p_probe,
            p_on_expiry, p_max_crashes, p_max_payload_bytes, p_ttl)
    ON CONFLICT (name) DO NOTHING;
    RETURN FOUND;
END $$;

-- Replaces a topic's policy; what is already scheduled keeps its time.
CREATE FUNCTION taskq.alter_topic(
    p_topic text, p_max_attempts int, p_base interval, p_factor double precision, p_max_delay interval,
    p_horizon interval, p_max_elapsed interval, p_jitter double precision, p_probe boolean,
    p_on_expiry text, p_max_crashes int, p_max_payload_bytes int, p_ttl interval
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_topic taskq.topic := taskq.find_topic(p_topic);
BEGIN
    PERFORM taskq.check_policy(p_topic, p_base, p_max_delay, p_horizon, p_max_elapsed, p_ttl);
    UPDATE taskq.topic SET
        max_attempts = p_max_attempts, base = p_base, factor = p_factor, max_delay = p_max_delay,
        horizon = p_horizon, max_elapsed = p_max_elapsed, jitter = p_jitter, probe = p_probe,
        on_expiry = p_on_expiry, max_crashes = p_max_crashes, max_payload_bytes = p_max_payload_bytes, ttl = p_ttl
    WHERE name = p_topic;
    IF p_probe AND NOT v_topic.probe THEN  -- what waits to be retried now waits for the probe as well
        UPDATE taskq.live SET waits = 2 WHERE topic_id = v_topic.topic_id AND holder IS NULL AND attempt > 0 AND waits <= 0;
    END IF;
END $$;

-- Pauses or resumes a topic; false where it already was so. A topic that moves to its own tables stays paused until the move has ended:
-- then it is paused or not as the last call of this function says.
CREATE FUNCTION taskq.set_paused(p_topic text, p_paused boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
BEGIN
    PERFORM FROM taskq.topic WHERE topic_id = v_topic_id FOR NO KEY UPDATE;
    UPDATE taskq.topic_move SET resumes = NOT p_paused WHERE topic_id = v_topic_id AND resumes = p_paused;
    IF FOUND THEN
        RETURN true;
    END IF;
    UPDATE taskq.topic t SET paused = p_paused WHERE t.topic_id = v_topic_id AND t.paused <> p_paused
        AND NOT EXISTS (SELECT FROM taskq.topic_move m WHERE m.topic_id = v_topic_id);
    RETURN FOUND;
END $$;

-- The topics' names in alphabetical order.
CREATE FUNCTION taskq.topics() RETURNS SETOF text LANGUAGE sql STABLE AS $$
    SELECT name FROM taskq.topic ORDER BY name
$$;

-- Removes a topic with all its tasks, held ones too; false where there is none. Waits for open pushes to it. Wakes the tasks of
-- other topics that wait for its tasks, which are gone now. Its readers go last, as a handler's transaction stores progress
-- last. p_alone: that this call is a transaction of its own, so that a
-- topic with tables of its own may have them emptied at once; drop_vacant() removes these.
CREATE FUNCTION taskq.drop_topic(p_topic text, p_alone boolean DEFAULT false) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int;
BEGIN
    SELECT topic_id INTO v_topic_id FROM taskq.topic WHERE name = p_topic FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM taskq.close_topic(v_topic_id);
    IF NOT p_alone OR taskq.truncate_topic(v_topic_id, true) IS NULL THEN
        DELETE FROM taskq.live WHERE topic_id = v_topic_id;
        DELETE FROM taskq.ended WHERE topic_id = v_topic_id;
        DELETE FROM taskq.task WHERE topic_id = v_topic_id;
    END IF;
    PERFORM taskq.forget_waits(v_topic_id);
    DELETE FROM taskq.probe WHERE topic_id = v_topic_id;
    DELETE FROM taskq.juncture WHERE topic_id = v_topic_id;
    PERFORM taskq.remove_readers(v_topic_id);
    DELETE FROM taskq.topic WHERE topic_id = v_topic_id;
    RETURN true;
END $$;
