-- Bounds: which durations and moments the queue stores. Every function that stores one checks it here.
--
-- A stored duration (a lease, a lock, a delay, a time to live, the times of a policy) has at most 3650 days. A stored
-- moment lies between the years 1 and 9999, which is what the clients' types can hold. A duration that is only compared
-- with an age (`within`, `older_than`, `grace`, `patience`) is never refused: a longer one than 1,000 years means the
-- same as 1,000 years, and one below nothing the same as nothing.

-- Whether a duration can be stored; NULL of NULL. Months and days have bounds of their own, because they may cancel each
-- other out in a comparison, where a month has 30 days, but not when they are added to a moment.
CREATE FUNCTION taskq.is_duration(p_duration interval, p_least interval) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_duration >= p_least AND p_duration <= interval '3650 days'
       AND abs(date_part('year', p_duration) * 12 + date_part('month', p_duration)) <= 121
       AND abs(date_part('day', p_duration)) <= 3650
$$;

-- Refuses a missing duration, and one that cannot be stored (TQ008). p_what names it: "owner 'me': its lease".
CREATE FUNCTION taskq.check_duration(p_what text, p_duration interval, p_least interval DEFAULT '1 microsecond') RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_duration IS NULL OR NOT taskq.is_duration(p_duration, p_least) THEN
        PERFORM taskq.refuse('TQ008', format('%s has to be %s and at most 3650 days', p_what,
                                             CASE WHEN p_least > interval '0' THEN 'more than 0' ELSE '0 or more' END));
    END IF;
END $$;

-- Whether a moment can be stored; NULL of NULL.
CREATE FUNCTION taskq.is_moment(p_moment timestamptz) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_moment >= timestamptz '0001-01-01 00:00Z' AND p_moment <= timestamptz '9999-12-31 00:00Z'
$$;

-- A stored moment for arithmetic and for clients: one beyond the bounds, which only a superuser can store, as the bound.
CREATE FUNCTION taskq.clamp_moment(p_moment timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_moment > timestamptz '9999-12-31 00:00Z' THEN timestamptz '9999-12-31 00:00Z'
                WHEN p_moment < timestamptz '0001-01-01 00:00Z' THEN timestamptz '0001-01-01 00:00Z'
                ELSE p_moment END
$$;

-- A duration that is compared with an age, from nothing to 1,000 years; NULL of NULL.
CREATE FUNCTION taskq.clamp_age(p_age interval) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_age > interval '365000 days' THEN interval '365000 days'
                WHEN p_age < interval '0' THEN interval '0'
                ELSE p_age END
$$;

-- When a snoozed task is due: no later than the end of the year 9999.
CREATE FUNCTION taskq.snoozed_until(p_now timestamptz, p_delay interval) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT least(p_now + CASE WHEN p_delay > interval '3000000 days' THEN interval '3000000 days'
                              WHEN p_delay < interval '-3650 days' THEN interval '-3650 days'
                              ELSE p_delay END, timestamptz '9999-12-31 00:00Z')
$$;

-- The most tasks that one call looks for: more than it could return, and small enough for four times as many to be an int.
CREATE FUNCTION taskq.most_tasks() RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT 500000000
$$;

-- Refuses a policy with a duration that cannot be stored (TQ008).
CREATE FUNCTION taskq.check_policy(
    p_topic text, p_base interval, p_max_delay interval, p_horizon interval, p_max_elapsed interval, p_ttl interval
) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_field record;
BEGIN
    FOR v_field IN SELECT * FROM (VALUES ('base', p_base), ('max_delay', p_max_delay), ('horizon', p_horizon),
                                         ('max_elapsed', p_max_elapsed), ('ttl', p_ttl)) AS f (name, duration) LOOP
        IF v_field.duration IS NOT NULL OR v_field.name IN ('base', 'max_delay') THEN
            PERFORM taskq.check_duration(format('policy of topic %L: %s', p_topic, v_field.name), v_field.duration, interval '0');
        END IF;
    END LOOP;
END $$;
