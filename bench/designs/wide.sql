-- One wide table, updated in place: the obvious design. With toast_tuple_target at its minimum, PostgreSQL stores the payloads in the TOAST table.
CREATE TABLE d.task (
    sequence bigint NOT NULL, available_at timestamptz NOT NULL, created timestamptz NOT NULL, due timestamptz,
    completed timestamptz, pushed_in xid8, holder bigint, topic_id int NOT NULL, attempt int NOT NULL DEFAULT 0,
    state smallint NOT NULL DEFAULT 1, descent smallint, priority smallint NOT NULL DEFAULT 0,
    crashes smallint NOT NULL DEFAULT 0, redelivered boolean NOT NULL DEFAULT false, identifier text NOT NULL,
    reference text, payload json, output json, error text, PRIMARY KEY (topic_id, sequence));
CREATE INDEX ON d.task (identifier, topic_id, sequence);
CREATE INDEX ON d.task (topic_id, priority DESC, available_at, sequence) WHERE state = 1;
CREATE INDEX ON d.task (holder, sequence) WHERE state = 0;
CREATE INDEX ON d.task (identifier, topic_id, holder, priority DESC, available_at, sequence) WHERE state IN (0, 1);

CREATE FUNCTION d.push(p_identifiers text[], p_payloads text[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO d.task (sequence, topic_id, identifier, payload, created, available_at, due, pushed_in)
    SELECT nextval('d.numbers'), 1, i, p::json, now(), now(), now(), pg_current_xact_id()
    FROM unnest(p_identifiers, p_payloads) AS u (i, p)
$$;

CREATE FUNCTION d.claim(p_size int) RETURNS TABLE (sequence bigint, identifier text, payload json) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    v_claimed bigint[];
BEGIN
    v_claimed := ARRAY(SELECT t.sequence FROM d.task t
                     WHERE t.topic_id = 1 AND t.state = 1 AND t.priority = 0 AND t.available_at <= now()
                     ORDER BY t.available_at, t.sequence LIMIT p_size FOR UPDATE SKIP LOCKED);
    RETURN QUERY UPDATE d.task t SET state = 0, holder = 7, attempt = attempt + 1
    WHERE t.topic_id = 1 AND t.sequence = ANY (v_claimed) RETURNING t.sequence, t.identifier, t.payload;
END $$;

CREATE FUNCTION d.finish(p_sequences bigint[], p_outputs text[]) RETURNS void LANGUAGE sql
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
    UPDATE d.task t SET state = 6, completed = now(), output = o::json
    FROM unnest(p_sequences, p_outputs) AS u (n, o)
    WHERE t.state = 0 AND t.holder = 7 AND t.sequence = ANY (p_sequences) AND t.sequence = u.n
$$;
