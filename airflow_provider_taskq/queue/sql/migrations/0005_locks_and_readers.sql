-- Locks by name, and how far readers got.

-- A lease by name: held until `until`, and kept until `at_least` even where it is unlocked before.
CREATE TABLE taskq.lock (
    name     text COLLATE "C" PRIMARY KEY CHECK (name ~ '\S' AND length(name) <= 1000),
    held_by  text NOT NULL,
    locked   timestamptz NOT NULL,
    at_least timestamptz NOT NULL,
    until    timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- The cursor after the last task that a group of readers has handled, a row for each partition of a topic.
CREATE TABLE taskq.progress (
    reader_group text COLLATE "C" NOT NULL CHECK (reader_group ~ '\S' AND length(reader_group) <= 1000),
    topic_id     int NOT NULL,
    partition    int NOT NULL CHECK (partition >= 0),
    cursor       bigint NOT NULL,
    advanced     timestamptz NOT NULL,
    PRIMARY KEY (reader_group, topic_id, partition)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
