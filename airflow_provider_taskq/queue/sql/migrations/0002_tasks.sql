-- Tasks, in three tables by what happens to their rows (measured in bench/designs.py):
--
--   task   what was pushed. Written once, never changed, so its payload and its indexes are never written again.
--   live   the narrow, hot part: a row while the task waits (holder IS NULL: READY) or is held (ACTIVE).
--   ended  a row once the task is in any other state.
--
-- Every task has a row in `task`, and one in exactly one of the other two. A claim updates a narrow row; an end moves
-- it. So the size of the hot table is that of the unfinished tasks, whatever the length of the history.
--
-- All three are partitioned by topic, with one default partition: a busy topic can be given partitions of its own.
-- Foreign keys to topic are left out: they would lock the topic's row at every push. push and drop_topic exclude each
-- other by an advisory lock instead (internal/locks.sql).
--
-- An index begins with the plain topic_id only if that is the one way to use it. So on a table that was never
-- analyzed, or was just emptied, the planner has one choice, and it is the right one.
--
-- Identifiers compare by bytes (COLLATE "C"): the same everywhere, and several times as fast.

CREATE SEQUENCE taskq_internal.task_sequence;

CREATE TABLE taskq_internal.task (
    sequence   bigint NOT NULL,
    created    timestamptz NOT NULL,
    due        timestamptz NOT NULL,           -- as pushed: the place that reset, release and redelivery give back
    -- the transaction that pushed it: how a push in several calls knows its own
    pushed_in  xid8 NOT NULL,
    topic_id   int NOT NULL,
    priority   smallint NOT NULL,
    identifier text COLLATE "C" NOT NULL,
    reference  text,
    ttl        interval CHECK (ttl BETWEEN interval '0' AND interval '3650 days'),
    payload    json,
    PRIMARY KEY (topic_id, sequence)
) PARTITION BY LIST (topic_id);
CREATE INDEX task_identifier ON taskq_internal.task (identifier, topic_id, sequence);
CREATE INDEX task_reference ON taskq_internal.task (reference, topic_id, sequence) WHERE reference IS NOT NULL;
-- For a moment's first sequence. A block range index, as rows come in the order of their time: a thousandth of a
-- b-tree.
CREATE INDEX task_created ON taskq_internal.task USING brin (created) WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE taskq_internal.live (
    sequence     bigint NOT NULL,
    available_at timestamptz NOT NULL,         -- when due; while it waits for dependencies: when to check them next
    holder       bigint,                       -- owner_id; NULL while READY
    polled       timestamptz,                  -- when the holder claimed it; NULL while READY
    topic_id     int NOT NULL,
    attempt      int NOT NULL DEFAULT 0,
    priority     smallint NOT NULL,
    crashes      smallint NOT NULL DEFAULT 0,
    -- What a READY task waits for besides its time (queue/models.py: Waits): nothing, its dependencies, the probe of
    -- its topic, or a person that resumes it. Tasks that wait are in none of the indexes that a poll walks. MET:
    -- dependencies that were fulfilled at the last check.
    waits        smallint NOT NULL DEFAULT :WAITS_NOTHING,
    redelivered  boolean NOT NULL DEFAULT false,
    identifier   text COLLATE "C" NOT NULL,
    error        text,                         -- of the last recorded failure, as a bounded traceback
    error_summary text,  -- the same in one line of at most 200 characters
    due_again    timestamptz,                  -- while it waits for dependencies: when due, if not as pushed
    failed_at    timestamptz,                  -- time of the last recorded failure
    PRIMARY KEY (topic_id, sequence)
) PARTITION BY LIST (topic_id);
CREATE INDEX live_ready ON taskq_internal.live (topic_id, priority DESC, available_at, sequence) WHERE holder IS NULL
    AND waits <= :WAITS_NOTHING;
CREATE INDEX live_waiting ON taskq_internal.live (topic_id, waits, available_at, sequence) WHERE holder IS NULL
    AND waits > :WAITS_NOTHING;
CREATE INDEX live_probing ON taskq_internal.live (topic_id, priority DESC, available_at, sequence) WHERE holder IS NULL
    AND waits = :WAITS_PROBE;
-- The retries of a topic that probes, in turn: the retry that failed last comes last.
CREATE INDEX live_probing_in_turn ON taskq_internal.live (topic_id, failed_at NULLS FIRST, priority DESC, sequence,
        available_at)
    WHERE holder IS NULL AND waits = :WAITS_PROBE;
