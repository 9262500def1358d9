-- Two tables: pushed tasks, written once, and their states, updated in place.
CREATE TABLE d.task (
    sequence bigint NOT NULL, created timestamptz NOT NULL, due timestamptz NOT NULL, pushed_in xid8,
    topic_id int NOT NULL, priority smallint NOT NULL DEFAULT 0, identifier text NOT NULL, reference text, ttl interval,
    payload json, PRIMARY KEY (topic_id, sequence));
CREATE INDEX ON d.task (identifier, topic_id, sequence);
CREATE TABLE d.state (
    sequence bigint NOT NULL, available_at timestamptz NOT NULL, holder bigint, completed timestamptz,
    topic_id int NOT NULL, attempt int NOT NULL DEFAULT 0, state smallint NOT NULL DEFAULT 1, descent smallint,
    priority smallint NOT NULL DEFAULT 0, crashes smallint NOT NULL DEFAULT 0,
    redelivered boolean NOT NULL DEFAULT false, identifier text NOT NULL, output json, error text,
    PRIMARY KEY (topic_id, sequence));
CREATE INDEX ON d.state (topic_id, priority DESC, available_at, sequence) WHERE state = 1;
CREATE INDEX ON d.state (holder, sequence) WHERE state = 0;
CREATE INDEX ON d.state (identifier, topic_id, holder, priority DESC, available_at, sequence) WHERE state IN (0, 1);

CREATE FUNCTION d.push(p_identifiers text[], p_payloads text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_sequences bigint[] := ARRAY(SELECT nextval('d.numbers') FROM generate_series(1, cardinality(p_identifiers)));
BEGIN
    INSERT INTO d.task (sequence, topic_id, identifier, payload, created, due, pushed_in)
    SELECT n, 1, i, p::json, now(), now(), pg_current_xact_id()
    FROM unnest(v_sequences, p_identifiers, p_payloads) AS u (n, i, p);
    INSERT INTO d.state (sequence, topic_id, identifier, available_at)
    SELECT n, 1, i, now() FROM unnest(v_sequences, p_identifiers) AS u (n, i);
END $$;

CREATE FUNCTION d.claim(p_size int) RETURNS TABLE (sequence bigint, identifier text, payload json) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    v_claimed bigint[];
BEGIN
    v_claimed := ARRAY(SELECT s.sequence FROM d.state s
                     WHERE s.topic_id = 1 AND s.state = 1 AND s.priority = 0 AND s.available_at <= now()
                     ORDER BY s.available_at, s.sequence LIMIT p_size FOR UPDATE SKIP LOCKED);
    UPDATE d.state SET state = 0, holder = 7, attempt = attempt + 1 WHERE topic_id = 1 AND sequence = ANY (v_claimed);
    RETURN QUERY SELECT t.sequence, t.identifier, t.payload FROM d.task t
    WHERE t.topic_id = 1 AND t.sequence = ANY (v_claimed);
END $$;

CREATE FUNCTION d.finish(p_sequences bigint[], p_outputs text[]) RETURNS void LANGUAGE sql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
    UPDATE d.state s SET state = 6, completed = now(), output = o::json
    FROM unnest(p_sequences, p_outputs) AS u (n, o)
    WHERE s.state = 0 AND s.holder = 7 AND s.sequence = ANY (p_sequences) AND s.sequence = u.n
$$;
