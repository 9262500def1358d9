-- Stages: where the executors of a distributed job leave their decisions until its driver commits them all at once.

-- Unlogged: a stage lost in a crash of the server is found short by its counts, and its job runs again.
CREATE UNLOGGED TABLE taskq.staged (
    stage    uuid NOT NULL,
    part     int NOT NULL,
    attempt  bigint NOT NULL,      -- the number of the executor's try, unique within the job
    sequence bigint NOT NULL,
    result   smallint NOT NULL,
    output   text,
    error    text,
    delay    interval
);
CREATE INDEX staged_stage ON taskq.staged (stage, part, attempt);

-- The stages that were committed, so that a driver that asks again gets the same answer and changes nothing.
CREATE TABLE taskq.stage (
    stage     uuid PRIMARY KEY,
    completed bigint NOT NULL,
    committed timestamptz NOT NULL
);

-- Drains: one row for each name, for its latest drain. A drain without `finished` is running, or its program was killed: the next
-- drain of the same name continues it, so that the failures that the killed program has committed are counted, too.
CREATE TABLE taskq.drain (
    name     text PRIMARY KEY CHECK (name ~ '\S' AND length(name) <= 1000),
    topic    text NOT NULL,
    fence    bigint,                 -- of the owner that drains; NULL for a drain of several owners whose names begin with this one
    began    timestamptz NOT NULL,
    finished timestamptz,
    report   json
);
