"""The statements of bare SQL that push, claim and drain are compared with; raw.sql has their tables."""

from pathlib import Path

TABLES = Path(__file__).with_name("raw.sql").read_bytes()

# A push into the queue's own tables with their indexes, without a function.
TASK = (
    "INSERT INTO raw.task (sequence, created, due, pushed_in, topic_id, priority, identifier, payload)"
    " SELECT n, now(), now(), pg_current_xact_id(), 1, 0, i, p::json"
    " FROM unnest(%b::bigint[], %b::text[], %b::text[]) AS u (n, i, p)"
)
LIVE = (
    "INSERT INTO raw.live (sequence, available_at, topic_id, priority, identifier)"
    " SELECT n, now(), 1, 0, i FROM unnest(%b::bigint[], %b::text[]) AS u (n, i)"
)
# One table of the same width, updated in place: a push and a claim.
WIDE = "INSERT INTO raw.wide (identifier, payload) SELECT i, p::json FROM unnest(%b::text[], %b::text[]) AS u (i, p)"
CLAIM = (
    "WITH found AS MATERIALIZED (SELECT sequence FROM raw.wide WHERE topic_id = 1 AND state = 1 AND priority = 0"
    " AND available_at <= now() ORDER BY available_at, sequence LIMIT %s FOR UPDATE SKIP LOCKED)"
    " UPDATE raw.wide SET state = 0, holder = 1, attempt = attempt + 1"
    " WHERE topic_id = 1 AND sequence = ANY (ARRAY(SELECT sequence FROM found)) RETURNING sequence, identifier, payload"
)
