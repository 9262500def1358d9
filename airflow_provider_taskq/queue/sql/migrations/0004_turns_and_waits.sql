-- Turns and waits: what keeps a READY task from being handed out.

-- The locks of lanes. Whoever polls under a condition locks the row of each identifier's bucket, SKIP LOCKED, until its
-- transaction ends, and then looks again: so that of two such polls only one decides on an identifier. Rows rather than
-- advisory locks, as those of a large batch would not fit the server's lock table. Locked only, never changed, so the
-- table stays as it is made here. Identifiers that share a bucket by chance exclude each other while a poll is open.
CREATE TABLE taskq.lane_lock (bucket int PRIMARY KEY) WITH (fillfactor = 100);
INSERT INTO taskq.lane_lock SELECT generate_series(0, 65535);

-- What a task depends on: the latest task of an identifier, of any topic.
CREATE TABLE taskq.dependency (
    topic_id      int NOT NULL,
    sequence      bigint NOT NULL,
    on_topic_id   int NOT NULL,
    on_identifier text COLLATE "C" NOT NULL,
    waiting       boolean NOT NULL DEFAULT true,   -- whether the task was seen to wait; else nobody has to be woken for it
    PRIMARY KEY (topic_id, sequence, on_topic_id, on_identifier)
);
CREATE INDEX dependency_waiting ON taskq.dependency (on_topic_id, on_identifier) WHERE waiting;

-- The probe of a topic whose policy stops at the first failure: while its retries fail, one of them is out at a time.
CREATE TABLE taskq.probe (
    topic_id  int PRIMARY KEY,
    failing   boolean NOT NULL,
    failed_at timestamptz,                     -- when the last probe failed; NULL while none has failed
    sequences bigint[] NOT NULL DEFAULT '{}'   -- the last probe: one retry, or those of one group of a batch
) WITH (fillfactor = 50);
