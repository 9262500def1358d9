-- The log: the partitions and the progress of consumer groups.

-- The partitions of consumer groups. A partition is held by an owner (`holder`) while the lease of this owner lasts,
-- under a fence of its own. After that, another owner may acquire it under a new fence. A transaction that reads,
-- advances or acquires a partition locks the row until it ends.
--
-- A group divides the log into `partitions`. If resolver is set, its programs map tasks to partitions by a function of
-- this version. The rows of a group that only stores progress (taskq.advance) have no division.
CREATE TABLE taskq_internal.consumer_partition (
    group_name text COLLATE "C" NOT NULL CHECK (group_name ~ '\S' AND octet_length(group_name) <= 2000),
    topic_id   int NOT NULL REFERENCES taskq_internal.topic ON DELETE CASCADE,
    partition  int NOT NULL CHECK (partition >= 0),
    partitions int CHECK (partitions BETWEEN 1 AND 1000),
    level      int CHECK (level >= 0),
    resolver   text CHECK (length(resolver) <= 1000),
    holder     bigint,
    fence      bigint,
    failed     timestamptz,                    -- when a member reported an error; NULL after progress
    error      text,
    PRIMARY KEY (group_name, topic_id, partition)
);

-- The progress of a partition: the place of the last task that the group has handled. The row with the greatest number
-- counts, and each step deletes the one before.
CREATE TABLE taskq_internal.consumer_progress (
    group_name text COLLATE "C" NOT NULL,
    topic_id   int NOT NULL,
    partition  int NOT NULL,
    number     bigint GENERATED ALWAYS AS IDENTITY,
    cursor     bigint NOT NULL,
    advanced   timestamptz NOT NULL,
    PRIMARY KEY (topic_id, group_name, partition, number)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Events that a group skips: with an error after the last retry, and without one because an earlier division of the
-- group has handled them.
CREATE TABLE taskq_internal.skipped_event (
    group_name text COLLATE "C" NOT NULL,
    topic_id   int NOT NULL,
    sequence   bigint NOT NULL,
    skipped    timestamptz,
    error      text,
    PRIMARY KEY (topic_id, group_name, sequence)
);
