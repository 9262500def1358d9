-- Purge: tasks and owners that nobody needs any more are removed for good.

-- Removes the p_size lowest tasks in a range of sequences, both ends included, and returns how many; a bound that is NULL is
-- open. Those of one state, or without a state all that are FAILED to REDUNDANT: ACTIVE, READY and EXPIRED ones are spared
-- unless named. Never waits: a task that another transaction holds stays.
CREATE FUNCTION taskq.purge(p_topic text, p_from bigint, p_to bigint, p_state int, p_size bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
BEGIN
    IF p_state NOT BETWEEN 0 AND 8 THEN
        PERFORM taskq.refuse('TQ000', format('state %s is none of 0 ACTIVE to 8 REDUNDANT', p_state));
    END IF;
    RETURN taskq.purge_states(v_topic_id, coalesce(p_state, 3), coalesce(p_state, 8), p_from, p_to, p_size);
END $$;

-- Removes every task of a topic, held ones too, and returns how many. Never waits: a task that another transaction holds,
-- as it is polling or completing it right now, stays. p_alone: that this call is a transaction of its own, so that a topic with
-- tables of its own may have them emptied at once; for that it waits a moment for whoever uses them.
CREATE FUNCTION taskq.purge_all(p_topic text, p_alone boolean DEFAULT false) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_count    bigint;
BEGIN
    IF p_alone THEN
        v_count := taskq.truncate_topic(v_topic_id, false);
    END IF;
    IF v_count IS NOT NULL THEN
        RETURN v_count;
    END IF;
    RETURN taskq.purge_states(v_topic_id, 0, 1, NULL, NULL, NULL) + taskq.purge_states(v_topic_id, 2, 8, NULL, NULL, NULL);
END $$;

-- Removes tasks of the states p_low to p_high, either two of ACTIVE and READY or two of the rest, in batches that bound the
-- server's memory.
CREATE FUNCTION taskq.purge_states(p_topic_id int, p_low int, p_high int, p_from bigint, p_to bigint, p_size bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_batch bigint;
    v_next  bigint := p_from;
    v_found bigint[];
    v_count bigint := 0;
BEGIN
    LOOP
        v_batch := least(50000, p_size - v_count);
        EXIT WHEN v_batch <= 0;
        v_found := CASE WHEN p_high <= 1 THEN taskq.hold_live(p_topic_id, p_low, p_high, v_next, p_to, v_batch)
                        ELSE taskq.hold_ended(p_topic_id, p_low, p_high, v_next, p_to, v_batch) END;
        PERFORM taskq.remove(p_topic_id, v_found);
        v_count := v_count + cardinality(v_found);
        EXIT WHEN cardinality(v_found) < v_batch;
        v_next := v_found[v_batch] + 1;
    END LOOP;
    RETURN v_count;
END $$;

-- Locks the p_size lowest tasks from p_low to p_high, of ACTIVE and READY, in a range of sequences, and returns their sequences
-- in order. Never waits: leaves out what another transaction holds.
CREATE FUNCTION taskq.hold_live(p_topic_id int, p_low int, p_high int, p_from bigint, p_to bigint, p_size bigint)
RETURNS bigint[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_from bigint := coalesce(p_from, 0);
    v_to   bigint := coalesce(p_to, 9223372036854775807);
BEGIN
    RETURN ARRAY(SELECT l.sequence FROM taskq.live l
                 WHERE l.topic_id = p_topic_id AND CASE WHEN l.holder IS NULL THEN 1 ELSE 0 END BETWEEN p_low AND p_high
                   AND l.sequence BETWEEN v_from AND v_to
                 ORDER BY l.sequence LIMIT p_size FOR UPDATE SKIP LOCKED);
END $$;

-- Removes tasks, whose rows this transaction holds, with all that is stored of them; wakes those that depend on them.
CREATE FUNCTION taskq.remove(p_topic_id int, p_sequences bigint[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_identifiers text[] := '{}';
BEGIN
    IF taskq.is_waited_for(p_topic_id) THEN
        v_identifiers := ARRAY(SELECT DISTINCT t.identifier FROM taskq.task t
                               WHERE t.topic_id = p_topic_id AND t.sequence = ANY (p_sequences));
    END IF;
    DELETE FROM taskq.live WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    DELETE FROM taskq.ended WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    DELETE FROM taskq.task WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    DELETE FROM taskq.dependency WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    DELETE FROM taskq.history WHERE topic_id = p_topic_id AND sequence = ANY (p_sequences);
    IF cardinality(v_identifiers) > 0 THEN
        PERFORM taskq.wake_dependents(p_topic_id, v_identifiers);
    END IF;
END $$;

-- Removes owners that gave no sign of life for so long, whose lease has lapsed or is gone, who hold nothing, and of whom no
-- task that is stored tells: so that every task keeps its owner's name. Returns how many. Skips who is at work right now.
-- Removes the reports of drains that are older, too.
-- What has ended is read once, and only where there is an owner to remove.
CREATE FUNCTION taskq.purge_owners(p_older_than interval) RETURNS bigint LANGUAGE plpgsql
SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_found bigint[];
    v_told  bigint[];
    v_count bigint;
BEGIN
    PERFORM taskq.need_read_committed('owners are purged');
    DELETE FROM taskq.drain WHERE coalesce(finished, began) <= clock_timestamp() - taskq.clamp_age(p_older_than);
    v_found := ARRAY(SELECT o.owner_id FROM taskq.owner o
                     WHERE (o.fence IS NULL OR o.lease_until < clock_timestamp())
                       AND o.seen <= clock_timestamp() - taskq.clamp_age(p_older_than)
                     FOR UPDATE SKIP LOCKED);
    IF cardinality(v_found) = 0 THEN
        RETURN 0;
    END IF;
    v_told := ARRAY(SELECT DISTINCT l.holder FROM taskq.live l JOIN unnest(v_found) AS u (owner_id) ON u.owner_id = l.holder
                    UNION
                    SELECT DISTINCT e.holder FROM taskq.ended e JOIN unnest(v_found) AS u (owner_id) ON u.owner_id = e.holder);
    DELETE FROM taskq.owner WHERE owner_id = ANY (v_found) AND owner_id <> ALL (v_told);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
