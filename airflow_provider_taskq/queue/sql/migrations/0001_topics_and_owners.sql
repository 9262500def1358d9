-- Topics, owners, named locks, grants of access, and the audit.

-- A topic is a named, ordered queue with a policy. Its number stands for its name in every other table. The number
-- tells whether the topic has its own tables.
CREATE SEQUENCE taskq_internal.shared_topic_id AS int MAXVALUE 999999999;
CREATE SEQUENCE taskq_internal.own_topic_id AS int MINVALUE :FIRST_OWN_TOPIC MAXVALUE 2147483646;
CREATE TABLE taskq_internal.topic (
    topic_id          int PRIMARY KEY,
    name              text NOT NULL UNIQUE CHECK (name ~ '\S' AND length(name) <= 250),
    paused            boolean NOT NULL DEFAULT false,
    paused_by         text,                    -- a person or a role; NULL while it is not paused
    paused_since      timestamptz,
    -- Retry policy.
    max_attempts      int NOT NULL CHECK (max_attempts >= 1),
    base              interval NOT NULL,
    factor            double precision NOT NULL CHECK (factor > 0 AND factor < 'Infinity'),
    max_delay         interval NOT NULL,
    horizon           interval,
    max_elapsed       interval,
    jitter            double precision NOT NULL CHECK (jitter BETWEEN 0 AND 1),
    probe             boolean NOT NULL,
    -- The rest of the policy.
    on_expiry         text NOT NULL CHECK (on_expiry IN ('redeliver', 'expire')),
    max_crashes       int NOT NULL CHECK (max_crashes >= 1),
    max_payload_bytes int NOT NULL CHECK (max_payload_bytes >= 0),
    ttl               interval,
    notify            boolean NOT NULL DEFAULT false, -- a push to the topic sends a notification (taskq.notify)
    -- How long taskq.maintain keeps ended tasks. With NULL it keeps them forever.
    keep_succeeded    interval,
    keep_failed       interval
);
CREATE INDEX topic_probe ON taskq_internal.topic (topic_id) WHERE probe;

-- Fences only grow: all owners draw them from one sequence, at each registration.
CREATE SEQUENCE taskq_internal.fence;

-- An owner is a name with a lease and a fence. An owner without a fence has no lease: it was released, expired or
-- purged.
--
-- Locks on this row protect the lease. A poll or a completion holds FOR KEY SHARE until its transaction ends. A
-- transaction that ends or takes over the lease changes `fence`, which is unique and therefore a key, so it has to wait
-- for them or skip them. A heartbeat changes no key, so it waits for neither.
CREATE TABLE taskq_internal.owner (
    owner_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text COLLATE "C" NOT NULL UNIQUE CHECK (name ~ '\S' AND octet_length(name) <= 2000),
    fence       bigint UNIQUE,
    claim_fence bigint,  -- the fence of the claim that register continues; NULL if it is `fence`
    lease       interval NOT NULL CHECK (lease > interval '0' AND lease <= interval '3650 days'),
    lease_until timestamptz NOT NULL,
    seen        timestamptz NOT NULL,
    deferred_until timestamptz,  -- the owner does not read the tasks again that it has claimed until then
    registered_by name   -- the role of the last registration; a role limited to topics uses only its own owners
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Named locks. A lock is held until `until`. It stays blocked until `at_least`, even if the holder unlocks it earlier.
CREATE TABLE taskq_internal.lock (
    name     text COLLATE "C" PRIMARY KEY CHECK (name ~ '\S' AND octet_length(name) <= 2000),
    held_by  text NOT NULL,
    locked   timestamptz NOT NULL,
    at_least timestamptz NOT NULL,
    until    timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Tells whether the workers with a name may work. This setting outlives their processes.
CREATE TABLE taskq_internal.worker (
    name    text COLLATE "C" PRIMARY KEY CHECK (name ~ '\S' AND octet_length(name) <= 2000),
    active  boolean NOT NULL,
    changed timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The grants of roles. An upgrade replaces the functions, and then repeats the grants.
CREATE TABLE taskq_internal.access (
    role   name NOT NULL,
    kind   text NOT NULL CHECK (kind IN ('producer', 'consumer', 'reader', 'operator')),
    topic  text COLLATE "C" NOT NULL,  -- the name, because a grant may come before the topic; '' stands for every topic
    -- the rights on the topic: the privileges on taskq.every_topic that stand for them
    rights text NOT NULL GENERATED ALWAYS AS (
        CASE kind WHEN 'producer' THEN CASE topic WHEN '' THEN 'INSERT, DELETE' ELSE 'INSERT' END
                  WHEN 'consumer' THEN 'UPDATE' WHEN 'reader' THEN 'SELECT'
                  ELSE 'INSERT, DELETE, UPDATE, SELECT' END) STORED,
    PRIMARY KEY (role, kind, topic)
);

-- Actions of users on the page and the command line. The transaction of the action writes the row, so a rollback leaves
-- no row. Rows have no payloads. They stay until the schema's owner deletes them.
CREATE TABLE taskq_internal.audit (
    audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    happened timestamptz NOT NULL,
    actor    text NOT NULL,                    -- the person, as the client names it
    role     text NOT NULL,                    -- the database role that was connected, which no client can choose
    action   text NOT NULL,
    topic    text,                             -- the topic's name, because the row outlives the topic
    what     text NOT NULL,                    -- the tasks and how the user selected them
    count    bigint NOT NULL
);
CREATE INDEX audit_topic ON taskq_internal.audit (topic, audit_id);
