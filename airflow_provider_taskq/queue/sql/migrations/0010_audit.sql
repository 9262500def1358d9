-- What people did by the page and the command line: who, what, to how many tasks, when. A row is written in the transaction of the
-- action, so one that was rolled back left none. Payloads are not kept here. Rows stay until the schema's owner deletes them.
CREATE TABLE taskq.audit (
    audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    happened timestamptz NOT NULL,
    actor    text NOT NULL,                    -- the person, as the client says
    role     text NOT NULL,                    -- the database role that was connected, which no client can choose
    action   text NOT NULL,
    topic    text,                             -- its name: the row outlives the topic
    what     text NOT NULL,                    -- which tasks, and how
    count    bigint NOT NULL
);
CREATE INDEX audit_topic ON taskq.audit (topic, audit_id);
