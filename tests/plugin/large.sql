INSERT INTO taskq_internal.task (sequence, created, due, pushed_in, topic_id, priority, identifier, reference, payload)
SELECT n, clock_timestamp() - (1000000 - n) * interval '0.1 second', clock_timestamp() - (1000000 - n) * interval '0.1 second',
       '3', (SELECT topic_id FROM taskq_internal.topic WHERE name = 'work'), 0, 'task-' || n % 300000, 'batch-' || n / 1000, '{"number": 1}'
FROM generate_series(1, 1000000) n;
INSERT INTO taskq_internal.ended (sequence, completed, available_at, holder, topic_id, attempt, state, identifier, error)
SELECT n, clock_timestamp() - (1000000 - n) * interval '0.1 second', clock_timestamp(), 1 + n % 20,
       (SELECT topic_id FROM taskq_internal.topic WHERE name = 'work'), 1, CASE WHEN n % 7 = 0 THEN 3 ELSE 6 END, 'task-' || n % 300000,
       CASE WHEN n % 7 = 0 THEN 'error number ' || n END
FROM generate_series(1, 700000) n;
INSERT INTO taskq_internal.live (sequence, available_at, holder, topic_id, attempt, priority, identifier, error)
SELECT n, clock_timestamp() + CASE WHEN n % 3 = 0 THEN interval '-1 hour' ELSE interval '1 day' END,
       CASE WHEN n % 30 = 0 THEN 1 + n / 30 % 20 END, (SELECT topic_id FROM taskq_internal.topic WHERE name = 'work'),
       CASE WHEN n % 3 = 1 OR n % 30 = 0 THEN 1 ELSE 0 END, 0, 'task-' || n % 300000, CASE WHEN n % 3 = 1 THEN 'tried again' END
FROM generate_series(700001, 1000000) n;
SELECT setval('taskq_internal.task_sequence', 1000000);
VACUUM ANALYZE taskq_internal.task, taskq_internal.ended, taskq_internal.live
