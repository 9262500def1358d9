-- Tasks, in three tables that differ in how often their rows change (measured in bench/designs.py):
--
--   task   the pushed contents. A row is written once and never changed, so neither its payload nor its index entries
--          are written again.
--   live   the narrow, hot part: a row while the task waits (holder IS NULL: READY) or is held (ACTIVE).
--   ended  a row once the task is in any other state.
--
-- Every task has a row in `task`, and a row in exactly one of the other two tables. A claim updates a narrow row, and
-- the end of a task moves the row. So the size of the hot table depends on the unfinished tasks, not on the length of
-- the history.
--
-- All three are partitioned by topic. Topics share a partition, unless they have their own (base/own_tables.sql). The
-- tables have no foreign keys to topic, because these would lock the topic's row at every push. push and drop_topic
-- exclude each other by an advisory lock instead (base/locks.sql).
--
-- An index begins with the plain topic_id only if the planner has no other way to use the index. So on a table that was
-- never analyzed, or was just emptied, the planner has one choice, which is the right one.
--
-- Identifiers compare by bytes (COLLATE "C"). The order is the same on every server, and comparisons are several times
-- as fast.

CREATE SEQUENCE taskq_internal.task_sequence;

CREATE TABLE taskq_internal.task (
    sequence   bigint NOT NULL,
    created    timestamptz NOT NULL,
    due        timestamptz NOT NULL,           -- the pushed due time: reset, release and redelivery restore it
    -- the transaction that pushed the task; a push in several calls finds its own tasks by it
    pushed_in  xid8 NOT NULL,
    topic_id   int NOT NULL,
    priority   smallint NOT NULL,
    identifier text COLLATE "C" NOT NULL,
    reference  text,
    ttl        interval,
    payload    json,
    PRIMARY KEY (topic_id, sequence)
) PARTITION BY RANGE (topic_id);
CREATE INDEX task_identifier ON taskq_internal.task (identifier, topic_id, sequence);
CREATE INDEX task_reference ON taskq_internal.task (reference, topic_id, sequence) WHERE reference IS NOT NULL;

CREATE TABLE taskq_internal.live (
    sequence     bigint NOT NULL,
    available_at timestamptz NOT NULL,         -- the due time
    holder       bigint,                       -- owner_id; NULL while READY
    polled       timestamptz,                  -- when the holder claimed it; NULL while READY
    topic_id     int NOT NULL,
    attempt      int NOT NULL DEFAULT 0,
    priority     smallint NOT NULL,
    crashes      smallint NOT NULL DEFAULT 0,
    -- What a READY task waits for besides its time (queue/models.py: Waits): nothing, its dependencies, the probe of
    -- its topic, or a user that resumes it. Tasks that wait are in none of the indexes that a poll reads.
    waits        smallint NOT NULL DEFAULT :WAITS_NOTHING,
    redelivered  boolean NOT NULL DEFAULT false,
    -- The task may lie before the front of its priority (see taskq_internal.front). If it waits for its dependencies,
    -- the next poll checks them.
    late         boolean NOT NULL DEFAULT false,
    identifier   text COLLATE "C" NOT NULL,
    error        text,                         -- a bounded traceback of the last recorded failure
    error_summary text,  -- the same error in one line of at most 200 characters
    failed_at    timestamptz,                  -- time of the last recorded failure
    elapsed      interval,                     -- the sum of the delays after recorded failures, without jitter
    max_claim    int,                          -- after a crash: the most tasks of a claim that has this one
    PRIMARY KEY (topic_id, sequence)
) PARTITION BY RANGE (topic_id);
CREATE INDEX live_ready ON taskq_internal.live (topic_id, priority DESC, available_at, sequence) WHERE holder IS NULL
    AND waits <= :WAITS_NOTHING;
-- The late tasks among them. Only queries for (priority + 0) use this index, and none of them uses live_ready.
CREATE INDEX live_late ON taskq_internal.live (topic_id, (priority + 0), available_at, sequence)
    WHERE holder IS NULL AND waits <= :WAITS_NOTHING AND late;
CREATE INDEX live_waiting ON taskq_internal.live (topic_id, waits, available_at, sequence) WHERE holder IS NULL
    AND waits > :WAITS_NOTHING;
