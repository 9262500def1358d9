-- Statistics: how many, how often again, how long.

-- Of the tasks that ended within p_within, by topic: how many ended, succeeded and failed; of how many the first try was not
-- the last, and how many tries were further ones; and for how long they took, in seconds from when the last try was due
-- until the end: shortest, mean, longest, and the 50th, 90th, 95th and 99th percentile. Costs what has ended since.
CREATE FUNCTION taskq.statistics(p_within interval, p_topic text DEFAULT NULL)
RETURNS TABLE (topic text, ended bigint, succeeded bigint, failed bigint, retried bigint, retries bigint,
               shortest float8, mean float8, longest float8, p50 float8, p90 float8, p95 float8, p99 float8)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_indexscan = off AS $$
#variable_conflict use_column
DECLARE
    v_since    timestamptz := clock_timestamp() - taskq.clamp_age(p_within);
    v_topic_id int := CASE WHEN p_topic IS NOT NULL THEN (taskq.find_topic(p_topic)).topic_id END;
BEGIN
    RETURN QUERY
    SELECT p.name, s.ended, s.succeeded, s.failed, s.retried, s.retries, s.shortest, s.mean, s.longest, s.p[1], s.p[2], s.p[3], s.p[4]
    FROM (SELECT e.topic_id, count(*) AS ended, count(*) FILTER (WHERE e.state = 6) AS succeeded,
                 count(*) FILTER (WHERE e.state = 3) AS failed, count(*) FILTER (WHERE e.attempt > 1) AS retried,
                 coalesce(sum(e.attempt - 1) FILTER (WHERE e.attempt > 1), 0)::bigint AS retries,
                 min(d.seconds) AS shortest, avg(d.seconds) AS mean, max(d.seconds) AS longest,
                 percentile_cont(ARRAY[0.5, 0.9, 0.95, 0.99]) WITHIN GROUP (ORDER BY d.seconds) AS p
          FROM taskq.ended e
          CROSS JOIN LATERAL (SELECT greatest(0, extract(epoch FROM taskq.clamp_moment(e.completed) - taskq.clamp_moment(e.available_at)))::float8 AS seconds) d
          WHERE e.completed >= v_since AND e.state BETWEEN 3 AND 6 AND (v_topic_id IS NULL OR e.topic_id = v_topic_id)
          GROUP BY e.topic_id) s
    JOIN taskq.topic p ON p.topic_id = s.topic_id ORDER BY p.name;
END $$;

