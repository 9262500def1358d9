-- Schedulers: install and remove the ticks of recurring tasks.

CREATE FUNCTION taskq.install_ticks(
    p_topic text, p_prefix text, p_config_hash text, p_moments timestamptz[], p_payloads text[] DEFAULT NULL,
    p_references text[] DEFAULT NULL, p_suspended boolean[] DEFAULT NULL, p_available_at timestamptz[] DEFAULT NULL,
    p_delays interval[] DEFAULT NULL, p_ttls interval[] DEFAULT NULL, p_priorities int[] DEFAULT NULL,
    p_offset int DEFAULT 0, p_depend_places int[] DEFAULT NULL, p_depend_topics text[] DEFAULT NULL,
    p_depend_identifiers text[] DEFAULT NULL
) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_topic       taskq_internal.topic := taskq_internal.lock_topic_shared(p_topic, 'INSERT');
    v_identifiers text[];
    v_due         timestamptz[];
    v_added       bigint[];
    v_depending   record;
BEGIN
    PERFORM taskq_internal.lock_ticks(v_topic, p_prefix, p_config_hash);
    PERFORM taskq_internal.check_tasks(v_topic, ARRAY(SELECT p_prefix FROM unnest(p_moments)), NULL, NULL, p_moments,
                                       NULL, NULL, NULL, p_offset);
    v_identifiers := ARRAY(SELECT p_prefix || '/' || p_config_hash || '/'
                               || to_char(u.moment AT TIME ZONE 'UTC', 'YYYYMMDD"T"HH24MISS.US"Z"')
                           FROM unnest(p_moments) WITH ORDINALITY AS u (moment, place) ORDER BY u.place);
    PERFORM taskq_internal.check_tasks(
        v_topic, v_identifiers, p_payloads, p_references, p_available_at, p_delays, p_ttls, p_priorities, p_offset);
    PERFORM taskq_internal.remove_ticks(v_topic.topic_id, p_prefix, p_config_hash, false);
    v_added := ARRAY(SELECT min(u.place) FROM unnest(v_identifiers) WITH ORDINALITY AS u (identifier, place)
                     WHERE NOT EXISTS (SELECT FROM taskq_internal.task t WHERE t.identifier = u.identifier
                                       AND t.topic_id = v_topic.topic_id OFFSET 0)
                     GROUP BY u.identifier ORDER BY 1);
    IF cardinality(v_added) = 0 THEN
        RETURN 0;
    END IF;
    v_due := ARRAY(SELECT CASE WHEN u.delay IS NULL THEN coalesce(u.available_at, u.moment) END
                   FROM unnest(p_moments, p_available_at, p_delays) WITH ORDINALITY
                        AS u (moment, available_at, delay, place) ORDER BY u.place);
    SELECT array_agg((n.nth - 1)::int) AS places, array_agg(d.topic) AS topics, array_agg(d.identifier) AS identifiers
        INTO v_depending
    FROM unnest(p_depend_places, p_depend_topics, p_depend_identifiers) AS d (place, topic, identifier)
    JOIN unnest(v_added) WITH ORDINALITY AS n (place, nth) ON n.place = d.place + 1;
    PERFORM taskq.push(
        p_topic, 'APPEND', taskq_internal.pick_elements(v_identifiers, v_added),
        taskq_internal.pick_elements(p_payloads, v_added), taskq_internal.pick_elements(p_references, v_added),
        taskq_internal.pick_elements(p_suspended, v_added), taskq_internal.pick_elements(v_due, v_added),
        taskq_internal.pick_elements(p_delays, v_added), taskq_internal.pick_elements(p_ttls, v_added),
        taskq_internal.pick_elements(p_priorities, v_added), p_offset, NULL, v_depending.places, v_depending.topics,
        v_depending.identifiers);
    RETURN cardinality(v_added);
END $$;
COMMENT ON FUNCTION taskq.install_ticks IS
'Installs the ticks of a prefix for a configuration with the hash p_config_hash. Removes the ticks of the prefix with
another hash, except held and ended ticks, and then adds the missing ticks. A stored tick stays as it is. p_moments has
the nominal times. The other arrays are those of taskq.push. Concurrent calls for a prefix run one after the other.
Returns how many ticks it added. Raises TQ001 for an unknown topic, TQ002 for an invalid task, prefix, hash or moment,
and TQ000 above READ COMMITTED.';

CREATE FUNCTION taskq.uninstall_ticks(p_topic text, p_prefix text, p_config_hash text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    v_topic taskq_internal.topic := taskq_internal.find_topic(p_topic);
BEGIN
    PERFORM taskq_internal.lock_ticks(v_topic, p_prefix, p_config_hash);
    RETURN taskq_internal.remove_ticks(v_topic.topic_id, p_prefix, p_config_hash, true);
END $$;
COMMENT ON FUNCTION taskq.uninstall_ticks IS
'Removes the ticks of a prefix and a configuration hash, except held and ended ticks. Returns how many ticks it removed.
Raises TQ001 for an unknown topic, TQ002 for an invalid prefix or hash, and TQ000 above READ COMMITTED.';

CREATE FUNCTION taskq.last_tick(p_topic text, p_prefix text, p_config_hash text) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_topic_id int := (taskq_internal.accessible_topic(p_topic, 'INSERT')).topic_id;
BEGIN
    RETURN (SELECT right(t.identifier, 23)::timestamptz FROM taskq_internal.task t
            WHERE t.topic_id = v_topic_id AND t.identifier > p_prefix || '/' || p_config_hash || '/'
              AND t.identifier < p_prefix || '/' || p_config_hash || '0'
              AND taskq_internal.tick_hash(t.identifier, p_prefix) = p_config_hash
            ORDER BY t.identifier DESC LIMIT 1);
END $$;
COMMENT ON FUNCTION taskq.last_tick IS
'Returns the nominal time of the latest tick of a prefix and a configuration hash, in any state. Returns NULL if there
is none. Raises TQ001 for an unknown topic.';