-- The tasks whose dependencies the next poll checks, in polled order, and the others that wait for dependencies, in an
-- order in which a poll begins at a random one.
CREATE INDEX live_woken ON taskq_internal.live (topic_id, (-priority), available_at, sequence) WHERE holder IS NULL
    AND waits = :WAITS_DEPENDENCIES AND late;
CREATE INDEX live_dependent ON taskq_internal.live (topic_id, hashint8(sequence)) WHERE holder IS NULL
    AND waits = :WAITS_DEPENDENCIES AND NOT late;
CREATE INDEX live_probing ON taskq_internal.live (topic_id, priority DESC, available_at, sequence) WHERE holder IS NULL
    AND waits = :WAITS_PROBE;
-- The retries of a topic with a probe, in turn: the retry that failed last comes last.
CREATE INDEX live_probing_in_turn ON taskq_internal.live (topic_id, failed_at NULLS FIRST, priority DESC, sequence,
        available_at)
    WHERE holder IS NULL AND waits = :WAITS_PROBE;
-- The tasks after a crash: usually none, so a poll that finds the index empty has nothing to cut.
CREATE INDEX live_crashed ON taskq_internal.live (topic_id, sequence) WHERE max_claim IS NOT NULL;
CREATE INDEX live_held ON taskq_internal.live (holder, sequence) WHERE holder IS NOT NULL;
-- Waiting retries, for counts and lists. Only the claim of a retry changes this index.
CREATE INDEX live_retrying ON taskq_internal.live ((topic_id::bigint), sequence) WHERE holder IS NULL AND attempt > 0;
-- The turn of an identifier: its ACTIVE tasks first, by the time of their claims, then its attempted tasks by sequence.
CREATE INDEX live_turn ON taskq_internal.live (identifier, topic_id, coalesce(polled, 'infinity'), sequence)
    WHERE attempt > 0;
-- The READY tasks of an identifier in polled order. The index is on topic_id::bigint, so that a query for topic_id
-- alone never uses it. A query that uses it also names topic_id, for the partition, and waits + 0, which keeps the
-- planner from live_ready. The index includes topic_id, because an index-only scan would not be possible otherwise.
CREATE INDEX live_by_identifier ON taskq_internal.live ((topic_id::bigint), identifier, priority DESC, available_at,
        sequence) INCLUDE (topic_id)
    WHERE holder IS NULL;
-- The late tasks among them. Only queries for priority::int use this index.
CREATE INDEX live_late_by_identifier ON taskq_internal.live ((topic_id::bigint), identifier, (priority::int),
        available_at, sequence)
    WHERE holder IS NULL AND waits <= :WAITS_NOTHING AND late;

CREATE TABLE taskq_internal.ended (
    sequence     bigint NOT NULL,
    completed    timestamptz,
    available_at timestamptz NOT NULL,
    holder       bigint,                       -- owner_id of the last holder
    -- when its last attempt was claimed; NULL if that attempt was not completed
    polled       timestamptz,
    topic_id     int NOT NULL,
    attempt      int NOT NULL DEFAULT 0,
    state        smallint NOT NULL,            -- EXPIRED to REDUNDANT
    descent      smallint,                     -- the earlier state of a RECREATED or REDUNDANT task
    crashes      smallint NOT NULL DEFAULT 0,
    redelivered  boolean NOT NULL DEFAULT false,
    identifier   text COLLATE "C" NOT NULL,
    output       json,
    error        text,
    error_summary text,
    PRIMARY KEY (topic_id, sequence)
) PARTITION BY RANGE (topic_id);
-- Tasks that block an identifier, or that an operator searches for. A healthy queue has few of these rows.
CREATE INDEX ended_troubled ON taskq_internal.ended (identifier, topic_id, state, sequence)
    WHERE state IN (:EXPIRED, :FAILED, :SUSPENDED);
-- The same tasks in the order of their sequences, to revive, reassign and list them by state. The index is on
-- expressions, like topic_id in live_by_identifier, so that no poll uses it.
CREATE INDEX ended_state ON taskq_internal.ended ((topic_id::bigint), (state::int), sequence)
    WHERE state::int IN (:EXPIRED, :FAILED, :SUSPENDED);
