-- The log: readers read the tasks of a topic in the order of their sequences. A topic can have any number of readers.
-- Reading claims nothing.
--
-- A plain cursor (sequence > n) loses rows. Transactions draw sequences in one order and commit in another, so a reader
-- can pass a number whose task is committed later. For this reason a transaction that pushes takes two advisory locks
-- (base/locks.sql) before it draws a number:
--
--   topic   the lock of the topic (taskq_internal.lock_topic_shared)
--   floor   a lock whose key carries a number no greater than any that the transaction will draw
--
-- A reader stays below the horizon: the least floor among the open pushes to its topic, the transactions that hold both
-- locks. These steps show that readers never skip a task below the horizon:
--
--   1. The reader looks up M, the last number drawn, and then, in one read of pg_locks, the floors of open pushes. The
--      horizon H is the least of them, at most M + 1. Then it reads on a new snapshot, up to but not including H.
--   2. Let a task have a number s < H. Then s <= M, so the transaction of the task had drawn s before the reader read
--      the locks. Before that, it had locked its topic and a floor <= s.
--   3. If the transaction were open throughout that read, H would be at most its floor, and so at most s. So the
--      transaction had ended, or it ended during the read. A transaction releases its locks after its rows become
--      visible. So the reader's later snapshot sees the task, or, after a rollback, no snapshot ever does.
--
-- The rollback of a savepoint removes its tasks along with its locks, and the next push takes them again. Prepared
-- transactions keep their locks. So a reader waits for open pushes to its topic (taskq.log_blockers names them), and
-- for no other transaction, in this database or another. Its own uncommitted push holds it back too, because the log
-- has committed tasks only.
--
-- Any role can set taskq.log_floor, so the setting is a hint: it can only lower the floor.
--
-- All of this requires that the sequence hands out numbers one by one (CACHE 1).

-- Announces a push, with its floor and its time (order/fronts.sql), before the transaction draws a number from
-- taskq_internal.task_sequence. Returns the floor.
--
-- A transaction that locks its floor again adds no entry to the server's lock table. So 10,000 pushes use one floor,
-- that of the first push. The setting taskq.log_floor carries the floor to the later pushes. The setting ends when the
-- lock ends: at the end of the transaction, or at a rollback to a savepoint.
CREATE FUNCTION taskq_internal.announce_push() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_hint  text := current_setting('taskq.log_floor', true);
    v_floor bigint := least(
        coalesce(pg_sequence_last_value('taskq_internal.task_sequence'), 0) + 1, (1::bigint << 48) - 1);
    v_time  bigint;
    v_done  text;
BEGIN
    IF v_hint ~ '^[0-9]{1,15}$' THEN
        v_floor := least(v_floor, v_hint::bigint);
    END IF;
    v_done := pg_advisory_xact_lock_shared((:LOCK_FLOOR::bigint << 48) | v_floor);
    v_time := taskq_internal.announce_time(:LOCK_PUSH_TIME);
    IF v_hint IS DISTINCT FROM v_floor::text THEN
        v_hint := set_config('taskq.log_floor', v_floor::text, true);
    END IF;
    RETURN v_floor;
END $$;

-- Returns the open transactions that push, each with its floor and the numbers of the locks of its topics. A prepared
-- transaction has a gid, and no pid.
CREATE FUNCTION taskq_internal.push_transactions()
RETURNS TABLE (pid int, gid text, floor bigint, topic_locks bigint[]) LANGUAGE sql STABLE AS $$
    SELECT min(h.pid), CASE WHEN min(h.pid) IS NULL THEN (
               SELECT p.gid FROM pg_locks x JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
               WHERE x.virtualtransaction = h.virtualtransaction LIMIT 1) END,
           min(h.number) FILTER (WHERE h.kind = :LOCK_FLOOR), array_agg(h.number) FILTER (WHERE h.kind = :LOCK_TOPIC)
    FROM taskq_internal.held_locks() h GROUP BY h.virtualtransaction HAVING bool_or(h.kind = :LOCK_FLOOR)
$$;

-- Returns the open transactions that push to a topic.
CREATE FUNCTION taskq_internal.open_pushes(p_topic_id int)
RETURNS TABLE (pid int, gid text, floor bigint) LANGUAGE sql STABLE AS $$
    SELECT o.pid, o.gid, o.floor FROM taskq_internal.push_transactions() o
    WHERE p_topic_id & 1023 = ANY (o.topic_locks)
$$;

