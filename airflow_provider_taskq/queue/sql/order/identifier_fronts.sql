-- Fronts of identifiers: where polls under a condition begin to read the tasks of an identifier that has many (see
-- taskq_internal.identifier_front). Such a poll asks two questions about each identifier: which of its tasks is ACTIVE,
-- and which of its READY tasks is the first. The index entries of its claimed tasks lie before both answers.
--
-- The READY tasks follow the rules of order/fronts.sql, and so does the bound of their front. The ACTIVE tasks have
-- rules of the same kind:
--
--   - A transaction that claims tasks first announces the time (announce_claim). Then it reads the clock. The time of
--     the claim (live.polled) is that time or later.
--   - claimed_at says that no task of the identifier that was claimed before is still ACTIVE. The session reads the
--     clock, then pg_locks, and then looks for an ACTIVE task. If it finds none besides those that it has just claimed
--     itself, claimed_at is the earliest time in the announcements of open claims, and no later than the clock.
--
-- So polls see each ACTIVE task. If its claim had been committed before the read of pg_locks, the search finds it. If
-- the claim was open, its announcement is no later than its time, and claimed_at is no later than the announcement. If
-- it announced itself after that read, it read the clock later than the session did.
--
-- The row of the empty identifier has the latest available_at and claimed_at of its topic. After a clock was set back,
-- a claim takes that time, and a task that is due before it is late. Every other row may be removed at any time: polls
-- then read more.

-- Announces that this transaction claims tasks of a topic. Returns the time of the claim.
CREATE FUNCTION taskq_internal.announce_claim(p_topic_id int) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    v_time bigint := taskq_internal.announce_time(:LOCK_CLAIM_TIME);
BEGIN
    RETURN greatest(clock_timestamp(), (SELECT i.claimed_at FROM taskq_internal.identifier_front i
                                        WHERE i.topic_id = p_topic_id AND i.identifier = ''
                                        ORDER BY i.number DESC LIMIT 1));
END $$;

-- Returns whether a topic has fronts of identifiers. If not, no poll searches for them.
CREATE FUNCTION taskq_internal.has_identifier_fronts(p_topic_id int) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT i.number FROM taskq_internal.identifier_front i WHERE i.topic_id = p_topic_id
            ORDER BY i.identifier, i.number DESC LIMIT 1) IS NOT NULL;
END $$;

-- Returns the newest front of an identifier. p_any is the result of has_identifier_fronts. The planner inlines this
-- function and the next three into the queries of polls.
CREATE FUNCTION taskq_internal.newest_identifier_front(p_topic_id int, p_identifier text, p_any boolean)
RETURNS TABLE (claimed_at timestamptz, priority smallint, available_at timestamptz, sequence bigint)
LANGUAGE sql STABLE AS $$
    SELECT i.claimed_at, i.priority, i.available_at, i.sequence FROM taskq_internal.identifier_front i
    WHERE p_any AND i.topic_id = p_topic_id AND i.identifier = p_identifier ORDER BY i.number DESC LIMIT 1
$$;

-- Returns the task that has the turn of an identifier: its ACTIVE task, or else its attempted task with the lowest
-- sequence. p_claimed_at is that of the identifier's front. Returns no row if it has neither.
CREATE FUNCTION taskq_internal.turn_of_identifier(p_topic_id int, p_identifier text, p_claimed_at timestamptz)
RETURNS TABLE (sequence bigint, holder bigint) LANGUAGE sql STABLE AS $$
    SELECT a.sequence, a.holder FROM taskq_internal.live a
    WHERE a.identifier = p_identifier AND a.topic_id = p_topic_id AND a.attempt > 0
      AND coalesce(a.polled, 'infinity') >= coalesce(p_claimed_at, '-infinity')
    ORDER BY coalesce(a.polled, 'infinity'), a.sequence LIMIT 1
$$;

