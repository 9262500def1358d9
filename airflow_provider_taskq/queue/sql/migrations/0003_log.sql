-- The log: progress and partitions of consumer groups; and handling times.

-- The place of the last task that a group has handled, with one row for each partition of a topic.
CREATE TABLE taskq_internal.progress (
    group_name text COLLATE "C" NOT NULL CHECK (group_name ~ '\S' AND length(group_name) <= 1000),
    topic_id     int NOT NULL,
    partition    int NOT NULL CHECK (partition >= 0),
    cursor       bigint NOT NULL,
    advanced     timestamptz NOT NULL,
    PRIMARY KEY (group_name, topic_id, partition)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Consumer groups. A generation is one assignment: all of its partitions begin after the place `begins`. When a member
-- requests another assignment, the partitions read up to and including `ends`, and the next generation begins there.
CREATE TABLE taskq_internal.consumer_group (
    group_name    text COLLATE "C" NOT NULL CHECK (group_name ~ '\S' AND length(group_name) <= 1000),
    topic_id        int NOT NULL REFERENCES taskq_internal.topic ON DELETE CASCADE,
    generation      int NOT NULL,
    partitions      int NOT NULL CHECK (partitions BETWEEN 1 AND 1000),
    level           int CHECK (level >= 0),
    begins          bigint NOT NULL,
    since           timestamptz NOT NULL,      -- when the generation began
    ends            bigint,                    -- NULL until a member requests another generation
    next_partitions int CHECK (next_partitions BETWEEN 1 AND 1000),
    next_level      int CHECK (next_level >= 0),
    PRIMARY KEY (group_name, topic_id)
);

-- The partitions of a generation and their members. A partition without a fence has no member. After its lease has
-- lapsed, another program may acquire it under a new fence. A transaction that reads, advances or acquires a partition
-- holds the row until it ends.
CREATE TABLE taskq_internal.consumer_partition (
    group_name text COLLATE "C" NOT NULL,
    topic_id     int NOT NULL,
    partition    int NOT NULL,
    fence        bigint UNIQUE,
    member       text CHECK (member ~ '\S' AND length(member) <= 1000),
    lease        interval CHECK (lease > interval '0' AND lease <= interval '3650 days'),
    lease_until  timestamptz,
    member_since timestamptz,
    reach        bigint NOT NULL,              -- the furthest place that any member has read
    failed       timestamptz,                  -- when a member reported an error; NULL after progress
    error        text,
    PRIMARY KEY (group_name, topic_id, partition),
    FOREIGN KEY (group_name, topic_id) REFERENCES taskq_internal.consumer_group ON DELETE CASCADE
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

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
