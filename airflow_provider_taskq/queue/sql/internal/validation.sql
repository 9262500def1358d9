-- Refusals: what a function of the queue says no with. The codes are the clients' exceptions:
--   TQ000 not offered   TQ001 unknown topic   TQ002 invalid task   TQ003 invalid state   TQ004 not held
--   TQ005 lease lost    TQ006 schema mismatch TQ007 a stage that is not whole
--   TQ008 invalid argument

-- Refuses what is asked, in the words and with the code that the clients turn into their own errors.
CREATE FUNCTION taskq.refuse(p_code text, p_message text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = p_code, MESSAGE = p_message;
END $$;

-- Refuses what has to see the commits of others (TQ000) to a transaction with an old snapshot.
CREATE FUNCTION taskq.need_read_committed(p_what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM taskq.refuse('TQ000', format('%s at READ COMMITTED only; this transaction is at %s', p_what,
                                             upper(current_setting('transaction_isolation'))));
    END IF;
END $$;
