-- The summary of an error: the one line that lists, views and groups of failures show. It is stored beside the error.

-- The summaries of errors, in their order: the one that the client made from its exception, else the one found in the text.
CREATE FUNCTION taskq.error_summaries(p_errors text[], p_summaries text[]) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(coalesce(left(u.summary, 200), taskq.error_summary(u.error)) ORDER BY u.place)
    FROM unnest(p_errors, p_summaries) WITH ORDINALITY AS u (error, summary, place)
$$;

-- The line of an error text that says what went wrong, at most 200 characters. In a Python traceback that is the last exception of
-- a chain, `ValueError: no mailbox for bad-1`; its notes, the further lines of its message and the exceptions inside of a group do
-- not belong to it. In any other text it is the first line that is not blank.
CREATE FUNCTION taskq.error_summary(p_error text) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    v_lines text[] := string_to_array(replace(p_error, E'\r', ''), E'\n');
    v_first int := taskq.last_exception(v_lines);
    v_line  text;
    v_found text := '';
BEGIN
    FOR v_place IN coalesce(v_first, 1) .. cardinality(v_lines) LOOP
        v_line := regexp_replace(v_lines[v_place], '^  [|+] ', '');  -- the frame that is drawn around an exception group
        CONTINUE WHEN v_line ~ '^\s*$' OR v_first IS NOT NULL AND v_found = '' AND v_line ~ '^(\s|\.\.\. ?|Traceback |Exception Group Traceback )';
        v_found := v_found || btrim(v_line, E' \t');
        EXIT WHEN v_found !~ ':$';  -- `ValueError:`, whose message begins with a line break
        v_found := v_found || ' ';
    END LOOP;
    v_found := rtrim(CASE WHEN v_found = '' THEN btrim(p_error, E' \t\n') ELSE v_found END);
    RETURN CASE WHEN length(v_found) > 200 THEN left(v_found, 197) || '...' ELSE v_found END;
END $$;

-- The line of a Python traceback after which its last exception stands; NULL for a text that is no traceback.
CREATE FUNCTION taskq.last_exception(p_lines text[]) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    FOR v_place IN REVERSE cardinality(p_lines) .. 1 LOOP
        IF p_lines[v_place] IN ('Traceback (most recent call last):', '  + Exception Group Traceback (most recent call last):',
                                'The above exception was the direct cause of the following exception:',
                                'During handling of the above exception, another exception occurred:') THEN
            RETURN v_place + 1;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
