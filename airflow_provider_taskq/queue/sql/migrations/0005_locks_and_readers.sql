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

-- Tables that exist only to be locked. No role but the owner has a right on their schema: a role that can name a table can lock
-- it FOR UPDATE in a statement that it only prepares, and any role can lock any relation in ROW EXCLUSIVE mode by nextval(oid).
-- So a ROW SHARE lock on one of these proves that a function of the queue took it. Advisory locks prove nothing: any role that
-- can connect can take any of them.
CREATE SCHEMA taskq_internal;
REVOKE ALL ON SCHEMA taskq_internal FROM PUBLIC;
CREATE TABLE taskq_internal.push ();           -- this transaction draws sequences
CREATE TABLE taskq_internal.unplaced_push ();  -- it could not announce its topic: it counts for all topics
CREATE TABLE taskq_internal.keep ();           -- it relies on a topic and draws no sequences
CREATE TABLE taskq_internal.prune ();          -- it prunes stages

-- Locks by hash of a name, for names that have no row of their own: locked only, never changed (see taskq.mutex_of).
CREATE TABLE taskq_internal.mutex (bucket int PRIMARY KEY) WITH (fillfactor = 100);
INSERT INTO taskq_internal.mutex SELECT generate_series(0, 3 * 4096 - 1);

-- Locks by hash of a topic and an identifier, for the transactions that offer or drop that identifier (see functions/offer.sql).
-- Locked only, never changed.
CREATE TABLE taskq_internal.offer_lock (bucket int PRIMARY KEY) WITH (fillfactor = 100);
INSERT INTO taskq_internal.offer_lock SELECT generate_series(0, 65535);
