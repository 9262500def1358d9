-- Statistics of topics: how many tasks ended, how long they took, and their errors.

CREATE FUNCTION taskq.statistics(p_within interval, p_topic text DEFAULT NULL, p_run_time boolean DEFAULT false)
RETURNS TABLE (topic text, ended bigint, succeeded bigint, failed bigint, retried bigint, retries bigint,
               shortest float8, mean float8, longest float8, p50 float8, p90 float8, p95 float8, p99 float8)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_since    timestamptz := clock_timestamp() - taskq_internal.clamp_age(p_within);
    v_topic_id int := CASE WHEN p_topic IS NOT NULL
        THEN (taskq_internal.accessible_topic(p_topic, 'SELECT')).topic_id END;
BEGIN
    PERFORM taskq_internal.check_access(p_topic, 'SELECT');
    RETURN QUERY
    SELECT p.name, s.ended, s.succeeded, s.failed, s.retried, s.retries, s.shortest, s.mean, s.longest, s.p[1], s.p[2],
        s.p[3], s.p[4]
    FROM (SELECT e.topic_id, count(*) AS ended, count(*) FILTER (WHERE e.state = :SUCCEEDED) AS succeeded,
                 count(*) FILTER (WHERE e.state = :FAILED) AS failed, count(*) FILTER (WHERE e.attempt > 1) AS retried,
                 coalesce(sum(e.attempt - 1) FILTER (WHERE e.attempt > 1), 0)::bigint AS retries,
                 min(d.seconds) AS shortest, avg(d.seconds) AS mean, max(d.seconds) AS longest,
                 percentile_cont(ARRAY[0.5, 0.9, 0.95, 0.99]) WITHIN GROUP (ORDER BY d.seconds) AS p
          FROM taskq_internal.ended e
          CROSS JOIN LATERAL (
              SELECT extract(epoch FROM taskq_internal.run_time(
                  CASE WHEN p_run_time THEN e.polled ELSE e.available_at END, e.completed))::float8 AS seconds) d
          WHERE e.completed >= v_since AND e.state BETWEEN :FAILED AND :SUCCEEDED
              AND (v_topic_id IS NULL OR e.topic_id = v_topic_id)
          GROUP BY e.topic_id) s
    JOIN taskq_internal.topic p ON p.topic_id = s.topic_id ORDER BY p.name;
END $$;
COMMENT ON FUNCTION taskq.statistics IS
'Returns statistics of the tasks that ended within p_within, by topic. With p_topic NULL it returns all topics. Each row
has the number of tasks that ended, succeeded, failed and were retried. It also has the seconds from the due time of the
last attempt to its end, or with p_run_time true from its poll to its end: shortest, mean, longest and percentiles. The
cost grows with the number of tasks that ended within p_within. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.error_groups(p_topic text, p_size int DEFAULT 100, p_budget int DEFAULT 10000)
RETURNS TABLE (error text, failed bigint, retrying bigint, messages bigint, example text, newest bigint,
               last_failed timestamptz, looked_at bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'SELECT')).topic_id;
BEGIN
    RETURN QUERY
    SELECT taskq_internal.error_group(n.error_summary, n.identifier), count(*) FILTER (WHERE n.failed),
           count(*) FILTER (WHERE NOT n.failed), count(DISTINCT n.error_summary),
           (array_agg(n.error_summary ORDER BY n.failed DESC, n.sequence DESC))[1], max(n.sequence),
           taskq_internal.clamp_moment(max(n.completed)), (sum(count(*) FILTER (WHERE n.failed)) OVER ())::bigint
    FROM ((SELECT e.sequence, e.identifier, e.error_summary, e.completed, true AS failed FROM taskq_internal.ended e
           WHERE e.topic_id::bigint = v_topic_id AND e.state::int = :FAILED
             AND e.state::int IN (:EXPIRED, :FAILED, :SUSPENDED)
           ORDER BY e.sequence DESC LIMIT greatest(p_budget, 0))
          UNION ALL
          (SELECT l.sequence, l.identifier, l.error_summary, NULL, false FROM taskq_internal.live l
           WHERE l.topic_id::bigint = v_topic_id AND l.holder IS NULL AND l.attempt > 0
           ORDER BY l.sequence DESC LIMIT greatest(p_budget, 0))) n
    GROUP BY 1 ORDER BY 2 DESC, 3 DESC, 1 LIMIT greatest(p_size, 0);
END $$;
COMMENT ON FUNCTION taskq.error_groups IS
'Returns up to p_size groups of the errors of a topic''s FAILED tasks, the largest first. Each row has the number of
FAILED tasks, the number of tasks that wait for a retry, the number of different summaries, an example, the newest task
and the time of the last failure. Reads the newest p_budget tasks of each kind. looked_at is the number of FAILED tasks
that it read. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.throughput(p_span interval, p_spans int, p_topic text DEFAULT NULL, p_pages int DEFAULT 2000)
RETURNS TABLE (topic text, span int, state int, count bigint, sampled double precision) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_table record;
    v_share double precision;
    v_reach interval;
BEGIN
    PERFORM taskq_internal.check_duration('throughput: the span', p_span);
    v_reach := make_interval(secs => least(p_spans * extract(epoch FROM p_span), 31536000000)::float8);
    FOR v_table IN SELECT c.oid::regclass AS name, pg_relation_size(c.oid) / current_setting('block_size')::int AS pages
                   FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid
                       WHERE h.inhparent = 'taskq_internal.ended'::regclass LOOP
        v_share := least(100, 100.0 * p_pages / greatest(v_table.pages, 1));
        RETURN QUERY EXECUTE format(
            'SELECT p.name, n.span, n.state, round(n.count * 100 / $1)::bigint, $1 / 100 FROM (
                 SELECT e.topic_id, e.state::int, floor(extract(epoch FROM $2 - e.completed) / $3)::int AS span,
                        count(*) AS count
                 FROM %s e %s
                 WHERE e.completed > $2 - $4 AND e.completed <= $2 AND e.state BETWEEN :FAILED AND :SUCCEEDED
                 GROUP BY 1, 2, 3) n
             JOIN taskq_internal.topic p ON p.topic_id = n.topic_id WHERE $5 IS NULL OR p.name = $5',
            v_table.name, CASE WHEN v_share < 100 THEN format('TABLESAMPLE SYSTEM (%s)', v_share) ELSE '' END)
        USING v_share, v_now, extract(epoch FROM p_span), v_reach, p_topic;
    END LOOP;
END $$;
COMMENT ON FUNCTION taskq.throughput IS
'Returns how many tasks of each topic ended in each state from FAILED to SUCCEEDED, in p_spans spans of time up to now.
Span 0 is the last span. With p_topic it returns only this topic. Reads at most p_pages pages. Of a longer history it
reads a random share and extrapolates. The column sampled is that share. Raises TQ008 for an invalid p_span.';
