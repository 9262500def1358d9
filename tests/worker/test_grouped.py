"""Grouped workers: groups, errors, rules, Futures, leases, schedules, and actions of operators on their tasks."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any

import pytest
from psycopg.errors import UniqueViolation

from airflow_provider_taskq.queue import (
    Decision,
    InvalidArgument,
    InvalidState,
    InvalidTask,
    NewTask,
    NotHeld,
    Owner,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
)
from airflow_provider_taskq.queue.reports import Explanation
from airflow_provider_taskq.worker import TaskResultException
from airflow_provider_taskq.worker.grouped import GroupedRun, GroupedWorker
from tests.consumer.consumers import table
from tests.internals import stored_rows
from tests.queue.conftest import identifiers, known, lapse, pass_time, states, until
from tests.worker.conftest import Gate

pytestmark = [
    pytest.mark.promise("A grouped worker handles an identifier in order, and stops it at an error"),
    pytest.mark.promise("A waiting task can be run now, get another priority, or be canceled"),
]

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
    gate = Gate()
    run = batches(dsn, gate)
    run.start()
    assert gate.began.wait(20)
    assert run.stop(0.01) is False
    gate.open.set()
    assert run.stop(20)
    assert [known(queue, task).status for task in tasks] == ["succeeded", "ready", "ready"]
    assert known(queue, tasks[1]).attempt == 0


def test_invalid_options_are_refused(dsn: str) -> None:
    for options in ({"groups": 0}, {"size": -2}):
        with pytest.raises(InvalidArgument):
            batches(dsn, Recorder(), **options)
    with pytest.raises(ValueError, match="some"):
        batches(dsn, Recorder(), mode="some")


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


@pytest.mark.parametrize(
    ("mode", "size", "runs"),
    [
        ("all", -1, [[1, 2, 3], [2]]),
        ("all", 1, [[1], [2], [2], [3]]),
        ("fail_first", -1, [[1, 2], [2, 3]]),
        ("fail_first", 2, [[1, 2], [2, 3]]),
    ],
)
def test_after_an_error_the_tasks_of_its_group_go_on_or_wait_in_their_order(
    dsn: str, queue: TaskQueue, mode: str, size: int, runs: list[list[int]]
) -> None:
    """Those of another group go on. A group whose error is not due yet is left out."""
    queue.alter_topic("work", retrying)
    tasks = push(queue, 1, 2, 3)
    [other] = push(queue, 4, identifier="other")
    recorder = Recorder(2)
    worker = batches(dsn, recorder, mode=mode, size=size)
    for number, expected in enumerate(runs):
        recorder.handled.clear()
        worker.run_once()
        assert [payload for payload in recorder.handled if payload != 4] == expected
        if 2 in expected and recorder.bad:
            assert "ValueError: bad" in str(known(queue, tasks[1]).error)
            assert (known(queue, tasks[1]).status, known(queue, tasks[1]).attempt) == ("retrying", 1)
            assert known(queue, tasks[2]).attempt == (mode == "all" and size < 0)
            assert worker.run_once() == GroupedRun(), "the group is left out while the error is not due"
            recorder.bad.clear()
            pass_time(queue, 2 * MINUTE)
        assert number or known(queue, other).state is State.SUCCEEDED
    assert {known(queue, task).state for task in tasks} == {State.SUCCEEDED}


@pytest.mark.parametrize("size", [-1, 0, 1, 2])
@pytest.mark.parametrize("sorts", [False, True], ids=["by push", "by the sorter"])
def test_a_run_handles_at_most_size_tasks_of_a_group_in_their_order(
    dsn: str, queue: TaskQueue, size: int, sorts: bool
) -> None:
    high = 5 if size < 0 else 0  # a group that is claimed whole is sorted without a look at priorities
    queue.push("work", [NewTask("key", 2), NewTask("key", 1, priority=high), NewTask("key", 4), NewTask("key", 3)])
    rest = [1, 2, 3, 4] if sorts else [2, 1, 4, 3]
    options: dict[str, Any] = {"sorter": lambda task: task.payload} if sorts else {}
    recorder = Recorder()
    worker = batches(dsn, recorder, size=size, **options)
    for _ in range(3):
        expected, rest = (rest, []) if size < 0 else (rest[:size], rest[size:])
        assert worker.run_once().succeeded == len(expected)
        assert recorder.handled == expected
        recorder.handled.clear()


# What an error, or what raises it, makes of its task, and whether its group goes on.
SUCCESS_ON: dict[str, Any] = {"rules": {LookupError: Result.FILTER}, "success_on": (Exception,)}
ERRORS: dict[str, tuple[Exception, dict[str, Any], str, bool]] = {
    "no rule": (ValueError("x"), {}, "retrying", False),
    "rule of a base class": (KeyError("x"), {"rules": {LookupError: Result.FILTER}}, "filtered", False),
    "rule with a decision": (
        ConnectionResetError("away"),
        {"rules": {ConnectionError: Decision(Result.SUSPENSION, delay=HOUR)}},
        "scheduled",
        False,
    ),
    "rule of success": (UniqueViolation("done"), {"rules": {UniqueViolation: Result.SUCCESS}}, "succeeded", True),
    "result exception": (TaskResultException(Result.SUSPENSION), {}, "suspended", False),
    "success_on": (ValueError("x"), SUCCESS_ON, "succeeded", True),
    "rule before success_on": (KeyError("x"), SUCCESS_ON, "filtered", False),
    "result exception before success_on": (TaskResultException(Result.SUSPENSION), SUCCESS_ON, "suspended", False),
}


@pytest.mark.parametrize(("error", "options", "status", "goes_on"), ERRORS.values(), ids=ERRORS)
def test_rules_map_types_of_errors_to_decisions(
    dsn: str, queue: TaskQueue, error: Exception, options: dict[str, Any], status: str, goes_on: bool
) -> None:
    queue.alter_topic("work", retrying)
    tasks = push(queue, 1, 2)
    found = batches(dsn, Recorder(1, error=error), mode="fail_first", **options).run_once()
    assert [known(queue, task).status for task in tasks] == [status, "succeeded" if goes_on else "ready"]
    assert found == (GroupedRun(groups=1, succeeded=2) if goes_on else GroupedRun(groups=1, failed=1, left=1))
    assert not goes_on or known(queue, tasks[0]).error is None


@pytest.mark.parametrize(
    ("by_future", "success_on"),
    [(False, ()), (True, ()), (False, UniqueViolation)],
    ids=["error", "error of a Future", "success_on"],
)
def test_each_task_of_a_group_has_a_transaction_and_an_error_undoes_only_its_own_effect(
    dsn: str, queue: TaskQueue, by_future: bool, success_on: Any
) -> None:
    table(queue, "paid_once", "number int PRIMARY KEY")
    queue.conn.execute("INSERT INTO paid_once VALUES (2)")
    tasks = push(queue, 1, 2, 3)

    def pay(task: Task, queue: TaskQueue) -> "Future[Result] | None":
        queue.conn.execute("INSERT INTO paid_once VALUES (%s)", (10 * int(str(task.payload)),))
        if by_future and task.payload == 2:
            future: Future[Result] = Future()
            threading.Thread(target=future.set_exception, args=(LookupError("no mailbox"),)).start()
            return future
        queue.conn.execute("INSERT INTO paid_once VALUES (%s)", (task.payload,))
        return None

    batches(dsn, pay, success_on=success_on).run_once()
    of_two = "succeeded" if success_on else "exhausted"
    assert [known(queue, task).status for task in tasks] == ["succeeded", of_two, "succeeded"]
    assert [row[0] for row in queue.conn.execute("SELECT number FROM paid_once ORDER BY number")] == [1, 2, 3, 10, 30]


# Leases: the tasks of dead programs, and runs that several threads start


@pytest.mark.promise("a worker is killed")
def test_single_runs_take_back_the_tasks_of_a_dead_program(dsn: str, queue: TaskQueue) -> None:
    push(queue, 1, 2)
    dead = queue.register("dead")
    queue.poll_batch("work", dead)
    lapse(queue, dead)
    recorder = Recorder()
    run = batches(dsn, recorder)

    def handles_both() -> bool:
        run.run_once()
        return len(recorder.handled) == 2

    until(handles_both, 60)
    assert states(queue) == [("key", State.SUCCEEDED)] * 2


def test_a_run_waits_for_the_current_run_of_its_worker(
    dsn: str, queue: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    tasks = push(queue, 1, identifier="a")
    run = batches(dsn, gate, pause=HOUR)
    with run, ThreadPoolExecutor() as pool:
        assert gate.began.wait(60)
        tasks += push(queue, 2, identifier="b")
        second = pool.submit(run.run_once)
        until(second.running)
        threading.Event().wait(0.3)  # time for a second registration of the owner, if the worker allowed it
        gate.open.set()
        assert second.result(60) == GroupedRun(groups=1, succeeded=1)
    assert [(known(queue, task).status, known(queue, task).attempt) for task in tasks] == [("succeeded", 1)] * 2
    assert caplog.text == ""


def live_rows(queue: TaskQueue) -> set[str]:
    """The rows of the tasks that have not ended, with their physical places: a claim moves a row."""
    [rows] = [rows for table, rows in stored_rows(queue.conn).items() if table.endswith(".live")]
    return set(rows)


def test_a_run_with_a_size_claims_no_other_task_of_its_groups(dsn: str, queue: TaskQueue) -> None:
    push(queue, *range(50), identifier="a")
    push(queue, *range(50), identifier="b")
    before = live_rows(queue)
    recorder = Recorder()
    assert batches(dsn, recorder, size=1).run_once() == GroupedRun(groups=2, succeeded=2)
    assert recorder.handled == [0, 0]
    after = live_rows(queue)
    assert after < before
    assert len(after) == 98


# Schedules: pauses, initial delays, cleanups and the cluster lock

SHORT = timedelta(milliseconds=20)
A_CENTURY = timedelta(days=36_500)


def expired(queue: TaskQueue, identifier: str) -> Task:
    """A task that failed for good, past its time to live."""
    [task] = push(queue, -1, identifier=identifier, ttl=HOUR)
    pass_time(queue, 2 * HOUR)
    owner = queue.register("someone")
    with queue.conn.transaction():  # a cleanup at work removes the task after it, not between
        queue.complete(owner, {queue.poll("work", owner)[0]: Decision(Result.FAILURE, error="bad")})
        assert known(queue, task).state is State.FAILED
    return task


def is_removed(queue: TaskQueue, task: Task) -> bool:
    return queue.task("work", task.sequence) is None


def test_with_size_one_the_next_task_of_an_identifier_waits_for_the_pause(dsn: str, queue: TaskQueue) -> None:
    """Also after a run that took the full number of groups."""
    for identifier in ("a", "b"):
        push(queue, 1, 2, 3, identifier=identifier)
    called: dict[str, list[float]] = {"a": [], "b": []}
    run = batches(dsn, lambda task: called[task.identifier].append(time.monotonic()), size=1, groups=2, pause=0.5)
    with run:
        until(lambda: queue.count_tasks("work", state="SUCCEEDED") == 6)
    for first, second, third in called.values():
        assert (second - first >= 0.5, third - second >= 0.5) == (True, True)


def test_after_a_run_with_the_full_number_of_groups_the_next_run_starts_at_once(dsn: str, queue: TaskQueue) -> None:
    for identifier in ("a", "b", "c"):
        push(queue, 1, 2, identifier=identifier)
    with batches(dsn, Recorder(), groups=1, pause=HOUR):
        until(lambda: queue.count_tasks("work", state="SUCCEEDED") == 6)


def test_the_first_cleanup_does_not_depend_on_the_uptime_of_the_machine(dsn: str, queue: TaskQueue) -> None:
    task = expired(queue, "old")
    with batches(dsn, Recorder(), pause=HOUR, cleanup=A_CENTURY):
        until(lambda: is_removed(queue, task))


def test_the_first_run_waits_for_the_initial_delay_and_the_cleanup_does_not(dsn: str, queue: TaskQueue) -> None:
    first = expired(queue, "old")
    recorder = Recorder()
    with batches(dsn, recorder, pause=SHORT, initial_delay=HOUR, cleanup=SHORT):
        until(lambda: is_removed(queue, first))
        second = expired(queue, "older")
        push(queue, 1)
        until(lambda: is_removed(queue, second))
    assert recorder.handled == []


def test_the_cleanup_waits_for_its_initial_delay_and_runs_do_not(dsn: str, queue: TaskQueue) -> None:
    task = expired(queue, "old")
    recorder = Recorder()
    with batches(dsn, recorder, pause=SHORT, cleanup=SHORT, cleanup_initial_delay=HOUR):
        for number in (1, 2, 3):
            push(queue, number)
            until(lambda number=number: number in recorder.handled)  # type: ignore[misc]
    assert not is_removed(queue, task)


def test_the_cluster_lock_is_held_during_a_run_and_released_after_it(dsn: str, queue: TaskQueue) -> None:
    push(queue, 1)
    push(queue, 2, identifier="other")
    other = batches(dsn, Recorder(), cluster_lock=HOUR)
    tallies: list[GroupedRun] = []
    first = batches(dsn, lambda _task: tallies.append(other.run_once()), cluster_lock=HOUR, groups=1)
    assert first.run_once().succeeded == 1
    tallies.append(other.run_once())
    assert tallies == [GroupedRun(), GroupedRun(groups=1, succeeded=1)]


# Actions of operators on single tasks of groups, and the release of single tasks


def test_a_paused_task_is_not_handed_out_until_it_is_resumed_in_its_old_place(queue: TaskQueue, owner: Owner) -> None:
    a, b = queue.push("work", ["a", "b"])
    assert queue.pause_task("work", a.sequence) is True
    assert queue.pause_task("work", a.sequence) is False
    assert known(queue, a).status == "paused"
    assert queue.explain("work", a.sequence) == Explanation("it is paused until it is resumed", False)
    why = queue.conn.execute("SELECT why FROM taskq.tasks WHERE sequence = %s", (a.sequence,)).fetchone()
    assert why == ("paused until it is resumed",)
    assert queue.count("work")["work"][State.READY].count == 2
    assert queue.ready("work", 10) == 1
    assert queue.resume_task("work", a.sequence) is True
    assert queue.resume_task("work", a.sequence) is False
    assert queue.poll("work", owner, 2) == [a, b]


def test_a_paused_retry_holds_its_group_back_and_is_due_at_once_when_it_is_resumed(
    dsn: str, queue: TaskQueue, owner: Owner
) -> None:
    queue.alter_topic("work", retrying)
    [task] = push(queue, 1)
    queue.complete(owner, {queue.poll("work", owner)[0]: Result.FAILURE})
    queue.pause_task("work", task.sequence)
    push(queue, 2)
    pass_time(queue, HOUR)
    recorder = Recorder()
    assert batches(dsn, recorder).run_once() == GroupedRun()
    queue.set_due("work", task.sequence, datetime.now(UTC) + HOUR)
    assert known(queue, task).status == "retrying"
    queue.pause_task("work", task.sequence)
    queue.resume_task("work", task.sequence)
    batches(dsn, recorder).run_once()
    assert recorder.handled == [1, 2]


def test_a_paused_task_that_waits_for_another_stays_paused_when_that_has_ended(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other")
    queue.push("other", ["x"])
    [task] = queue.push("work", [NewTask("a", depends_on=[("other", "x")])])
    queue.ready("work")
    assert queue.pause_task("work", task.sequence)
    assert known(queue, task).status == "paused"
    queue.complete(owner, {queue.poll("other", owner)[0]: Result.SUCCESS})
    assert queue.poll("work", owner) == []
    assert known(queue, task).status == "paused"
    assert queue.resume_task("work", task.sequence)
    until(lambda: queue.poll("work", owner) == [task])


def test_the_due_time_of_a_task_can_be_set_and_reset(queue: TaskQueue, owner: Owner) -> None:
    a, b = queue.push("work", ["a", "b"])
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    queue.set_due("work", a.sequence, moment)
    assert (known(queue, a).status, known(queue, a).available_at) == ("scheduled", moment)
    assert queue.poll("work", owner, 2) == [b]
    queue.set_due("work", a.sequence, None)
    assert queue.poll("work", owner) == [a]


def test_the_attempts_of_a_task_can_be_set_within_the_limit_of_its_policy(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", retrying)
    [task] = push(queue, 1)
    queue.set_attempts("work", task.sequence, 2)
    [last] = queue.poll("work", owner)
    assert last.attempt == 3
    queue.complete(owner, {last: Result.FAILURE})
    assert known(queue, task).status == "exhausted"
    [other] = push(queue, 2, identifier="b")
    for attempts in (3, -1):
        with pytest.raises(InvalidTask, match="0 to 2"):
            queue.set_attempts("work", other.sequence, attempts)


@pytest.mark.parametrize("state", ["held", "ended", "unknown", "being claimed"])
def test_only_a_waiting_task_can_be_changed(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue], state: str
) -> None:
    [task] = queue.push("work", ["a"])
    if state == "being claimed":
        open_queue().poll("work", queue.register("other"))
    elif state != "unknown":
        queue.poll("work", owner)
    if state == "ended":
        queue.complete(owner, {task: Result.SUCCESS})
    sequence = 999 if state == "unknown" else task.sequence
    for change in (queue.pause_task, queue.resume_task):
        with pytest.raises(InvalidState, match="only a READY task"):
            change("work", sequence)
    with pytest.raises(InvalidState):
        queue.set_due("work", sequence, None)
    with pytest.raises(InvalidState):
        queue.set_attempts("work", sequence, 0)


def test_only_errors_past_their_time_to_live_are_removed(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", retrying)
    names = ["retrying", "failed", "without ttl", "young", "without error"]
    lives = [HOUR, HOUR, None, 10 * HOUR, HOUR]
    tasks = queue.push("work", [NewTask(name, ttl=ttl) for name, ttl in zip(names, lives, strict=True)])
    pass_time(queue, 2 * HOUR)
    for task in queue.poll("work", owner, 4):
        queue.complete(owner, {task: Decision(Result.FAILURE, error="bad")})
    queue.set_attempts("work", tasks[1].sequence, 2)
    queue.set_due("work", tasks[1].sequence, None)
    queue.complete(owner, {queue.poll("work", owner)[0]: Decision(Result.FAILURE, error="bad")})
    assert known(queue, tasks[1]).state is State.FAILED
    assert queue.purge_past_ttl("work") == 1
    assert [info.identifier for info in queue.page("work")] == ["retrying", *names[2:]]


def test_a_task_with_retries_before_its_expiry_is_not_removed(queue: TaskQueue, owner: Owner) -> None:
    """The worked example of camunda-bpm-correlate with a cleanup every minute: the last retry is due after ten."""
    minute = timedelta(minutes=1)
    queue.alter_topic("work", retry=RetryPolicy.correlation(max_backoff=10 * minute), ttl=10)
    [task] = queue.push("work", ["a"])
    for minutes in range(1, 11):
        pass_time(queue, minute)
        if tasks := queue.poll("work", owner):
            queue.complete(owner, {tasks[0]: Decision(Result.FAILURE, error="bad")})
        assert known(queue, task).status == "retrying"
        assert queue.purge_past_ttl("work") == (1 if minutes == 10 else 0)
    assert queue.page("work") == []


def test_an_owner_releases_some_of_its_tasks_and_keeps_the_others(queue: TaskQueue, owner: Owner) -> None:
    tasks = queue.push("work", ["a", "b", "c"])
    queue.poll("work", owner, 3)
    assert queue.release_tasks(owner, [tasks[0], tasks[1].sequence]) == 2
    assert queue.held(owner) == [tasks[2]]
    assert identifiers(queue.poll("work", owner, 1)) == ["a"]
    with pytest.raises(NotHeld, match=str(tasks[1].sequence)):
        queue.release_tasks(owner, [tasks[0], tasks[1]])
    assert len(queue.held(owner)) == 2