CREATE INDEX live_held ON taskq_internal.live (holder, sequence) WHERE holder IS NOT NULL;
-- Retries that wait, for counts and lists. Only the claim of a retry changes it.
CREATE INDEX live_retrying ON taskq_internal.live ((topic_id::bigint), sequence) WHERE holder IS NULL AND attempt > 0;
-- The turn of an identifier: its ACTIVE tasks first (holder is not null), then its attempted ones by sequence.
CREATE INDEX live_turn ON taskq_internal.live (identifier, topic_id, holder, sequence) WHERE attempt > 0;
-- The READY tasks of an identifier in polled order. On topic_id::bigint, so that a query for topic_id never uses it.
-- It includes topic_id, or an index-only scan would not be possible.
CREATE INDEX live_by_identifier ON taskq_internal.live ((topic_id::bigint), identifier, priority DESC, available_at,
        sequence) INCLUDE (topic_id)
    WHERE holder IS NULL;

CREATE TABLE taskq_internal.ended (
    sequence     bigint NOT NULL,
    completed    timestamptz,
    available_at timestamptz NOT NULL,
    holder       bigint,                       -- owner_id of the last holder
    -- when its last attempt was claimed; NULL if the attempt was not completed
    polled       timestamptz,
    topic_id     int NOT NULL,
    attempt      int NOT NULL DEFAULT 0,
    state        smallint NOT NULL CHECK (state BETWEEN :EXPIRED AND :REDUNDANT),
    descent      smallint,                     -- the state that a RECREATED or REDUNDANT task had before
    crashes      smallint NOT NULL DEFAULT 0,
    redelivered  boolean NOT NULL DEFAULT false,
    identifier   text COLLATE "C" NOT NULL,
    output       json,
    error        text,
    error_summary text,
    PRIMARY KEY (topic_id, sequence)
) PARTITION BY LIST (topic_id);
-- Tasks that block an identifier, or that an operator searches: few rows in a healthy queue.
CREATE INDEX ended_troubled ON taskq_internal.ended (identifier, topic_id, state, sequence)
    WHERE state IN (:EXPIRED, :FAILED, :SUSPENDED);
-- The same in order of sequence, to revive, reassign and list them state by state. On expressions, as
-- topic_id in live_by_identifier, so that no poll uses it.
CREATE INDEX ended_state ON taskq_internal.ended ((topic_id::bigint), (state::int), sequence)
    WHERE state::int IN (:EXPIRED, :FAILED, :SUSPENDED);
-- For results between two moments.
CREATE INDEX ended_completed ON taskq_internal.ended USING brin (completed)
    WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE taskq_internal.task_default PARTITION OF taskq_internal.task DEFAULT;
CREATE TABLE taskq_internal.ended_default PARTITION OF taskq_internal.ended DEFAULT;
-- The hot table is small and changes all the time: vacuum it early, at full speed, by a number of rows and not by a
-- share.
CREATE TABLE taskq_internal.live_default PARTITION OF taskq_internal.live DEFAULT WITH (
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 5000, autovacuum_analyze_scale_factor = 0.1
);

-- The locks of identifiers. A poll under a condition locks the row of each identifier's bucket, SKIP LOCKED, until
-- its transaction ends, and then checks again. So of two such polls only one decides on an identifier. Rows and not
-- advisory locks, as those of a large batch would not fit the server's lock table. Rows are locked only, never
-- changed. Identifiers that share a bucket by chance exclude each other while a poll is open.
CREATE TABLE taskq_internal.identifier_lock (bucket int PRIMARY KEY) WITH (fillfactor = 100);
INSERT INTO taskq_internal.identifier_lock SELECT generate_series(0, 65535);

-- Dependencies: a task waits for the latest task of an identifier, of any topic.
CREATE TABLE taskq_internal.dependency (
    topic_id      int NOT NULL,
    sequence      bigint NOT NULL,
    on_topic_id   int NOT NULL,
    on_identifier text COLLATE "C" NOT NULL,
    waiting       boolean NOT NULL DEFAULT true,   -- whether a check found that the task waits; else it is not woken
    PRIMARY KEY (topic_id, sequence, on_topic_id, on_identifier)
);
CREATE INDEX dependency_waiting ON taskq_internal.dependency (on_topic_id, on_identifier) WHERE waiting;