-- Notes for how many seconds tasks of a topic were handled, a number for each, by those who handled them. They are kept by hour
-- in buckets of 5 %, for 8 days. Best in a transaction of its own: two that note for a topic wait for each other. Notes nothing
-- of a topic that is being dropped.
CREATE FUNCTION taskq.note_handling(p_topic text, p_seconds float8[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq.find_topic(p_topic)).topic_id;
    v_hour     timestamptz := date_trunc('hour', clock_timestamp(), 'UTC');
BEGIN
    PERFORM FROM taskq.topic WHERE topic_id = v_topic_id FOR KEY SHARE SKIP LOCKED;  -- which each new row needs, by its foreign key
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO taskq.handling AS h (topic_id, hour, bucket, count, total, shortest, longest)
    SELECT v_topic_id, v_hour, taskq.bucket_of(u.seconds), count(*), sum(u.seconds), min(u.seconds), max(u.seconds)
    FROM unnest(p_seconds) AS u (seconds) WHERE u.seconds >= 0 AND u.seconds < 1e9
    GROUP BY taskq.bucket_of(u.seconds) ORDER BY 3
    ON CONFLICT (topic_id, hour, bucket) DO UPDATE SET count = h.count + excluded.count, total = h.total + excluded.total,
        shortest = least(h.shortest, excluded.shortest), longest = greatest(h.longest, excluded.longest);
    DELETE FROM taskq.handling h WHERE h.topic_id = v_topic_id AND h.hour < v_hour - interval '8 days';
END $$;

-- The bucket of a duration: 5 % wide each, those below a microsecond in one.
CREATE FUNCTION taskq.bucket_of(p_seconds float8) RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT floor(ln(greatest(p_seconds, 1e-6)) / ln(1.05))::int
$$;

-- How long tasks were handled, of each topic or of one, in the hours that p_within reaches back to: how many, and seconds: shortest, mean
-- and longest to the point, the percentiles to 5 %, by the buckets that have them.
CREATE FUNCTION taskq.handling_times(p_within interval, p_topic text DEFAULT NULL)
RETURNS TABLE (topic text, count bigint, shortest float8, mean float8, longest float8, p50 float8, p90 float8, p95 float8, p99 float8)
LANGUAGE sql STABLE AS $$
    WITH bucket AS (
        SELECT h.topic_id, h.bucket, sum(h.count)::bigint AS count, sum(h.total) AS total, min(h.shortest) AS shortest, max(h.longest) AS longest
        FROM taskq.handling h
        WHERE h.hour >= date_trunc('hour', clock_timestamp() - taskq.clamp_age(p_within), 'UTC')
          AND (p_topic IS NULL OR h.topic_id = (taskq.find_topic(p_topic)).topic_id)
        GROUP BY h.topic_id, h.bucket
    ), summed AS (
        SELECT b.*, sum(b.count) OVER (PARTITION BY b.topic_id ORDER BY b.bucket) AS upto, sum(b.count) OVER (PARTITION BY b.topic_id) AS every
        FROM bucket b)
    SELECT p.name, max(s.every)::bigint, min(s.shortest), sum(s.total) / max(s.every), max(s.longest),
           min(s.longest) FILTER (WHERE s.upto >= 0.5 * s.every), min(s.longest) FILTER (WHERE s.upto >= 0.9 * s.every),
           min(s.longest) FILTER (WHERE s.upto >= 0.95 * s.every), min(s.longest) FILTER (WHERE s.upto >= 0.99 * s.every)
    FROM summed s JOIN taskq.topic p ON p.topic_id = s.topic_id GROUP BY p.name ORDER BY p.name
$$;

-- The oldest task of each topic that has failed and not succeeded since: FAILED, or READY to be tried again; and how many such there
-- are, counted to a thousand of each kind.
CREATE FUNCTION taskq.errors(p_topic text DEFAULT NULL)
RETURNS TABLE (topic text, sequence bigint, age interval, failed bigint, retrying bigint) LANGUAGE plpgsql STABLE
SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.name, n.sequence,
           clock_timestamp() - (SELECT taskq.clamp_moment(t.created) FROM taskq.task t WHERE t.topic_id = p.topic_id AND t.sequence = n.sequence),
           f.count, r.count
    FROM taskq.topic p
    CROSS JOIN LATERAL (
        SELECT count(*), min(e.sequence) AS first FROM (
            SELECT s.sequence FROM taskq.ended s
            WHERE s.topic_id::bigint = p.topic_id AND s.state::int IN (2, 3, 4) AND s.state::int = 3 ORDER BY s.sequence LIMIT 1000) e) f
    CROSS JOIN LATERAL (
        SELECT count(*), min(l.sequence) AS first FROM (
            SELECT s.sequence FROM taskq.live s
            WHERE s.topic_id = p.topic_id AND s.attempt > 0 AND s.holder IS NULL AND s.error IS NOT NULL LIMIT 1000) l) r
    CROSS JOIN LATERAL (SELECT least(f.first, r.first) AS sequence) n
    WHERE n.sequence IS NOT NULL AND (p_topic IS NULL OR p.name = p_topic) ORDER BY 3 DESC;
END $$;

-- Owners that hold tasks, and whose lease has lapsed for longer than p_patience: workers that died, or hang as a whole. The
-- longest first, a thousand at most.
CREATE FUNCTION taskq.stuck_owners(p_patience interval DEFAULT '0')
RETURNS TABLE (name text, fence bigint, lapsed interval, seen timestamptz, held bigint) LANGUAGE sql STABLE AS $$
    SELECT o.name, o.fence, clock_timestamp() - taskq.clamp_moment(o.lease_until), o.seen, h.count FROM taskq.owner o
    CROSS JOIN LATERAL (SELECT count(*) FROM (SELECT FROM taskq.live l WHERE l.holder = o.owner_id LIMIT 10000) n) h
    WHERE o.fence IS NOT NULL AND o.lease_until < clock_timestamp() - taskq.clamp_age(p_patience) AND h.count > 0
    ORDER BY o.lease_until LIMIT 1000
$$;
