-- Statistics: the errors of tasks in groups.

-- Returns the group of an error: its summary with # in the place of all that differs from task to task. This is the
-- task's identifier, a UUID, and a word with a digit, together with further such words after - . : , or /. The type of
-- the exception stays. A number from 100 to 599 that stands alone stays too, because it may be a status code: to retry
-- a 404 helps less than to retry a 503.
CREATE FUNCTION taskq_internal.error_group(p_summary text, p_identifier text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_kind    text := coalesce(substring(p_summary FROM '^[[:alpha:]_][[:alnum:]_.]*(?:: |$)'), '');
    v_message text := substr(p_summary, length(v_kind) + 1);
BEGIN
    IF p_summary IS NULL THEN
        RETURN 'no error given';
    END IF;
    IF length(p_identifier) >= 3 THEN
        v_message := replace(v_message, p_identifier, '#');
    END IF;
    IF v_message ~ '\d' THEN
        v_message := regexp_replace(v_message, '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}', '#', 'g');
        v_message := regexp_replace(v_message, '(?<=[-.:,/])\m\w*\d\w*([-.:,/]\w*\d\w*)*'
                                    '|\m(?![1-5]\d\d\M(?![-.:,/]\w*\d))\w*\d\w*([-.:,/]\w*\d\w*)*', '#', 'g');
    END IF;
    RETURN v_kind || v_message;
END $$;
