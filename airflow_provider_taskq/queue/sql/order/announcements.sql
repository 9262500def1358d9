-- Announcements: what a transaction tells others while it is open, by advisory locks that carry a time, and what it
-- tells sleeping programs when it commits, by NOTIFY.

-- Announces that this transaction will place tasks, or claim them, at the present time or afterwards. The key of an
-- advisory lock of p_kind carries the time in milliseconds, which is returned. A transaction uses the time of its first
-- announcement again, which the setting taskq.announced_time carries. Otherwise a transaction of many calls would fill
-- the server's lock table.
CREATE FUNCTION taskq_internal.announce_time(p_kind bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_hint text := current_setting('taskq.announced_time', true);
    v_time bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    v_done text;
BEGIN
    IF v_hint ~ '^[0-9]{1,14}$' THEN
        v_time := least(v_time, v_hint::bigint);
    END IF;
    v_done := pg_advisory_xact_lock_shared((p_kind << 48) | v_time);  -- half a microsecond faster than PERFORM
    IF v_hint IS DISTINCT FROM v_time::text THEN
        v_hint := set_config('taskq.announced_time', v_time::text, true);
    END IF;
    RETURN v_time;
END $$;

-- Notifies a channel, unless half of the server's queue of notifications is in use. If that queue is full, because a
-- listener stays in a transaction, PostgreSQL fails each COMMIT of a notification. No program depends on one, and the
-- second half is left to other programs. The look at the usage also lets PostgreSQL empty the queue. PostgreSQL inlines
-- this form of function.
CREATE FUNCTION taskq_internal.notify(p_channel text, p_payload text) RETURNS void LANGUAGE sql AS $$
    SELECT CASE WHEN pg_notification_queue_usage() < 0.5 THEN pg_notify(p_channel, p_payload) END
$$;

CREATE FUNCTION taskq.notify(p_topic text) RETURNS void LANGUAGE sql AS $$
    SELECT taskq_internal.notify('taskq', p_topic)
$$;
COMMENT ON FUNCTION taskq.notify IS
'Sends the topic''s name on the channel taskq, so that listening workers and waits check the topic at once. Call it
after the commit, in a transaction of its own: PostgreSQL commits one transaction with notifications at a time. If the
topic''s policy has notify, a push calls it. Sends nothing while half of the server''s queue of notifications is in
use, because a COMMIT with a notification fails once that queue is full.';
