-- Stages: the executors of a distributed job stage decisions and tasks, and its driver commits them all at once.

-- Staged decisions. Unlogged: the counts of a stage tell that a crash of the server lost it, and the job runs again.
CREATE UNLOGGED TABLE taskq.staged (
    stage    uuid NOT NULL,
    part     int NOT NULL,
    attempt  bigint NOT NULL,      -- the number of the executor's attempt, unique within the job
    sequence bigint NOT NULL,
    result   smallint NOT NULL,
    output   text,
    error    text,
    delay    interval
);
COMMENT ON TABLE taskq.staged IS
'Decisions that the executors of a distributed job stage by COPY; taskq.complete_staged commits them. Roles may only
insert.';
CREATE INDEX staged_stage ON taskq.staged (stage, part, attempt);

-- Stages of decisions from the moment they are opened, and pushes from the moment they are committed or abandoned.
-- The row of a committed stage stays for a day at least, so that a driver that repeats its commit gets the same
-- answer and changes nothing.
CREATE TABLE taskq_internal.stage (
    stage     uuid PRIMARY KEY,
    fence     bigint,                          -- of the owner that the stage serves; NULL for a push
    -- under which the tasks were claimed: no decision overtakes its identifier's turn
    condition text NOT NULL DEFAULT 'NONE',
    rounds    boolean NOT NULL DEFAULT false,  -- the owner claims again after the commit, under the same lease
    opened    timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed bigint,                          -- how many tasks were completed or pushed; NULL until the commit
    committed timestamptz                      -- NULL until the commit
);

-- Held tasks without a decision, which the further rounds of the owner do not read again. Unlogged: after a crash of
-- the server they are read once more.
CREATE UNLOGGED TABLE taskq_internal.deferred_task (
    fence    bigint NOT NULL,
    sequence bigint NOT NULL,
    PRIMARY KEY (fence, sequence)
);

-- Drains: one row for each name, for its latest drain. A drain without `finished` is running, or its program was
-- killed: the next drain of the same name continues it, so that the failures that the killed program has committed
-- are counted, too.
CREATE TABLE taskq_internal.drain (
    name     text PRIMARY KEY CHECK (name ~ '\S' AND length(name) <= 1000),
    topic    text NOT NULL,
    -- of the owner that drains; NULL for a drain of several owners whose names begin with this one
    fence    bigint,
    began    timestamptz NOT NULL,
    finished timestamptz,
    report   json
);

-- Staged tasks. Unlogged like taskq.staged.
CREATE UNLOGGED TABLE taskq.staged_task (
    stage        uuid NOT NULL,
    part         int NOT NULL,
    attempt      bigint NOT NULL,  -- the number of the executor's attempt, unique within the job
    place        bigint NOT NULL,  -- the order within the part
    parent       bigint,           -- the decided task that this one follows; NULL for a plain push
    priority     int,
    suspended    boolean,
    staged       timestamptz NOT NULL DEFAULT now(),  -- finds what a dead driver has left
    available_at timestamptz,
    delay        interval,
    ttl          interval,
    topic        text,             -- NULL: the one that the commit names
    identifier   text,
    payload      text,
    reference    text,
    depends_on   text              -- a JSON list of pairs of topic and identifier
);
COMMENT ON TABLE taskq.staged_task IS
'Tasks that the executors of a distributed job stage by COPY; taskq.push_staged or taskq.complete_staged commits them.
Roles may only insert.';
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
COMMENT ON TABLE taskq.staged_junction IS
'Junctions that follow staged decisions; taskq.complete_staged carries them out. Roles may only insert.';
CREATE INDEX staged_junction_stage ON taskq.staged_junction (stage, part, attempt);

-- The last batch of each stream: a repeated batch commits nothing.
CREATE TABLE taskq_internal.stream (
    name      text COLLATE "C" PRIMARY KEY CHECK (name ~ '\S' AND length(name) <= 500),
    batch     bigint NOT NULL,
    committed timestamptz NOT NULL,
    -- The number of the checkpoint that committed the batch. A query with a new checkpoint numbers its batches from 0
    -- again, and those are no repetitions. NULL: numbered by the caller, or not known.
    query     text
);
