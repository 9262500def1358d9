-- Tasks, in three tables by what happens to their rows (measured in bench/designs.py):
--
--   task   what was pushed. Written once, never changed, so its payload and its indexes are never written again.
--   live   the narrow, hot part: a row while the task waits (holder IS NULL: READY) or is held (ACTIVE).
--   ended  a row once the task is in any other state.
--
-- Every task has a row in `task`, and one in exactly one of the other two. A claim updates a narrow row; an end
-- moves it. So the hot table is as large as what is unfinished, however much history there is.
--
-- All three are partitioned by topic, with one default partition: a busy topic can be given partitions of its own.
-- Foreign keys to topic are left out: they would lock the topic's row at every push. push and drop_topic
-- exclude each other by an advisory lock instead (functions/topic_lock.sql).
--
-- An index begins with the plain topic_id only where that is the one way to use it: so that on a table that was never
-- analysed, or was just emptied, the planner has one choice, and it is the right one.
--
-- Identifiers compare by bytes (COLLATE "C"): the same everywhere, and several times as fast.

CREATE SEQUENCE taskq.task_sequence;

CREATE TABLE taskq.task (
    sequence   bigint NOT NULL,
    created    timestamptz NOT NULL,
    due        timestamptz NOT NULL,           -- as pushed: the place that reset, release and redelivery give back
    pushed_in  xid8 NOT NULL,                  -- the transaction that pushed it: how a push in several calls knows its own
    topic_id   int NOT NULL,
    priority   smallint NOT NULL,
    identifier text COLLATE "C" NOT NULL,
    reference  text,
    ttl        interval CHECK (ttl BETWEEN interval '0' AND interval '3650 days'),
    payload    json,
    PRIMARY KEY (topic_id, sequence)
) PARTITION BY LIST (topic_id);
CREATE INDEX task_identifier ON taskq.task (identifier, topic_id, sequence);
CREATE INDEX task_reference ON taskq.task (reference, topic_id, sequence) WHERE reference IS NOT NULL;
-- For a moment's first sequence. A block range index, as rows come in the order of their time: a thousandth of a b-tree.
CREATE INDEX task_created ON taskq.task USING brin (created) WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE taskq.live (
    sequence     bigint NOT NULL,
    available_at timestamptz NOT NULL,         -- when due; while it waits for dependencies: when to look at them next
    holder       bigint,                       -- owner_id; NULL while READY
    polled       timestamptz,                  -- when the holder claimed it; NULL while READY
    topic_id     int NOT NULL,
    attempt      int NOT NULL DEFAULT 0,
    priority     smallint NOT NULL,
    crashes      smallint NOT NULL DEFAULT 0,
    -- What a READY task waits for beside its time: 0 nothing; 1 its dependencies; 2 the probe of its topic. Such tasks are
    -- in none of the indexes that a poll walks. -1: it has dependencies, all fulfilled when somebody looked last.
    waits        smallint NOT NULL DEFAULT 0,
    redelivered  boolean NOT NULL DEFAULT false,
    identifier   text COLLATE "C" NOT NULL,
    error        text,                         -- of the last noted failure, as a bounded traceback
    error_summary text,  -- the same in one line of at most 200 characters
    due_again    timestamptz,                  -- while it waits for dependencies: when due, where not as pushed
    failed_at    timestamptz,                  -- when the last noted failure was
    PRIMARY KEY (topic_id, sequence)
) PARTITION BY LIST (topic_id);
CREATE INDEX live_ready ON taskq.live (topic_id, priority DESC, available_at, sequence) WHERE holder IS NULL AND waits <= 0;
CREATE INDEX live_waiting ON taskq.live (topic_id, waits, available_at, sequence) WHERE holder IS NULL AND waits > 0;
CREATE INDEX live_probing ON taskq.live (topic_id, priority DESC, available_at, sequence) WHERE holder IS NULL AND waits = 2;
-- The retries of a topic that probes, in turn: the retry that failed last comes last.
CREATE INDEX live_probing_in_turn ON taskq.live (topic_id, failed_at NULLS FIRST, priority DESC, sequence, available_at)
    WHERE holder IS NULL AND waits = 2;
CREATE INDEX live_held ON taskq.live (holder, sequence) WHERE holder IS NOT NULL;
-- Retries that wait, for those who look through them. No claim enters or leaves it but that of a retry.
CREATE INDEX live_retrying ON taskq.live ((topic_id::bigint), sequence) WHERE holder IS NULL AND attempt > 0;
-- The turn of an identifier: its ACTIVE tasks first (holder is not null), then its attempted ones by sequence.
CREATE INDEX live_turn ON taskq.live (identifier, topic_id, holder, sequence) WHERE attempt > 0;
-- The lane of an identifier: its READY tasks as they are polled. On topic_id::bigint, so that whoever asks for topic_id
-- never gets this one. It includes topic_id, or a scan of it could not do without the table.
CREATE INDEX live_lane ON taskq.live ((topic_id::bigint), identifier, priority DESC, available_at, sequence) INCLUDE (topic_id)
    WHERE holder IS NULL;

CREATE TABLE taskq.ended (
    sequence     bigint NOT NULL,
    completed    timestamptz,
    available_at timestamptz NOT NULL,
    holder       bigint,                       -- owner_id of whoever held it last
    polled       timestamptz,                  -- when its last attempt was claimed; NULL if the attempt was not completed
    topic_id     int NOT NULL,
    attempt      int NOT NULL DEFAULT 0,
    state        smallint NOT NULL CHECK (state BETWEEN 2 AND 8),
    descent      smallint,                     -- the state that a RECREATED or REDUNDANT task had before
    crashes      smallint NOT NULL DEFAULT 0,
    redelivered  boolean NOT NULL DEFAULT false,
    identifier   text COLLATE "C" NOT NULL,
    output       json,
    error        text,
    error_summary text,
    PRIMARY KEY (topic_id, sequence)
) PARTITION BY LIST (topic_id);
-- What blocks an identifier, and what an operator looks for: few rows in a healthy queue.
CREATE INDEX ended_troubled ON taskq.ended (identifier, topic_id, state, sequence) WHERE state IN (2, 3, 4);
-- The same in order of sequence, for those who revive, reassign and look through them state by state. By expressions, as
-- topic_id in live_lane, so that no poll ever gets it.
CREATE INDEX ended_state ON taskq.ended ((topic_id::bigint), (state::int), sequence) WHERE state::int IN (2, 3, 4);
-- For results between two moments.
CREATE INDEX ended_completed ON taskq.ended USING brin (completed) WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE taskq.task_default PARTITION OF taskq.task DEFAULT;
CREATE TABLE taskq.ended_default PARTITION OF taskq.ended DEFAULT;
-- The hot table is small and all change: vacuum it early, at full speed, and by count rather than by share.
CREATE TABLE taskq.live_default PARTITION OF taskq.live DEFAULT WITH (
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 5000, autovacuum_analyze_scale_factor = 0.1
);
