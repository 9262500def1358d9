-- Tasks and junctions that the executors of a distributed job leave until its driver commits them, and how far streams got.

-- Unlogged like taskq.staged: what a crash of the server loses is found short by its counts, and its job runs again.
CREATE UNLOGGED TABLE taskq.staged_task (
    stage        uuid NOT NULL,
    part         int NOT NULL,
    attempt      bigint NOT NULL,  -- the number of the executor's try, unique within the job
    place        bigint NOT NULL,  -- the order within the part
    parent       bigint,           -- the decided task that this one follows; NULL for a plain push
    priority     int,
    suspended    boolean,
    staged       timestamptz NOT NULL DEFAULT now(),  -- tells what a dead driver left from what a living one stages
    available_at timestamptz,
    delay        interval,
    ttl          interval,
    topic        text,             -- NULL: the one that the commit names
    identifier   text,
    payload      text,
    reference    text,
    depends_on   text              -- a JSON list of pairs of topic and identifier
);
CREATE INDEX staged_task_stage ON taskq.staged_task (stage, part, attempt, place);

-- A junction that follows a decided task.
CREATE UNLOGGED TABLE taskq.staged_junction (
    stage    uuid NOT NULL,
    part     int NOT NULL,
    attempt  bigint NOT NULL,
    parent   bigint,
    topic    text NOT NULL,
    groups   text NOT NULL,        -- a JSON list of lists of identifiers
    junction text NOT NULL
);
CREATE INDEX staged_junction_stage ON taskq.staged_junction (stage, part, attempt);

-- The last batch that each stream committed: a batch that is replayed commits nothing again.
CREATE TABLE taskq.stream (
    name      text COLLATE "C" PRIMARY KEY CHECK (name ~ '\S' AND length(name) <= 500),
    batch     bigint NOT NULL,
    committed timestamptz NOT NULL
);
