"""Grouped workers: groups, errors, rules, Futures."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest
from psycopg.errors import UniqueViolation

from airflow_provider_taskq.queue import (
    Decision,
    InvalidArgument,
    NewTask,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
)
from airflow_provider_taskq.worker import TaskResultException
from airflow_provider_taskq.worker.grouped import GroupedRun, GroupedWorker
from tests.consumer.consumers import table
from tests.queue.conftest import known, pass_time, until

pytestmark = pytest.mark.promise("A grouped worker handles an identifier in order, and stops it at an error")

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


retrying = TopicPolicy(retry=RetryPolicy(max_attempts=3, base=MINUTE))


class Recorder:
    """A handler that records its tasks, and fails for the payload `bad`."""

    def __init__(self, *bad: int, error: Exception | None = None) -> None:
        self.bad = set(bad)
        self.error = error or ValueError("bad")
        self.handled: list[object] = []

    def __call__(self, task: Task) -> None:
        self.handled.append(task.payload)
        if task.payload in self.bad:
            raise self.error


def push(queue: TaskQueue, *payloads: int, identifier: str = "key", ttl: timedelta | None = None) -> list[Task]:
    """Tasks of one identifier."""
    return queue.push("work", [NewTask(identifier, payload, ttl=ttl) for payload in payloads])


def batches(dsn: str, handler: Callable[..., Any], **options: object) -> GroupedWorker:
    """A grouped worker of the topic, which the test runs."""
    return GroupedWorker(dsn, "work", handler, **options)  # type: ignore[arg-type]


def test_in_mode_all_the_remaining_tasks_of_a_group_are_handled_after_an_error(dsn: str, queue: TaskQueue) -> None:
    queue.alter_topic("work", retrying)
    tasks = push(queue, 1, 2, 3)
    recorder = Recorder(2)
    assert batches(dsn, recorder).run_once() == GroupedRun(groups=1, succeeded=2, failed=1, left=0)
    assert recorder.handled == [1, 2, 3]
    assert [known(queue, task).status for task in tasks] == ["succeeded", "retrying", "succeeded"]
    assert "ValueError: bad" in str(known(queue, tasks[1]).error)


def test_in_mode_fail_first_the_remaining_tasks_wait_unchanged_in_their_order(dsn: str, queue: TaskQueue) -> None:
    queue.alter_topic("work", retrying)
    tasks = push(queue, 1, 2, 3)
    recorder = Recorder(2)
    run = batches(dsn, recorder, mode="fail_first")
    assert run.run_once() == GroupedRun(groups=1, succeeded=1, failed=1, left=1)
    assert (known(queue, tasks[2]).status, known(queue, tasks[2]).attempt) == ("ready", 0)
    assert run.run_once() == GroupedRun(), "the group is left out while the error is not due"
    push(queue, 4)
    pass_time(queue, 2 * MINUTE)
    recorder.bad.clear()
    assert run.run_once().succeeded == 3
    assert recorder.handled == [1, 2, 2, 3, 4]


def test_groups_are_independent_of_each_other(dsn: str, queue: TaskQueue) -> None:
    push(queue, 1, 2, identifier="a")
    push(queue, 3, 4, identifier="b")
    recorder = Recorder(1)
    assert batches(dsn, recorder, mode="fail_first").run_once() == GroupedRun(groups=2, succeeded=2, failed=1, left=1)
    assert recorder.handled == [1, 3, 4]


@pytest.mark.parametrize(("size", "runs"), [(-1, [[1, 2, 3]]), (1, [[1], [2], [3]]), (2, [[1, 2], [3]]), (0, [[], []])])
def test_a_run_handles_at_most_size_tasks_of_a_group(
    dsn: str, queue: TaskQueue, size: int, runs: list[list[int]]
) -> None:
    push(queue, 1, 2, 3)
    for expected in runs:
        recorder = Recorder()
        batches(dsn, recorder, size=size).run_once()
        assert recorder.handled == expected


def test_with_a_size_of_one_no_task_overtakes_an_error(dsn: str, queue: TaskQueue) -> None:
    queue.alter_topic("work", retrying)
    push(queue, 1, 2)
    recorder = Recorder(1)
    run = batches(dsn, recorder, size=1)
    run.run_once()
    pass_time(queue, 2 * MINUTE)
    recorder.bad.clear()
    run.run_once()
    run.run_once()
    assert recorder.handled == [1, 1, 2]


def test_a_group_is_sorted_by_push_or_by_the_sorter(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", [NewTask("key", 2), NewTask("key", 1, priority=5), NewTask("key", 3)])
    recorder, sorted_ = Recorder(), Recorder()
    batches(dsn, recorder).run_once()
    assert recorder.handled == [2, 1, 3]
    push(queue, 2, 1, 3)
    batches(dsn, sorted_, sorter=lambda task: task.payload).run_once()
    assert sorted_.handled == [1, 2, 3]


def test_each_task_of_a_group_has_a_transaction_and_an_error_undoes_only_its_own_effect(
    dsn: str, queue: TaskQueue
) -> None:
    table(queue, "effect", "payload int")
    push(queue, 1, 2, 3)

    def handle(task: Task, queue: TaskQueue) -> None:
        queue.conn.execute("INSERT INTO effect VALUES (%s)", (task.payload,))
        if task.payload == 2:
            raise ValueError("bad")

    batches(dsn, handle).run_once()
    assert queue.conn.execute("SELECT payload FROM effect").fetchall() == [(1,), (3,)]


def test_a_handler_of_a_grouped_worker_decides_as_one_of_a_worker(dsn: str, queue: TaskQueue) -> None:
    tasks = push(queue, 1, 2, 3)
    suspended = Decision(Result.SUSPENSION, message={"because": 2})
    decided: dict[int, Decision | Result | None] = {1: Result.FILTER, 2: suspended, 3: None}

    def handle(task: Task) -> Decision | Result | None:
        assert isinstance(task.payload, int)
        return decided[task.payload]

    assert GroupedWorker(dsn, "work", handle).run_once().succeeded == 3
    assert [known(queue, task).state for task in tasks] == [State.FILTERED, State.SUSPENDED, State.SUCCEEDED]


def test_rules_map_types_of_errors_to_decisions(dsn: str, queue: TaskQueue) -> None:
    queue.alter_topic("work", retrying)
    rules = {ConnectionError: Decision(Result.SUSPENSION, delay=HOUR), LookupError: Result.FILTER}
    errors = [ConnectionResetError("away"), KeyError("x"), TaskResultException(Result.SUSPENSION), ValueError("x")]
    expected = ["scheduled", "filtered", "suspended", "retrying"]
    for number, (error, status) in enumerate(zip(errors, expected, strict=True)):
        [task] = push(queue, number, identifier=f"id-{number}")
        batches(dsn, Recorder(number, error=error), rules=rules).run_once()
        assert known(queue, task).status == status


def test_an_error_within_the_time_to_live_is_not_counted(dsn: str, queue: TaskQueue) -> None:
    [task] = push(queue, 1, ttl=10 * SECOND)
    run = batches(dsn, Recorder(1))
    run.run_once()
    assert (known(queue, task).status, known(queue, task).attempt, known(queue, task).error) == ("ready", 0, None)
    pass_time(queue, 11 * SECOND)
    run.run_once()
    assert known(queue, task).status == "exhausted"


def test_a_grouped_worker_runs_and_cleans_up_periodically_until_it_is_stopped(dsn: str, queue: TaskQueue) -> None:
    [outlived] = push(queue, 1, identifier="old", ttl=HOUR)
    pass_time(queue, 2 * HOUR)
    recorder = Recorder(1)
    run = batches(dsn, recorder, pause=timedelta(milliseconds=20), cleanup=timedelta(milliseconds=1))
    with run:
        until(lambda: queue.task("work", outlived.sequence) is None)
        push(queue, 2)
        until(lambda: 2 in recorder.handled)
        with pytest.raises(TaskQueueError, match="runs already"):
            run.start()
    assert not run.is_running
    assert run.stop()
    [times] = queue.handling_times()
    assert times.count == 2


def test_a_stop_releases_the_rest_of_the_group(dsn: str, queue: TaskQueue) -> None:
    tasks = push(queue, 1, 2, 3)
    inside, go = threading.Event(), threading.Event()

    def handle(_task: Task) -> None:
        inside.set()
        assert go.wait(20)

    run = batches(dsn, handle)
    run.start()
    assert inside.wait(20)
    assert run.stop(0.01) is False
    go.set()
    assert run.stop(20)
    assert [known(queue, task).status for task in tasks] == ["succeeded", "ready", "ready"]
    assert known(queue, tasks[1]).attempt == 0


def test_a_grouped_worker_keeps_its_lease_during_a_longer_run(dsn: str, queue: TaskQueue) -> None:
    [task] = push(queue, 1)

    def handle(_task: Task) -> None:
        [first] = queue.owners()
        until(lambda: queue.owners()[0].lease_until > first.lease_until + first.lease / 2)
        queue.expire()

    assert batches(dsn, handle, lease=timedelta(seconds=3)).run_once().succeeded == 1
    assert known(queue, task).state is State.SUCCEEDED


def test_invalid_options_are_refused(dsn: str) -> None:
    for options in ({"groups": 0}, {"size": -2}):
        with pytest.raises(InvalidArgument):
            batches(dsn, Recorder(), **options)
    with pytest.raises(ValueError, match="some"):
        batches(dsn, Recorder(), mode="some")


def test_an_error_with_a_success_rule_counts_as_success_and_the_group_continues(dsn: str, queue: TaskQueue) -> None:
    tasks = push(queue, 1, 2, 3)
    recorder = Recorder(2, error=UniqueViolation("written before"))
    run = batches(dsn, recorder, mode="fail_first", rules={UniqueViolation: Result.SUCCESS})
    assert run.run_once() == GroupedRun(groups=1, succeeded=3, failed=0, left=0)
    assert recorder.handled == [1, 2, 3]
    assert [known(queue, task).status for task in tasks] == ["succeeded"] * 3
    assert known(queue, tasks[1]).error is None


def test_an_error_with_a_filter_rule_counts_as_an_error_and_stops_its_group(dsn: str, queue: TaskQueue) -> None:
    tasks = push(queue, 1, 2)
    run = batches(dsn, Recorder(1), mode="fail_first", rules={ValueError: Result.FILTER})
    assert run.run_once() == GroupedRun(groups=1, succeeded=0, failed=1, left=1)
    assert [known(queue, task).status for task in tasks] == ["filtered", "ready"]


def test_an_error_of_success_on_undoes_the_write_and_counts_as_success(dsn: str, queue: TaskQueue) -> None:
    table(queue, "paid_once", "number int PRIMARY KEY")
    queue.conn.execute("INSERT INTO paid_once VALUES (2)")
    tasks = push(queue, 1, 2, 3)

    def pay(task: Task, queue: TaskQueue) -> None:
        queue.conn.execute("INSERT INTO paid_once VALUES (%s)", (10 * int(str(task.payload)),))
        queue.conn.execute("INSERT INTO paid_once VALUES (%s)", (task.payload,))

    run = batches(dsn, pay, mode="fail_first", success_on=UniqueViolation)
    assert run.run_once() == GroupedRun(groups=1, succeeded=3, failed=0, left=0)
    assert [known(queue, task).status for task in tasks] == ["succeeded"] * 3
    assert [row[0] for row in queue.conn.execute("SELECT number FROM paid_once ORDER BY number")] == [1, 2, 3, 10, 30]


def test_a_rule_and_a_task_result_exception_precede_success_on(dsn: str, queue: TaskQueue) -> None:
    errors = [KeyError("x"), TaskResultException(Result.SUSPENSION), ValueError("x")]
    expected = ["filtered", "suspended", "succeeded"]
    for number, (error, status) in enumerate(zip(errors, expected, strict=True)):
        [task] = push(queue, number, identifier=f"id-{number}")
        recorder = Recorder(number, error=error)
        batches(dsn, recorder, rules={LookupError: Result.FILTER}, success_on=(Exception,)).run_once()
        assert known(queue, task).status == status


def test_any_thread_may_complete_the_future_of_a_task_in_a_group(dsn: str, queue: TaskQueue) -> None:
    tasks = push(queue, 1, 2, 3)
    futures: dict[object, Future[Result | None]] = {number: Future() for number in (1, 2, 3)}
    started: SimpleQueue[object] = SimpleQueue()

    def start(task: Task) -> "Future[Result | None]":
        started.put(task.payload)
        return futures[task.payload]

    with GroupedWorker(dsn, "work", start):
        assert started.get(timeout=60) == 1
        assert started.empty(), "the next task of the group waits for the Future of the one before it"
        assert known(queue, tasks[0]).status == "running"
        futures[1].set_result(Result.FILTER)
        assert started.get(timeout=60) == 2
        futures[2].set_exception(LookupError("no mailbox"))
        assert started.get(timeout=60) == 3
        futures[3].set_result(None)
    assert [known(queue, task).status for task in tasks] == ["filtered", "exhausted", "succeeded"]
    assert known(queue, tasks[1]).error_summary == "LookupError: no mailbox"


def test_the_future_of_a_handler_that_takes_the_queue_is_awaited_in_its_transaction(dsn: str, queue: TaskQueue) -> None:
    table(queue, "paid_once", "number int")
    [task] = push(queue, 1)

    def pay(_: Task, queue: TaskQueue) -> "Future[Result]":
        queue.conn.execute("INSERT INTO paid_once VALUES (1)")
        future: Future[Result] = Future()
        threading.Thread(target=future.set_exception, args=(LookupError("no mailbox"),)).start()
        return future

    assert batches(dsn, pay).run_once() == GroupedRun(groups=1, failed=1)
    assert known(queue, task).error_summary == "LookupError: no mailbox"
    assert queue.conn.execute("SELECT count(*) FROM paid_once").fetchall() == [(0,)]
