"""The log during pushes: a plain cursor loses rows. The log loses none, and waits for pushes to its topic only."""

import random
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Cursor,
    Insertion,
    NewTask,
    Task,
    TaskQueue,
    TaskQueueError,
    connect,
)
from tests.internals import plant_change
from tests.queue.conftest import InBackground, await_lock_wait, numbered
from tests.queue.log_reader import Reader


@pytest.fixture
def reader(queue: TaskQueue) -> Reader:
    return Reader(queue)


def naive_read(queue: TaskQueue, after: int) -> list[tuple[int, str]]:
    """Reads the log by a plain cursor on the sequence, as many programs do."""
    query = "SELECT sequence, identifier FROM taskq.task_info WHERE sequence > %s ORDER BY sequence"
    return queue.conn.execute(query, (after,)).fetchall()


def holds_back_the_xid_horizon(open_: TaskQueue, queue: TaskQueue) -> bool:
    """Whether a cursor below the oldest transaction of the server would wait for this open transaction."""
    numbers = ("pg_current_xact_id()", "pg_snapshot_xmin(pg_current_snapshot())")
    rows = [
        each.conn.execute(f"SELECT {n}::text::bigint".encode()).fetchone()
        for each, n in zip((open_, queue), numbers, strict=True)
    ]
    [(own,), (oldest,)] = filter(None, rows)
    return bool(oldest <= own)


def test_a_plain_sequence_cursor_loses_a_row_and_the_log_does_not(
    queue: TaskQueue, session: TaskQueue, reader: Reader
) -> None:
    session.push("work", ["first"])
    queue.push("work", ["second"])
    [(place, name)] = naive_read(queue, 0)
    assert name == "second"
    assert reader.more() == []
    session.conn.commit()
    assert naive_read(queue, place) == [], "the plain cursor has lost the first task forever"
    assert reader.more() == ["first", "second"]


def test_tasks_before_an_open_push_are_read_while_it_is_open(
    queue: TaskQueue, session: TaskQueue, reader: Reader
) -> None:
    queue.push("work", ["a"])
    session.push("work", ["b"])
    queue.push("work", ["c"])
    assert reader.more() == ["a"]
    assert reader.more() == []
    session.conn.commit()
    assert reader.more() == ["b", "c"]


def test_a_push_that_is_rolled_back_does_not_hold_the_log_back(
    queue: TaskQueue, session: TaskQueue, reader: Reader
) -> None:
    session.push("work", ["never"])
    queue.push("work", ["b"])
    assert reader.more() == []
    session.conn.rollback()
    assert reader.more() == ["b"]


def test_a_transaction_in_another_database_holds_nothing_back(
    queue: TaskQueue, reader: Reader, own_queue: TaskQueue
) -> None:
    """A cursor below the server's oldest transaction would wait for it."""
    with own_queue.conn.transaction():
        own_queue.push("work", ["elsewhere"])
        queue.push("work", ["here"])
        assert holds_back_the_xid_horizon(own_queue, queue), "else this test shows nothing"
        assert reader.more() == ["here"]


def test_a_long_transaction_that_pushes_to_another_topic_holds_nothing_back(
    queue: TaskQueue, session: TaskQueue, reader: Reader
) -> None:
    queue.create_topic("other")
    session.push("other", ["x"])
    queue.push("work", ["a"])
    assert holds_back_the_xid_horizon(session, queue), "else this test shows nothing"
    assert reader.more() == ["a"]


@pytest.mark.parametrize("work", ["poll", "complete", "register", "own rows"])
def test_a_long_transaction_that_does_not_push_holds_nothing_back(
    queue: TaskQueue, session: TaskQueue, reader: Reader, work: str
) -> None:
    queue.push("work", ["a", "b"])
    owner = session.register("long")
    if work in ("poll", "complete"):
        tasks = session.poll("work", owner)
        if work == "complete":
            session.complete(owner, dict.fromkeys(tasks, 3))  # type: ignore[arg-type]
    if work == "own rows":
        session.conn.execute("CREATE TABLE taskq.of_my_own AS SELECT 1 AS n")
    queue.push("work", ["c"])
    assert reader.more() == ["a", "b", "c"]


