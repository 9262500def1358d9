"""Recurring tasks from many concurrent schedulers, during polls, in long transactions, and by the thousand."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    InvalidTask,
    NewTask,
    Owner,
    TaskQueue,
    TaskQueueError,
    connect,
    ticks_every,
)
from tests.queue.conftest import InBackground, await_lock_wait, hurry, numbered
from tests.queue.test_sessions import pages_of
from tests.queue.test_ticks import FAR, HOUR, LONG_AGO, moments, stored


def test_one_installation_takes_thousands_of_ticks(queue: TaskQueue, session: TaskQueue) -> None:
    assert session.install_ticks("work", "p", "h", iter(moments(12_000))) == 12_000
    session.conn.rollback()
    with pytest.raises(InvalidTask, match="position 11000"):
        queue.install_ticks("work", "p", "h", [*moments(11_000), (FAR, NewTask("", priority=101))])
    assert stored(queue) == []
    assert queue.install_ticks("work", "p", "h", moments(11_000)) == 11_000
    assert queue.install_ticks("work", "p", "h", moments(12_000)) == 1_000


@pytest.mark.parametrize("schedulers", [2, 8])
def test_any_number_of_schedulers_store_one_task_for_each_moment(queue: TaskQueue, dsn: str, schedulers: int) -> None:
    rounds = 12

    def scheduling(number: int) -> int:
        added = 0
        with connect(dsn) as conn:
            for turn in range(rounds):
                ticks = [(moment, number) for moment in ticks_every(HOUR, LONG_AGO + HOUR * turn, 5)]
                added += TaskQueue(conn).install_ticks("work", "p", "h", ticks)
                conn.commit()
        return added

    with ThreadPoolExecutor(schedulers) as pool:
        added = sum(pool.map(scheduling, range(schedulers)))
    assert len(stored(queue)) == len(set(stored(queue))) == added == rounds + 4


def test_schedulers_of_two_configurations_leave_the_ticks_of_one(queue: TaskQueue, dsn: str) -> None:
    """As during a deployment: the last call decides."""

    def scheduling(config: str) -> None:
        with connect(dsn) as conn:
            for _ in range(15):
                TaskQueue(conn).install_ticks("work", "p", config, moments(3, FAR))
                conn.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(scheduling, ["one", "two", "one", "two"]))
    left = stored(queue)
    assert len(left) == 3
    assert len({name.split("/")[1] for name in left}) == 1


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_scheduler_waits_for_the_other_and_then_adds_missing_ticks(
    queue: TaskQueue,
    session: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[int],
    commits: bool,
) -> None:
    later = open_queue()
    session.install_ticks("work", "p", "h", moments(2))
    waiting = background(lambda: later.install_ticks("work", "p", "h", moments(3)))
    await_lock_wait(queue.conn, later)
    if commits:
        session.conn.commit()
    else:
        session.conn.rollback()
    assert waiting.result() == (1 if commits else 3)
    later.conn.commit()
    assert len(stored(queue)) == 3


def test_other_prefixes_and_topics_do_not_wait(queue: TaskQueue, session: TaskQueue) -> None:
    queue.create_topic("other")
    session.install_ticks("work", "p", "h", moments(2))
    hurry(queue)
    assert queue.install_ticks("work", "q", "h", moments(2)) == 2
    assert queue.install_ticks("other", "p", "h", moments(2)) == 2


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_ticks_are_installed_at_read_committed_only(
    queue: TaskQueue, session: TaskQueue, level: psycopg.IsolationLevel
) -> None:
    """An older snapshot lacks the ticks that another scheduler has stored since."""
    session.conn.isolation_level = level
    session.topics()
    queue.install_ticks("work", "p", "h", moments(1))
    with pytest.raises(TaskQueueError, match="READ COMMITTED"):
        session.install_ticks("work", "p", "h", moments(1))
    session.conn.rollback()
    with pytest.raises(TaskQueueError, match="READ COMMITTED"):
        session.uninstall_ticks("work", "p", "h")


def test_installing_does_not_wait_for_a_consumer(queue: TaskQueue, session: TaskQueue, owner: Owner) -> None:
    queue.install_ticks("work", "p", "old", moments(4))
    session.poll("work", session.register("open"), 2)
    hurry(queue)
    assert queue.install_ticks("work", "p", "new", moments(1)) == 1
    session.conn.rollback()
    assert len(queue.poll("work", owner, 9)) == 3, "what was being polled was held, and stayed"


def test_ticks_are_undone_by_the_callers_rollback(queue: TaskQueue, session: TaskQueue) -> None:
    queue.install_ticks("work", "p", "old", moments(2))
    before = stored(queue)
    session.install_ticks("work", "p", "new", moments(5))
    session.uninstall_ticks("work", "p", "new")
    session.conn.rollback()
    assert stored(queue) == before


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
def test_an_installation_costs_the_same_beside_any_number_of_other_tasks(own_queue: TaskQueue, analysed: bool) -> None:
    own_queue.push_stream("work", numbered(20_000))
    own_queue.install_ticks("work", "p", "old", moments(5, FAR))
    own_queue.conn.execute("VACUUM ANALYZE" if analysed else "VACUUM")
    own_queue.install_ticks("work", "q", "old", moments(5, FAR))  # as a first call it reads the catalogue
    assert pages_of(own_queue, lambda: own_queue.install_ticks("work", "p", "new", moments(5, FAR))) < 400
    assert pages_of(own_queue, lambda: own_queue.uninstall_ticks("work", "p", "new")) < 300
