-- Calls every function of the schema taskq once, with plausible arguments, in one session. A test runs the file in
-- PGlite, statement by statement, and compares the functions with those of the schema.

-- Topics, pushes and offers
SELECT taskq.create_topic('orders', p_max_attempts => 3, p_base => '1 minute');
SELECT taskq.create_topic('mails');
SELECT taskq.create_topic('moved');
SELECT taskq.alter_topic('orders', '{"max_crashes": 5}');
SELECT * FROM taskq.policy('orders');
SELECT * FROM taskq.topics();
SELECT taskq.push('orders', 'customer-1', '{"total": 12}');
SELECT taskq.push('orders', 'customer-2', '{"total": 12}', insertion => 'SUPERSEDE');
SELECT taskq.push('orders', 'customer-3', jsonb '{"total": 12}', insertion => 'REPLACE', priority => 5);
SELECT taskq.push('orders', 'APPEND', ARRAY['customer-4', 'customer-5'], p_depend_places => ARRAY[1],
    p_depend_topics => ARRAY['orders'], p_depend_identifiers => ARRAY['customer-4']);
SELECT taskq.push('orders', 'customer-6', insertion => 'DELETE', delay => '1 hour');
SELECT taskq.push('orders', 'customer-7', suspended => true);
SELECT taskq.push('orders', 'customer-8', suspended => true);
SELECT taskq.push_task(topic => 'mails', identifier => 'mail-0', payload => '{}');
SELECT * FROM taskq.offer('mails', 'mail-1', '{}');
SELECT * FROM taskq.offer_many('mails', 'ignore', ARRAY['mail-1', 'mail-2']);
SELECT taskq.lock_offers('mails', ARRAY['mail-1']);
SELECT taskq.drop('mails', 'mail-2');
SELECT taskq.first_pushed('orders', 1);
SELECT taskq.notify('orders');

-- Leases, polls and decisions
SELECT * FROM taskq.register('worker-1', '5 minutes');
SELECT taskq.heartbeat('worker-1', (SELECT fence FROM taskq.owner('worker-1')));
SELECT taskq.draw_fence('worker-1', (SELECT fence FROM taskq.owner('worker-1')));
SELECT * FROM taskq.owners('1 hour');
SELECT taskq.ready('orders', 10, 'SINGULAR_BY_IDENTIFIER');
SELECT * FROM taskq.poll('orders', 'worker-1', (SELECT fence FROM taskq.owner('worker-1')), 1,
    'LAST_IN_FIRST_OUT', 'SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS');
SELECT taskq.claim('orders', 'worker-1', (SELECT fence FROM taskq.owner('worker-1')), 1, 'FIRST_IN_FIRST_OUT', 'NONE');
SELECT * FROM taskq.held('worker-1', (SELECT fence FROM taskq.owner('worker-1')), 'orders');
SELECT taskq.max_claim('worker-1', (SELECT fence FROM taskq.owner('worker-1')));
SELECT taskq.complete('worker-1', (SELECT fence FROM taskq.owner('worker-1')), ARRAY(
    SELECT sequence FROM taskq.held('worker-1', (SELECT fence FROM taskq.owner('worker-1')), 'orders')), '{0, 0}',
    p_errors => ARRAY['ValueError: no such customer'], p_attempts => ARRAY(
    SELECT attempt FROM taskq.held('worker-1', (SELECT fence FROM taskq.owner('worker-1')), 'orders')));
SELECT taskq.claim_batch('orders', 'worker-1', (SELECT fence FROM taskq.owner('worker-1')), 1,
    'SINGULAR_BY_IDENTIFIER');
SELECT * FROM taskq.poll_batch('orders', 'worker-1', (SELECT fence FROM taskq.owner('worker-1')), 1, -1);
SELECT * FROM taskq.exchange('worker-1', (SELECT fence FROM taskq.owner('worker-1')), ARRAY(
    SELECT sequence FROM taskq.held('worker-1', (SELECT fence FROM taskq.owner('worker-1')), 'orders') LIMIT 1),
    '{3}', NULL, NULL, NULL, NULL, 'mails', 1, 'FIRST_IN_FIRST_OUT', 'NONE', '{NULL}');
