-- Tasks for people at a psql prompt, with names instead of numbers, ages instead of times, and the reason why a task is
-- not running.
-- The views leave out payloads, which taskq.task has, and cut outputs and errors to a line. Programs call functions
-- instead, because the columns here may change with any release.

-- Tasks that wait or are held, with the columns of taskq.tasks. The bounds of the times are those of
-- taskq_internal.clamp_moment, on which the readers of the view have no right.
CREATE VIEW taskq_internal.live_tasks AS
SELECT p.name AS topic, t.sequence, t.identifier, NULL::text AS result,
       coalesce(taskq.explain_task(l.topic_id, l.sequence), 'it is ready') AS why,
       l.attempt, l.crashes, l.priority, t.reference,
       statement_timestamp() - greatest(least(t.created, '9999-12-31 00:00Z'), '0001-01-01 00:00Z') AS age,
       CASE WHEN l.holder IS NULL THEN
           greatest(least(l.available_at, '9999-12-31 00:00Z'), '0001-01-01 00:00Z') - statement_timestamp()
       END AS due_in,
       o.name AS holder, CASE WHEN l.holder IS NOT NULL THEN o.lease_until END AS lease_until,
       l.polled, NULL::timestamptz AS completed, NULL::text AS output, left(l.error_summary, 120) AS error,
       l.topic_id, l.holder IS NULL AS waiting, NULL::smallint AS number
FROM taskq_internal.live l
JOIN taskq_internal.topic p ON p.topic_id = l.topic_id
JOIN taskq_internal.task t ON t.topic_id = l.topic_id AND t.sequence = l.sequence
LEFT JOIN taskq_internal.owner o ON o.owner_id = l.holder;

-- Tasks in the other states, with the columns of taskq.tasks.
CREATE VIEW taskq_internal.ended_tasks AS
SELECT p.name AS topic, t.sequence, t.identifier,
       CASE e.state WHEN :FAILED THEN 'FAILURE' WHEN :SUSPENDED THEN 'SUSPENSION' WHEN :FILTERED THEN 'FILTER'
           WHEN :SUCCEEDED THEN 'SUCCESS' END AS result,
       taskq.explain_task(e.topic_id, e.sequence) AS why,
       e.attempt, e.crashes, t.priority, t.reference,
       statement_timestamp() - greatest(least(t.created, '9999-12-31 00:00Z'), '0001-01-01 00:00Z') AS age,
       NULL::interval AS due_in, o.name AS holder, NULL::timestamptz AS lease_until, e.polled, e.completed,
       left(e.output::text, 120) AS output,
       left(e.error_summary, 120) AS error, e.topic_id, NULL::boolean AS waiting, e.state AS number
FROM taskq_internal.ended e
JOIN taskq_internal.topic p ON p.topic_id = e.topic_id
JOIN taskq_internal.task t ON t.topic_id = e.topic_id AND t.sequence = e.sequence
LEFT JOIN taskq_internal.owner o ON o.owner_id = e.holder;

-- All tasks by name. Every state is a branch of its own, so a query for one state reads no tables of other states.
CREATE VIEW taskq.tasks AS
SELECT v.topic, v.sequence, v.identifier, v.state, v.result, v.why, v.attempt, v.crashes, v.priority, v.reference,
    v.age, v.due_in,
       v.holder, v.lease_until, v.polled, v.completed, v.output, v.error, v.topic_id
FROM (SELECT 'ACTIVE' AS state, l.* FROM taskq_internal.live_tasks l WHERE NOT l.waiting
      UNION ALL SELECT 'READY', l.* FROM taskq_internal.live_tasks l WHERE l.waiting
      UNION ALL SELECT 'EXPIRED', e.* FROM taskq_internal.ended_tasks e WHERE e.number = :EXPIRED
      UNION ALL SELECT 'FAILED', e.* FROM taskq_internal.ended_tasks e WHERE e.number = :FAILED
      UNION ALL SELECT 'SUSPENDED', e.* FROM taskq_internal.ended_tasks e WHERE e.number = :SUSPENDED
      UNION ALL SELECT 'FILTERED', e.* FROM taskq_internal.ended_tasks e WHERE e.number = :FILTERED
      UNION ALL SELECT 'SUCCEEDED', e.* FROM taskq_internal.ended_tasks e WHERE e.number = :SUCCEEDED
      UNION ALL SELECT 'RECREATED', e.* FROM taskq_internal.ended_tasks e WHERE e.number = :RECREATED
      UNION ALL SELECT 'REDUNDANT', e.* FROM taskq_internal.ended_tasks e WHERE e.number = :REDUNDANT) v;
COMMENT ON VIEW taskq.tasks IS
'All tasks, for people at a psql prompt. The view has names instead of numbers, ages instead of times, and the reason
why a task is not running. It leaves out payloads, and cuts outputs and errors to a line. Filter by topic and state. The
columns may change with any release.';

CREATE VIEW taskq.topic_summaries AS
SELECT p.name AS topic, p.paused, b.ready, b.scheduled, b.retrying, b.blocked, b.running,
       make_interval(secs => b.oldest_seconds) AS oldest, make_interval(secs => b.last_end_seconds) AS last_end,
       p.topic_id >= :FIRST_OWN_TOPIC AS own_tables, p.topic_id
FROM taskq_internal.topic p CROSS JOIN LATERAL taskq.browse_topics(p.name, true, NULL, 1, 1000) b
ORDER BY p.name;
COMMENT ON VIEW taskq.topic_summaries IS
'One row for each topic, for people at a psql prompt, with the counts of taskq.browse_topics up to 1,000. The column
oldest tells for how long the oldest task has been due. The column last_end tells how long ago the last of its newest
100 ended tasks ended. The columns may change with any release.';
