-- Junctions: groups of identifiers whose suspended tasks go on together.

-- Releases groups of a topic, and returns the identifiers whose tasks were released. The two arrays go together: an identifier,
-- and the number of a group that it is in. A group is released where each of its identifiers has a SUSPENDED task (SINGULAR),
-- or a task in any state but REDUNDANT (ETERNAL), as it was before the call: all SUSPENDED tasks of its identifiers then start
-- anew. Never waits: a group with a SUSPENDED task that another transaction holds is left for a later call, all of it.
CREATE FUNCTION taskq.junction(p_topic text, p_identifiers text[], p_groups int[], p_junction text) RETURNS text[]
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_topic_id  int := (taskq.keep_topic(p_topic)).topic_id;
    v_suspended bigint[];
    v_of        text[];  -- their identifiers
    v_present   text[];
    v_whole     text[];
    v_held      bigint[];
BEGIN
    IF p_junction IS NULL OR p_junction NOT IN ('SINGULAR', 'ETERNAL') THEN
        PERFORM taskq.refuse('TQ000', format('junction %L is none of SINGULAR, ETERNAL', p_junction));
    END IF;
    SELECT array_agg(e.sequence), array_agg(e.identifier) INTO v_suspended, v_of FROM taskq.ended e
    WHERE e.identifier = ANY (p_identifiers) AND e.topic_id::bigint = v_topic_id AND e.state = 4;
    IF v_of IS NULL THEN
        RETURN '{}';
    END IF;
    v_present := CASE p_junction WHEN 'SINGULAR' THEN v_of ELSE taskq.stored(v_topic_id, p_identifiers) END;
    v_whole := taskq.in_whole_groups(p_identifiers, p_groups, v_present);
    v_held := taskq.hold_suspended(v_topic_id, ARRAY(
        SELECT s.sequence FROM unnest(v_suspended, v_of) AS s (sequence, identifier)
        JOIN unnest(v_whole) AS w (identifier) USING (identifier)));
    v_present := ARRAY(SELECT unnest(v_present) EXCEPT
                       SELECT s.identifier FROM unnest(v_suspended, v_of) AS s (sequence, identifier)
                       LEFT JOIN unnest(v_held) AS h (held) ON h.held = s.sequence WHERE h.held IS NULL);
    v_whole := taskq.in_whole_groups(p_identifiers, p_groups, v_present);
    SELECT coalesce(array_agg(s.sequence), '{}'), coalesce(array_agg(DISTINCT s.identifier), '{}') INTO v_held, v_whole
    FROM unnest(v_suspended, v_of) AS s (sequence, identifier) JOIN unnest(v_whole) AS w (identifier) USING (identifier);
    PERFORM taskq.start_anew(v_topic_id, v_held);
    RETURN v_whole;
END $$;

-- The identifiers of those groups whose every identifier is present.
CREATE FUNCTION taskq.in_whole_groups(p_identifiers text[], p_groups int[], p_present text[]) RETURNS text[] LANGUAGE plpgsql
SET enable_nestloop = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN ARRAY(
        SELECT DISTINCT m.identifier FROM unnest(p_identifiers, p_groups) AS m (identifier, number)
        JOIN (SELECT g.number FROM unnest(p_identifiers, p_groups) AS g (identifier, number)
              LEFT JOIN (SELECT DISTINCT unnest(p_present) AS identifier) p USING (identifier)
              GROUP BY g.number HAVING bool_and(p.identifier IS NOT NULL)) whole USING (number));
END $$;

-- Those of the identifiers that have a task in any state but REDUNDANT. Looks at each identifier's newest tasks first, of which
-- mostly the very first is one.
CREATE FUNCTION taskq.stored(p_topic_id int, p_identifiers text[]) RETURNS text[] LANGUAGE plpgsql
SET enable_nestloop = on SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN ARRAY(
        SELECT n.identifier FROM (SELECT DISTINCT unnest(p_identifiers) AS identifier) n
        CROSS JOIN LATERAL (
            SELECT FROM taskq.task t WHERE t.identifier = n.identifier AND t.topic_id = p_topic_id
            AND (SELECT e.state FROM taskq.ended e WHERE e.topic_id = p_topic_id AND e.sequence = t.sequence) IS DISTINCT FROM 8
            ORDER BY t.sequence DESC LIMIT 1) newest);
END $$;

-- Locks SUSPENDED tasks, and returns those that no other transaction holds.
CREATE FUNCTION taskq.hold_suspended(p_topic_id int, p_sequences bigint[]) RETURNS bigint[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN ARRAY(SELECT e.sequence FROM taskq.ended e
                 WHERE e.topic_id = p_topic_id AND e.sequence = ANY (p_sequences) AND e.state = 4 FOR UPDATE SKIP LOCKED);
END $$;
