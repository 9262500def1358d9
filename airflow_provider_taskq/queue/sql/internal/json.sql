-- JSON that every client can read back. PostgreSQL stores more than that: integers of any length, exponents of any size, nesting as
-- deep as its stack, \u0000 and lone surrogates. Payloads and outputs that use it are refused before they are cast to json, as the
-- cast itself fails on deep nesting without a word about the task.
--
-- The checks read the text rather than jsonb, which drops all but the last of duplicate keys, and fails on long fractions.

-- How many lists and objects a JSON text opens at most: brackets in strings count as well.
CREATE FUNCTION taskq.count_of_brackets(p_json text) RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT 2 * octet_length(p_json) - octet_length(replace(p_json, '[', '')) - octet_length(replace(p_json, '{', ''))
$$;

-- Whether taskq.json_defect has to look at a JSON text: inlined and cheap, as every payload passes here. A text of at most 200 bytes
-- can neither be nested deeper than 100 levels nor hold a number outside the range of a double, unless with an exponent of three digits.
-- The character after those digits tells a number from hexadecimal digits in a string. A longer text is searched for 20 digits, not
-- for the 210 that matter: a regular expression of fewer states takes half the time.
CREATE FUNCTION taskq.may_be_unreadable(p_json text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_json LIKE '%\\u%' AND p_json ~ '\\u(?:0000|[dD][89a-fA-F])'
        OR CASE WHEN octet_length(p_json) <= 200 THEN p_json ~ '[0-9][eE]\+?[0-9]{3,}(?:[],} \t\n\r]|$)'
                ELSE p_json ~ '[0-9][eE]\+?[0-9]{3,}(?:[],} \t\n\r]|$)|[0-9]{20}' OR taskq.count_of_brackets(p_json) > 100 END
$$;

-- What keeps a JSON text from being read back by every client, in words that follow "its payload"; NULL if nothing does. Of a text
-- that is no JSON it may say anything, as the cast refuses that.
CREATE FUNCTION taskq.json_defect(p_json text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_json ~ '\\u(?:0000|[dD][89a-fA-F])' AND taskq.holds_unstorable_escape(p_json) THEN
        RETURN 'holds a NUL or a lone surrogate';
    END IF;
    IF taskq.count_of_brackets(p_json) > 100 AND taskq.is_nested_deeper(p_json, 100) THEN
        RETURN 'is nested deeper than 100 levels';
    END IF;
    IF p_json ~ '(?:^|[:,[ \t\n\r])-?[0-9.]+[eE]\+?[0-9]{3}|[0-9]{200}' AND taskq.exceeds_double(p_json) THEN
        RETURN 'holds a number outside the range of a double, which ends at 1.7976931348623157e308';
    END IF;
    RETURN NULL;
END $$;

-- Whether strings of a JSON text hold \u0000, or an escaped surrogate without its other half: they pass as json, but not as text.
CREATE FUNCTION taskq.holds_unstorable_escape(p_json text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_escapes text := replace(p_json, '\\', '..');  -- what is left of backslashes begins an escape
BEGIN
    RETURN strpos(v_escapes, '\u0000') > 0
        OR v_escapes ~ '\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]';
END $$;

-- A JSON text without its strings.
CREATE FUNCTION taskq.outside_strings(p_json text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT string_agg(u.piece, '' ORDER BY u.place)
    FROM unnest(string_to_array(replace(replace(p_json, '\\', ''), '\"', ''), '"')) WITH ORDINALITY AS u (piece, place)
    WHERE u.place % 2 = 1
$$;

-- Whether a JSON text is nested deeper than p_levels. What closes one bracket and opens the next changes no depth and is taken
-- out first, so that a list of objects seldom goes on; then each round takes away what is innermost, everywhere.
CREATE FUNCTION taskq.is_nested_deeper(p_json text, p_levels int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_left text := replace(replace(replace(replace(p_json, '},{', ''), '}, {', ''), '],[', ''), '], [', '');
BEGIN
    IF taskq.count_of_brackets(v_left) <= p_levels THEN
        RETURN false;
    END IF;
    v_left := translate(taskq.outside_strings(v_left), E'{}0123456789.,:-+eEtrufalsn \t\n\r', '[]');
    FOR v_level IN 1..p_levels LOOP
        EXIT WHEN v_left = '';
        v_left := replace(v_left, '[]', '');
    END LOOP;
    RETURN v_left <> '';
END $$;

-- Whether a JSON text holds a number from 1.7976931348623158e308 on, the shortest above all doubles. A number is taken as
-- 0.d1d2d3... * 10 ^ k with d1 > 0.
CREATE FUNCTION taskq.exceeds_double(p_json text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT EXISTS (
        SELECT FROM unnest(string_to_array(translate(taskq.outside_strings(p_json), E'[]{}: \t\n\r', ',,,,,,,,,'), ',')) AS t (number)
        CROSS JOIN LATERAL (SELECT substring(t.number FROM '^-?([0-9]+)') AS whole,
                                   coalesce(substring(t.number FROM '\.([0-9]+)'), '') AS fraction,
                                   coalesce(substring(t.number FROM '[eE]([-+]?[0-9]+)$'), '0') AS exponent) p
        CROSS JOIN LATERAL (SELECT ltrim(p.whole || p.fraction, '0') AS digits, ltrim(p.exponent, '-+0') AS size) d
        CROSS JOIN LATERAL (SELECT length(d.digits) - length(p.fraction)
                                   + CASE WHEN length(d.size) < 10 THEN p.exponent::bigint END AS k) m
        WHERE (length(t.number) > 200 OR t.number ~ '[eE]') AND d.digits <> ''
          AND CASE WHEN m.k IS NULL THEN p.exponent !~ '^-'
                   ELSE m.k > 309 OR m.k = 309 AND left(d.digits, 17) > '17976931348623157' COLLATE "C" END)
$$;