-- Returns the first due task of an identifier at a priority. p_available_at and p_sequence are those of a front. With
-- p_identifier NULL it returns no row, at no cost.
CREATE FUNCTION taskq_internal.head_of_identifier(
    p_topic_id int, p_identifier text, p_now timestamptz, p_priority smallint, p_available_at timestamptz,
    p_sequence bigint
) RETURNS TABLE (sequence bigint, priority smallint, available_at timestamptz) LANGUAGE sql STABLE AS $$
    (SELECT l.sequence, l.priority, l.available_at FROM taskq_internal.live l
     WHERE p_identifier IS NOT NULL AND l.topic_id::bigint = p_topic_id AND l.topic_id = p_topic_id
       AND l.identifier = p_identifier AND l.holder IS NULL AND l.late
       AND l.waits <= :WAITS_NOTHING AND l.priority::int = p_priority AND l.available_at <= p_now
       AND (l.available_at, l.sequence) < (p_available_at, p_sequence)
     ORDER BY l.available_at, l.sequence LIMIT 1)
    UNION ALL
    (SELECT l.sequence, l.priority, l.available_at FROM taskq_internal.live l
     WHERE p_identifier IS NOT NULL AND l.topic_id::bigint = p_topic_id AND l.topic_id = p_topic_id
       AND l.identifier = p_identifier AND l.holder IS NULL
       AND l.waits + 0 <= :WAITS_NOTHING AND l.priority = p_priority AND l.available_at <= p_now
       AND (l.available_at, l.sequence) >= (p_available_at, p_sequence)
     ORDER BY l.available_at, l.sequence LIMIT 1)
    LIMIT 1
$$;

-- Returns the first identifier after p_after that has a READY task or a front, and whether it has a READY task. It
-- looks for a front first. Otherwise it would read the entries of all claimed tasks of that identifier. p_front is the
-- result of only_front: if it is NULL, an identifier with a front counts as one with a READY task.
CREATE FUNCTION taskq_internal.next_identifier(
    p_topic_id int, p_after text, p_any boolean, p_front taskq_internal.front
) RETURNS TABLE (identifier text, ready boolean) LANGUAGE sql STABLE AS $$
    SELECT coalesce(l.identifier, i.identifier),
           l.identifier IS NOT NULL OR (p_front).number IS NULL OR (
               SELECT h.sequence FROM taskq_internal.head_of_identifier(
                   p_topic_id, i.identifier, 'infinity', (p_front).priority,
                   CASE WHEN (i.available_at, i.sequence) > ((p_front).available_at, (p_front).sequence)
                       THEN i.available_at ELSE (p_front).available_at END,
                   CASE WHEN (i.available_at, i.sequence) > ((p_front).available_at, (p_front).sequence)
                       THEN i.sequence ELSE (p_front).sequence END) h) IS NOT NULL
    FROM (SELECT) one
    LEFT JOIN LATERAL (
        SELECT n.identifier, n.available_at, n.sequence FROM taskq_internal.identifier_front n
        WHERE p_any AND n.topic_id = p_topic_id AND n.identifier > p_after
        ORDER BY n.identifier, n.number DESC LIMIT 1) i ON true
    LEFT JOIN LATERAL (
        (SELECT r.identifier FROM taskq_internal.live r
         WHERE i.identifier IS NOT NULL AND r.topic_id::bigint = p_topic_id AND r.topic_id = p_topic_id
           AND r.holder IS NULL AND r.identifier > p_after AND r.identifier < i.identifier
         ORDER BY r.identifier, r.priority DESC, r.available_at, r.sequence LIMIT 1)
        UNION ALL
        (SELECT r.identifier FROM taskq_internal.live r
         WHERE i.identifier IS NULL AND r.topic_id::bigint = p_topic_id AND r.topic_id = p_topic_id
           AND r.holder IS NULL AND r.identifier > p_after
         ORDER BY r.identifier, r.priority DESC, r.available_at, r.sequence LIMIT 1)
        LIMIT 1) l ON true
    WHERE l.identifier IS NOT NULL OR i.identifier IS NOT NULL
$$;

