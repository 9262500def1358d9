-- Which workers are to work: a state that outlives their processes.

CREATE TABLE taskq.worker (
    name    text COLLATE "C" PRIMARY KEY CHECK (name ~ '\S' AND length(name) <= 1000),
    active  boolean NOT NULL,
    changed timestamptz NOT NULL
) WITH (fillfactor = 50);
