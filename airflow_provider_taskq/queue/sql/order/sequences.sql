-- Sequences: the numbers of tasks, and the number at which a cursor (a number or a time) begins.

-- Draws the sequences of new tasks in ascending order. The transaction has to announce its push before
-- (lock_topic_shared, announce_push). It reads the clock, for task.created, after everything that may take long and
-- before it draws: taskq_internal.resolve relies on less than ten seconds between the two.
CREATE FUNCTION taskq_internal.draw_sequences(p_count int) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT nextval('taskq_internal.task_sequence') FROM generate_series(1, p_count));
END $$;

-- Returns the first sequence of these topics that was created at or after a moment, or the last one that was created
-- at or before it.
--
-- A push draws its sequences less than ten seconds after it has read the clock. So if a task was created ten seconds
-- or more before the moment, all tasks with lower sequences were created before the moment. If a task was created more
-- than ten seconds after it, all tasks with higher sequences were created after the moment. In each topic, a bisection
-- on the primary key finds such a task and the task nearest to the moment, and the answer is between the two. This
-- reads at most the tasks of half a minute, and of most topics only whether any task is within the limits found so far.
CREATE FUNCTION taskq_internal.resolve(p_topic_ids int[], p_moment timestamptz, p_preceding boolean) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_slack    interval := '10 seconds';
    v_moment   timestamptz := taskq_internal.clamp_moment(p_moment);
    v_after    timestamptz := v_moment + interval '1 microsecond';
    v_low      bigint := 0;
    v_high     bigint := 9223372036854775807;
    v_near     bigint;
    v_topic_id int;
BEGIN
    IF p_moment IS NULL THEN
        RETURN NULL;
    END IF;
    FOREACH v_topic_id IN ARRAY p_topic_ids LOOP
        CONTINUE WHEN (SELECT t.sequence FROM taskq_internal.task t
                       WHERE t.topic_id = v_topic_id AND t.sequence > v_low AND t.sequence < v_high
                       ORDER BY t.sequence DESC LIMIT 1) IS NULL;
        IF p_preceding THEN
            v_high := (taskq_internal.created_around(v_topic_id, v_after + v_slack, v_low, v_high)).following;
            v_near := (taskq_internal.created_around(v_topic_id, v_after, v_low, v_high)).preceding;
            v_low := coalesce((SELECT t.sequence FROM taskq_internal.task t
                               WHERE t.topic_id = v_topic_id AND t.sequence >= v_near AND t.sequence < v_high
                                   AND t.created <= v_moment
                               ORDER BY t.sequence DESC LIMIT 1), v_low);
        ELSE
            v_low := (taskq_internal.created_around(v_topic_id, v_moment - v_slack, v_low, v_high)).preceding;
            v_near := (taskq_internal.created_around(v_topic_id, v_moment, v_low, v_high)).following;
            v_high := coalesce((SELECT t.sequence FROM taskq_internal.task t
                                WHERE t.topic_id = v_topic_id AND t.sequence > v_low AND t.sequence <= v_near
                                    AND t.created >= v_moment
                                ORDER BY t.sequence LIMIT 1), v_high);
        END IF;
    END LOOP;
    RETURN CASE WHEN p_preceding THEN nullif(v_low, 0) ELSE nullif(v_high, 9223372036854775807) END;
END $$;

-- Returns two neighbors among a topic's tasks between p_low and p_high: one that was created before p_moment, or p_low,
-- and the next one, which was created at p_moment or later, or p_high. If the times are not in order, there are several
-- such pairs, and the function returns one of them. It reads at most two tasks each time it halves the range.
CREATE FUNCTION taskq_internal.created_around(
    p_topic_id int, p_moment timestamptz, p_low bigint, p_high bigint, OUT preceding bigint, OUT following bigint
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_end      bigint := p_high;  -- no task is from here on to the following one
    v_middle   bigint;
    v_sequence bigint;
    v_created  timestamptz;
BEGIN
    preceding := p_low;
    following := p_high;
    WHILE v_end - preceding > 1 LOOP
        v_middle := preceding + (v_end - preceding) / 2;
        SELECT t.sequence, t.created INTO v_sequence, v_created FROM taskq_internal.task t
        WHERE t.topic_id = p_topic_id AND t.sequence >= v_middle AND t.sequence < v_end ORDER BY t.sequence LIMIT 1;
        IF NOT FOUND THEN
            SELECT t.sequence, t.created INTO v_sequence, v_created FROM taskq_internal.task t
            WHERE t.topic_id = p_topic_id AND t.sequence > preceding AND t.sequence < v_middle
            ORDER BY t.sequence DESC LIMIT 1;
            EXIT WHEN NOT FOUND;
        END IF;
        IF v_created >= p_moment OR v_sequence < v_middle THEN
            v_end := least(v_middle, v_sequence);
        END IF;
        preceding := CASE WHEN v_created < p_moment THEN v_sequence ELSE preceding END;
        following := CASE WHEN v_created < p_moment THEN following ELSE v_sequence END;
    END LOOP;
END $$;
