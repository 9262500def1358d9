"""Recurring tasks from many concurrent schedulers, and by the thousand. Steps of two are in ticks.spec."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_taskq.queue import (
    InvalidTask,
    NewTask,
    TaskQueue,
    connect,
    ticks_every,
)
from tests.queue.conftest import numbered
from tests.queue.test_sessions import pages_of
from tests.queue.test_ticks import FAR, HOUR, LONG_AGO, moments, stored

pytestmark = pytest.mark.promise("Any number of schedulers store one task for each moment")


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