-- Finds the results between two moments. A block range index has a thousandth of the size of a b-tree. It helps as far
-- as rows come in the order of their time, and once vacuum has summarized them.
CREATE INDEX ended_completed ON taskq_internal.ended USING brin (completed)
    WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE taskq_internal.task_shared PARTITION OF taskq_internal.task
    FOR VALUES FROM (MINVALUE) TO (:FIRST_OWN_TOPIC);
CREATE TABLE taskq_internal.ended_shared PARTITION OF taskq_internal.ended
    FOR VALUES FROM (MINVALUE) TO (:FIRST_OWN_TOPIC);
-- The hot table is small and changes all the time. So vacuum runs early and at full speed, after a number of rows and
-- not after a share of them.
CREATE TABLE taskq_internal.live_shared PARTITION OF taskq_internal.live
    FOR VALUES FROM (MINVALUE) TO (:FIRST_OWN_TOPIC) WITH (
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 5000, autovacuum_analyze_scale_factor = 0.1
);

-- The front of a topic at a priority: a due time and a sequence, before which no task is READY, except late ones. So
-- a poll enters live_ready at the front. An index entry of a claimed task stays until vacuum may remove it, and while
-- a long transaction is open vacuum may not. Without the front, each poll would read the entries of all tasks that
-- were claimed since then.
--
-- A gap is the same for polls in LAST_IN_FIRST_OUT order: no READY task lies between its two ends, except late ones.
--
-- Rows are only inserted (order/fronts.sql). Polls read the row with the highest number. The other rows say less,
-- and stay true. Each priority that a task of the topic has ever had keeps a row, so the rows also list the
-- priorities in use.
CREATE TABLE taskq_internal.front (
    topic_id     int NOT NULL,
    priority     smallint NOT NULL,
    number       bigint GENERATED ALWAYS AS IDENTITY,
    available_at timestamptz NOT NULL DEFAULT '0001-01-01 00:00Z',
    sequence     bigint NOT NULL DEFAULT 0,
    -- The time of a push, at most a minute before the latest. After the clock was set back, it is later than the clock.
    pushed       timestamptz NOT NULL DEFAULT '0001-01-01 00:00Z',
    -- Both ends are NULL without a gap. The task at the lower end may be READY, and so may the one at the upper end.
    gap_low_at        timestamptz,
    gap_low_sequence  bigint,
    gap_high_at       timestamptz,
    gap_high_sequence bigint,
    PRIMARY KEY (topic_id, priority, number)
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- The fronts of identifiers that have many tasks (order/identifier_fronts.sql). Such a row says where the tasks of
-- an identifier begin: no READY task of the priority lies before the due time and sequence, except late ones, and no
-- ACTIVE task was claimed before claimed_at. Rows are only inserted. Polls read the row with the highest number. An
-- identifier without a row costs a poll more, and changes nothing else.
CREATE TABLE taskq_internal.identifier_front (
    topic_id     int NOT NULL,
    identifier   text COLLATE "C" NOT NULL,    -- empty in the row of the topic, which has the latest times of all
    number       bigint GENERATED ALWAYS AS IDENTITY,
    priority     smallint NOT NULL,
    available_at timestamptz NOT NULL,
    sequence     bigint NOT NULL,
    claimed_at   timestamptz NOT NULL
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
-- The newest row of an identifier comes first, so no poll reads the entries of removed rows before it.
CREATE UNIQUE INDEX identifier_front_newest ON taskq_internal.identifier_front (topic_id, identifier, number DESC);
-- A publication of all tables refuses updates and deletes of a table whose rows it cannot identify.
ALTER TABLE taskq_internal.identifier_front REPLICA IDENTITY USING INDEX identifier_front_newest;

-- The locks of identifiers. A poll under a condition locks the row of each identifier's bucket, SKIP LOCKED, until its
-- transaction ends, and then checks again. So only one of two such polls decides on an identifier. The locks are rows
-- and not advisory locks, because the locks of a large batch would not fit the server's lock table. Transactions only
-- lock these rows and never change them. Identifiers that share a bucket by chance exclude each other while a poll is
-- open. Offers lock rows of their own (change/push.sql). taskq_internal.create_rows creates the rows.
CREATE TABLE taskq_internal.identifier_lock (bucket int PRIMARY KEY) WITH (fillfactor = 100);

-- Dependencies: a task waits for the latest task of an identifier in any topic.
CREATE TABLE taskq_internal.dependency (
    topic_id      int NOT NULL,
    sequence      bigint NOT NULL,
    on_topic_id   int NOT NULL,
    on_identifier text COLLATE "C" NOT NULL,
    -- What the last check found. NULL after a push of on_identifier that found that the task had ended.
    waiting       boolean DEFAULT true,
    PRIMARY KEY (topic_id, sequence, on_topic_id, on_identifier)
);
CREATE INDEX dependency_waiting ON taskq_internal.dependency (on_topic_id, waiting, on_identifier)
    WHERE waiting IS NOT NULL;

-- Whether the retries of a topic fail whose policy stops at the first failure. Completions write it, and no poll locks
-- it, so no completion waits for a poll.
CREATE TABLE taskq_internal.probe_result (
    topic_id  int PRIMARY KEY,
    failing   boolean NOT NULL,
    period    int NOT NULL DEFAULT 1,  -- how often the retries of the topic have started to fail
    failed_at timestamptz              -- when the last probe of this period failed; NULL if none has failed
) WITH (fillfactor = 50);

-- The last probe of such a topic: while its retries fail, polls hand out one at a time. A poll that sends a probe locks
-- and writes the row. A completion only inserts it, with the first failure of the topic.
CREATE TABLE taskq_internal.probe (
    topic_id  int PRIMARY KEY,
    period    int NOT NULL DEFAULT 0,          -- the period of probe_result in which it was sent
    sequences bigint[] NOT NULL DEFAULT '{}'   -- one retry, or the retries of one batch group
) WITH (fillfactor = 50);

-- The groups of identifiers (`key`) that a named wait has released.
CREATE TABLE taskq_internal.group_release (
    name     text COLLATE "C" NOT NULL CHECK (name ~ '\S' AND octet_length(name) <= 2000),
    topic_id int NOT NULL,
    key      uuid NOT NULL,
    released timestamptz NOT NULL,
    PRIMARY KEY (name, topic_id, key)
);

-- The history of tasks except push, poll and end, which are in the rows of the tasks: recorded failures, lapsed leases,
-- and actions of users. A task that succeeds at once has no row here.

-- kind: HistoryKind in queue/models.py.
CREATE TABLE taskq_internal.history (
    happened timestamptz NOT NULL,
    due      timestamptz,                      -- for FAILED and LAPSED: when the attempt was due
    polled   timestamptz,                      -- for FAILED and LAPSED: when the attempt was claimed
    topic_id int NOT NULL,
    sequence bigint NOT NULL,
    kind     smallint NOT NULL,
    state    smallint,                         -- the state that the task had before
    attempt  int NOT NULL,
    holder   text,                             -- the name of the last holder, because owners may be purged
    -- For RECREATED the sequence of the copy, for REASSIGNED the new state, for the other kinds the new value.
    other    bigint,
    actor    text,                             -- the person, as the client names it; NULL for programs
    role     text,                             -- for actions of users: the database role that was connected
    error    text,                             -- the last 2,000 characters of the error
    error_summary text
);
CREATE INDEX history_task ON taskq_internal.history (topic_id, sequence, happened);
ALTER TABLE taskq_internal.history REPLICA IDENTITY FULL;  -- its rows have no key, which would be a further index

-- The state of the removal of ended tasks (change/retention.sql), in one row. A session locks the row while it removes
-- tasks whose retention has ended. A run continues the walks over all topics with a retention until none has work left.
CREATE TABLE taskq_internal.upkeep (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    due    timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when the next call may continue
    called timestamptz,                        -- when the last call continued
    ended  timestamptz,                        -- when the last run ended
    more   boolean NOT NULL DEFAULT false      -- whether the last call left work
) WITH (fillfactor = 50);

-- The walk over the ended tasks of a topic, in the order of their sequences. It searches for tasks whose retention has
-- ended. A change of the topic's policy deletes the row.
CREATE TABLE taskq_internal.retention_walk (
    topic_id int PRIMARY KEY,
    position bigint NOT NULL DEFAULT 0,        -- the walk has passed the tasks up to this sequence
    due      timestamptz NOT NULL DEFAULT '-infinity',  -- when it continues
    restarts timestamptz NOT NULL DEFAULT 'infinity'  -- when it begins again at the first task, known at its first end
) WITH (fillfactor = 50);
