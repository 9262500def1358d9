"""The log of a topic, and the progress of its readers. Steps of two are in log.spec and progress.spec."""

import json
import re
import timeit
from datetime import timedelta

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import (
    Cursor,
    Insertion,
    InvalidArgument,
    NewTask,
    Owner,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
    connect,
    install,
)
from demo.postgres import EmbeddedPostgres
from tests.internals import SCHEMAS, plant_change, set_next_sequence, stored_rows
from tests.queue.conftest import InBackground, Reader, await_lock_wait, skip_numbers, task_in

pytestmark = pytest.mark.promise("Readers take nothing and lock nothing")

PLACES = st.integers(0, 2**63 - 1)


def names(events: list[tuple[Cursor, Task]]) -> list[str]:
    """The identifiers of the events, in order."""
    return [task.identifier for _, task in events]


def test_the_log_has_every_task_in_the_order_of_sequences(queue: TaskQueue, owner: Owner) -> None:
    """For any number of readers, which claim nothing."""
    queue.create_topic("other")
    later = NewTask("c", delay=timedelta(days=1))
    pushed = queue.push("work", ["a", NewTask("b", {"n": 1}, "r", priority=9), later])
    queue.push("other", ["of no concern"])
    pushed += queue.push("work", ["a"])
    for _ in range(2):
        read = [task for _, task in queue.events("work", None)]
        assert read == pushed
        parts = [(task.identifier, task.payload, task.reference) for task in read]
        assert parts == [("a", None, None), ("b", {"n": 1}, "r"), ("c", None, None), ("a", None, None)]
    assert len(queue.poll("work", owner, 9)) == 3


def test_the_log_shows_a_task_as_it_was_pushed_after_any_later_change(queue: TaskQueue, owner: Owner) -> None:
    tasks = [task_in(queue, owner, state, state.name) for state in (State(n) for n in (*range(2, 9), 0, 1))]
    read = [task for _, task in queue.events("work", None)]
    assert read == tasks
    assert {(task.attempt, task.redelivered) for task in read} == {(0, False)}