-- Advances the fronts of up to forty identifiers among those of the tasks that this transaction has just claimed. It
-- chooses identifiers that have had p_many tasks or more: the others have few index entries. The bounds are those of
-- front_bounds. An open transaction with an early announcement may set them back, but what an earlier row says of
-- ACTIVE tasks stays true. So claimed_at never goes back.
CREATE FUNCTION taskq_internal.advance_identifier_fronts(
    p_topic_id int, p_claimed bigint[], p_placed timestamptz, p_claims timestamptz, p_many int DEFAULT 20
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_sample bigint[] := ARRAY(SELECT u.sequence FROM unnest(p_claimed) AS u (sequence)
                               WHERE random() * cardinality(p_claimed) < 40 LIMIT 40);
BEGIN
    INSERT INTO taskq_internal.identifier_front (topic_id, identifier, priority, available_at, sequence, claimed_at)
    SELECT p_topic_id, s.identifier, s.priority, f.available_at, f.sequence, greatest(p_claims, i.claimed_at)
    FROM (SELECT DISTINCT l.identifier, l.priority FROM taskq_internal.live l
          WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_sample)) s
    LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, s.identifier, true) i ON true
    CROSS JOIN LATERAL taskq_internal.next_identifier_front(p_topic_id, s.identifier, s.priority, p_placed) f
    WHERE (SELECT t.sequence FROM taskq_internal.task t
           WHERE t.identifier = s.identifier AND t.topic_id = p_topic_id
           ORDER BY t.identifier, t.topic_id, t.sequence OFFSET p_many - 1 LIMIT 1) IS NOT NULL
      AND (SELECT a.sequence FROM taskq_internal.live a
           WHERE a.identifier = s.identifier AND a.topic_id = p_topic_id AND a.attempt > 0 AND a.holder IS NOT NULL
             AND a.sequence <> ALL (p_claimed) AND coalesce(a.polled, 'infinity') < 'infinity'
             AND coalesce(a.polled, 'infinity') >= coalesce(i.claimed_at, '-infinity')
           ORDER BY coalesce(a.polled, 'infinity'), a.sequence LIMIT 1) IS NULL;
    IF FOUND THEN
        INSERT INTO taskq_internal.identifier_front (topic_id, identifier, priority, available_at, sequence, claimed_at)
        SELECT p_topic_id, '', 0, greatest(p_placed, i.available_at), 0, greatest(p_claims, i.claimed_at)
        FROM (SELECT) one LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, '', true) i ON true;
    END IF;
END $$;

-- Returns where the front of an identifier may advance to: to its first READY task of a priority, and not beyond the
-- bound.
CREATE FUNCTION taskq_internal.next_identifier_front(
    p_topic_id int, p_identifier text, p_priority smallint, p_bound timestamptz
) RETURNS TABLE (available_at timestamptz, sequence bigint) LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN l.sequence IS NOT NULL THEN l.available_at ELSE greatest(p_bound, f.available_at) END,
           CASE WHEN l.sequence IS NOT NULL THEN l.sequence WHEN p_bound > f.available_at THEN 0 ELSE f.sequence END
    FROM (
        SELECT f.available_at, f.sequence FROM (
            (SELECT i.available_at, i.sequence FROM taskq_internal.identifier_front i
             WHERE i.topic_id = p_topic_id AND i.identifier = p_identifier AND i.priority = p_priority
             ORDER BY i.number DESC LIMIT 1)
            UNION ALL
            (SELECT t.available_at, t.sequence FROM taskq_internal.front t
             WHERE t.topic_id = p_topic_id AND t.priority = p_priority ORDER BY t.number DESC LIMIT 1)) f
        ORDER BY f.available_at DESC, f.sequence DESC LIMIT 1) f
    LEFT JOIN LATERAL (
        SELECT b.available_at, b.sequence FROM taskq_internal.live b
        WHERE b.topic_id::bigint = p_topic_id AND b.topic_id = p_topic_id AND b.identifier = p_identifier
          AND b.holder IS NULL AND b.waits + 0 <= :WAITS_NOTHING AND b.priority = p_priority
          AND b.available_at < p_bound
          AND (b.available_at, b.sequence) >= (f.available_at, f.sequence)
        ORDER BY b.available_at, b.sequence LIMIT 1) l ON true
$$;
