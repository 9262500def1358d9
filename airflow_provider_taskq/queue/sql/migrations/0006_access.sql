-- Which roles were granted what, so that an upgrade, which makes the functions anew, can grant it again.
CREATE TABLE taskq.access (
    role name NOT NULL,
    kind text NOT NULL CHECK (kind IN ('producer', 'consumer', 'reader', 'operator')),
    PRIMARY KEY (role, kind)
);
