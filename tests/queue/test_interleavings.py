"""A drop during the work of many sessions. The steps of single ones are in interleavings/drop.spec."""

from functools import partial

import pytest

from airflow_provider_taskq.queue import Result, TaskQueue, TaskQueueError, connect
from tests.queue.conftest import InBackground

pytestmark = pytest.mark.promise("A dropped topic leaves nothing behind")


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
