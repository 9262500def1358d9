-- What follows the decisions of a stage: new tasks and junctions, in the transaction that carries the decisions out.
--
-- They are in taskq.staged_task and taskq.staged_junction under the decided task as `parent`. A task is continued where each of its
-- decisions is: SUCCESS unless the decision says otherwise, which a row of taskq.staged_task without topic and identifier tells:
-- suspended = true for "continued all the same", false for "not continued".

-- Whether anything follows a stage.
CREATE FUNCTION taskq.is_followed(p_stage uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM taskq.staged_task WHERE stage = p_stage)
        OR EXISTS (SELECT FROM taskq.staged_junction WHERE stage = p_stage)
$$;

-- Drops what would follow tasks that are not continued. Before the decisions of a task are merged, as all of them count.
CREATE FUNCTION taskq.drop_not_continued(p_stage uuid) RETURNS void LANGUAGE plpgsql
SET enable_nestloop = off AS $$
BEGIN
    WITH said AS (
        SELECT t.parent, count(*) FILTER (WHERE t.suspended) AS yes, count(*) FILTER (WHERE NOT t.suspended) AS no
        FROM taskq.staged_task t WHERE t.stage = p_stage AND t.topic IS NULL AND t.identifier IS NULL GROUP BY t.parent
    ), continued AS (
        SELECT d.sequence
        FROM (SELECT s.sequence, count(*) FILTER (WHERE s.result <> 3) AS others
              FROM taskq.staged s WHERE s.stage = p_stage GROUP BY s.sequence) d
        LEFT JOIN said m ON m.parent = d.sequence
        WHERE d.others <= coalesce(m.yes, 0) AND coalesce(m.no, 0) = 0
    ), not_pushed AS (
        DELETE FROM taskq.staged_task t WHERE t.stage = p_stage
          AND (t.topic IS NULL AND t.identifier IS NULL OR NOT EXISTS (SELECT FROM continued c WHERE c.sequence = t.parent)))
    DELETE FROM taskq.staged_junction j WHERE j.stage = p_stage
      AND NOT EXISTS (SELECT FROM continued c WHERE c.sequence = j.parent);
END $$;

-- Pushes and releases what follows the decisions that were carried out.
CREATE FUNCTION taskq.follow(p_stage uuid, p_parts int[], p_attempts bigint[]) RETURNS void LANGUAGE plpgsql
SET enable_nestloop = off AS $$
BEGIN
    DELETE FROM taskq.staged_task t WHERE t.stage = p_stage
      AND NOT EXISTS (SELECT FROM taskq.staged s WHERE s.stage = p_stage AND s.sequence = t.parent);
    DELETE FROM taskq.staged_junction j WHERE j.stage = p_stage
      AND NOT EXISTS (SELECT FROM taskq.staged s WHERE s.stage = p_stage AND s.sequence = j.parent);
    PERFORM taskq.push_from_stage(p_stage, NULL, 'APPEND', p_parts, p_attempts);
    PERFORM taskq.release_staged(p_stage);
END $$;

-- Releases the groups of a stage, each once, ten thousand of a topic at a time.
CREATE FUNCTION taskq.release_staged(p_stage uuid) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_chunk record;
BEGIN
    FOR v_chunk IN
        SELECT n.topic, n.junction, array_agg(m.identifier) AS identifiers, array_agg(n.nth::int) AS groups
        FROM (SELECT g.*, row_number() OVER (PARTITION BY g.topic, g.junction ORDER BY g.members) AS nth
              FROM (SELECT DISTINCT j.topic, j.junction, e.members::text
                    FROM taskq.staged_junction j CROSS JOIN LATERAL json_array_elements(j.groups::json) AS e (members)
                    WHERE j.stage = p_stage) g) n
        CROSS JOIN LATERAL json_array_elements_text(n.members::json) AS m (identifier)
        GROUP BY n.topic, n.junction, n.nth / 10000 ORDER BY n.topic, n.junction, n.nth / 10000
    LOOP
        PERFORM taskq.junction(v_chunk.topic, v_chunk.identifiers, v_chunk.groups, v_chunk.junction);
    END LOOP;
END $$;
