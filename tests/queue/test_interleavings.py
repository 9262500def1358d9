"""Naive queues compared with TaskQ under the same steps: only the naive ones go wrong."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import psycopg
import pytest

from airflow_provider_taskq.queue import Insertion, LeaseLost, Result, State, TaskQueue, connect
from tests.queue.conftest import everything, known, numbered, states, task_in

pytestmark = pytest.mark.promise("Nothing is decided twice")

NAIVE_TABLE = """CREATE TABLE naive (topic text, sequence bigint, state int DEFAULT 1, owner text, output text,
    PRIMARY KEY (topic, sequence))"""
NAIVE_POLL = """UPDATE naive SET state = 0, owner = %s WHERE topic = 'work' AND sequence IN (
    SELECT sequence FROM naive WHERE topic = 'work' AND state = 1 ORDER BY sequence LIMIT %s FOR UPDATE SKIP LOCKED)"""
# The plan that a server may choose on its own on a table it knows nothing of: the sub-select again for every row.
UNLUCKY = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; SET enable_hashagg = off; \
    SET enable_sort = off; SET enable_memoize = off"


@pytest.fixture
def naive(own_queue: TaskQueue) -> Iterator[psycopg.Connection]:
    """A table as in many naive queues, never analyzed."""
    own_queue.conn.execute(NAIVE_TABLE.encode())
    own_queue.conn.execute("INSERT INTO naive SELECT 'work', n FROM generate_series(1, 60) n")
    yield own_queue.conn  # noqa: PT022 - its database goes with it


@pytest.mark.parametrize("size", [1, 5])
def test_one_statement_over_a_locking_subselect_may_take_more_than_requested_and_a_poll_never(
    own_queue: TaskQueue, naive: psycopg.Connection, size: int
) -> None:
    own_queue.push("work", numbered(60))
    owner = own_queue.register("me")
    naive.execute(UNLUCKY.encode())
    assert naive.execute(NAIVE_POLL.encode(), ("me", size)).rowcount > size, "else this test shows nothing"
    assert len(own_queue.poll("work", owner, size)) == size
    assert own_queue.count("work")["work"][State.ACTIVE].count == size


def test_a_late_worker_overwrites_an_unfenced_completion_and_not_a_fenced_one(
    own_queue: TaskQueue, naive: psycopg.Connection
) -> None:
    finish = "UPDATE naive SET state = 6, output = %s WHERE sequence = 1 AND owner = 'job'"
    naive.execute(NAIVE_POLL.encode(), ("job", 1))  # the first try of the job, which then hangs
    naive.execute(finish.encode(), ("of the retry",))  # its retry, by the same name
    assert naive.execute(finish.encode(), ("of the late first try",)).rowcount == 1

    first = own_queue.register("job")
    task = task_in(own_queue, first, State.ACTIVE)
    retry = own_queue.register("job")
    own_queue.complete(retry, {task: Result.SUCCESS})
    with pytest.raises(LeaseLost):
        own_queue.complete(first, {task: Result.FAILURE})
    assert known(own_queue, task).state is State.SUCCEEDED


def test_concurrent_polls_hand_every_task_out_once(queue: TaskQueue, dsn: str) -> None:
    queue.push("work", numbered(600))

    def draining(name: str) -> list[int]:
        out: list[int] = []
        with connect(dsn) as conn:
            mine = TaskQueue(conn)
            owner = mine.register(name)
            while tasks := mine.poll("work", owner, 7):
                conn.commit()
                out += [task.sequence for task in tasks]
        return out

    with ThreadPoolExecutor(6) as pool:
        drained = list(pool.map(draining, [f"consumer {number}" for number in range(6)]))
    sequences = [sequence for one in drained for sequence in one]
    assert len(sequences) == len(set(sequences)) == 600
    assert all(one == sorted(one) for one in drained), "each consumer in order"


@pytest.mark.parametrize("insertion", [Insertion.SUPERSEDE, Insertion.REPLACE, Insertion.DELETE])
def test_concurrent_pushes_and_polls_of_one_identifier_neither_deadlock_nor_lose_tasks(
    queue: TaskQueue, dsn: str, insertion: Insertion
) -> None:
    names = [f"{number}" for number in range(20)]
    pushed = Event()

    def pushing(seed: int) -> None:
        with connect(dsn) as conn:
            for turn in range(15):
                ahead = names if (seed + turn) % 2 else names[::-1]
                TaskQueue(conn).push("work", ahead, insertion)
                conn.commit()

    def working(seed: int) -> int:
        done = 0
        with connect(dsn) as conn:
            mine = TaskQueue(conn)
            owner = mine.register(f"worker {seed}")
            last = False
            while not last:
                last = pushed.is_set()  # so that one poll at least meets what was pushed
                tasks = mine.poll("work", owner, 5)
                mine.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
                conn.commit()
                done += len(tasks)
        return done

    with ThreadPoolExecutor(5) as pool:
        pushes = [pool.submit(pushing, seed) for seed in range(3)]
        works = [pool.submit(working, seed) for seed in range(2)]
        for push in pushes:
            push.exception()  # and wait for it: the workers have to be stopped in any case
        pushed.set()
        for push in pushes:
            push.result()
        done = sum(work.result() for work in works)
    assert done > 0
    assert {info.state for info in everything(queue)} <= {State.READY, State.SUCCEEDED, State.REDUNDANT}
    last = queue.push("work", names, insertion)
    assert {identifier for identifier, state in states(queue) if state is State.READY} == set(names)
    assert queue.ready("work", 1000) == len(last)