def test_the_log_has_redundant_tasks_and_no_deleted_ones(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    queue.push("work", ["a"], Insertion.SUPERSEDE)
    queue.push("work", ["b"], Insertion.DELETE)
    assert names(queue.events("work", None)) == ["a", "a", "b"]


def test_a_recreated_topic_has_a_log_of_its_own_after_any_old_cursor(queue: TaskQueue) -> None:
    beginning = queue.events("work", None)
    assert beginning == []
    queue.push("work", ["old"])
    end = queue.events("work", beginning.cursor).cursor
    queue.drop_topic("work")
    queue.create_topic("work")
    queue.push("work", ["new"])
    assert names(queue.events("work", end)) == names(queue.events("work", None)) == ["new"]


@pytest.mark.promise("A reader of the log never skips a committed task")
@pytest.mark.parametrize("read", ["events('work', {}, 1, 0, 1, NULL)", "log_end('work', {}, NULL)"])
def test_a_place_beyond_the_last_number_is_refused(queue: TaskQueue, read: str) -> None:
    [task] = queue.push("work", ["a"])
    queue.conn.execute(f"SELECT taskq.{read}".format(task.sequence).encode())
    with pytest.raises(psycopg.Error, match=r"after place .* older copy"):
        queue.conn.execute(f"SELECT taskq.{read}".format(task.sequence + 1).encode())


@pytest.mark.promise("A reader of the log never skips a committed task")
def test_a_reader_that_outlives_a_restore_gets_what_is_pushed_after_it(own_queue: TaskQueue) -> None:
    [task] = own_queue.push("work", ["before"])
    lost = Cursor(task.sequence + 50)
    skip_numbers(own_queue.conn)
    own_queue.push("work", [f"after-{number}" for number in range(40)])
    assert len(own_queue.events("work", lost)) == 40


@pytest.mark.slow
def test_a_standby_refuses_to_read_the_log() -> None:
    """A standby has the rows, but not the locks of pushes that are open on the primary."""
    with EmbeddedPostgres() as server:
        with connect(server.dsn, autocommit=True) as conn:
            install(conn)
            TaskQueue(conn).create_topic("work")
        server.stop("fast")
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        with connect(server.dsn) as conn, pytest.raises(TaskQueueError, match="primary"):
            TaskQueue(conn).events("work", None)


@given(PLACES, PLACES)
def test_the_text_of_a_cursor_restores_it_and_its_order(one: int, other: int) -> None:
    text = json.loads(json.dumps(str(Cursor(one))))
    assert Cursor.parse(text) == Cursor(one)
    assert (Cursor.parse(text) < Cursor(other)) == (one < other)
    assert len({Cursor.parse(text), Cursor(other)}) == len({one, other})


@given(st.one_of(st.text(), st.from_regex(r"[-+ 0]*[0-9]{1,25}\s?", fullmatch=True)))
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    if re.fullmatch("0|[1-9][0-9]*", text, re.ASCII) and int(text) < 2**63:
        assert str(Cursor.parse(text)) == text
        return
    with pytest.raises(InvalidArgument, match="invalid cursor") as error:
        Cursor.parse(text)
    assert len(str(error.value).splitlines()) == 1


# Open pushes


LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"


@pytest.mark.promise("A reader waits for open pushes to its topic, and for nothing else")
def test_thousands_of_pushes_in_one_transaction_take_three_locks(queue: TaskQueue, session: TaskQueue) -> None:
    """Of the topic, of the floor, and of the time. Also in functions whose settings PostgreSQL resets at their end."""
    session.conn.execute(
        """CREATE FUNCTION pg_temp.push_one(n int) RETURNS void LANGUAGE plpgsql SET search_path = pg_temp AS $$
        BEGIN PERFORM taskq.push('work', 'APPEND', ARRAY[n::text]); END $$"""
    )
    session.conn.execute("SELECT pg_temp.push_one(n) FROM generate_series(1, 3000) n")
    session.push("work", ["x"])
    assert queue.conn.execute(LOCKS, (session.conn.info.backend_pid,)).fetchone() == (3,)


def test_a_read_of_the_log_costs_the_same_beside_a_session_with_many_locks(
    queue: TaskQueue, session: TaskQueue
) -> None:
    """As a pg_dump has, for example."""
    queue.push("work", ["a"])

    def seconds() -> float:
        return min(timeit.repeat(lambda: queue.events("work", None), number=1, repeat=30))

    before = seconds()
    session.conn.execute("SELECT count(pg_advisory_xact_lock_shared(1, n)) FROM generate_series(1, 5000) n")
    assert seconds() < 3 * before


def test_a_push_to_any_number_of_topics_takes_a_bounded_number_of_locks(queue: TaskQueue, session: TaskQueue) -> None:
    """All locks of the server share one table: 6,400 locks fill it, and then every transaction fails."""
    names = "SELECT 't' || n AS name FROM generate_series(1, 1500) n"
    queue.conn.execute(f"SELECT taskq.create_topic(t.name) FROM ({names}) t".encode())
    session.conn.execute(f"SELECT taskq.push(t.name, 'a') FROM ({names}) t".encode())
    assert queue.conn.execute(LOCKS, (session.conn.info.backend_pid,)).fetchone() == (1024 + 2,)
    assert Reader(queue, "t1500").more() == []
    session.conn.commit()
    assert Reader(queue, "t1500").more() == ["a"]


@pytest.mark.promise("A setting of a producer hides none of its tasks from readers")
@pytest.mark.parametrize("value", ["", "no number", "-1", "0", "1", "9" * 26, str(2**48 - 1), "1e3", " 7"])
def test_a_forged_floor_hides_no_push(queue: TaskQueue, session: TaskQueue, value: str) -> None:
    reader = Reader(queue)
    queue.push("work", ["a"])
    assert reader.more() == ["a"]
    for is_local in (False, True):
        session.conn.execute("SELECT set_config('taskq.log_floor', %s, %s)", (value, is_local))
        session.push("work", ["hidden"])
        queue.push("work", ["b"])
        assert reader.more() == []
    session.conn.commit()
    assert reader.more() == ["hidden", "b", "hidden", "b"]


@pytest.mark.promise("A reader waits for open pushes to its topic, and for nothing else")
@pytest.mark.slow
def test_a_prepared_transaction_holds_the_log_back_until_its_second_phase_also_over_a_restart() -> None:
    with EmbeddedPostgres(settings={"max_prepared_transactions": "5"}) as server:
        with connect(server.dsn, autocommit=True) as conn, connect(server.dsn) as other:
            install(conn)
            queue = TaskQueue(conn)
            queue.create_topic("work")
            reader = Reader(queue)
            TaskQueue(other).push("work", ["prepared"])
            other.execute("PREPARE TRANSACTION 'import of today'")
            assert conn.execute(LOCKS, (other.info.backend_pid,)).fetchone() == (0,)
            queue.push("work", ["later"])
            assert reader.more() == []
        server.stop("immediate")
        server.start()
        with connect(server.dsn, autocommit=True) as conn:
            reader.queue = TaskQueue(conn)
            assert reader.more() == []
            holder = conn.execute("SELECT pid, application FROM taskq.log_blockers('work')").fetchall()
            assert holder == [(None, "prepared transaction import of today")]
            conn.execute("COMMIT PREPARED 'import of today'")
            assert reader.more() == ["prepared", "later"]


@pytest.mark.promise("A reader waits for open pushes to its topic, and for nothing else")
def test_numbers_are_drawn_one_by_one(queue: TaskQueue) -> None:
    """A session with cached numbers would use them after others had passed them."""
    caches = "SELECT DISTINCT cache_size FROM pg_sequences WHERE schemaname = ANY (%s)"
    assert queue.conn.execute(caches, (SCHEMAS,)).fetchall() == [(1,)]


@pytest.mark.promise("A reader waits for open pushes to its topic, and for nothing else")
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


@pytest.mark.promise("A reader of the log never skips a committed task")
def test_a_transaction_in_another_database_holds_nothing_back(queue: TaskQueue, own_queue: TaskQueue) -> None:
    """For which a cursor below the oldest transaction of the server would wait."""
    with own_queue.conn.transaction():
        own_queue.push("work", ["elsewhere"])
        queue.push("work", ["here"])
        own = own_queue.conn.execute("SELECT pg_current_xact_id()::text").fetchone()
        query = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint <= %s::bigint"
        assert queue.conn.execute(query, own).fetchone() == (True,), "else this test shows nothing"
        assert Reader(queue).more() == ["here"]


@pytest.mark.promise("A reader of the log never skips a committed task")
def test_tasks_pushed_after_the_check_of_the_locks_are_left_to_the_next_read(
    own_dsn: str, own_queue: TaskQueue, background: InBackground[list[str]]
) -> None:
    """The last number is read before the locks. The test stops a reader between these steps and the rows."""
    plant_change(own_queue.conn, "readers of the log stop after their check for open pushes")
    with connect(own_dsn) as first, connect(own_dsn, autocommit=True) as stopped:
        stopped.execute("SET tests.stop = '1'")
        reader = Reader(TaskQueue(stopped))
        own_queue.conn.execute("SELECT pg_advisory_lock(1)")
        reading = background(reader.more)
        await_lock_wait(own_queue.conn, reader.queue)
        TaskQueue(first).push("work", ["first"])
        own_queue.push("work", ["second"])
        own_queue.conn.execute("SELECT pg_advisory_unlock(1)")
        assert reading.result() == []
        first.commit()
        assert reader.more() == ["first", "second"]


# Progress


@pytest.mark.promise("Progress is committed with the rows of the handler, or not at all")
def test_dropping_a_topic_removes_the_progress_of_its_groups(queue: TaskQueue) -> None:
    queue.advance("readers", "work", 0, Cursor(1))
    queue.drop_topic("work")
    assert stored_rows(queue.conn) == {}
    queue.create_topic("work")
    assert queue.progress("readers", "work") is None


@pytest.mark.promise("Progress is committed with the rows of the handler, or not at all")
def test_the_log_and_the_progress_of_an_unknown_topic_are_refused(queue: TaskQueue) -> None:
    with pytest.raises(UnknownTopic, match="nowhere"):
        queue.events("nowhere", None)
    with pytest.raises(UnknownTopic, match="nowhere"):
        queue.progress("readers", "nowhere")
    with pytest.raises(UnknownTopic, match="nowhere"):
        queue.advance("readers", "nowhere", 0, Cursor(1))


@pytest.mark.promise("Progress is committed with the rows of the handler, or not at all")
@pytest.mark.parametrize(("group", "partition"), [(" ", 0), ("readers", -1)])
def test_a_group_without_a_name_and_a_partition_below_zero_are_refused(
    queue: TaskQueue, group: str, partition: int
) -> None:
    with pytest.raises(TaskQueueError, match=r"blank|out of its range"):
        queue.advance(group, "work", partition, Cursor(1))
