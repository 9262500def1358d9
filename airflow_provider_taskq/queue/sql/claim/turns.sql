-- Claims of turns: a poll under a condition locks identifiers, checks their turns again, and claims.

-- Claims up to p_size turns for a holder and returns the tasks' sequences. They are in polled order if the first tasks
-- of the topic suffice. Under BATCH it claims the groups of up to p_size identifiers, up to p_each tasks of each. With
-- p_each NULL it claims all their tasks.
CREATE FUNCTION taskq_internal.claim_turns(
    p_topic_id int, p_holder bigint, p_size int, p_lifo boolean, p_condition text, p_each int DEFAULT 1
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_window int := p_size + 16;
    v_widest int := greatest(1000, 2 * p_size);
    v_wanted int := p_size;
    v_many   boolean := false;  -- whether the topic has more than a thousand identifiers
    v_turns  record;
    v_all    record;
    v_got    record;
    v_claimed  bigint[] := '{}';
    v_missed text[] := '{}';
BEGIN
    IF p_size = 1 AND NOT p_lifo AND p_condition <> 'BATCH' THEN
        v_turns := taskq_internal.first_turn(p_topic_id, v_now, p_condition);
        v_got := taskq_internal.claim_found_turns(p_topic_id, p_holder, v_now, p_lifo, p_condition, p_each,
                                                  v_turns.sequences, v_turns.identifiers, v_turns.seen_at);
        IF v_got.identifier_count = 1 THEN
            RETURN v_got.claimed;
        END IF;
    END IF;
    LOOP
        v_turns := taskq_internal.turns_among_first(
            p_topic_id, v_now, p_lifo, p_condition, v_window, v_wanted, v_missed);
        IF cardinality(v_turns.sequences) < v_wanted AND v_turns.seen = v_window
            AND v_turns.identifier_count * 4 < v_turns.seen AND v_window < v_widest THEN
            -- The first identifiers have many tasks. If the topic has few identifiers, examine all of them.
            v_all := taskq_internal.turns_of_few(p_topic_id, v_now, p_lifo, p_condition, v_wanted, v_missed);
            IF v_all.complete THEN
                v_turns := v_all;
            ELSE
                v_many := true;
            END IF;
        END IF;
        v_got := taskq_internal.claim_found_turns(p_topic_id, p_holder, v_now, p_lifo, p_condition, p_each,
                                                  v_turns.sequences, v_turns.identifiers, v_turns.seen_at);
        v_claimed := v_claimed || v_got.claimed;
        v_missed := v_missed || v_got.missed;
        EXIT WHEN v_got.identifier_count >= v_wanted;
        IF cardinality(v_turns.sequences) < v_wanted THEN
            IF v_turns.seen < v_window THEN  -- the window has all due tasks; another task may have the turn now
                EXIT WHEN v_got.identifier_count = cardinality(v_turns.sequences);
            ELSIF v_window >= v_widest THEN
                RETURN v_claimed || taskq_internal.claim_turns_beyond(
                    p_topic_id, p_holder, v_now, p_lifo, p_condition, p_each, v_wanted - v_got.identifier_count,
                    v_missed, v_many);
            ELSE
                v_window := CASE WHEN v_turns.identifier_count * 4 < v_turns.seen THEN v_widest
                    ELSE least(v_window * 4, v_widest) END;
            END IF;
        END IF;
        v_wanted := v_wanted - v_got.identifier_count;
    END LOOP;
    RETURN v_claimed;
END $$;

-- Claims the turns that a query found: one task for each identifier, or groups.
CREATE FUNCTION taskq_internal.claim_found_turns(
    p_topic_id int, p_holder bigint, p_now timestamptz, p_lifo boolean, p_condition text, p_each int,
    p_sequences bigint[], p_identifiers text[], p_seen_at text, OUT claimed bigint[], OUT identifier_count int,
    OUT missed text[]
) LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(p_sequences) = 0 THEN
        claimed := '{}'; identifier_count := 0; missed := '{}';
    ELSIF p_condition = 'BATCH' THEN
        SELECT * INTO claimed, identifier_count, missed
        FROM taskq_internal.claim_groups(p_topic_id, p_holder, p_now, p_each, p_sequences, p_identifiers);
    ELSE
        SELECT * INTO claimed, identifier_count, missed
        FROM taskq_internal.claim_identifiers(p_topic_id, p_holder, p_now, p_lifo, p_condition, p_sequences,
                p_identifiers, p_seen_at);
    END IF;
END $$;

-- Claims turns from identifier to identifier, a thousand at a time. If the topic has no more than a thousand
-- identifiers, it claims their turns in polled order. Otherwise it starts at a random identifier and goes around once,
-- until it has enough tasks. p_many is true if the topic is known to have more.
CREATE FUNCTION taskq_internal.claim_turns_beyond(
    p_topic_id int, p_holder bigint, p_now timestamptz, p_lifo boolean, p_condition text, p_each int, p_size int,
    p_missed text[], p_many boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_start text := CASE WHEN p_many THEN taskq_internal.random_identifier(p_topic_id) END;
    v_after text := coalesce(v_start, '');
    v_until text;
    v_hop   boolean := true;
    v_turns record;
    v_got   record;
    v_claimed bigint[] := '{}';
BEGIN
    LOOP
        v_turns := taskq_internal.turns_beyond(
            p_topic_id, p_now, p_lifo, p_condition, v_after, v_until, v_hop, p_size, p_missed);
        v_hop := v_turns.hop;
        IF v_start IS NULL AND v_turns.last IS NOT NULL THEN
            v_start := taskq_internal.random_identifier(p_topic_id);
            v_after := v_start;
            CONTINUE;
        END IF;
        v_got := taskq_internal.claim_found_turns(p_topic_id, p_holder, p_now, p_lifo, p_condition, p_each,
                                                  v_turns.sequences, v_turns.identifiers, v_turns.seen_at);
        p_missed := p_missed || v_got.missed;
        v_claimed := v_claimed || v_got.claimed;
        p_size := p_size - v_got.identifier_count;
        EXIT WHEN p_size <= 0;
        CONTINUE WHEN v_got.identifier_count < cardinality(v_turns.sequences);  -- another task may have the turn
        IF v_turns.last IS NOT NULL THEN
            v_after := v_turns.last;
        ELSE
            EXIT WHEN v_start IS NULL OR v_until IS NOT NULL;
            v_after := '';
            v_until := v_start;
        END IF;
    END LOOP;
    RETURN v_claimed;
END $$;

-- Locks the identifiers of turns that a query found in a snapshot, checks the turns again, and claims the remaining
-- ones. claimed has their sequences in the given order. identifier_count is the number of their identifiers. missed has
-- the identifiers that other transactions hold or have changed.
CREATE FUNCTION taskq_internal.claim_identifiers(
    p_topic_id int, p_holder bigint, p_now timestamptz, p_lifo boolean, p_condition text, p_sequences bigint[],
    p_identifiers text[], p_seen_at text, OUT claimed bigint[], OUT identifier_count int, OUT missed text[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_mine  bigint[] := taskq_internal.lock_identifiers(p_topic_id, p_sequences, p_identifiers);
    v_found bigint[] := taskq_internal.recheck_turns(p_topic_id, p_now, p_lifo, p_condition, v_mine, p_seen_at);
BEGIN
    missed := '{}';
    IF cardinality(v_found) < cardinality(p_sequences) THEN
        missed := ARRAY(SELECT u.identifier FROM unnest(p_sequences, p_identifiers) AS u (sequence, identifier)
                        WHERE u.sequence <> ALL (v_found));
        v_found := ARRAY(SELECT u.sequence FROM unnest(p_sequences) WITH ORDINALITY AS u (sequence, place)
                         WHERE u.sequence = ANY (v_found) ORDER BY u.place);
    ELSE
        v_found := p_sequences;
    END IF;
    claimed := taskq_internal.claim_locked(p_topic_id, p_holder, v_found);
    identifier_count := cardinality(claimed);
END $$;

-- Does the same for batches: claims all due tasks, up to p_each, of each identifier that still has the turn.
CREATE FUNCTION taskq_internal.claim_groups(
    p_topic_id int, p_holder bigint, p_now timestamptz, p_each int, p_sequences bigint[], p_identifiers text[],
    OUT claimed bigint[], OUT identifier_count int, OUT missed text[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_mine  bigint[] := taskq_internal.lock_identifiers(p_topic_id, p_sequences, p_identifiers);
    v_found bigint[];
    v_of    text[];
BEGIN
    v_found := taskq_internal.lock_groups(p_topic_id, p_now, ARRAY(
        SELECT u.identifier FROM unnest(p_sequences, p_identifiers) WITH ORDINALITY AS u (sequence, identifier, place)
        WHERE u.sequence = ANY (v_mine) ORDER BY u.place), p_each);
    v_of := ARRAY(SELECT DISTINCT l.identifier FROM taskq_internal.live l WHERE l.topic_id = p_topic_id
                  AND l.sequence = ANY (v_found));
    missed := ARRAY(SELECT u.identifier FROM unnest(p_identifiers) AS u (identifier) WHERE u.identifier <> ALL (v_of));
    claimed := taskq_internal.claim_locked(p_topic_id, p_holder, v_found);
    identifier_count := cardinality(v_of);
END $$;

-- Locks the due tasks of identifiers that this transaction has locked, at most p_each of each identifier. With p_each
-- NULL it locks all of them. Returns them in the order of the identifiers. The attempted tasks of an identifier come
-- first, by sequence, as they have its turn: otherwise a bounded poll would let another task overtake a retry. It
-- checks each identifier again, and leaves out a blocked identifier and an identifier with a task that another
-- transaction holds.
CREATE FUNCTION taskq_internal.lock_groups(p_topic_id int, p_now timestamptz, p_identifiers text[], p_each int)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_front  taskq_internal.front := taskq_internal.only_front(p_topic_id, false);
    v_found  bigint[];
    v_locked bigint[];
BEGIN
    v_found := ARRAY(
        SELECT l.sequence FROM unnest(p_identifiers) WITH ORDINALITY AS u (identifier, place)
        LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, u.identifier, true) i ON true
        CROSS JOIN LATERAL (
            (SELECT b.sequence, b.priority, b.available_at, b.sequence AS attempted FROM taskq_internal.live b
             WHERE b.identifier = u.identifier AND b.topic_id = p_topic_id AND b.attempt > 0
               AND coalesce(b.polled, 'infinity') = 'infinity' AND b.holder IS NULL
               AND b.waits + 0 <= :WAITS_NOTHING AND b.available_at <= p_now
             ORDER BY b.sequence LIMIT p_each)
            UNION ALL
            (SELECT b.sequence, b.priority, b.available_at, NULL FROM taskq_internal.live b
             WHERE (i.claimed_at IS NULL OR v_front.number IS NULL)
               AND b.topic_id::bigint = p_topic_id AND b.topic_id = p_topic_id AND b.identifier = u.identifier
               AND b.holder IS NULL AND b.attempt = 0
               -- + 0 keeps the planner from the index live_ready, which has the tasks of all identifiers.
               AND b.waits + 0 <= :WAITS_NOTHING AND b.available_at <= p_now
             ORDER BY b.priority DESC, b.available_at, b.sequence LIMIT p_each)
            UNION ALL
            (SELECT b.sequence, b.priority, b.available_at, NULL FROM taskq_internal.live b
             WHERE i.claimed_at IS NOT NULL AND v_front.number IS NOT NULL
               AND b.topic_id::bigint = p_topic_id AND b.topic_id = p_topic_id AND b.identifier = u.identifier
               AND b.holder IS NULL AND b.attempt = 0
               AND b.late AND b.waits <= :WAITS_NOTHING AND b.priority::int = v_front.priority
               AND b.available_at <= p_now AND (b.available_at, b.sequence) < (i.available_at, i.sequence)
             ORDER BY b.available_at, b.sequence LIMIT p_each)
            UNION ALL
            (SELECT b.sequence, b.priority, b.available_at, NULL FROM taskq_internal.live b
             WHERE i.claimed_at IS NOT NULL AND v_front.number IS NOT NULL
               AND b.topic_id::bigint = p_topic_id AND b.topic_id = p_topic_id AND b.identifier = u.identifier
               AND b.holder IS NULL AND b.attempt = 0
               AND b.waits + 0 <= :WAITS_NOTHING AND b.priority = v_front.priority
               AND b.available_at <= p_now AND (b.available_at, b.sequence) >= (i.available_at, i.sequence)
             ORDER BY b.available_at, b.sequence LIMIT p_each)
            LIMIT p_each) l
        WHERE (SELECT t.holder FROM taskq_internal.turn_of_identifier(p_topic_id, u.identifier, i.claimed_at) t) IS NULL
          AND (SELECT e.sequence FROM taskq_internal.ended e WHERE e.identifier = u.identifier
               AND e.topic_id = p_topic_id AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED) AND e.state = :FAILED
               ORDER BY e.state, e.sequence LIMIT 1) IS NULL
          AND NOT taskq_internal.has_undue_retry(p_topic_id, u.identifier, p_now)
        ORDER BY u.place, l.attempted, l.priority DESC, l.available_at, l.sequence);
    v_locked := ARRAY(SELECT l.sequence FROM taskq_internal.live l
                      WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_found) AND l.holder IS NULL
                          FOR UPDATE SKIP LOCKED);
    IF cardinality(v_locked) = cardinality(v_found) THEN
        RETURN v_found;
    END IF;
    RETURN ARRAY(
        SELECT u.sequence FROM unnest(v_found) WITH ORDINALITY AS u (sequence, place)
        JOIN taskq_internal.live l ON l.topic_id = p_topic_id AND l.sequence = u.sequence
        WHERE l.identifier NOT IN (SELECT m.identifier FROM taskq_internal.live m WHERE m.topic_id = p_topic_id
                                   AND m.sequence = ANY (v_found) AND m.sequence <> ALL (v_locked))
        ORDER BY u.place);
END $$;

-- Locks identifiers until the transaction ends. Returns the sequences of the identifiers that it could lock.
CREATE FUNCTION taskq_internal.lock_identifiers(p_topic_id int, p_sequences bigint[], p_identifiers text[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_buckets int[] := ARRAY(SELECT taskq_internal.identifier_bucket(p_topic_id, u.identifier)
                             FROM unnest(p_identifiers) AS u (identifier));
    v_locked  int[] := ARRAY(SELECT b.bucket FROM taskq_internal.identifier_lock b WHERE b.bucket = ANY (v_buckets)
                             FOR UPDATE SKIP LOCKED);
BEGIN
    IF cardinality(v_locked) = 0 AND NOT EXISTS (SELECT FROM taskq_internal.identifier_lock) THEN
        PERFORM taskq_internal.create_rows();
        v_locked := ARRAY(SELECT b.bucket FROM taskq_internal.identifier_lock b WHERE b.bucket = ANY (v_buckets)
                          FOR UPDATE SKIP LOCKED);
    END IF;
    IF cardinality(v_locked) = cardinality(v_buckets) THEN  -- all identifiers are locked, and no two share a bucket
        RETURN p_sequences;
    END IF;
    -- A condition in the select list becomes a lookup in a hash, and never a join.
    RETURN array_remove(ARRAY(SELECT CASE WHEN u.bucket IN (SELECT unnest(v_locked)) THEN u.sequence END
                              FROM unnest(p_sequences, v_buckets) AS u (sequence, bucket)), NULL);
END $$;

-- Locks and returns the tasks among p_sequences that still have the turn of their identifiers, which this transaction
-- has locked. If no transaction has committed since the snapshot p_seen_at, all of them have.
CREATE FUNCTION taskq_internal.recheck_turns(
    p_topic_id int, p_now timestamptz, p_lifo boolean, p_condition text, p_sequences bigint[], p_seen_at text
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_blocking smallint[] := taskq_internal.blocking_states(p_condition);
    v_any      boolean;
    v_front    taskq_internal.front;
    v_locked   bigint[];
    v_same     boolean;
BEGIN
    SELECT array_agg(l.sequence), bool_and(l.same) INTO v_locked, v_same FROM (
        SELECT l.sequence, pg_current_snapshot()::text = p_seen_at AS same FROM taskq_internal.live l
        -- num_nulls and + 0 keep the planner from the indexes of READY tasks.
        WHERE l.topic_id = p_topic_id AND l.sequence = ANY (p_sequences) AND num_nulls(l.holder) = 1
            AND l.waits + 0 <= :WAITS_NOTHING
        FOR UPDATE SKIP LOCKED) l;
    IF v_same IS NOT FALSE THEN
        RETURN coalesce(v_locked, '{}');
    END IF;
    v_any := taskq_internal.has_identifier_fronts(p_topic_id);
    v_front := taskq_internal.only_front(p_topic_id, p_lifo);
    RETURN ARRAY(
        SELECT l.sequence FROM taskq_internal.live l
        LEFT JOIN LATERAL taskq_internal.newest_identifier_front(p_topic_id, l.identifier, v_any) i ON true
        WHERE l.topic_id = p_topic_id AND l.sequence = ANY (v_locked)
          AND coalesce((
                SELECT t.sequence FROM taskq_internal.turn_of_identifier(p_topic_id, l.identifier, i.claimed_at) t),
              l.sequence) = l.sequence
          AND CASE WHEN l.attempt > 0 THEN true
              -- Most identifiers have no front, and their first READY task is due: one index probe.
              WHEN i.claimed_at IS NULL AND NOT p_lifo AND l.sequence = (
                  SELECT b.sequence FROM taskq_internal.live b
                  WHERE b.topic_id::bigint = p_topic_id AND b.topic_id = p_topic_id
                    AND b.identifier = l.identifier AND b.holder IS NULL
                  ORDER BY b.priority DESC, b.available_at, b.sequence LIMIT 1) THEN true
              WHEN i.claimed_at IS NULL OR v_front.number IS NULL
                  THEN l.sequence = taskq_internal.first_due_of_identifier(p_topic_id, l.identifier, p_now, p_lifo)
              ELSE l.sequence = (
                  SELECT h.sequence FROM taskq_internal.head_of_identifier(
                      p_topic_id, l.identifier, p_now, v_front.priority,
                      CASE WHEN (i.available_at, i.sequence) > (v_front.available_at, v_front.sequence)
                          THEN i.available_at ELSE v_front.available_at END,
                      CASE WHEN (i.available_at, i.sequence) > (v_front.available_at, v_front.sequence)
                          THEN i.sequence ELSE v_front.sequence END) h) END
          AND (cardinality(v_blocking) = 0 OR (
              SELECT e.sequence FROM taskq_internal.ended e WHERE e.identifier = l.identifier
                AND e.topic_id = p_topic_id AND e.state IN (:EXPIRED, :FAILED, :SUSPENDED)
                AND e.state = ANY (v_blocking)
              ORDER BY e.state, e.sequence LIMIT 1) IS NULL));
END $$;
