"""Figures of the queue: statistics of results, retries and durations."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    Owner,
    Result,
    RetryPolicy,
    TaskQueue,
    TopicPolicy,
)
from tests.internals import space_ends
from tests.queue.conftest import pass_time

pytestmark = pytest.mark.promise("Health names each problem of the queue, and the session that causes it")

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def test_retry_statistics_count_tasks_attempts_and_their_share(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=3, base=timedelta(0))))
    queue.push("work", ["a", "b", "c", "d"])
    bad = {"a": 1, "b": 5}
    while tasks := queue.poll("work", owner, 4):
        for task in tasks:
            fails = task.attempt <= bad.get(task.identifier, 0)
            queue.complete(owner, {task: Result.FAILURE if fails else Result.SUCCESS})
    [ends] = queue.statistics()
    assert (ends.topic, ends.ended, ends.succeeded, ends.failed) == ("work", 4, 3, 1)
    assert (ends.retried, ends.retries) == (2, 3)


def test_statistics_have_the_seconds_from_due_to_end_and_from_poll_to_end(queue: TaskQueue, owner: Owner) -> None:
    tasks = queue.push("work", [f"id-{n}" for n in range(100)])
    queue.poll("work", owner, 100)
    queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
    space_ends(queue.conn, waited=f"make_interval(secs => sequence - {tasks[0].sequence - 1})", ran="'2 s'")
    [ends] = queue.statistics(topic="work")
    took = [round(each, 2) for each in (ends.shortest, ends.mean, ends.longest)]
    assert took == [3, 52.5, 102]
    percentiles = (ends.p50, ends.p90, ends.p95, ends.p99)
    assert [round(each, 2) for each in percentiles] == [52.5, 92.1, 97.05, 101.01]
    [ran] = queue.statistics(topic="work", run_time=True)
    assert (ran.ended, ran.shortest, ran.mean, ran.longest, ran.p99) == (100, 2, 2, 2, 2)
    pass_time(queue, 2 * HOUR)
    assert queue.statistics() == []
    assert len(queue.statistics(3 * HOUR)) == 1
