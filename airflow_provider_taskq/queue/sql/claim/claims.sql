-- Claims: locked tasks become ACTIVE under an owner, or go back.

-- Makes READY tasks ACTIVE for a holder and returns their sequences. This transaction has locked their rows.
CREATE FUNCTION taskq_internal.claim_locked(p_topic_id int, p_holder bigint, p_sequences bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := taskq_internal.announce_claim(p_topic_id);
BEGIN
    UPDATE taskq_internal.live SET holder = p_holder, polled = v_now, attempt = attempt + 1
    WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    RETURN p_sequences;
END $$;

-- Makes tasks READY again that this transaction has just claimed.
CREATE FUNCTION taskq_internal.undo_claim(p_topic_id int, p_sequences bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE taskq_internal.live SET holder = NULL, polled = NULL, attempt = attempt - 1, late = true
    WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
END $$;

-- Cuts a claim of this transaction to the tasks that may be held together, and returns their sequences. A task that was
-- held when its owner crashed may be the cause. So it is held together with at most max_claim tasks, all of which have
-- had a crash too. The claim keeps its first tasks, so no task overtakes another. An owner that holds tasks gets
-- crashed tasks only when it has completed those, and the other way round.
CREATE FUNCTION taskq_internal.cut_claim(p_topic_id int, p_holder bigint, p_claimed bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_crashed boolean;
    v_kept    bigint[];
BEGIN
    IF cardinality(p_claimed) = 0 OR NOT EXISTS (SELECT FROM taskq_internal.live l
                                                 WHERE l.topic_id = p_topic_id AND l.max_claim IS NOT NULL) THEN
        RETURN p_claimed;
    END IF;
    v_crashed := EXISTS (SELECT FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
                         AND l.sequence = p_claimed[1] AND l.max_claim IS NOT NULL);
    IF NOT EXISTS (SELECT FROM taskq_internal.live l WHERE l.holder = p_holder AND l.sequence <> ALL (p_claimed)
                   AND (v_crashed OR l.max_claim IS NOT NULL)
                   AND NOT taskq_internal.is_deferred(l)) THEN
        v_kept := ARRAY(
            SELECT k.sequence FROM (
                SELECT u.sequence, u.place, min(l.max_claim) OVER claim AS most,
                       bool_and((l.max_claim IS NOT NULL) = v_crashed) OVER claim AS alike
                FROM unnest(p_claimed) WITH ORDINALITY AS u (sequence, place)
                CROSS JOIN LATERAL (SELECT * FROM taskq_internal.live
                                    WHERE topic_id = p_topic_id AND sequence = u.sequence OFFSET 0) l
                WINDOW claim AS (ORDER BY u.place)) k
            WHERE k.alike AND k.place <= coalesce(k.most, k.place) ORDER BY k.place);
    END IF;
    PERFORM taskq_internal.undo_claim(p_topic_id, p_claimed[coalesce(cardinality(v_kept), 0) + 1:]);
    RETURN coalesce(v_kept, '{}');
END $$;

-- Returns the columns that a client gets of the tasks that it claimed, in the order of the sequences. This is the one
-- nested function with settings of the planner: lookups one by one take twice as long for a thousand tasks as a hash of
-- two scans by an array.
CREATE FUNCTION taskq_internal.claimed_tasks(p_topic_id int, p_sequences bigint[])
RETURNS TABLE (sequence bigint, identifier text, payload json, reference text, attempt int, redelivered boolean)
LANGUAGE plpgsql SET enable_nestloop = off SET enable_hashjoin = on SET enable_sort = on AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT t.sequence, t.identifier, t.payload, t.reference, l.attempt, l.redelivered
    FROM unnest(p_sequences) WITH ORDINALITY AS u (sequence, place)
    JOIN (SELECT * FROM taskq_internal.task WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) t
        USING (sequence)
    JOIN (SELECT * FROM taskq_internal.live WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences)) l
        USING (sequence)
    ORDER BY u.place;
END $$;

-- Raises TQ000 for an unknown order or condition.
CREATE FUNCTION taskq_internal.check_order_and_condition(p_order text, p_condition text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_order IS NULL OR p_order NOT IN ('FIRST_IN_FIRST_OUT', 'LAST_IN_FIRST_OUT') THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'order %L is none of FIRST_IN_FIRST_OUT, LAST_IN_FIRST_OUT', p_order));
    END IF;
    IF p_condition IS NULL OR p_condition NOT IN (
        'NONE', 'SINGULAR_BY_IDENTIFIER', 'SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE',
        'SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS') THEN
        PERFORM taskq_internal.raise_error('TQ000', format('condition %L is none of NONE, SINGULAR_BY_IDENTIFIER,'
            ' SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE, SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS', p_condition));
    END IF;
END $$;
