-- The calls of the specifications, over the public functions of schema taskq. Names are identifiers, separated by
-- spaces. An owner's calls use its current fence, unless they name another one.

-- The sequences of tasks; of several tasks of an identifier that of the held one, else of the first one.
CREATE FUNCTION sequences(topic text, names text) RETURNS bigint[] LANGUAGE sql AS $$
    SELECT array_agg(n.sequence ORDER BY u.place)
    FROM unnest(string_to_array(names, ' ')) WITH ORDINALITY AS u (name, place)
    CROSS JOIN LATERAL (
        SELECT i.sequence FROM taskq.task_info i WHERE i.topic = sequences.topic AND i.identifier = u.name
        ORDER BY i.state, i.sequence LIMIT 1) n
$$;

CREATE FUNCTION states(topic text DEFAULT 'work') RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(i.identifier || ' ' || taskq.state_name(i.state), ', ' ORDER BY i.sequence)
    FROM taskq.task_info i WHERE i.topic = states.topic
$$;

CREATE FUNCTION topic(name text, attempts int DEFAULT 9, probe boolean DEFAULT false) RETURNS boolean LANGUAGE sql AS $$
    SELECT taskq.create_topic(name, p_max_attempts => attempts, p_base => '0', p_probe => probe)
$$;

CREATE FUNCTION push(names text, topic text DEFAULT 'work', insertion text DEFAULT 'APPEND') RETURNS int
LANGUAGE sql AS $$
    SELECT cardinality(taskq.push(topic, insertion, string_to_array(names, ' ')))
$$;

CREATE FUNCTION register(owner text) RETURNS boolean LANGUAGE sql AS $$
    SELECT resumed FROM taskq.register(owner)
$$;

CREATE FUNCTION fence(owner text) RETURNS bigint LANGUAGE sql AS $$
    SELECT fence FROM taskq.owner(owner)
$$;

-- Lets the lease of an owner lapse, which keeps its tasks and gets a new fence.
CREATE FUNCTION lapse(owner text) RETURNS boolean LANGUAGE sql AS $$
    SELECT resumed FROM taskq.register(owner, '1 microsecond')
$$;

CREATE FUNCTION poll(owner text, size int DEFAULT 10, topic text DEFAULT 'work', condition text DEFAULT 'NONE')
RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(p.identifier, ' ' ORDER BY p.place)
    FROM taskq.poll(topic, owner, fence(owner), size, p_condition => condition) WITH ORDINALITY
        AS p (sequence, identifier, payload, reference, attempt, redelivered, place)
$$;

CREATE FUNCTION held(owner text) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(h.identifier, ' ' ORDER BY h.sequence) FROM taskq.held(owner, fence(owner), NULL) h
$$;

CREATE FUNCTION complete(
    owner text, names text, result text DEFAULT 'SUCCESS', topic text DEFAULT 'work', fence bigint DEFAULT NULL
) RETURNS bigint LANGUAGE sql AS $$
    SELECT taskq.complete(owner, coalesce(complete.fence, fence(owner)), s.sequences,
                          array_fill(array_position(ARRAY['FAILURE', 'SUSPENSION', 'FILTER', 'SUCCESS'], result) - 1,
                                     ARRAY[cardinality(s.sequences)])::smallint[])
    FROM (SELECT sequences(topic, names) AS sequences OFFSET 0) s
$$;

-- Makes tasks that have ended with a result, or that are held by the owner if the result is NULL.
CREATE FUNCTION made(names text, owner text, result text DEFAULT NULL, topic text DEFAULT 'work') RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM push(names, topic), poll(owner, 1000, topic);
    IF result IS NOT NULL THEN
        PERFORM complete(owner, names, result, topic);
    END IF;
    RETURN states(topic);
END $$;

CREATE FUNCTION expire() RETURNS bigint LANGUAGE sql AS $$
    SELECT taskq.expire()
$$;

CREATE FUNCTION heartbeat(owner text, fence bigint DEFAULT NULL) RETURNS boolean LANGUAGE sql AS $$
    SELECT taskq.heartbeat(owner, coalesce(heartbeat.fence, fence(owner))) IS NOT NULL
$$;

CREATE FUNCTION release(owner text) RETURNS bigint LANGUAGE sql AS $$
    SELECT taskq.release(owner, fence(owner))
$$;
