-- Junctions: a group of SUSPENDED tasks that is complete becomes READY.

-- Returns the keys by which the queue recognizes the groups.
CREATE FUNCTION taskq_internal.group_keys(p_identifiers text[], p_groups int[], p_junction text)
RETURNS TABLE (number int, key uuid) LANGUAGE sql IMMUTABLE AS $$
    SELECT m.number, md5(p_junction || jsonb_agg(DISTINCT m.identifier))::uuid
    FROM unnest(p_identifiers, p_groups) AS m (identifier, number) GROUP BY m.number
$$;

-- Raises TQ000 for an unknown junction.
CREATE FUNCTION taskq_internal.check_junction(p_junction text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_junction IS NULL OR p_junction NOT IN ('SINGULAR', 'ETERNAL') THEN
        PERFORM taskq_internal.raise_error('TQ000', format('junction %L is none of SINGULAR, ETERNAL', p_junction));
    END IF;
END $$;

CREATE FUNCTION taskq.junction(p_topic text, p_identifiers text[], p_groups int[], p_junction text) RETURNS text[]
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM taskq_internal.check_junction(p_junction);
    RETURN (taskq_internal.release_groups((taskq_internal.lock_topic_shared(p_topic, 'UPDATE')).topic_id,
            p_identifiers, p_groups, p_junction)).identifiers;
END $$;
COMMENT ON FUNCTION taskq.junction IS
'Releases groups of identifiers: their SUSPENDED tasks become READY. p_identifiers and p_groups have one element for
each member: an identifier and the number of its group. The call releases a group if each of its identifiers has a
SUSPENDED task (SINGULAR), or a task in any state but REDUNDANT (ETERNAL), before the call. Returns the identifiers of
the released tasks. Never waits: a group with a task that another transaction holds stays for a later call. Raises TQ001
for an unknown topic, and TQ000 for an unknown junction.';

-- Releases groups as taskq.junction describes. Returns the numbers of the released groups, and the identifiers of the
-- released tasks.
CREATE FUNCTION taskq_internal.release_groups(
    p_topic_id int, p_identifiers text[], p_groups int[], p_junction text, OUT identifiers text[], OUT numbers int[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_suspended bigint[];
    v_of        text[];  -- their identifiers
    v_present   text[];
    v_held      bigint[];
BEGIN
    SELECT array_agg(e.sequence), array_agg(e.identifier) INTO v_suspended, v_of FROM taskq_internal.ended e
    WHERE e.identifier = ANY (p_identifiers) AND e.topic_id::bigint = p_topic_id AND e.state = :SUSPENDED;
    IF v_of IS NOT NULL THEN
        v_present := CASE p_junction WHEN 'SINGULAR' THEN v_of
            ELSE taskq_internal.identifiers_with_tasks(p_topic_id, p_identifiers) END;
        v_held := taskq_internal.lock_selected(p_topic_id, ARRAY[:SUSPENDED], ARRAY(
            SELECT DISTINCT s.sequence FROM unnest(v_suspended, v_of) AS s (sequence, identifier)
            JOIN taskq_internal.complete_groups(p_identifiers, p_groups, v_present) g USING (identifier)),
            NULL, NULL, NULL);
        v_present := ARRAY(SELECT unnest(v_present) EXCEPT
                           SELECT s.identifier FROM unnest(v_suspended, v_of) AS s (sequence, identifier)
                           LEFT JOIN unnest(v_held) AS h (held) ON h.held = s.sequence WHERE h.held IS NULL);
        SELECT array_agg(DISTINCT s.sequence), array_agg(DISTINCT s.identifier), array_agg(DISTINCT g.number)
        INTO v_held, identifiers, numbers
        FROM unnest(v_suspended, v_of) AS s (sequence, identifier)
        JOIN taskq_internal.complete_groups(p_identifiers, p_groups, v_present) g USING (identifier);
        PERFORM taskq_internal.reset_tasks(p_topic_id, coalesce(v_held, '{}'));
    END IF;
    identifiers := coalesce(identifiers, '{}');
    numbers := coalesce(numbers, '{}');
END $$;

-- Returns the members of the groups that have all their identifiers in p_present.
CREATE FUNCTION taskq_internal.complete_groups(p_identifiers text[], p_groups int[], p_present text[])
RETURNS TABLE (identifier text, number int) LANGUAGE sql IMMUTABLE AS $$
    SELECT m.identifier, m.number FROM unnest(p_identifiers, p_groups) AS m (identifier, number)
    JOIN (SELECT g.number FROM unnest(p_identifiers, p_groups) AS g (identifier, number)
          LEFT JOIN (SELECT DISTINCT unnest(p_present) AS identifier) p USING (identifier)
          GROUP BY g.number HAVING bool_and(p.identifier IS NOT NULL)) whole USING (number)
$$;

-- Returns the identifiers that have a task in any state but REDUNDANT. It looks at the newest tasks of each identifier
-- first: the very first one usually suffices.
CREATE FUNCTION taskq_internal.identifiers_with_tasks(p_topic_id int, p_identifiers text[]) RETURNS text[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT n.identifier FROM (SELECT DISTINCT unnest(p_identifiers) AS identifier) n
        CROSS JOIN LATERAL (
            SELECT FROM taskq_internal.task t WHERE t.identifier = n.identifier AND t.topic_id = p_topic_id
            AND (SELECT e.state FROM taskq_internal.ended e WHERE e.topic_id = p_topic_id
                 AND e.sequence = t.sequence) IS DISTINCT FROM :REDUNDANT
            ORDER BY t.sequence DESC LIMIT 1) newest);
END $$;
