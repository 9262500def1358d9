-- Refusals: what a function of the queue says no with. The codes are the clients' exceptions:
--   TQ000 not offered   TQ001 unknown topic   TQ002 invalid task   TQ003 invalid state   TQ004 not held
--   TQ005 lease lost    TQ006 schema mismatch TQ007 a stage that is not whole

-- Refuses what is asked, in the words and with the code that the clients turn into their own errors.
CREATE FUNCTION taskq.refuse(p_code text, p_message text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = p_code, MESSAGE = p_message;
END $$;
