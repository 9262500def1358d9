-- Junctions: groups of identifiers whose suspended tasks go on together.

-- Releases groups of a topic, and returns the identifiers whose tasks were released. The two arrays go together: an identifier,
-- and the number of a group that it is in. A group is released where each of its identifiers has a SUSPENDED task (SINGULAR),
-- or a task in any state but REDUNDANT (ETERNAL), as it was before the call: all SUSPENDED tasks of its identifiers then start
-- anew. Never waits: a group with a SUSPENDED task that another transaction holds is left for a later call, all of it.
CREATE FUNCTION taskq.junction(p_topic text, p_identifiers text[], p_groups int[], p_junction text) RETURNS text[]
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM taskq.check_junction(p_junction);
    RETURN (taskq.release_groups((taskq.keep_topic_open(p_topic)).topic_id, p_identifiers, p_groups, p_junction)).identifiers;
END $$;

-- The same for somebody who waits until all groups were released, and may ask often: remembers under the name what it has
-- released, so that each group is released once for that name, and returns the numbers of those that it still waits for.
-- A group is known again by its identifiers, whatever its number. What is remembered is gone with taskq.purge_junctures.
CREATE FUNCTION taskq.juncture(p_name text, p_topic text, p_identifiers text[], p_groups int[], p_junction text) RETURNS int[]
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq.keep_topic_open(p_topic)).topic_id;
    v_open     int[];
    v_released int[];
BEGIN
    PERFORM taskq.check_junction(p_junction);
    v_open := ARRAY(
        SELECT k.number FROM taskq.group_keys(p_identifiers, p_groups, p_junction) k
        WHERE NOT EXISTS (SELECT FROM taskq.juncture j WHERE j.name = p_name AND j.topic_id = v_topic_id AND j.key = k.key)
        ORDER BY k.number);
    v_released := (SELECT (taskq.release_groups(v_topic_id, array_agg(m.identifier), array_agg(m.number), p_junction)).numbers
                   FROM unnest(p_identifiers, p_groups) AS m (identifier, number) WHERE m.number = ANY (v_open));
    INSERT INTO taskq.juncture (name, topic_id, key, released)
    SELECT DISTINCT p_name, v_topic_id, k.key, clock_timestamp() FROM taskq.group_keys(p_identifiers, p_groups, p_junction) k
    WHERE k.number = ANY (v_released)
    ON CONFLICT DO NOTHING;
    RETURN ARRAY(SELECT unnest(v_open) EXCEPT SELECT unnest(v_released) ORDER BY 1);
END $$;

-- By what each group is known again.
CREATE FUNCTION taskq.group_keys(p_identifiers text[], p_groups int[], p_junction text) RETURNS TABLE (number int, key uuid)
LANGUAGE sql IMMUTABLE AS $$
    SELECT m.number, md5(p_junction || jsonb_agg(DISTINCT m.identifier))::uuid
    FROM unnest(p_identifiers, p_groups) AS m (identifier, number) GROUP BY m.number
$$;

-- Forgets what was released that long ago for those who waited, and returns how many groups those were.
CREATE FUNCTION taskq.purge_junctures(p_older_than interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    DELETE FROM taskq.juncture WHERE released <= clock_timestamp() - taskq.clamp_age(p_older_than);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Refuses what is no junction (TQ000).
CREATE FUNCTION taskq.check_junction(p_junction text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_junction IS NULL OR p_junction NOT IN ('SINGULAR', 'ETERNAL') THEN
        PERFORM taskq.refuse('TQ000', format('junction %L is none of SINGULAR, ETERNAL', p_junction));
    END IF;
END $$;

-- What taskq.junction promises. numbers: the groups that were released; identifiers: those whose tasks were.
CREATE FUNCTION taskq.release_groups(
    p_topic_id int, p_identifiers text[], p_groups int[], p_junction text, OUT identifiers text[], OUT numbers int[]
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_suspended bigint[];
    v_of        text[];  -- their identifiers
    v_present   text[];
    v_whole     text[];
    v_held      bigint[];
BEGIN
    identifiers := '{}';
    numbers := '{}';
    SELECT array_agg(e.sequence), array_agg(e.identifier) INTO v_suspended, v_of FROM taskq.ended e
    WHERE e.identifier = ANY (p_identifiers) AND e.topic_id::bigint = p_topic_id AND e.state = 4;
    IF v_of IS NULL THEN
        RETURN;
    END IF;
    v_present := CASE p_junction WHEN 'SINGULAR' THEN v_of ELSE taskq.stored(p_topic_id, p_identifiers) END;
    v_whole := taskq.in_whole_groups(p_identifiers, p_groups, v_present);
    v_held := taskq.hold_suspended(p_topic_id, ARRAY(
        SELECT s.sequence FROM unnest(v_suspended, v_of) AS s (sequence, identifier)
        JOIN unnest(v_whole) AS w (identifier) USING (identifier)));
    v_present := ARRAY(SELECT unnest(v_present) EXCEPT
                       SELECT s.identifier FROM unnest(v_suspended, v_of) AS s (sequence, identifier)
                       LEFT JOIN unnest(v_held) AS h (held) ON h.held = s.sequence WHERE h.held IS NULL);
    v_whole := taskq.in_whole_groups(p_identifiers, p_groups, v_present);
    SELECT coalesce(array_agg(s.sequence), '{}'), coalesce(array_agg(DISTINCT s.identifier), '{}') INTO v_held, identifiers
    FROM unnest(v_suspended, v_of) AS s (sequence, identifier) JOIN unnest(v_whole) AS w (identifier) USING (identifier);
    numbers := ARRAY(
        SELECT g.number FROM unnest(p_identifiers, p_groups) AS g (identifier, number)
        LEFT JOIN (SELECT DISTINCT unnest(v_present) AS identifier) p ON p.identifier = g.identifier
        LEFT JOIN unnest(identifiers) AS r (identifier) ON r.identifier = g.identifier
        GROUP BY g.number HAVING bool_and(p.identifier IS NOT NULL) AND bool_or(r.identifier IS NOT NULL));
    PERFORM taskq.start_anew(p_topic_id, v_held);
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
