-- The queue's design, three tables: pushed tasks, written once; the rows of waiting and held tasks; ended tasks.
-- PARTITIONED is replaced by nothing, or by PARTITION BY LIST (topic_id).
CREATE TABLE d.task (
    sequence bigint NOT NULL, created timestamptz NOT NULL, due timestamptz NOT NULL, pushed_in xid8,
    topic_id int NOT NULL, priority smallint NOT NULL DEFAULT 0, identifier text NOT NULL, reference text, ttl interval,
    payload json, PRIMARY KEY (topic_id, sequence)) PARTITIONED;
CREATE INDEX ON d.task (identifier, topic_id, sequence);
CREATE TABLE d.live (
    sequence bigint NOT NULL, available_at timestamptz NOT NULL, holder bigint, topic_id int NOT NULL,
    attempt int NOT NULL DEFAULT 0, priority smallint NOT NULL DEFAULT 0, crashes smallint NOT NULL DEFAULT 0,
    redelivered boolean NOT NULL DEFAULT false, identifier text NOT NULL, error text,
    PRIMARY KEY (topic_id, sequence)) PARTITIONED;
CREATE INDEX ON d.live (topic_id, priority DESC, available_at, sequence) WHERE holder IS NULL;
CREATE INDEX ON d.live (holder, sequence) WHERE holder IS NOT NULL;
CREATE INDEX ON d.live (identifier, topic_id, holder, priority DESC, available_at, sequence);
CREATE TABLE d.ended (
    sequence bigint NOT NULL, completed timestamptz, available_at timestamptz NOT NULL, holder bigint,
    topic_id int NOT NULL, attempt int NOT NULL, state smallint NOT NULL, descent smallint, crashes smallint NOT NULL,
    redelivered boolean NOT NULL, identifier text NOT NULL, output json, error text,
    PRIMARY KEY (topic_id, sequence)) PARTITIONED;
CREATE INDEX ON d.ended (identifier, topic_id, state, sequence) WHERE state IN (2, 3, 4);

CREATE FUNCTION d.push(p_identifiers text[], p_payloads text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_sequences bigint[] := ARRAY(SELECT nextval('d.numbers') FROM generate_series(1, cardinality(p_identifiers)));
BEGIN
    INSERT INTO d.task (sequence, topic_id, identifier, payload, created, due, pushed_in)
    SELECT n, 1, i, p::json, now(), now(), pg_current_xact_id()
    FROM unnest(v_sequences, p_identifiers, p_payloads) AS u (n, i, p);
    INSERT INTO d.live (sequence, topic_id, identifier, available_at)
    SELECT n, 1, i, now() FROM unnest(v_sequences, p_identifiers) AS u (n, i);
END $$;

CREATE FUNCTION d.claim(p_size int) RETURNS TABLE (sequence bigint, identifier text, payload json) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    v_claimed bigint[];
BEGIN
    v_claimed := ARRAY(SELECT l.sequence FROM d.live l
                     WHERE l.topic_id = 1 AND l.holder IS NULL AND l.priority = 0 AND l.available_at <= now()
                     ORDER BY l.available_at, l.sequence LIMIT p_size FOR UPDATE SKIP LOCKED);
    UPDATE d.live SET holder = 7, attempt = attempt + 1 WHERE topic_id = 1 AND sequence = ANY (v_claimed);
    RETURN QUERY SELECT t.sequence, t.identifier, t.payload FROM d.task t
    WHERE t.topic_id = 1 AND t.sequence = ANY (v_claimed);
END $$;

CREATE FUNCTION d.finish(p_sequences bigint[], p_outputs text[]) RETURNS void LANGUAGE sql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
    WITH gone AS (DELETE FROM d.live WHERE holder = 7 AND sequence = ANY (p_sequences) RETURNING *)
    INSERT INTO d.ended (sequence, completed, available_at, holder, topic_id, attempt, state, crashes, redelivered,
                         identifier, output)
    SELECT g.sequence, now(), g.available_at, g.holder, g.topic_id, g.attempt, 6, g.crashes, g.redelivered,
           g.identifier, u.o::json
    FROM gone g JOIN unnest(p_sequences, p_outputs) AS u (n, o) ON u.n = g.sequence
$$;
