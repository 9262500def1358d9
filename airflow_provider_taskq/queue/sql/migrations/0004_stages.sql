-- Stages: the executors of a distributed job stage decisions and tasks, and its driver commits all of them at once.

-- Staged decisions. The table is unlogged. If a crash of the server loses its rows, the counts of the stage tell this,
-- and the job runs again.
CREATE UNLOGGED TABLE taskq.staged (
    stage    uuid NOT NULL,
    part     int NOT NULL,
    attempt  bigint NOT NULL,      -- the number of the executor's attempt, unique within the job
    sequence bigint NOT NULL,
    result   smallint NOT NULL,
    output   text CHECK (output IS NULL OR output::json IS NOT NULL),  -- a COPY of other text fails
    error    text,
    delay    interval,
    continued boolean              -- whether follow-ups are applied; NULL: those of a SUCCESS are
);
COMMENT ON TABLE taskq.staged IS
'Decisions that the executors of a distributed job stage by COPY. taskq.commit_stage commits them. Roles may only insert
rows.';
CREATE INDEX staged_stage ON taskq.staged (stage, part, attempt);

-- Stages of decisions and pushes, from their opening on. The row of a stage stays for at least a day, so that a driver
-- that repeats its commit gets the same answer and changes nothing.
CREATE TABLE taskq_internal.stage (
    stage     uuid PRIMARY KEY,
    fence     bigint,                          -- the fence of the stage's owner; NULL for a push
    -- The condition of the claim. Under a condition, no decision overtakes the turn of its identifier.
    condition text NOT NULL DEFAULT 'NONE',
    rounds    boolean NOT NULL DEFAULT false,  -- the owner claims again after the commit, under the same lease
    opened    timestamptz NOT NULL DEFAULT clock_timestamp(),
    opened_by name NOT NULL,                   -- the role; roles that are limited to topics use only their own stages
    completed bigint,                          -- how many tasks were completed or pushed; NULL until the commit
    results   bigint[],                        -- how many tasks were completed with each result, from FAILURE on
    pushed    bigint,                          -- how many tasks the follow-ups of these decisions pushed
    returned  bigint,                          -- how many decisions the commit dropped, whose tasks come back later
    closed    timestamptz                      -- when it was committed or abandoned
);

-- Drains: one row for each name, for its latest drain. If `finished` is NULL, the drain is running or its program was
-- killed. The next drain with the same name continues it, so that the report includes the failures that the killed
-- program committed.
CREATE TABLE taskq_internal.drain (
    name     text PRIMARY KEY CHECK (name ~ '\S' AND octet_length(name) <= 2000),
    topic    text NOT NULL,
    -- The fence of the owner that drains. It is NULL for a drain with several owners, whose names begin with this name.
    fence    bigint,
    began    timestamptz NOT NULL,
    finished timestamptz,
    report   json
);

-- Staged tasks. The table is unlogged, like taskq.staged.
CREATE UNLOGGED TABLE taskq.staged_task (
    stage        uuid NOT NULL,
    part         int NOT NULL,
    attempt      bigint NOT NULL,  -- the number of the executor's attempt, unique within the job
    place        bigint NOT NULL,  -- the position of the task within its part
    parent       bigint,           -- the decided task that this task follows; NULL for a plain push
    priority     int,
    suspended    boolean,
    available_at timestamptz,
    delay        interval,
    ttl          interval,
    topic        text,             -- NULL if the commit names the topic
    identifier   text,
    payload      text CHECK (payload IS NULL OR payload::json IS NOT NULL),
    reference    text,
    depends_on   json,             -- a list of pairs of topic and identifier
    junction     text              -- of groups to release, which the payload lists; NULL for a task
);
COMMENT ON TABLE taskq.staged_task IS
'Tasks, and groups to release, that the executors of a distributed job stage by COPY. taskq.commit_stage commits them.
Roles may only insert rows.';
CREATE INDEX staged_task_stage ON taskq.staged_task (stage, part, attempt, place);

-- The last batch of each stream. A stream that repeats a batch commits nothing.
CREATE TABLE taskq_internal.stream (
    name      text COLLATE "C" NOT NULL CHECK (name ~ '\S' AND octet_length(name) <= 2000),
    -- The ID of the query in its checkpoint. A query with a new checkpoint numbers its batches from 0 again, and these
    -- are no repetitions. The ID is empty if the caller numbers the batches.
    query     text COLLATE "C" NOT NULL CHECK (octet_length(query) <= 500),
    batch     bigint NOT NULL,
    committed timestamptz NOT NULL,
    PRIMARY KEY (name, query)
);