SELECT * FROM taskq.find_claimed('orders', 'worker-1', now() - interval '1 hour', 100);
SELECT * FROM taskq.count_ended_by('orders', 'worker-1', now() - interval '1 hour', 100);
SELECT * FROM taskq.held_bounds('worker-1', (SELECT fence FROM taskq.owner('worker-1')), NULL, 2);
SELECT * FROM taskq.held_slice('worker-1', (SELECT fence FROM taskq.owner('worker-1')), NULL, 1, 100);
SELECT taskq.defer_held_tasks('worker-1', (SELECT fence FROM taskq.owner('worker-1')));
SELECT * FROM taskq.browse_held('worker-1', true, 0, 100);
SELECT * FROM taskq.browse_holders('orders');
SELECT * FROM taskq.register('worker-1', '5 minutes', true, (SELECT fence FROM taskq.owner('worker-1')));
SELECT taskq.release('worker-1', (SELECT fence FROM taskq.owner('worker-1')));

-- Expiry, revival and junctions
SELECT * FROM taskq.register('worker-2', '1 millisecond');
SELECT pg_sleep(0.01);
SELECT taskq.expire('0');
SELECT * FROM taskq.maintain(ARRAY['worker-1']);
SELECT * FROM taskq.register('worker-3', '5 minutes');
SELECT * FROM taskq.poll('orders', 'worker-3', (SELECT fence FROM taskq.owner('worker-3')), 1);
SELECT taskq.complete('worker-3', (SELECT fence FROM taskq.owner('worker-3')), ARRAY(
    SELECT sequence FROM taskq.held('worker-3', (SELECT fence FROM taskq.owner('worker-3')), 'orders')), '{3}',
    p_outputs => ARRAY['{"sent": true}']);
SELECT taskq.reassign('orders', 0, NULL, 6, 0, NULL);
SELECT * FROM taskq.revive('orders', 'APPEND', NULL, 3);
SELECT taskq.junction('orders', ARRAY['customer-7'], ARRAY[1], 'SINGULAR');
SELECT taskq.release_groups_once('run-1', 'orders', ARRAY['customer-8'], ARRAY[1], 'ETERNAL');

-- Changes of tasks that wait, and of topics
SELECT taskq.change_waiting('orders', ARRAY[1], p_due => now() + interval '1 hour');
SELECT taskq.lock_tasks('orders', ARRAY[1], ARRAY[1]);
SELECT taskq.cancel('orders', ARRAY[1]);
SELECT taskq.set_paused('orders', true);
SELECT taskq.set_paused('orders', false);
SELECT set_config('taskq.actor', 'visitor', false);
SELECT taskq.record_action('cancel', 'orders', 'sequence 1', 1);
SELECT * FROM taskq.audit_trail('orders', NULL, 10);

-- Reading
SELECT taskq.state_name(1);
SELECT taskq.format_duration('90 minutes');
SELECT * FROM taskq.task('orders', 1);
SELECT * FROM taskq.latest('orders', ARRAY['customer-1']);
SELECT * FROM taskq.count(NULL, false, NULL, NULL, NULL, 0, NULL);
SELECT * FROM taskq.results(NULL, NULL);
SELECT taskq.resolve(now() - interval '1 hour', false);
SELECT * FROM taskq.search_tasks('customer-1', 10);
SELECT * FROM taskq.find_tasks('orders', NULL, NULL, 'customer-1', NULL, NULL, NULL, NULL, NULL, 1, 0, false, 10,
    1000);
SELECT * FROM taskq.task_bounds('orders', 0, 100, NULL, NULL, NULL, NULL, 2);
SELECT * FROM taskq.task_slice('orders', 0, 100, NULL, NULL, NULL, NULL, true);
SELECT * FROM taskq.dependencies('orders', 5);
SELECT * FROM taskq.timeline('orders', 1);
SELECT * FROM taskq.explain('orders', 1);
SELECT taskq.explain_task(1, 5);
SELECT * FROM taskq.oldest_due();
SELECT * FROM taskq.topic_status(ARRAY['orders'], ARRAY['NONE'], 1000);
SELECT * FROM taskq.error_groups('orders');
SELECT * FROM taskq.statistics('1 hour');
SELECT * FROM taskq.throughput('1 hour', 4);
SELECT * FROM taskq.health();
SELECT * FROM taskq.browse_topics('or', false, NULL, 10, 1000);
SELECT * FROM taskq.browse_owners('work', false, NULL, 10);
SELECT * FROM taskq.watch_groups(ARRAY['run-1'], ARRAY['orders'], ARRAY['ETERNAL'], ARRAY[1], ARRAY[0],
    ARRAY['customer-8']);
SELECT * FROM taskq.watch_tasks(ARRAY['orders'], ARRAY[1], ARRAY['NONE'], ARRAY[true], ARRAY['orders'],
    ARRAY['customer-1']);

