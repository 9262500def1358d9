"""Drops of topics in use: with tables of their own, of busy workers, and at random. The others are in drop.spec."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from airflow_provider_taskq.queue import (
    Owner,
    Result,
    TaskQueue,
    TaskQueueError,
    connect,
)
from tests.queue import drop_stress
from tests.queue.conftest import (
    InBackground,
    await_standstill,
    deadlocks,
)

pytestmark = pytest.mark.promise("A dropped topic leaves nothing behind")


@pytest.fixture
def dropping(dsn: str) -> Iterator[TaskQueue]:
    """Another session in autocommit."""
    with connect(dsn, autocommit=True) as conn:
        yield TaskQueue(conn)


@pytest.mark.parametrize("verb", ["drop", "purge"])
def test_emptying_the_own_tables_of_a_topic_gives_way_to_a_transaction_that_uses_them_and_waits_for_it(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    dropping: TaskQueue,
    background: InBackground[object],
    verb: str,
) -> None:
    queue.own_partition("work")
    queue.push("work", ["a", "b"])
    ended = deadlocks(queue.conn)
    session.poll("work", owner)
    emptied = background(lambda: dropping.drop_topic("work") if verb == "drop" else dropping.purge_all("work"))
    await_standstill(queue.conn, dropping)
    session.push("work", ["c"])
    session.conn.commit()
    assert emptied.result(60)
    assert deadlocks(queue.conn) == ended
    queue.drop_topic("work")
    assert queue.drop_vacant_partitions() == 1


def test_a_topic_that_workers_poll_and_complete_all_the_time_can_be_dropped(
    queue: TaskQueue, dsn: str, background: InBackground[int]
) -> None:
    """Each transaction of the workers is short, but one of them is open at any time."""
    queue.push("work", [f"{number}" for number in range(3000)])

    def work(name: str) -> int:
        done = 0
        with connect(dsn, autocommit=True) as conn:
            mine = TaskQueue(conn)
            owner = mine.register(name)
            while "work" in mine.topics():
                try:
                    polled = mine.poll("work", owner, 2)
                    mine.complete(owner, dict.fromkeys(polled, Result.SUCCESS))
                except TaskQueueError:  # dropped between the two
                    continue
                done += len(polled)
        return done

    workers = [background(partial(work, name)) for name in "abc"]
    assert queue.drop_topic("work")
    assert sum(worker.result(60) for worker in workers) < 3000
    assert queue.conn.execute("SELECT FROM taskq.task_info").rowcount == 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_transactions_of_several_verbs_and_drops_at_random_end_without_a_deadlock(queue: TaskQueue, dsn: str) -> None:
    for topic in drop_stress.TOPICS:
        queue.create_topic(topic, drop_stress.POLICY)
    ended = deadlocks(queue.conn)
    with ThreadPoolExecutor(8) as pool:
        workers = [pool.submit(drop_stress.work, dsn, f"worker {n}", n, 8) for n in range(6)]
        drops = [pool.submit(drop_stress.drop, dsn, seed, 8, alone=seed == 10) for seed in (10, 11)]
        done, dropped = (
            sum((each.result(120) for each in some), start=drop_stress.NOTHING) for some in (workers, drops)
        )
    print(done, dropped)  # noqa: T201 - for the reader of a failure
    assert deadlocks(queue.conn) == ended
    assert set(done) <= {"committed", "UnknownTopic", "LeaseLost"}
    assert set(dropped) <= {"dropped True", "dropped False", "TaskQueueError"}
    assert done["committed"] > 20
    assert dropped["dropped True"] >= 2
