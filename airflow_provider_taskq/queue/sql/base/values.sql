-- Values: errors, durations and times, JSON, and summaries of errors.
--
-- Error codes: TQ000 not offered; TQ001 unknown topic; TQ002 invalid task; TQ003 invalid state; TQ004 not held; TQ005
-- lease lost; TQ006 schema mismatch; TQ007 incomplete stage; TQ008 invalid argument.
--
-- A stored duration (lease, lock, delay, ttl, the times of a policy) has at most 3650 days. A stored time lies in the
-- years 1 to 9999, the range of the clients' types. A duration that is only compared with an age (within, older_than,
-- grace, patience) never raises an error: more than 1,000 years mean 1,000 years, and a negative duration means 0.
--
-- The type json takes \u0000 and lone surrogates, which no client can store as text, so the queue refuses them. Other
-- JSON that a client cannot read, such as a number beyond its range, is that client's matter.

-- Raises an error with a code that clients map to their exceptions.
CREATE FUNCTION taskq_internal.raise_error(p_code text, p_message text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = p_code, MESSAGE = p_message;
END $$;

-- Raises TQ000 in a transaction whose snapshot cannot see later commits.
CREATE FUNCTION taskq_internal.require_read_committed(p_call text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            '%s needs READ COMMITTED, but this transaction is %s: call it in a READ COMMITTED transaction', p_call,
            upper(current_setting('transaction_isolation'))));
    END IF;
END $$;

