"""An open push holds the log back while its tasks may be committed: sessions that die, many pushes, two phases.

Savepoints and errors are in log.spec.
"""

from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import (
    TaskQueue,
    connect,
    install,
)
from demo.postgres import EmbeddedPostgres
from tests.internals import SCHEMAS, set_next_sequence
from tests.queue.log_reader import Reader
from tests.queue.test_outsiders import take_floors

pytestmark = pytest.mark.promise("A reader waits for open pushes to its topic, and for nothing else")

LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"


@pytest.fixture
def reader(queue: TaskQueue) -> Reader:
    return Reader(queue)


def test_a_push_whose_session_dies_does_not_hold_the_log_back(
    queue: TaskQueue, session: TaskQueue, reader: Reader
) -> None:
    session.push("work", ["never"])
    queue.push("work", ["b"])
    pid = session.conn.info.backend_pid
    queue.conn.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
    session.conn.close()
    assert reader.more() == ["b"]


def test_ten_thousand_pushes_in_one_transaction_take_three_locks(queue: TaskQueue, session: TaskQueue) -> None:
    """Of the topic, of the floor, and of the time.

    Also from functions with settings of their own, which PostgreSQL resets when the function ends.
    """
    session.conn.execute(
        """CREATE FUNCTION pg_temp.push_one(n int) RETURNS void LANGUAGE plpgsql SET search_path = pg_temp AS $$
        BEGIN PERFORM taskq.push('work', 'APPEND', ARRAY[n::text]); END $$"""
    )
    session.conn.execute("SELECT pg_temp.push_one(n) FROM generate_series(1, 9000) n")
    for _ in range(1000):
        session.push("work", ["x"])
    pid = session.conn.info.backend_pid
    assert queue.conn.execute(LOCKS, (pid,)).fetchone() == (3,)
    session.conn.commit()
    assert queue.conn.execute(LOCKS, (pid,)).fetchone() == (0,)


def test_a_procedure_that_commits_between_pushes_releases_the_log_at_each_commit(
    queue: TaskQueue, reader: Reader
) -> None:
    seen: list[tuple[int, ...]] = []
    with connect(queue.conn.info.dsn, autocommit=True, password=queue.conn.info.password) as conn:
        conn.add_notice_handler(lambda notice: seen.append(tuple(map(int, (notice.message_primary or "").split()))))
        conn.execute(
            """DO $$ BEGIN FOR n IN 1..3 LOOP
                PERFORM taskq.push('work', 'APPEND', ARRAY[n::text]);
                RAISE NOTICE '% %', (SELECT count(*) FROM taskq.log_blockers('work')),
                    (SELECT max(sequence) FROM taskq.task_info) - (SELECT min(floor)
                        FROM taskq.log_blockers('work'));
                COMMIT;
            END LOOP; END $$"""
        )
    assert seen == [(1, 0)] * 3
    assert reader.more() == ["1", "2", "3"]


def test_another_program_that_holds_our_key_makes_no_push_wait(
    queue: TaskQueue, session: TaskQueue, reader: Reader
) -> None:
    queue.push("work", ["a"])
    take_floors(session.conn, "", 100)
    queue.conn.execute("SET lock_timeout = '3s'")
    queue.push("work", ["b"])
    assert reader.more() == ["a", "b"]


@pytest.fixture(scope="module")
def two_phase_server() -> Iterator[EmbeddedPostgres]:
    """A server that allows prepared transactions."""
    with EmbeddedPostgres(settings={"max_prepared_transactions": "5"}) as server:
        with connect(server.dsn, autocommit=True) as conn:
            install(conn)
            TaskQueue(conn).create_topic("work")
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True], ids=["", "server restarts"])
def test_a_prepared_transaction_holds_the_log_back_until_its_second_phase(
    two_phase_server: EmbeddedPostgres, restarts: bool
) -> None:
    with connect(two_phase_server.dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        reader = Reader(queue)
        reader.more()
        with connect(two_phase_server.dsn, autocommit=True) as other:
            other.execute("BEGIN")
            TaskQueue(other).push("work", ["prepared"])
            other.execute("PREPARE TRANSACTION 'import of today'")
            assert other.execute(LOCKS, (other.info.backend_pid,)).fetchone() == (0,)
        queue.push("work", ["later"])
        assert reader.more() == []
    if restarts:
        two_phase_server.stop("immediate")
        two_phase_server.start()
    with connect(two_phase_server.dsn, autocommit=True) as conn:
        reader.queue = queue = TaskQueue(conn)
        assert reader.more() == []
        holder = conn.execute("SELECT pid, application FROM taskq.log_blockers('work')").fetchall()
        assert holder == [(None, "prepared transaction import of today")]
        conn.execute("COMMIT PREPARED 'import of today'")
        assert reader.more() == ["prepared", "later"]


def test_numbers_are_drawn_one_by_one(queue: TaskQueue) -> None:
    """A session with cached numbers would use them after others had passed them."""
    caches = "SELECT DISTINCT cache_size FROM pg_sequences WHERE schemaname = ANY (%s)"
    assert queue.conn.execute(caches, (SCHEMAS,)).fetchall() == [(1,)]


def test_numbers_beyond_the_key_still_have_a_floor(own_dsn: str, own_queue: TaskQueue) -> None:
    """The key of a lock has 48 bits for the number; a sequence has 63."""
    set_next_sequence(own_queue.conn, 2**50)
    with connect(make_conninfo(own_dsn)) as conn:
        TaskQueue(conn).push("work", ["a"])
        own_queue.push("work", ["b"])
        reader = Reader(own_queue)
        assert reader.more() == []
        conn.commit()
        assert reader.more() == ["a", "b"]
