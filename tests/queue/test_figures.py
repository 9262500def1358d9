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
from tests.internals import age_tasks, space_ends
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


def test_statistics_have_the_seconds_from_due_to_end(queue: TaskQueue, owner: Owner) -> None:
    tasks = queue.push("work", [f"id-{n}" for n in range(100)])
    queue.poll("work", owner, 100)
    queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
    space_ends(queue.conn, waited=f"make_interval(secs => sequence - {tasks[0].sequence - 1})")
    [ends] = queue.statistics(topic="work")
    took = [round(each, 2) for each in (ends.shortest, ends.mean, ends.longest)]
    assert took == [1, 50.5, 100]
    percentiles = (ends.p50, ends.p90, ends.p95, ends.p99)
    assert [round(each, 2) for each in percentiles] == [50.5, 90.1, 95.05, 99.01]
    pass_time(queue, 2 * HOUR)
    assert queue.statistics() == []
    assert len(queue.statistics(3 * HOUR)) == 1


def test_handling_times_are_recorded_by_handlers_and_reported_by_hour(queue: TaskQueue) -> None:
    assert queue.handling_times() == []
    queue.record_handling_times("work", [n / 100 for n in range(1, 51)])
    queue.record_handling_times("work", [n / 100 for n in range(51, 101)])
    [times] = queue.handling_times(topic="work")
    assert times.count == 100
    assert (times.shortest, round(times.mean, 4), times.longest) == (0.01, 0.505, 1)
    percentiles = (times.p50, times.p90, times.p95, times.p99)
    for percentile, expected in zip(percentiles, (0.5, 0.9, 0.95, 0.99), strict=True):
        assert expected <= percentile <= expected * 1.05
    age_tasks(queue.conn, 3 * HOUR)
    assert queue.handling_times() == []
    assert queue.handling_times(6 * HOUR)[0].count == 100
    age_tasks(queue.conn, timedelta(days=8))
    queue.record_handling_times("work", [1.0])
    assert queue.handling_times(timedelta(days=30))[0].count == 1, "times older than 8 days are deleted"
