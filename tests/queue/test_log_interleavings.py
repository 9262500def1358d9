"""The log during pushes in another database, of many calls, and of many producers. The others are in log.spec."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_taskq.queue import (
    Cursor,
    Insertion,
    NewTask,
    Task,
    TaskQueue,
    connect,
)
from tests.internals import plant_change
from tests.queue.conftest import InBackground, await_lock_wait, numbered
from tests.queue.log_reader import Reader

pytestmark = pytest.mark.promise("A reader of the log never skips a committed task")


@pytest.fixture
def reader(queue: TaskQueue) -> Reader:
    return Reader(queue)


def holds_back_the_xid_horizon(open_: TaskQueue, queue: TaskQueue) -> bool:
    """Whether a cursor below the oldest transaction of the server would wait for this open transaction."""
    numbers = ("pg_current_xact_id()", "pg_snapshot_xmin(pg_current_snapshot())")
    rows = [
        each.conn.execute(f"SELECT {n}::text::bigint".encode()).fetchone()
        for each, n in zip((open_, queue), numbers, strict=True)
    ]
    [(own,), (oldest,)] = filter(None, rows)
    return bool(oldest <= own)


def test_a_transaction_in_another_database_holds_nothing_back(
    queue: TaskQueue, reader: Reader, own_queue: TaskQueue
) -> None:
    """A cursor below the server's oldest transaction would wait for it."""
    with own_queue.conn.transaction():
        own_queue.push("work", ["elsewhere"])
        queue.push("work", ["here"])
        assert holds_back_the_xid_horizon(own_queue, queue), "else this test shows nothing"
        assert reader.more() == ["here"]


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
