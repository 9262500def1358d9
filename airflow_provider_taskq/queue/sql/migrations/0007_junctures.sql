-- What those who wait for groups have released already.

-- A group of identifiers (`key`) that was released for somebody's wait.
CREATE TABLE taskq.juncture (
    name     text COLLATE "C" NOT NULL CHECK (name ~ '\S' AND length(name) <= 1000),
    topic_id int NOT NULL,
    key      uuid NOT NULL,
    released timestamptz NOT NULL,
    PRIMARY KEY (name, topic_id, key)
);
