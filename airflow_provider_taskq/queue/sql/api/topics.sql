-- Topics: names, policies, and the grants of access to them.

CREATE FUNCTION taskq.policy(p_topic text) RETURNS taskq_internal.topic LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN taskq_internal.accessible_topic(p_topic, 'SELECT, INSERT, UPDATE');
END $$;
COMMENT ON FUNCTION taskq.policy IS
'Returns a topic with its policy and its number. The columns paused, paused_by and paused_since describe its pause.
Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.create_topic(
    p_topic text, p_max_attempts int DEFAULT 1, p_base interval DEFAULT '1 minute', p_factor double precision DEFAULT 2,
    p_max_delay interval DEFAULT '180 minutes', p_horizon interval DEFAULT NULL, p_max_elapsed interval DEFAULT NULL,
    p_jitter double precision DEFAULT 0, p_probe boolean DEFAULT false, p_on_expiry text DEFAULT 'redeliver',
    p_max_crashes int DEFAULT 3, p_max_payload_bytes int DEFAULT 262144, p_ttl interval DEFAULT NULL,
    p_notify boolean DEFAULT false, p_keep_succeeded interval DEFAULT NULL, p_keep_failed interval DEFAULT NULL,
    p_own_tables boolean DEFAULT false
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic taskq_internal.topic;
BEGIN
    IF EXISTS (SELECT FROM taskq_internal.topic WHERE name = p_topic) THEN
        RETURN false;  -- before it draws a number
    END IF;
    INSERT INTO taskq_internal.topic (topic_id, name, max_attempts, base, factor, max_delay, horizon, max_elapsed,
        jitter, probe, on_expiry, max_crashes, max_payload_bytes, ttl, notify, keep_succeeded, keep_failed)
    VALUES (CASE WHEN p_own_tables THEN nextval('taskq_internal.own_topic_id')
                 ELSE nextval('taskq_internal.shared_topic_id') END, p_topic, p_max_attempts, p_base, p_factor,
            p_max_delay, p_horizon, p_max_elapsed, p_jitter, p_probe, p_on_expiry, p_max_crashes,
            p_max_payload_bytes, p_ttl, p_notify, p_keep_succeeded, p_keep_failed)
    ON CONFLICT (name) DO NOTHING RETURNING * INTO v_topic;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM taskq_internal.check_policy(v_topic), taskq_internal.add_fronts(v_topic.topic_id, '{0}');
    IF p_own_tables THEN
        PERFORM taskq_internal.create_own_tables(v_topic.topic_id);
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION taskq.create_topic IS
'Creates a topic with a policy, for example taskq.create_topic(''orders'', p_max_attempts => 3, p_base => ''30 s''). If
no policy is given, a task has one attempt. With p_own_tables true the topic has tables of its own. Returns false and
changes nothing if the topic exists. Raises TQ008 for an invalid duration, and check_violation for an invalid name or
another invalid field.';

CREATE FUNCTION taskq.alter_topic(p_topic text, p_changes jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_topic   taskq_internal.topic := taskq_internal.find_topic(p_topic);
    v_altered taskq_internal.topic;
    v_fields  text := taskq_internal.policy_fields(p_topic, p_changes);
BEGIN
    SELECT * INTO v_topic FROM taskq_internal.topic WHERE topic_id = v_topic.topic_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM taskq_internal.raise_error('TQ001', format('topic %L was dropped at this moment', p_topic));
    END IF;
    EXECUTE format('UPDATE taskq_internal.topic t SET (%1$s) = (SELECT %1$s FROM jsonb_populate_record(t, $1)) '
                   'WHERE topic_id = $2 RETURNING *', v_fields) INTO v_altered USING p_changes, v_topic.topic_id;
    PERFORM taskq_internal.check_policy(v_altered);
    DELETE FROM taskq_internal.retention_walk WHERE topic_id = v_topic.topic_id;  -- other tasks may be too old now
    IF v_altered.probe AND NOT v_topic.probe THEN  -- tasks that wait for a retry now also wait for the probe
        UPDATE taskq_internal.live SET waits = :WAITS_PROBE WHERE topic_id = v_topic.topic_id AND holder IS NULL
            AND attempt > 0 AND waits <= :WAITS_NOTHING;
    END IF;
END $$;
COMMENT ON FUNCTION taskq.alter_topic IS
'Changes the fields of a topic''s policy that the JSON object p_changes names, for example {"max_attempts": 5, "ttl":
"90 s"}. Scheduled retries keep their time. Concurrent changes wait for each other. Raises TQ001 for an unknown topic,
TQ008 for an unknown field or an invalid duration, and check_violation or invalid_text_representation for another
invalid value.';

CREATE FUNCTION taskq.set_paused(p_topic text, p_paused boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_topic_id int := (taskq_internal.find_topic(p_topic)).topic_id;
BEGIN
    PERFORM FROM taskq_internal.topic WHERE topic_id = v_topic_id FOR NO KEY UPDATE;
    UPDATE taskq_internal.topic t SET paused = p_paused,
        paused_by = CASE WHEN p_paused THEN coalesce(taskq_internal.current_actor(), session_user) END,
        paused_since = CASE WHEN p_paused THEN clock_timestamp() END
    WHERE t.topic_id = v_topic_id AND t.paused <> p_paused;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION taskq.set_paused IS
'Pauses or resumes a topic. A paused topic accepts pushes and completions, but polls get none of its tasks. Returns
false if the topic was already paused or running as requested. Raises TQ001 for an unknown topic.';

CREATE FUNCTION taskq.topics() RETURNS SETOF text LANGUAGE sql STABLE AS $$
    SELECT name FROM taskq_internal.topic
    WHERE (SELECT taskq_internal.may_access(NULL, 'SELECT, INSERT, UPDATE'))
        OR taskq_internal.may_access_topic(name, 'SELECT, INSERT, UPDATE')
    ORDER BY name
$$;
COMMENT ON FUNCTION taskq.topics IS
'Returns the names of all topics that the role may use, in alphabetical order.';

-- A transaction of several verbs may hold a lock that this function needs, and wait for a lock that this function
-- holds. PostgreSQL would end one of the two. So this function waits for each lock for less than deadlock_timeout. Then
-- it gives all its locks back, and begins again.
CREATE FUNCTION taskq.drop_topic(p_topic text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_patience interval := coalesce(nullif(current_setting('lock_timeout')::interval, interval '0'), '1 minute');
    v_until    timestamptz := clock_timestamp() + v_patience;
BEGIN
    PERFORM taskq_internal.require_read_committed('drop_topic()');
    LOOP
        BEGIN
            RETURN taskq_internal.try_drop_topic(p_topic);
        EXCEPTION WHEN lock_not_available THEN  -- the rollback has released the locks of this try
            IF clock_timestamp() >= v_until THEN
                PERFORM taskq_internal.raise_error('TQ000', format(
                    'topic %L cannot be dropped: transactions have used it for longer than %s. Pause the topic, and'
                    ' repeat this when they have ended; taskq health names open transactions', p_topic,
                    taskq.format_duration(v_patience)));
            END IF;
        END;
        PERFORM pg_sleep(0.05 + 0.1 * random());
    END LOOP;
END $$;
COMMENT ON FUNCTION taskq.drop_topic IS
'Drops a topic with all its tasks. Waits for transactions that push to the topic or hold its tasks, for a minute or the
lock_timeout of the session. If the topic has its own tables, it waits for all transactions that use tasks of any topic,
and then keeps them out until its transaction ends. Returns false if the topic does not exist. Raises TQ000 if other
transactions still use the topic, and above READ COMMITTED.';

-- Returns the columns of a policy. Raises TQ008 if the changes are not a JSON object of some of them.
CREATE FUNCTION taskq_internal.policy_fields(p_topic text, p_changes jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_fields  text[] := ARRAY['max_attempts', 'base', 'factor', 'max_delay', 'horizon', 'max_elapsed', 'jitter',
                              'probe', 'on_expiry', 'max_crashes', 'max_payload_bytes', 'ttl', 'notify',
                              'keep_succeeded', 'keep_failed'];
    v_unknown text;
BEGIN
    IF jsonb_typeof(p_changes) IS DISTINCT FROM 'object' THEN
        PERFORM taskq_internal.raise_error('TQ008', format('topic %L: changes of a policy are a JSON object', p_topic));
    END IF;
    SELECT string_agg(quote_literal(k), ', ' ORDER BY k) INTO v_unknown FROM jsonb_object_keys(p_changes) k
        WHERE k <> ALL (v_fields);
    IF v_unknown IS NOT NULL THEN
        PERFORM taskq_internal.raise_error('TQ008', format(
            'topic %L: a policy has no field %s; it has %s', p_topic, v_unknown, array_to_string(v_fields, ', ')));
    END IF;
    RETURN array_to_string(v_fields, ', ');
END $$;

CREATE FUNCTION taskq.grant_access(role text, kind text, topics text[] DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM taskq_internal.check_name('a topic', u.topic) FROM unnest(grant_access.topics) AS u (topic);
    IF (grant_access.kind IN ('producer', 'consumer', 'reader') AND grant_access.topics IS DISTINCT FROM '{}'
        OR grant_access.kind = 'operator' AND grant_access.topics IS NULL) IS NOT TRUE THEN
        PERFORM taskq_internal.raise_error('TQ000', format('access %L to topics %L: expected producer, consumer or '
            'reader with at least one topic, or NULL for every topic, or operator, which cannot be limited to topics',
            grant_access.kind, grant_access.topics));
    END IF;
    PERFORM taskq_internal.forget_dropped_roles();
    DELETE FROM taskq_internal.access a WHERE a.role = grant_access.role AND a.kind = grant_access.kind
        AND (grant_access.topics IS NULL OR a.topic = '');
    INSERT INTO taskq_internal.access (role, kind, topic)
    SELECT grant_access.role, grant_access.kind, u.topic
    FROM unnest(coalesce(grant_access.topics, ARRAY[''])) AS u (topic) ON CONFLICT DO NOTHING;
    PERFORM taskq_internal.apply_grants(grant_access.role);
END $$;
COMMENT ON FUNCTION taskq.grant_access IS
'Grants a role one kind of access: producer, consumer, reader or operator. Several grants add up. The queue stores the
grant and repeats it after an upgrade. The argument topics limits the role to these topics, which need not exist yet,
also if it had access to every topic before. With topics NULL the role may use every topic. An operator cannot be
limited. Only the owner of the schema may call this function. Raises TQ000 for an unknown kind, and TQ008 for an invalid
name of a topic.';

CREATE FUNCTION taskq.revoke_access(role text, kind text DEFAULT NULL, topics text[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM taskq_internal.forget_dropped_roles();
    DELETE FROM taskq_internal.access a
    WHERE a.role = revoke_access.role AND (revoke_access.kind IS NULL OR a.kind = revoke_access.kind)
      AND (revoke_access.topics IS NULL OR a.topic = ANY (revoke_access.topics));
    PERFORM taskq_internal.apply_grants(revoke_access.role);
END $$;
COMMENT ON FUNCTION taskq.revoke_access IS
'Revokes access that taskq.grant_access has granted to a role: all kinds, one kind, or one kind for the named topics.
Only the owner of the schema may call this function.';