def test_a_transaction_holds_a_topic_back_from_its_first_push_to_any(
    queue: TaskQueue, session: TaskQueue, reader: Reader
) -> None:
    """It holds back the topics that it pushed to. Nothing is lost if readers are already ahead of it."""
    queue.create_topic("other")
    session.push("other", ["x"])
    queue.push("work", ["a"])
    assert reader.more() == ["a"]
    session.push("work", ["b"])
    queue.push("work", ["c"])
    assert reader.more() == []
    session.conn.commit()
    assert reader.more() == ["b", "c"]
    assert Reader(queue, "other").more() == ["x"]


def test_a_topic_dropped_and_recreated_during_an_open_read_loses_nothing(
    queue: TaskQueue, session: TaskQueue, reader: Reader
) -> None:
    queue.push("work", ["old"])
    assert reader.more() == ["old"]
    queue.drop_topic("work")
    queue.create_topic("work")
    session.push("work", ["a"])
    queue.push("work", ["b"])
    assert reader.more() == []
    session.conn.commit()
    assert reader.more() == ["a", "b"]


def test_a_stream_of_many_calls_is_read_once_it_is_committed(
    queue: TaskQueue, session: TaskQueue, reader: Reader
) -> None:
    pushed = session.push_stream("work", numbered(25_000))
    queue.push("work", ["after"])
    assert reader.more() == []
    session.conn.commit()
    read = [name for _ in range(4) for name in reader.more(10_000)]
    assert read == [*(f"task-{n}" for n in range(pushed.count)), "after"]


@pytest.mark.parametrize("insertion", [Insertion.APPEND, Insertion.SUPERSEDE])
def test_a_reader_of_many_producers_misses_nothing_and_reads_nothing_twice(
    queue: TaskQueue, dsn: str, insertion: Insertion
) -> None:
    """Producers stay open for a random while between push and commit, and every fifth rolls back."""
    producers, turns = 8, 25
    committed: list[list[int]] = [[] for _ in range(producers)]

    def producing(producer: int) -> None:
        chance = random.Random(producer)  # noqa: S311 - how long a transaction is open is no secret
        with connect(dsn) as conn:
            mine = TaskQueue(conn)
            for turn in range(turns):
                tasks: list[Task] = []
                for _ in range(chance.randint(1, 3)):
                    tasks += mine.push("work", [NewTask(f"{turn}", producer)] * chance.randint(1, 3), insertion)
                    conn.execute("SELECT pg_sleep(%s)", (chance.uniform(0, 0.004),))  # the chance that this is about
                if chance.random() < 0.2:
                    conn.rollback()
                else:
                    conn.commit()
                    committed[producer] += [task.sequence for task in tasks]

    with ThreadPoolExecutor(producers) as pool:
        work = [pool.submit(producing, producer) for producer in range(producers)]
        read: list[Task] = []
        after: Cursor | None = None
        done = False
        looks = 0
        while not done:
            done = all(one.done() for one in work)  # looked at first, so that one read comes after the last commit
            events = queue.events("work", after, 7)
            while events:
                read += [task for _, task in events]
                after = events.cursor
                looks += 1
                events = queue.events("work", after, 7)
        for one in work:
            one.result()
    assert looks > 20
    assert [task.sequence for task in read] == sorted(sequence for one in committed for sequence in one)
    for producer, sequences in enumerate(committed):
        assert [task.sequence for task in read if task.payload == producer] == sequences


def test_a_reader_in_a_transaction_of_its_own_sees_each_commit(queue: TaskQueue, session: TaskQueue) -> None:
    mine = Reader(session)
    assert mine.more() == []
    queue.push("work", ["a"])
    assert mine.more() == ["a"]
    queue.push("work", ["b"])
    assert mine.more() == ["b"]


def test_an_older_snapshot_would_lose_rows_and_is_refused(session: TaskQueue, dsn: str, queue: TaskQueue) -> None:
    """The locks are current and the rows are old, so a push that was committed in between is in neither."""
    with connect(dsn) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        session.push("work", ["a"])
        old.execute("SELECT count(*) FROM taskq.task_info")
        session.conn.commit()
        assert naive_read(TaskQueue(old), 0) == []
        assert [task.identifier for _, task in queue.events("work", None)] == ["a"]
        with pytest.raises(TaskQueueError, match="REPEATABLE READ"):
            TaskQueue(old).events("work", None)


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
