"""Drains: their start, the tasks that they ended, their report, and the limit of failed tasks."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    Decision,
    DrainCounts,
    FailedTask,
    FailureLimit,
    InvalidArgument,
    MaxFailed,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TooManyFailures,
    TopicPolicy,
    UnknownTopic,
)
from tests.internals import age_leases, store_tasks
from tests.queue.explained import explain

pytestmark = pytest.mark.promise("A drain fails after its commit if more tasks failed than `max_failed` allows")

NOTHING = DrainCounts(0, 0)


def end(queue: TaskQueue, owner: Owner, *results: Result) -> list[int]:
    """Pushes tasks and ends each with the next result; returns their sequences."""
    tasks = queue.push("work", [f"task-{number}" for number in range(len(results))])
    held = queue.poll("work", owner, size=len(tasks))
    made = dict(zip(held, results, strict=True))
    queue.complete(owner, {task: Decision(kind, error=_error(task.identifier, kind)) for task, kind in made.items()})
    return [task.sequence for task in tasks]


def _error(identifier: str, kind: Result) -> Exception | None:
    return ValueError(f"no mailbox for {identifier}") if kind is Result.FAILURE else None


@pytest.mark.parametrize(
    ("limit", "given"),
    [
        (None, [None, "", "None"]),
        (FailureLimit(count=0), [0]),
        (FailureLimit(count=10), [10, "10"]),
        (FailureLimit(count=1), [1]),
        (FailureLimit(share=1.0), [1.0]),
        (FailureLimit(share=0.05), [0.05, "0.05", "5%", "5 %"]),
    ],
    ids=str,
)
def test_an_int_is_a_count_of_failures_and_a_float_is_a_share(given: list[MaxFailed], limit: FailureLimit) -> None:
    assert [FailureLimit.of(each) for each in given] == [limit] * len(given)


@pytest.mark.parametrize("max_failed", [-1, "-1", 1.5, "150%", -0.1, float("nan"), "nan", "inf", "many", True, "%"])
def test_an_impossible_limit_of_failures_is_refused(max_failed: MaxFailed) -> None:
    with pytest.raises(InvalidArgument, match="expected a count such as 0 or 10, or a share"):
        FailureLimit.of(max_failed)


@pytest.mark.parametrize(("max_failed", "allowed"), [(0, 0), (10, 10), (0.05, 5), (0.0, 0), (1.0, 100)])
def test_a_limit_is_exceeded_by_more_failures_than_it_allows(max_failed: MaxFailed, allowed: int) -> None:
    limit = FailureLimit.of(max_failed)
    assert limit is not None
    assert [failed for failed in range(101) if not limit.is_exceeded(DrainCounts(failed, 100))][-1] == allowed
    assert not limit.is_exceeded(NOTHING)


def test_the_error_names_the_counts_the_limit_and_the_first_errors() -> None:
    first = [FailedTask(number, f"order-{number}", f"ValueError: no mailbox for order-{number}") for number in (7, 9)]
    error = FailureLimit(share=0.05).exceeded("orders", DrainCounts(1200, 20_000, first))
    assert isinstance(error, TooManyFailures)
    text = str(error)
    assert "1,200 of 20,000 tasks that ended in topic 'orders' failed, max_failed allows 5 % of them" in text
    assert "See a traceback with: taskq show orders 7. " in text
    assert "retry the failed tasks with: taskq retry orders --state FAILED. Then clear the task in Airflow." in text
    assert "order-7 (sequence 7): ValueError: no mailbox for order-7\n" in text
    assert text.endswith("and 1,198 more")


def test_a_drain_counts_the_tasks_that_its_owner_has_ended_since_its_start(queue: TaskQueue, owner: Owner) -> None:
    end(queue, owner, Result.FAILURE, Result.SUCCESS)
    began = queue.begin_drain("owner", "work", owner)
    assert queue.drain_counts("work", "owner", began) == NOTHING
    for other in ("other", "owner-2"):
        end(queue, queue.register(other), Result.FAILURE)
    results = (Result.FAILURE, Result.SUCCESS, Result.FILTER, Result.SUSPENSION, Result.FAILURE)
    first, *_, last = end(queue, queue.register("owner/1"), *results)
    counts = queue.drain_counts("work", "owner", began, first=1)
    assert (counts.failed, counts.ended) == (2, 5)
    assert counts.first == (FailedTask(first, "task-0", "ValueError: no mailbox for task-0"),)
    queue.revive("work", sequences=[first, last])
    assert queue.drain_counts("work", "owner", began) == DrainCounts(0, 3)


def test_a_failure_that_is_retried_counts_only_once_its_last_attempt_failed(queue: TaskQueue) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2, base=timedelta(0))))
    owner = queue.register("owner")
    began = queue.begin_drain("owner", "work", owner)
    end(queue, owner, Result.FAILURE)
    assert queue.drain_counts("work", "owner", began) == NOTHING
    (task,) = queue.poll("work", owner)
    queue.complete(owner, {task: Decision(Result.FAILURE, error=ValueError("no mailbox"))})
    counts = queue.drain_counts("work", "owner", began)
    assert (counts.failed, counts.ended) == (1, 1)


def test_a_drain_continues_the_one_of_its_name_that_never_reported(queue: TaskQueue, owner: Owner) -> None:
    began = queue.begin_drain("owner", "work", owner)
    end(queue, owner, Result.FAILURE)
    successor = queue.register("owner")
    assert queue.begin_drain("owner", "work", successor) == began
    assert queue.drain_counts("work", "owner", began).failed == 1
    assert queue.end_drain("owner", {"failed": 1}, successor)
    later = queue.begin_drain("owner", "work", successor)
    assert later > began
    assert queue.drain_counts("work", "owner", later) == NOTHING
    queue.create_topic("other")
    assert queue.begin_drain("owner", "other") > later


def test_the_report_of_a_drain_is_read_by_its_name(queue: TaskQueue, owner: Owner) -> None:
    """One that was replaced cannot report, and old reports are purged with the owners."""
    assert queue.drain_report("owner") is None
    began = queue.begin_drain("owner", "work", owner)
    running = queue.drain_report("owner")
    assert running is not None
    assert (running.topic, running.began, running.finished, running.report) == ("work", began, None, None)
    successor = queue.register("owner")
    queue.begin_drain("owner", "work", successor)
    assert not queue.end_drain("owner", {"decided": 3}, owner)
    assert queue.drain_report("owner") == running
    assert queue.end_drain("owner", {"decided": 3, "failed": 1}, successor)
    ended = queue.drain_report("owner")
    assert ended is not None
    assert ended.report == {"decided": 3, "failed": 1}
    assert ended.finished is not None
    assert ended.finished > began
    queue.begin_drain("new", "work")
    age_leases(queue.conn, timedelta(days=2), "owner")
    queue.purge_owners(timedelta(days=1))
    assert [queue.drain_report(name) is None for name in ("owner", "new")] == [True, False]


def test_a_drain_of_an_unknown_topic_and_an_endless_report_are_refused(queue: TaskQueue) -> None:
    with pytest.raises(UnknownTopic):
        queue.begin_drain("owner", "nowhere")
    queue.begin_drain("owner", "work")
    with pytest.raises(InvalidArgument, match="64 KiB"):
        queue.end_drain("owner", {"text": "x" * 70_000})


def test_the_counts_of_a_drain_do_not_read_the_history_of_its_topic(own_queue: TaskQueue) -> None:
    """Also on a table that was vacuumed and never analyzed."""
    store_tasks(own_queue.conn, 1, 30_000, states=[State.SUCCEEDED], age=timedelta(days=1))
    own_queue.conn.execute("VACUUM")
    owner = own_queue.register("owner")
    began = own_queue.begin_drain("owner", "work", owner)
    end(own_queue, owner, Result.FAILURE)
    counts: list[DrainCounts] = []
    seen = explain(own_queue.conn, lambda: counts.append(own_queue.drain_counts("work", "owner", began)))
    assert [each.failed for each in counts] == [1]
    assert seen.most <= 10_000, seen
