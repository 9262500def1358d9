"""Workers of groups: order, errors, Futures, leases, the cluster lock, and actions of operators on tasks."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any

import pytest
from psycopg.errors import UniqueViolation

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    InvalidState,
    InvalidTask,
    NewTask,
    Order,
    Owner,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TopicPolicy,
)
from airflow_provider_taskq.worker import Batch, Groups, TaskResultException, Worker, each
from tests.consumer.consumers import table
from tests.queue.conftest import known, lapse, pass_time, states, until
from tests.worker.conftest import Gate

pytestmark = [
    pytest.mark.promise("A worker of groups handles an identifier in order, and stops it at an error"),
    pytest.mark.promise("A waiting task can be run now, get another priority, or be canceled"),
]

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


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


def batches(dsn: str, handler: Any, workers: int = 1, **options: Any) -> Worker:
    """A worker of groups, which the test runs."""
    return Worker(dsn, "work", handler, groups=Groups(**options), workers=workers, pause=timedelta(milliseconds=50))


def test_a_stop_releases_the_rest_of_the_group(dsn: str, queue: TaskQueue) -> None:
    tasks = push(queue, 1, 2, 3)
    gate = Gate()
    worker = batches(dsn, gate)
    with ThreadPoolExecutor() as pool:
        worker.start()
        assert gate.began.wait(120)
        stopped = pool.submit(worker.stop)
        until(lambda: not worker.is_active)
        gate.open.set()
        assert stopped.result(60)
    assert [known(queue, task).status for task in tasks] == ["succeeded", "ready", "ready"]
    assert known(queue, tasks[1]).attempt == 0


def test_combinations_that_make_no_sense_are_refused(dsn: str) -> None:
    with pytest.raises(ValueError, match="some"):
        Groups(mode="some")
    options: list[dict[str, Any]] = [
        {"size": 2},
        {"prefetch": 1},
        {"order": Order.LAST_IN_FIRST_OUT},
        {"condition": Condition.SINGULAR_BY_IDENTIFIER},
    ]
    for each_option in options:
        with pytest.raises(ValueError, match="groups have an order and sizes of their own"):
            Worker(dsn, "work", Recorder(), groups=Groups(), **each_option)


def test_any_thread_may_complete_the_future_of_a_task_in_a_group(dsn: str, queue: TaskQueue) -> None:
    tasks = push(queue, 1, 2, 3)
    futures: dict[object, Future[Result | None]] = {number: Future() for number in (1, 2, 3)}
    started: SimpleQueue[object] = SimpleQueue()

    def start(task: Task) -> "Future[Result | None]":
        started.put(task.payload)
        return futures[task.payload]

    with batches(dsn, start):
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
        ("all", None, [[1, 2, 3], [2]]),
        ("all", 1, [[1, 2], [2, 3]]),
        ("fail_first", None, [[1, 2], [2, 3]]),
        ("fail_first", 2, [[1, 2], [2, 3]]),
    ],
)
def test_after_an_error_the_tasks_of_its_group_go_on_or_wait_in_their_order(
    dsn: str, queue: TaskQueue, mode: str, size: int | None, runs: list[list[int]]
) -> None:
    """Those of another group go on. A group whose error is not due yet is left out."""
    queue.alter_topic("work", retrying)
    tasks = push(queue, 1, 2, 3)
    [other] = push(queue, 4, identifier="other")
    recorder = Recorder(2)
    worker = batches(dsn, recorder, mode=mode, size=size)
    for number, expected in enumerate(runs):
        recorder.handled.clear()
        worker.drain()
        assert [payload for payload in recorder.handled if payload != 4] == expected
        if recorder.bad:
            assert "ValueError: bad" in str(known(queue, tasks[1]).error)
            assert (known(queue, tasks[1]).status, known(queue, tasks[1]).attempt) == ("retrying", 1)
            assert known(queue, tasks[2]).attempt == (mode == "all" and size is None)
            handled = worker.statistics().handled
            assert worker.drain().handled == handled, "the group is left out while the error is not due"
            recorder.bad.clear()
            pass_time(queue, 2 * MINUTE)
        assert number or known(queue, other).state is State.SUCCEEDED
    assert {known(queue, task).state for task in tasks} == {State.SUCCEEDED}


def test_a_drain_holds_a_group_whose_task_comes_back_at_once(dsn: str, queue: TaskQueue) -> None:
    tasks = push(queue, 1, 2, ttl=HOUR)
    recorder = Recorder(1)
    batches(dsn, recorder, mode="fail_first").drain()
    assert recorder.handled == [1]
    assert [known(queue, task).status for task in tasks] == ["ready", "ready"]


@pytest.mark.parametrize("size", [None, 1, 2])
def test_a_poll_claims_at_most_size_tasks_of_a_group_in_their_order(
    dsn: str, queue: TaskQueue, size: int | None
) -> None:
    queue.push("work", [NewTask("key", 2), NewTask("key", 1, priority=5), NewTask("key", 4), NewTask("key", 3)])
    claimed: list[int] = []
    recorder = Recorder()

    def handle(task: Task) -> None:
        recorder(task)
        claimed.append(len(queue.held(queue.owners()[0])))

    batches(dsn, handle, size=size).drain()
    assert recorder.handled == [1, 2, 4, 3]
    assert claimed == {None: [4, 3, 2, 1], 1: [1, 1, 1, 1], 2: [2, 1, 2, 1]}[size]


# What an error, or what raises it, makes of its task, and whether its group goes on.
SUCCESS_ON: dict[str, Any] = {"success_on": (Exception,)}
ERRORS: dict[str, tuple[Exception, dict[str, Any], str, bool]] = {
    "error": (ValueError("x"), {}, "retrying", False),
    "result exception": (TaskResultException(Result.SUSPENSION), {}, "suspended", True),
    "success_on": (ValueError("x"), SUCCESS_ON, "succeeded", True),
    "result exception before success_on": (TaskResultException(Result.SUSPENSION), SUCCESS_ON, "suspended", True),
}


@pytest.mark.parametrize(("error", "options", "status", "goes_on"), ERRORS.values(), ids=ERRORS)
def test_a_group_goes_on_unless_its_task_fails(
    dsn: str, queue: TaskQueue, error: Exception, options: dict[str, Any], status: str, goes_on: bool
) -> None:
    queue.alter_topic("work", retrying)
    tasks = push(queue, 1, 2)
    batches(dsn, each(Recorder(1, error=error), **options), mode="fail_first").drain()
    assert [known(queue, task).status for task in tasks] == [status, "succeeded" if goes_on else "ready"]
    assert not goes_on or status != "succeeded" or known(queue, tasks[0]).error is None


@pytest.mark.parametrize("success_on", [(), UniqueViolation], ids=["error", "success_on"])
def test_each_task_of_a_group_has_a_transaction_and_an_error_undoes_only_its_own_effect(
    dsn: str, queue: TaskQueue, success_on: Any
) -> None:
    """It stops its group as an error of the handler does."""
    table(queue, "paid_once", "number int PRIMARY KEY")
    queue.conn.execute("INSERT INTO paid_once VALUES (2)")
    tasks = push(queue, 1, 2, 3)

    def pay(task: Task, batch: Batch) -> None:
        def write(queue: TaskQueue, _: object) -> None:
            for number in (10 * int(str(task.payload)), task.payload):
                queue.conn.execute("INSERT INTO paid_once VALUES (%s)", (number,))

        batch.in_commit(write, success_on=success_on)

    batches(dsn, pay, mode="fail_first").drain()
    ended = ["succeeded"] * 3 if success_on else ["succeeded", "exhausted", "ready"]
    assert [known(queue, task).status for task in tasks] == ended
    paid = [1, 2, 3, 10, 30] if success_on else [1, 2, 10]
    assert [row[0] for row in queue.conn.execute("SELECT number FROM paid_once ORDER BY number")] == paid


def test_several_threads_handle_different_groups_each_in_order(dsn: str, queue: TaskQueue) -> None:
    together = threading.Barrier(3, timeout=30)
    recorder = Recorder()

    def handle(task: Task) -> None:
        together.wait()
        recorder(task)

    for identifier in ("a", "b", "c"):
        push(queue, *(ord(identifier) * 10 + number for number in range(3)), identifier=identifier)
    batches(dsn, handle, workers=3).drain()
    for start in (970, 980, 990):
        assert [each for each in recorder.handled if int(str(each)) // 10 * 10 == start] == [
            start,
            start + 1,
            start + 2,
        ]


@pytest.mark.promise("a worker is killed")
def test_a_worker_of_groups_takes_back_the_tasks_of_a_dead_program(dsn: str, queue: TaskQueue) -> None:
    push(queue, 1, 2)
    dead = queue.register("dead")
    queue.poll_batch("work", dead)
    lapse(queue, dead)
    recorder = Recorder()
    with batches(dsn, recorder):
        until(lambda: states(queue) == [("key", State.SUCCEEDED)] * 2, 60)
    assert recorder.handled == [1, 2]


def test_one_program_at_a_time_has_the_cluster_lock_until_it_stops(dsn: str, queue: TaskQueue) -> None:
    push(queue, 1)
    push(queue, 2, identifier="other")
    other = batches(dsn, Recorder(), cluster_lock=HOUR)
    handled: list[int] = []
    batches(dsn, lambda _task: handled.append(other.drain().handled), cluster_lock=HOUR).drain()
    assert handled == [0, 0]
    push(queue, 3)
    assert other.drain().handled == 1


# Actions of operators on single tasks of groups


def test_a_paused_task_is_not_handed_out_until_it_is_resumed_in_its_old_place(queue: TaskQueue, owner: Owner) -> None:
    a, b = queue.push("work", ["a", "b"])
    assert queue.change_waiting("work", [a.sequence], paused=True) == 1
    assert queue.change_waiting("work", [a.sequence], paused=True) == 0
    assert known(queue, a).status == "paused"
    assert queue.explain("work", a.sequence) == ("it is paused until it is resumed", False)
    why = queue.conn.execute("SELECT why FROM taskq.tasks WHERE sequence = %s", (a.sequence,)).fetchone()
    assert why == ("it is paused until it is resumed",)
    assert queue.count("work")["work"][State.READY].count == 2
    assert queue.ready("work", 10) == 1
    assert queue.change_waiting("work", [a.sequence], paused=False) == 1
    assert queue.change_waiting("work", [a.sequence], paused=False) == 0
    assert queue.poll("work", owner, 2) == [a, b]


def test_a_paused_retry_holds_its_group_back_and_is_due_at_once_when_it_is_resumed(
    dsn: str, queue: TaskQueue, owner: Owner
) -> None:
    queue.alter_topic("work", retrying)
    [task] = push(queue, 1)
    queue.complete(owner, {queue.poll("work", owner)[0]: Result.FAILURE})
    queue.change_waiting("work", [task.sequence], paused=True)
    push(queue, 2)
    pass_time(queue, HOUR)
    recorder = Recorder()
    assert batches(dsn, recorder).drain().handled == 0
    queue.change_waiting("work", [task.sequence], due=datetime.now(UTC) + HOUR)
    assert known(queue, task).status == "retrying"
    queue.change_waiting("work", [task.sequence], paused=True)
    queue.change_waiting("work", [task.sequence], paused=False)
    batches(dsn, recorder).drain()
    assert recorder.handled == [1, 2]


def test_a_paused_task_that_waits_for_another_stays_paused_when_that_has_ended(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other")
    queue.push("other", ["x"])
    [task] = queue.push("work", [NewTask("a", depends_on=[("other", "x")])])
    queue.ready("work")
    assert queue.change_waiting("work", [task.sequence], paused=True)
    assert known(queue, task).status == "paused"
    queue.complete(owner, {queue.poll("other", owner)[0]: Result.SUCCESS})
    assert queue.poll("work", owner) == []
    assert known(queue, task).status == "paused"
    assert queue.change_waiting("work", [task.sequence], paused=False)
    until(lambda: queue.poll("work", owner) == [task])


def test_the_due_time_of_a_task_can_be_set(queue: TaskQueue, owner: Owner) -> None:
    a, b = queue.push("work", ["a", "b"])
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    queue.change_waiting("work", [a.sequence], due=moment)
    assert (known(queue, a).status, known(queue, a).available_at) == ("scheduled", moment)
    assert queue.poll("work", owner, 2) == [b]
    queue.change_waiting("work", [a.sequence], due="now")
    assert queue.poll("work", owner) == [a]


def test_the_attempts_of_a_task_can_be_set_within_the_limit_of_its_policy(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", retrying)
    [task] = push(queue, 1)
    queue.change_waiting("work", [task.sequence], attempts=2)
    [last] = queue.poll("work", owner)
    assert last.attempt == 3
    queue.complete(owner, {last: Result.FAILURE})
    assert known(queue, task).status == "exhausted"
    [other] = push(queue, 2, identifier="b")
    for attempts in (3, -1):
        with pytest.raises(InvalidTask, match="0 to 2"):
            queue.change_waiting("work", [other.sequence], attempts=attempts)


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
    for change in ({"paused": True}, {"paused": False}, {"due": "now"}, {"attempts": 0}):
        with pytest.raises(InvalidState, match="only a READY task"):
            queue.change_waiting("work", [sequence], **change)


@pytest.mark.parametrize("error", ["bad", None])
def test_only_errors_past_their_time_to_live_are_removed(queue: TaskQueue, owner: Owner, error: str | None) -> None:
    queue.alter_topic("work", retrying)
    names = ["retrying", "failed", "without ttl", "young", "without error"]
    lives = [HOUR, HOUR, None, 10 * HOUR, HOUR]
    tasks = queue.push("work", [NewTask(name, ttl=ttl) for name, ttl in zip(names, lives, strict=True)])
    pass_time(queue, 2 * HOUR)
    for task in queue.poll("work", owner, 4):
        queue.complete(owner, {task: Decision(Result.FAILURE, error=error)})
    queue.change_waiting("work", [tasks[1].sequence], attempts=2)
    queue.change_waiting("work", [tasks[1].sequence], due="now", priority=1)
    queue.complete(owner, {queue.poll("work", owner)[0]: Decision(Result.FAILURE, error=error)})
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
