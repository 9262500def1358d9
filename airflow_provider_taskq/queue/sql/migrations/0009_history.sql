-- What happened to tasks beside the way from push to poll to end, of which their own rows tell: failures that were noted,
-- leases that lapsed, and what people did. Nothing is written here for a task that goes well.

-- kind: 1 a noted failure that is tried again, 2 a lease that lapsed, 3 started anew, 4 recreated, 5 given another result.
CREATE TABLE taskq.history (
    happened timestamptz NOT NULL,
    due      timestamptz,                      -- of kinds 1 and 2: when the attempt was due
    polled   timestamptz,                      -- of kinds 1 and 2: when the attempt was claimed
    topic_id int NOT NULL,
    sequence bigint NOT NULL,
    kind     smallint NOT NULL,
    state    smallint,                         -- that the task had before
    attempt  int NOT NULL,
    holder   text,                             -- the name of whoever held it last: owners may be purged
    other    bigint,                           -- 4: the sequence of the copy; 5: the new state
    actor    text,                             -- who did it, where a person did, as the client says
    role     text,                             -- of 3 and above: the database role that was connected
    error    text,                             -- its last 2,000 characters
    error_summary text
);
CREATE INDEX history_task ON taskq.history (topic_id, sequence, happened);
