-- The limits that the queue is measured against: PostgreSQL with the same rows and none of a queue's rules.

-- Push: the queue's own tables and indexes, filled without a function.
CREATE SCHEMA raw;
CREATE TABLE raw.task (LIKE taskq_internal.task_shared INCLUDING ALL);
CREATE TABLE raw.live (LIKE taskq_internal.live_shared INCLUDING ALL);

-- Drain: one table of the same width, updated in place, with the indexes that its claim and its finish use.
CREATE TABLE raw.wide (
    sequence bigint GENERATED ALWAYS AS IDENTITY, created timestamptz NOT NULL DEFAULT now(),
    available_at timestamptz NOT NULL DEFAULT now(), completed timestamptz, holder bigint,
    topic_id int NOT NULL DEFAULT 1, state smallint NOT NULL DEFAULT 1, attempt int NOT NULL DEFAULT 0,
    priority smallint NOT NULL DEFAULT 0, crashes smallint NOT NULL DEFAULT 0, redelivered boolean NOT NULL DEFAULT false,
    identifier text NOT NULL, reference text, payload json, output json, error text,
    PRIMARY KEY (topic_id, sequence));
CREATE INDEX ON raw.wide (topic_id, priority DESC, available_at, sequence) WHERE state = 1;