-- The probe of a topic whose policy stops at the first failure: while its retries fail, one of them is tried at a time.
CREATE TABLE taskq_internal.probe (
    topic_id  int PRIMARY KEY,
    failing   boolean NOT NULL,
    failed_at timestamptz,                     -- when the last probe failed; NULL while none has failed
    sequences bigint[] NOT NULL DEFAULT '{}'   -- the last probe: one retry, or those of one group of a batch
) WITH (fillfactor = 50);

-- The groups of identifiers (`key`) that a named wait has released.
CREATE TABLE taskq_internal.group_release (
    name     text COLLATE "C" NOT NULL CHECK (name ~ '\S' AND length(name) <= 1000),
    topic_id int NOT NULL,
    key      uuid NOT NULL,
    released timestamptz NOT NULL,
    PRIMARY KEY (name, topic_id, key)
);

-- The history of tasks other than push, poll and end, which their own rows have: recorded failures, lapsed leases,
-- and actions of people. A task that succeeds at once has no row here.

-- kind: HistoryKind in queue/models.py.
CREATE TABLE taskq_internal.history (
    happened timestamptz NOT NULL,
    due      timestamptz,                      -- of FAILED and LAPSED: when the attempt was due
    polled   timestamptz,                      -- of FAILED and LAPSED: when the attempt was claimed
    topic_id int NOT NULL,
    sequence bigint NOT NULL,
    kind     smallint NOT NULL,
    state    smallint,                         -- that the task had before
    attempt  int NOT NULL,
    holder   text,                             -- the name of the last holder, as owners may be purged
    -- of RECREATED the sequence of the copy, of REASSIGNED the new state, of others the new value
    other    bigint,
    actor    text,                             -- the person, as the client says; NULL for programs
    role     text,                             -- of what people did: the database role that was connected
    error    text,                             -- its last 2,000 characters
    error_summary text
);
CREATE INDEX history_task ON taskq_internal.history (topic_id, sequence, happened);

-- Upkeep (api/upkeep.sql): one row, which a session locks while it removes tasks that have been kept long enough. A run
-- is a pass over all topics with a retention, and then passes over those that the pass before has left unfinished.
CREATE TABLE taskq_internal.upkeep (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    due             timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when the next call may go on
    called          timestamptz,               -- when the last call went on
    ended           timestamptz,               -- when the last run ended
    topic_id        int NOT NULL DEFAULT 0,    -- the last topic of this pass so far
    unfinished_only boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);
INSERT INTO taskq_internal.upkeep DEFAULT VALUES;

-- The walk over a topic's ended tasks, by sequence, in search of those that have been kept long enough.
CREATE TABLE taskq_internal.retention_walk (
    topic_id       int PRIMARY KEY,
    position       bigint NOT NULL,            -- it has passed the tasks up to this sequence
    restarts       timestamptz NOT NULL,       -- when it begins again at the first task
    spent          interval NOT NULL,          -- the time that it has taken so far
    unfinished     boolean NOT NULL,           -- it has stopped before the tasks that are too young
    keep_succeeded interval,                   -- the topic's policy at its beginning: another one begins it again
    keep_failed    interval
) WITH (fillfactor = 50);

-- Tables that exist only to be locked. No role but the owner has a right on their schema: a role that can name a
-- table can lock it FOR UPDATE in a statement that it only prepares, and any role can lock any relation in ROW
-- EXCLUSIVE mode by nextval(oid). So a ROW SHARE lock on one of these proves that a function of the queue took it.
-- Advisory locks prove nothing: any role that can connect can take any of them.
CREATE TABLE taskq_internal.push ();           -- this transaction draws sequences
CREATE TABLE taskq_internal.unplaced_push ();  -- it could not announce its topic: it counts for all topics
CREATE TABLE taskq_internal.topic_use ();      -- it relies on a topic and draws no sequences
CREATE TABLE taskq_internal.prune ();          -- it prunes stages

-- Locks by hash of a name, for names that have no row of their own: locked only, never changed (see
-- taskq_internal.mutex_bucket).
CREATE TABLE taskq_internal.mutex (bucket int PRIMARY KEY) WITH (fillfactor = 100);
INSERT INTO taskq_internal.mutex SELECT generate_series(0, 3 * 4096 - 1);

-- Locks by hash of a topic and an identifier, for the transactions that offer or drop that identifier (see
-- api/push.sql). Locked only, never changed.
CREATE TABLE taskq_internal.offer_lock (bucket int PRIMARY KEY) WITH (fillfactor = 100);
INSERT INTO taskq_internal.offer_lock SELECT generate_series(0, 65535);
