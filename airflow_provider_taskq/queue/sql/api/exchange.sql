-- Exchange: what was done against what is next, in one transaction.

-- Carries out decisions as taskq.complete does, then polls for the same owner as taskq.poll does. Both or neither.
CREATE FUNCTION taskq.exchange(
    p_owner text, p_fence bigint, p_sequences bigint[], p_results smallint[], p_outputs text[], p_errors text[],
    p_delays interval[], p_summaries text[], p_topic text, p_size int, p_order text, p_condition text
) RETURNS TABLE (sequence bigint, identifier text, payload json, reference text, attempt int, redelivered boolean)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    IF cardinality(p_sequences) > 0 THEN
        PERFORM taskq.complete(p_owner, p_fence, p_sequences, p_results, p_outputs, p_errors, p_delays, p_summaries);
    END IF;
    RETURN QUERY SELECT * FROM taskq.poll(p_topic, p_owner, p_fence, p_size, p_order, p_condition);
END $$;