-- Raises TQ008 for a name that is missing, blank, or too long for an index. p_what says what it names. An index of
-- PostgreSQL takes about 2,700 bytes, and the key of a table may have more columns than the name.
CREATE FUNCTION taskq_internal.check_name(p_what text, p_name text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF (p_name ~ '\S') IS NOT TRUE THEN
        PERFORM taskq_internal.raise_error('TQ008', format('the name of %s is blank', p_what));
    ELSIF octet_length(p_name) > 2000 THEN
        PERFORM taskq_internal.raise_error('TQ008', format(
            'the name of %s has %s bytes, more than 2000: %L', p_what, octet_length(p_name),
            left(p_name, 40) || '...'));
    END IF;
END $$;

-- Returns whether the queue can store a duration, and NULL for NULL. Months and days have bounds of their own. In a
-- comparison, where a month has 30 days, they may cancel each other out, but not when they are added to a moment.
CREATE FUNCTION taskq_internal.is_duration(p_duration interval, p_least interval) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_duration >= p_least AND p_duration <= interval '3650 days'
       AND abs(date_part('year', p_duration) * 12 + date_part('month', p_duration)) <= 121
       AND abs(date_part('day', p_duration)) <= 3650
$$;

-- Raises TQ008 for a missing duration, and for a duration that the queue cannot store. p_what names it in the error,
-- for example "owner 'me': its lease".
CREATE FUNCTION taskq_internal.check_duration(
    p_what text, p_duration interval, p_least interval DEFAULT '1 microsecond'
) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_duration IS NULL OR NOT taskq_internal.is_duration(p_duration, p_least) THEN
        PERFORM taskq_internal.raise_error('TQ008', format('%s has to be %s and at most 3650 days', p_what,
            CASE WHEN p_least > interval '0' THEN 'more than 0' ELSE '0 or more' END));
    END IF;
END $$;

-- Returns whether the queue can store a moment, and NULL for NULL.
CREATE FUNCTION taskq_internal.is_moment(p_moment timestamptz) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_moment >= timestamptz '0001-01-01 00:00Z' AND p_moment <= timestamptz '9999-12-31 00:00Z'
$$;

-- Returns a stored time for arithmetic and for clients. A time beyond the bounds, which only a superuser can store,
-- becomes the bound.
CREATE FUNCTION taskq_internal.clamp_moment(p_moment timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_moment > timestamptz '9999-12-31 00:00Z' THEN timestamptz '9999-12-31 00:00Z'
                WHEN p_moment < timestamptz '0001-01-01 00:00Z' THEN timestamptz '0001-01-01 00:00Z'
                ELSE p_moment END
$$;

-- Returns a duration that is compared with an age, limited to the range from 0 to 1,000 years. Returns NULL for NULL.
-- The result has seconds only: months and days that cancel each other out in a comparison, where a month has 30 days,
-- would still move a moment.
CREATE FUNCTION taskq_internal.clamp_age(p_age interval) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_age IS NOT NULL
                THEN make_interval(secs => least(greatest(extract(epoch FROM p_age), 0), 31536000000)::float8) END
$$;

-- Returns when a snoozed task is due: no later than the end of the year 9999.
CREATE FUNCTION taskq_internal.snoozed_until(p_now timestamptz, p_delay interval) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_delay IS NOT NULL
                THEN least(p_now + make_interval(secs => least(greatest(extract(epoch FROM p_delay), -315360000),
                                                               259200000000)::float8),
                           timestamptz '9999-12-31 00:00Z') END
$$;

-- Returns whether strings of a JSON text have \u0000, or an escaped surrogate without its other half: a client could
-- not store them as text. The function is inlined, and its first line spares nearly every payload the others.
CREATE FUNCTION taskq_internal.has_unstorable_escape(p_json text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_json LIKE '%\\u%' AND p_json ~ '\\u(?:0000|[dD][89a-fA-F])'
        -- After the replacement, each remaining backslash begins an escape.
        AND replace(p_json, '\\', '..') ~ '\\u0000|\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])'
                                          '|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]'
$$;

-- Returns the line of an error text that describes the error, at most 200 characters, for a caller that gives no
-- summary: the line after the frames of a Python traceback, or the first line of any other text that is not blank.
CREATE FUNCTION taskq_internal.error_summary(p_error text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN length(n.line) > 200 THEN left(n.line, 197) || '...' ELSE n.line END
    FROM (SELECT rtrim(coalesce(
              substring(regexp_replace(p_error, '^  [|+] ', '', 'gn') FROM  -- the frame of an exception group
                        '.*Traceback \(most recent call last\):\r?\n(?:(?:[ \t]|\.\.\.)[^\n]*\n)*(\S[^\n]*)'),
              split_part(ltrim(p_error, E' \t\r\n'), E'\n', 1)), E' \t\r') AS line) n
$$;

-- Returns the summaries of errors in their order: the client's summary, or else the one that error_summary finds in the
-- text.
CREATE FUNCTION taskq_internal.error_summaries(p_errors text[], p_summaries text[]) RETURNS text[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(coalesce(left(u.summary, 200), taskq_internal.error_summary(u.error)) ORDER BY u.place)
    FROM unnest(p_errors, p_summaries) WITH ORDINALITY AS u (error, summary, place)
$$;

-- Returns the values at the given places, which count from 1. Returns NULL if p_values is NULL.
CREATE FUNCTION taskq_internal.pick_elements(p_values anyarray, p_places bigint[]) RETURNS anyarray
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_values IS NOT NULL THEN ARRAY(
        SELECT u.value FROM unnest(p_values) WITH ORDINALITY AS u (value, place)
        JOIN unnest(p_places) AS p (place) USING (place) ORDER BY u.place) END
$$;

CREATE FUNCTION taskq.format_duration(p_duration interval) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    s bigint := floor(greatest(0, extract(epoch FROM p_duration)));
BEGIN
    RETURN CASE WHEN s < 120 THEN s || ' s'
                WHEN s < 7200 THEN s / 60 || ' min'
                WHEN s < 172800 THEN s / 3600 || ' h' || CASE WHEN s % 3600 >= 60 THEN ' ' || s % 3600 / 60 || ' min'
                    ELSE '' END
                ELSE s / 86400 || ' days' END;
END $$;
COMMENT ON FUNCTION taskq.format_duration IS
'Returns a duration as text with at most two units, for example 3 h 20 min.';

CREATE FUNCTION taskq.state_name(p_state int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce((ARRAY['ACTIVE', 'READY', 'EXPIRED', 'FAILED', 'SUSPENDED', 'FILTERED', 'SUCCEEDED', 'RECREATED',
                           'REDUNDANT'])[p_state + 1], p_state::text)
$$;
COMMENT ON FUNCTION taskq.state_name IS
'Returns the name of a state from its number.';

-- A check looks a privilege on this view up in a microsecond, and PostgreSQL applies memberships, the owner and
-- superusers. A role that is limited to topics has none.
CREATE VIEW taskq.every_topic AS SELECT WHERE false;
COMMENT ON VIEW taskq.every_topic IS
'A view without rows. Privileges on this view stand for access to every topic: INSERT to push, DELETE to push with the
insertion DELETE, UPDATE to consume, SELECT to read.';

-- Raises TQ008 for a policy with a duration that the queue cannot store.
CREATE FUNCTION taskq_internal.check_policy(p_topic taskq_internal.topic) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM taskq_internal.check_duration(format('policy of topic %L: %s', p_topic.name, f.name), f.duration, '0')
    FROM (VALUES ('base', p_topic.base), ('max_delay', p_topic.max_delay), ('horizon', p_topic.horizon),
                 ('max_elapsed', p_topic.max_elapsed), ('ttl', p_topic.ttl), ('keep_failed', p_topic.keep_failed),
                 ('keep_succeeded', p_topic.keep_succeeded)) AS f (name, duration)
    WHERE f.duration IS NOT NULL;
END $$;