-- Returns the end of a topic's log. In a statement that begins after this one, no task below the end will appear later.
-- The order of the two reads matters: see the head of this file.
--
-- A session that gets the lock of the topic for itself after it has looked up M has the same proof for H = M + 1: no
-- other session has an open push to the topic. That spares a read of pg_locks, which takes 0.4 us for each lock of the
-- server, such as those of a pg_dump. A transaction that has written something may have pushed itself, and would get
-- the lock all the same. The session holds the lock for a microsecond: nothing interrupts it between two conditions of
-- an IF.
CREATE FUNCTION taskq_internal.log_horizon(p_topic_id int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_next bigint := (SELECT s.last_value + s.is_called::int FROM taskq_internal.task_sequence s);
    v_lock bigint := taskq_internal.topic_lock(p_topic_id);
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL OR NOT pg_try_advisory_lock(v_lock) THEN
        v_next := least(v_next, (SELECT min(o.floor) FROM taskq_internal.open_pushes(p_topic_id) o));
    ELSIF NOT pg_advisory_unlock(v_lock) THEN
        RAISE 'the lock of topic % was not held', p_topic_id;
    END IF;
    RETURN v_next;
END $$;

-- Returns the place to which a read of a topic's log comes that finds no further task: the last task below the horizon,
-- or p_after. It is the sequence of a committed task, not the last number drawn: after a crash, the server may draw a
-- number again that no committed task has.
CREATE FUNCTION taskq_internal.log_place(p_topic_id int, p_after bigint, p_horizon bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT greatest(p_after, (SELECT t.sequence FROM taskq_internal.task t
                              WHERE t.topic_id = p_topic_id AND t.sequence < p_horizon
                              ORDER BY t.sequence DESC LIMIT 1))
$$;

-- Raises TQ000 for an invalid partition or level, and for a transaction in which the log cannot be read.
CREATE FUNCTION taskq_internal.check_log_read(p_partition int, p_partitions int, p_level int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_partitions < 1 OR p_partition NOT BETWEEN 0 AND p_partitions - 1 THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'invalid partition %s of %s: expected 0 to the number of partitions - 1', p_partition, p_partitions));
    END IF;
    IF p_level < 0 THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'invalid level %s: 0 is the task''s own sequence, n its first n levels', p_level));
    END IF;
    PERFORM taskq_internal.require_read_committed('a read of the log');
    IF pg_is_in_recovery() THEN
        PERFORM taskq_internal.raise_error(
            'TQ000', 'the log is read on the primary: a standby does not know which pushes are open');
    END IF;
END $$;

-- Raises TQ000 for a place beyond the last number that was drawn. A reader gets such a place before the database is
-- restored from a backup, or from another database. It would skip all tasks until the numbers have reached the place.
CREATE FUNCTION taskq_internal.check_place(p_after bigint) RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_last bigint := (SELECT s.last_value + s.is_called::int - 1 FROM taskq_internal.task_sequence s);
BEGIN
    IF p_after > v_last THEN
        PERFORM taskq_internal.raise_error('TQ000', format(
            'the log cannot be read after place %s: the last number of this database is %s, so it is an older copy of '
            'the one that the place is from, or another one. Skip the numbers that were given out since the backup, as '
            'after each restore, or read again from an earlier place', p_after, v_last));
    END IF;
END $$;

-- Returns the text that decides on a task's partition. With p_level NULL this is the identifier. With p_level n it is
-- the first n levels of the identifier, from the first slash on, or the whole identifier if it has no slash. With
-- p_level 0 it is the sequence. The function is STABLE, like array_to_string: PostgreSQL could not inline an IMMUTABLE
-- function, and would call it for each task.
CREATE FUNCTION taskq_internal.sequence_id(p_identifier text, p_level int, p_sequence bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_level IS NULL THEN p_identifier
                WHEN p_level = 0 THEN p_sequence::text
                WHEN strpos(p_identifier, '/') = 0 THEN p_identifier
                ELSE '/' || array_to_string((string_to_array(p_identifier, '/'))[2:least(p_level, 1000) + 1], '/') END
$$;

-- Returns the partition of a task: the CRC-32 of its sequence id, modulo the number of partitions.
CREATE FUNCTION taskq_internal.partition_of(p_identifier text, p_partitions int, p_level int, p_sequence bigint)
RETURNS int LANGUAGE sql STABLE AS $$
    SELECT (taskq_internal.crc32(taskq_internal.sequence_id(p_identifier, p_level, p_sequence)) % p_partitions)::int
$$;

-- Returns the CRC-32 of each byte.
CREATE FUNCTION taskq_internal.crc32_table() RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    WITH RECURSIVE step AS (
        SELECT n AS byte, n::bigint AS crc, 0 AS bit FROM generate_series(0, 255) n
        UNION ALL
        SELECT s.byte, (s.crc >> 1) # (3988292384 * (s.crc & 1)), s.bit + 1 FROM step s WHERE s.bit < 8)
    SELECT array_agg(s.crc ORDER BY s.byte) FROM step s WHERE s.bit = 8
$$;

-- Returns the CRC-32 of a text in UTF-8, as zlib computes it.
CREATE FUNCTION taskq_internal.crc32(p_text text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF current_setting('server_version_num')::int >= 180000 THEN
        RETURN crc32(convert_to(p_text, 'UTF8'));  -- takes a tenth of the fallback's time
    END IF;
    RETURN taskq_internal.crc32_fallback(convert_to(p_text, 'UTF8'));
END $$;

-- Computes the CRC-32 byte by byte, for servers before version 18. The planner evaluates the table once in a session.
CREATE FUNCTION taskq_internal.crc32_fallback(p_bytes bytea) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    v_crc bigint := 4294967295;
BEGIN
    FOR v_place IN 0 .. octet_length(p_bytes) - 1 LOOP
        v_crc := (v_crc >> 8) # (taskq_internal.crc32_table())[((v_crc # get_byte(p_bytes, v_place)) & 255) + 1];
    END LOOP;
    RETURN v_crc # 4294967295;
END $$;
