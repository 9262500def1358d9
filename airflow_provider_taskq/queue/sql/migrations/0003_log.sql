-- The log: consumer groups with their partitions and progress; and handling times.

-- Consumer groups, and how each divides the log among its partitions. If resolver is set, the programs of the group map
-- tasks to partitions by a function of this version. After a change of the division, handled has, for each earlier one,
-- its level and the places that its partitions had reached: [{"level": 1, "places": [17, 40]}].
CREATE TABLE taskq_internal.consumer_group (
    group_name text COLLATE "C" NOT NULL CHECK (group_name ~ '\S' AND octet_length(group_name) <= 2000),
    topic_id   int NOT NULL REFERENCES taskq_internal.topic ON DELETE CASCADE,
    partitions int NOT NULL CHECK (partitions BETWEEN 1 AND 1000),
    level      int CHECK (level >= 0),
    resolver   text CHECK (length(resolver) <= 1000),
    handled    jsonb NOT NULL DEFAULT '[]',
    PRIMARY KEY (group_name, topic_id)
);

-- The partitions of a group: their progress and their members. cursor is the place of the last task that the group has
-- handled, NULL if there is none. A partition without a fence has no member. After its lease has lapsed, another
-- program may acquire it under a new fence. A transaction that reads, advances or acquires a partition holds the row
-- until it ends. Programs that only store progress (taskq.advance) have rows here, and no row in consumer_group.
CREATE TABLE taskq_internal.consumer_partition (
    group_name  text COLLATE "C" NOT NULL CHECK (group_name ~ '\S' AND octet_length(group_name) <= 2000),
    topic_id    int NOT NULL,
    partition   int NOT NULL CHECK (partition >= 0),
    cursor      bigint,
    advanced    timestamptz NOT NULL,
    fence       bigint UNIQUE,
    member      text CHECK (member ~ '\S' AND octet_length(member) <= 2000),
    lease       interval CHECK (lease > interval '0' AND lease <= interval '3650 days'),
    lease_until timestamptz,
    failed      timestamptz,                   -- when a member reported an error; NULL after progress
    error       text,
    PRIMARY KEY (group_name, topic_id, partition)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Events that a group has skipped after its last retry, with the error. A member handles them once more if again is set.
CREATE TABLE taskq_internal.skipped_event (
    group_name text COLLATE "C" NOT NULL,
    topic_id   int NOT NULL,
    sequence   bigint NOT NULL,
    skipped    timestamptz NOT NULL,
    error      text NOT NULL,
    again      boolean NOT NULL DEFAULT false,
    PRIMARY KEY (topic_id, group_name, sequence)
);

-- Handling times by topic, hour, and bucket of 5 % (taskq.record_handling_times).
CREATE TABLE taskq_internal.handling (
    topic_id int NOT NULL REFERENCES taskq_internal.topic ON DELETE CASCADE,
    hour     timestamptz NOT NULL,
    bucket   int NOT NULL,
    count    bigint NOT NULL,
    total    double precision NOT NULL,        -- seconds, as the two below
    shortest double precision NOT NULL,
    longest  double precision NOT NULL,
    PRIMARY KEY (topic_id, hour, bucket)
);
