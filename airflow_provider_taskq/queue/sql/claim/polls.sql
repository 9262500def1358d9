-- Poll: hands out tasks by priority, then by age, each to one owner. A poll never waits, and never returns more tasks
-- than requested. A poll of batches hands out all due tasks of an identifier together.

-- Claims tasks for an owner. Checks the lease (TQ005), the order and the condition first.
CREATE FUNCTION taskq_internal.claim_for_owner(
    p_topic taskq_internal.topic, p_owner text, p_fence bigint, p_size int, p_order text, p_condition text
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_owner_id bigint := taskq_internal.require_running_lease(p_owner, p_fence);
    v_lifo     boolean := p_order = 'LAST_IN_FIRST_OUT';
    v_size     int := least(p_size, taskq_internal.max_tasks());
    v_waited     boolean;
    v_claimed    bigint[];
    v_advanced boolean;
BEGIN
    IF NOT coalesce(p_order = 'FIRST_IN_FIRST_OUT' AND p_condition = 'NONE', false) THEN  -- saves a call in most polls
        PERFORM taskq_internal.check_order_and_condition(p_order, p_condition);
    END IF;
    IF p_topic.paused OR v_owner_id IS NULL OR p_size <= 0 THEN
        RETURN '{}';
    END IF;
    IF p_condition <> 'NONE' THEN
        PERFORM taskq_internal.require_read_committed('a poll under a condition');
    END IF;
    v_waited := taskq_internal.promote_waiting(p_topic, v_size, v_lifo, p_condition);  -- PERFORM costs a statement
    v_claimed := CASE WHEN p_condition = 'NONE'
                        THEN taskq_internal.claim_first_due(p_topic.topic_id, v_owner_id, v_size, v_lifo)
                    ELSE taskq_internal.claim_turns(p_topic.topic_id, v_owner_id, v_size, v_lifo, p_condition) END;
    v_claimed := taskq_internal.cut_claim(p_topic.topic_id, v_owner_id, v_claimed);
    v_advanced := taskq_internal.advance_fronts_at_random(p_topic.topic_id, v_claimed, v_lifo,
                p_condition <> 'NONE');
    IF v_advanced THEN  -- a topic may have no poll that finds nothing
        v_waited := taskq_internal.wake_missed(p_topic.topic_id);
    ELSIF v_claimed = '{}' AND (taskq_internal.take_back_lapsed(p_topic.topic_id)
        OR taskq_internal.recall_early_tasks(p_topic.topic_id, clock_timestamp()) > 0
        OR taskq_internal.wake_missed(p_topic.topic_id)) THEN
        RETURN taskq_internal.claim_for_owner(p_topic, p_owner, p_fence, p_size, p_order, p_condition);
    END IF;
    RETURN v_claimed;
END $$;