-- The log, consumer groups and partitions
SELECT * FROM taskq.events('orders', NULL, 10, 0, 1, NULL);
SELECT * FROM taskq.log_blockers('orders');
SELECT taskq.log_end('orders', 0, NULL);
SELECT * FROM taskq.log_slice('orders', 0, 100);
SELECT taskq.advance('readers', 'orders', 0, 1);
SELECT taskq.progress('readers', 'orders', 0);
CREATE TEMP TABLE lease AS SELECT * FROM taskq.acquire_partition(
    'worker-3', (SELECT fence FROM taskq.owner('worker-3')), 'group', 'orders');
SELECT * FROM taskq.read_partition('group', 'orders', (SELECT partition FROM lease), (SELECT fence FROM lease), 10);
SELECT taskq.advance_partition('group', 'orders', (SELECT partition FROM lease), (SELECT fence FROM lease), NULL, 1);
SELECT * FROM taskq.partition_states('orders', 10, 1000);
SELECT * FROM taskq.skipped_events('group', 'orders', 10);
SELECT taskq.release_partition('group', 'orders', (SELECT partition FROM lease), (SELECT fence FROM lease), NULL);
SELECT taskq.forget_group('group', 'orders');

-- Stages, drains and streams
SELECT * FROM taskq.poll('orders', 'worker-3', (SELECT fence FROM taskq.owner('worker-3')), 1);
CREATE TEMP TABLE stage AS
    SELECT taskq.open_stage('worker-3', (SELECT fence FROM taskq.owner('worker-3')), 'NONE') AS id;
INSERT INTO taskq.staged (stage, part, attempt, sequence, result)
    SELECT id, 0, 1, sequence, 3 FROM stage, taskq.held('worker-3', (SELECT fence FROM taskq.owner('worker-3')), 'orders');
SELECT taskq.check_stage((SELECT id FROM stage), 'worker-3', (SELECT fence FROM taskq.owner('worker-3')));
SELECT taskq.count_staged((SELECT id FROM stage));
SELECT taskq.commit_stage((SELECT id FROM stage), ARRAY[0], ARRAY[1], ARRAY[taskq.count_staged((SELECT id FROM stage))],
    'worker-3', (SELECT fence FROM taskq.owner('worker-3')));
SELECT * FROM taskq.close_stage((SELECT id FROM stage));
SELECT taskq.prune_stages();
CREATE TEMP TABLE pushes AS SELECT taskq.open_stage() AS id;
INSERT INTO taskq.staged_task (stage, part, attempt, place, identifier) SELECT id, 0, 1, 0, 'customer-9' FROM pushes;
SELECT taskq.commit_stage((SELECT id FROM pushes), ARRAY[0], ARRAY[1], ARRAY[1], p_topic => 'orders');
SELECT taskq.begin_drain('drain-1', NULL, 'orders');
SELECT taskq.end_drain('drain-1', NULL, '{"succeeded": 1}');
SELECT * FROM taskq.find_drain('drain-1');
SELECT taskq.begin_stream_batch('stream-1', 0, 'query-1');

-- Ticks, locks and workers
SELECT taskq.install_ticks('mails', 'daily', 'hash-1', ARRAY[timestamptz '2030-01-01 00:00Z']);
SELECT * FROM taskq.browse_ticks('mails', 10);
SELECT taskq.last_tick('orders', 'hourly', 'hash');
SELECT taskq.uninstall_ticks('mails', 'daily', 'hash-1');
SELECT taskq.lock('nightly', 'worker-1', '1 minute', '0');
SELECT * FROM taskq.browse_locks(NULL, 10);
SELECT taskq.unlock('nightly', 'worker-1');
SELECT taskq.set_worker_active('worker-1', false);
SELECT taskq.is_worker_active('worker-1');
SELECT * FROM taskq.workers();
SELECT taskq.forget_worker('worker-1');

-- Access
CREATE ROLE producer_of_orders;
SELECT taskq.grant_access('producer_of_orders', 'producer', ARRAY['orders']);
SELECT taskq.revoke_access('producer_of_orders', 'producer', ARRAY['orders']);

-- Removal
SELECT taskq.purge('orders', 1, 1, NULL, 10);
SELECT taskq.purge_past_ttl('orders', 10);
SELECT taskq.forget_worker('worker-2');
SELECT taskq.purge_all('orders');
SELECT taskq.drop_topic('orders');
SELECT taskq.purge_owners('0');
