"""Workers: start, stop, pause, resume, batches and drains; errors, lost connections, kept and lost leases."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Order,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    TooManyFailures,
    UnknownTopic,
    connect,
)
from airflow_provider_taskq.queue.session import DatabaseSession, connection_factory
from airflow_provider_taskq.worker import (
    Batch,
    TaskResultException,
    Timeouts,
    Worker,
    WorkerListener,
    batch,
    loops,
)
from airflow_provider_taskq.worker.services import NotificationListener
from tests.internals import block_verbs, hold_turns
from tests.queue.conftest import everything, lapse, states, until
from tests.worker.conftest import HOUR, FatalListener, Gate, MakeWorker, listeners

pytestmark = [
    pytest.mark.promise("A handler is a function, a coroutine or an object, in threads or in processes"),
    pytest.mark.promise("A worker continues after errors of polls, handlers and connections"),
]


def test_start_stop_and_resume_return_whether_they_changed_anything(queue: TaskQueue, make_worker: MakeWorker) -> None:
    worker = make_worker(lambda _: None)
    assert not _works(worker)
    assert not worker.stop()
    assert not worker.resume()
    assert worker.start()
    assert _works(worker)
    assert not worker.start()
    assert worker.resume()
    assert worker.stop()
    assert not _works(worker)
    assert not worker.stop()
    with worker:
        assert queue.owners(), "a worker that stopped starts again"
    assert not _works(worker)


def _works(worker: Worker) -> bool:
    return worker.is_active


@pytest.mark.usefixtures("queue")
def test_a_start_that_cannot_work_raises_the_reason(dsn: str) -> None:
    with pytest.raises(UnknownTopic):
        Worker(dsn, "none", lambda _: None).start()
    with pytest.raises(TaskQueueError, match="cannot connect"):
        Worker("host=127.0.0.1 port=1", "work", lambda _: None).start()
    for name in ("a" * 901, "a\x00"):
        with pytest.raises(ValueError, match="name must have at most 900 characters"):
            Worker(dsn, "work", lambda _: None, name=name)
    with pytest.raises(ValueError, match="call must be shorter than the lease"):
        Worker(dsn, "work", lambda _: None, lease=5, timeouts=Timeouts(call=5))
    with pytest.raises(ValueError, match="invalid pause 0 s: expected more than 0 s"):
        Worker(dsn, "work", lambda _: None, pause=0)
    with pytest.raises(ValueError, match="lease must be at most 3650 days"):
        Worker(dsn, "work", lambda _: None, lease=timedelta(days=99_999_999))


def test_a_start_without_a_lease_in_time_raises_timeout_error_and_its_thread_polls_nothing(
    dsn: str, queue: TaskQueue
) -> None:
    seen: list[str] = []
    queue.push("work", ["a"])
    before = set(threading.enumerate())
    with connect(dsn) as blocker:
        block_verbs(blocker, owners_only=True)
        worker = Worker(dsn, "work", lambda task: seen.append(task.identifier))
        with pytest.raises(TimeoutError, match="got no lease"):
            worker.start(timedelta(milliseconds=100))
        late = set(threading.enumerate()) - before
    assert not worker.is_active
    for thread in late:
        thread.join(30)
    assert seen == []
    assert states(queue) == [("a", State.READY)]
    assert queue.owners() == []


class Polls(WorkerListener):
    """Counts polls that found nothing."""

    def __init__(self) -> None:
        self.empty = threading.Semaphore(0)
        self.count = 0

    def on_empty(self) -> None:
        self.count += 1
        self.empty.release()


@pytest.mark.promise("A push notifies at its commit, if the policy of the topic has `notify`")
@pytest.mark.parametrize("waken", ["resume", "notify", "push by SQL"])
def test_a_waking_worker_handles_new_tasks_at_once_after_a_long_pause(
    queue: TaskQueue, make_worker: MakeWorker, waken: str
) -> None:
    handled, polls = threading.Semaphore(0), Polls()
    queue.alter_topic("work", notify=waken == "push by SQL")
    worker = make_worker(lambda _: handled.release(), listener=polls, listen=waken != "resume")
    worker.start()
    until(lambda: waken == "resume" or listeners(queue))
    for _ in range(3):  # the first poll after LISTEN needs no notification
        assert polls.empty.acquire(timeout=60)
        if waken == "push by SQL":
            queue.conn.execute("SELECT taskq.push('work', 'APPEND', ARRAY['a'])")
        else:
            queue.push("work", ["a"])
            worker.resume() if waken == "resume" else queue.notify("work")
        assert handled.acquire(timeout=60)


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"size": 2}, [["c", "a"], ["a", "b"]]),
        ({"size": 4, "order": Order.LAST_IN_FIRST_OUT}, [["c", "b", "a", "a"]]),
        ({"size": 4, "condition": Condition.SINGULAR_BY_IDENTIFIER}, [["c", "a", "b"], ["a"]]),
    ],
    ids=["size", "order", "condition"],
)
def test_a_batch_has_at_most_size_tasks_in_polled_order(
    queue: TaskQueue, make_worker: MakeWorker, options: dict[str, Any], batches: list[list[str]]
) -> None:
    seen: list[list[str]] = []
    queue.push("work", ["a", "a", "b", NewTask("c", priority=5)])
    make_worker(batch(lambda batch: seen.append([task.identifier for task in batch.tasks])), **options).drain()
    assert seen == batches


def forgetful(batch: Batch) -> Mapping[Task, Result]:
    return {batch.tasks[0]: Result.SUCCESS}


def foreign(batch: Batch) -> Mapping[Task, Result]:
    return dict.fromkeys([*batch.tasks, Task(0, "work", "other", None, None, 1, False)], Result.SUCCESS)


def broken(_: Batch) -> None:
    raise ZeroDivisionError


def filters(_: Batch) -> None:
    raise TaskResultException(Result.FILTER)


@pytest.mark.parametrize("prefetch", [0, 10])
@pytest.mark.parametrize(
    ("handler", "ended", "error"),
    [
        (forgetful, ["SUCCEEDED", "FAILED"], "forgetful made no decision"),
        (foreign, ["FAILED", "FAILED"], "tasks that it did not get: 0"),
        (broken, ["FAILED", "FAILED"], "ZeroDivisionError"),
        (filters, ["FILTERED", "FILTERED"], ""),
    ],
)
def test_an_error_of_a_batch_handler_fails_its_batch_only(
    queue: TaskQueue,
    make_worker: MakeWorker,
    prefetch: int,
    handler: Callable[[Batch], Any],
    ended: list[str],
    error: str,
) -> None:
    queue.push("work", ["a", "b", "c"])

    def handle(batch: Batch) -> Any:
        return handler(batch) if batch.tasks[0].identifier == "a" else None

    handle.__qualname__ = handler.__qualname__
    make_worker(batch(handle), size=2, prefetch=prefetch, pause=timedelta(milliseconds=20)).drain()
    assert [info.state.name for info in everything(queue)] == [*ended, "SUCCEEDED"]
    assert error in (everything(queue)[1].error or "")


def test_tasks_that_were_purged_meanwhile_do_not_keep_others_from_being_completed(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    tasks = queue.push("work", ["a", "b"])

    def purge(_: Batch) -> None:
        queue.purge("work", from_=tasks[0].sequence, to=tasks[0].sequence, state=State.ACTIVE)

    make_worker(batch(purge), size=2).start()
    until(lambda: states(queue) == [("b", State.SUCCEEDED)])


@pytest.mark.parametrize("ready", [0, 20])
def test_a_drain_raises_after_the_commit_if_more_tasks_fail_than_max_failed_allows(
    queue: TaskQueue, make_worker: MakeWorker, ready: int
) -> None:
    def deliver(task: Task) -> None:
        if task.identifier.startswith("bad"):
            raise ValueError(f"no mailbox for {task.identifier}")

    names = [*(f"good-{number}" for number in range(20)), *(f"bad-{number}" for number in range(10))]
    tasks = queue.push("work", names)
    worker = make_worker(deliver, workers=2, size=4, prefetch=ready, pause=timedelta(milliseconds=50))
    with pytest.raises(TooManyFailures) as raised:
        worker.drain(max_failed=0.3)
    text = str(raised.value)
    assert "10 of 30 tasks that ended in topic 'work' failed, max_failed allows 30 % of them" in text
    assert f"bad-0 (sequence {tasks[20].sequence}): ValueError: no mailbox for bad-0" in text
    assert text.endswith("and 5 more")
    assert worker.counts().ended == 30
    queue.push("work", ["bad-again"])
    assert worker.drain(max_failed=1).failed == 11  # of all drains; the limit is for the last one
    assert worker.drain(max_failed=0).failed == 11


@pytest.mark.parametrize("ready", [0, 20])
@pytest.mark.parametrize("condition", [Condition.NONE, Condition.SINGULAR_BY_IDENTIFIER])
def test_a_drain_with_several_threads_ends_when_no_due_task_is_left_including_tasks_pushed_meanwhile(
    queue: TaskQueue, make_worker: MakeWorker, condition: Condition, ready: int
) -> None:
    def count_down(task: Task, batch: Batch) -> None:
        assert isinstance(task.payload, int)
        if task.payload:
            batch.push(task, "work", [NewTask("a", task.payload - 1)])

    queue.push("work", [NewTask("later", delay=HOUR)])
    for _ in range(3):
        queue.push("work", [NewTask("a", 5), NewTask("a", 5)])
        pause = timedelta(milliseconds=50)
        done = make_worker(count_down, workers=4, condition=condition, prefetch=ready, pause=pause).drain()
        assert (done.succeeded, done.in_flight) == (12, 0)
    assert queue.owners() == []


def test_a_drain_polls_again_if_a_concurrent_poll_hid_ready_tasks(
    dsn: str,
    queue: TaskQueue,
    make_worker: MakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It leaves them if their transaction stays open."""
    queue.push("work", ["a", "a"])
    polls = Polls()
    worker = make_worker(lambda _: None, listener=polls, condition=Condition.SINGULAR_BY_IDENTIFIER)
    with connect(dsn) as other, ThreadPoolExecutor() as pool:
        hold_turns(other)  # as an earlier poll
        drained = pool.submit(worker.drain)
        until(lambda: polls.count > 2)
        assert not drained.done()
        other.rollback()
        assert drained.result(60).handled == 2
        queue.push("work", ["b"])
        other.commit()
        hold_turns(other)
        monkeypatch.setattr(loops, "MAX_RECHECKS", 3)
        assert worker.drain().handled == 2
    assert "ready tasks are left, as an open transaction locks them: worker=work topic=work" in caplog.text
    assert states(queue)[2] == ("b", State.READY)


@pytest.mark.promise("The cost of a call does not grow with the other tasks of the queue")
def test_empty_polls_take_at_most_a_fifth_of_the_time() -> None:
    assert [loops.pause_after(timedelta(seconds=1), took) for took in (0.0, 0.25, 1.5)] == [1.0, 1.0, 6.0]


# Failures


def test_errors_of_polls_are_reported_and_followed_by_growing_pauses(queue: TaskQueue, make_worker: MakeWorker) -> None:
    reported: list[float] = []

    listener = FatalListener(lambda _: reported.append(time.monotonic()))
    worker = make_worker(lambda _: None, listener=listener, listen=False, pause=timedelta(milliseconds=5))
    worker.start()
    queue.drop_topic("work")
    until(lambda: len(reported) >= 4)
    assert reported[3] - reported[0] > 0.05 + 0.1 + 0.2 - 0.01
    queue.create_topic("work")
    queue.push("work", ["a"])
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])


@pytest.mark.promise("the connection is lost during a commit")
def test_a_commit_whose_answer_was_lost_is_neither_repeated_nor_forgotten(
    queue: TaskQueue, make_worker: MakeWorker, effects: Callable[[], list[str]]
) -> None:
    done: list[str] = []

    def handle(task: Task, batch: Batch) -> None:
        def write(own: TaskQueue, _: Mapping[Task, Decision]) -> None:
            own.conn.execute("INSERT INTO effect (identifier) VALUES (%s)", (task.identifier,))
            if task.identifier == "cut" and len(done) == 0:
                done.append("cut once")
                queue.conn.execute("SELECT pg_terminate_backend(%s)", (own.conn.info.backend_pid,))

        batch.in_commit(write, task)
        batch.after_commit(lambda: done.append(task.identifier))

    queue.push("work", ["cut", "whole"])
    make_worker(handle).start()
    until(lambda: [state for _, state in states(queue)] == [State.SUCCEEDED] * 2)
    until(lambda: done == ["cut once", "cut", "whole"])
    assert effects() == ["cut", "whole"]


@pytest.mark.promise("A worker keeps its lease while a handler runs")
def test_a_lost_lease_abandons_its_batch_and_commits_nothing(
    queue: TaskQueue, make_worker: MakeWorker, effects: Callable[[], list[str]]
) -> None:
    started, cancelled = threading.Event(), threading.Event()
    [task] = queue.push("work", ["a"])

    def write(own: TaskQueue, _: Mapping[Task, Decision]) -> None:
        own.conn.execute("INSERT INTO effect (identifier) VALUES ('a')")

    def handle(_: Task, batch: Batch) -> None:
        batch.in_commit(write)
        started.set()
        if batch.cancelled.wait(10):
            cancelled.set()

    worker = make_worker(handle, lease=timedelta(seconds=3))
    worker.start()
    assert started.wait(120)
    with queue.conn.transaction():  # so that the worker neither extends nor expires the lease meanwhile
        [owner] = queue.owners()
        lapse(queue, owner)
        assert queue.expire() == 1
        successor = queue.register("successor")
        assert queue.poll("work", successor) == [task]
    assert cancelled.wait(120)
    until(lambda: worker.statistics().abandoned == 1)
    queue.push("work", ["b"])
    assert effects() == []
    assert queue.held(successor) == [task]


@pytest.mark.promise("a worker is killed")
def test_a_worker_expires_the_leases_of_dead_workers_and_removes_tasks_that_were_kept_long_enough(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    queue.create_topic("other", keep_succeeded=0)
    queue.push("other", [f"{number}" for number in range(1_200)])  # more than one call removes
    dead = queue.register("dead")
    queue.complete(dead, dict.fromkeys(queue.poll("other", dead, 1_200), Result.SUCCESS))
    queue.push("work", ["a"])
    assert queue.poll("work", dead)
    lapse(queue, dead)
    make_worker(lambda _: None, lease=timedelta(seconds=0.9), pause=timedelta(milliseconds=50)).start()
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])
    until(lambda: states(queue, "other") == [])


@pytest.mark.promise("A worker keeps its lease while a handler runs")
def test_a_worker_keeps_its_lease_while_a_handler_runs_longer(dsn: str, queue: TaskQueue) -> None:
    gate = Gate()

    def has_lapsed(lease: Owner) -> bool:
        assert queue.expire() == 0
        found = queue.conn.execute("SELECT clock_timestamp() > %s", (lease.lease_until,)).fetchone()
        return found is not None and found[0]

    queue.push("work", ["a"])
    worker = Worker(dsn, "work", gate, lease=timedelta(seconds=2))
    worker.start()
    assert gate.began.wait(60)
    [first] = queue.owners()
    until(lambda: has_lapsed(first))
    gate.open.set()
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])
    worker.stop()


def test_a_session_that_the_server_has_ended_while_it_was_idle_is_replaced_without_an_error(
    dsn: str, queue: TaskQueue
) -> None:
    """As by idle_session_timeout, with more threads than tasks."""
    session = DatabaseSession(connection_factory(dsn))
    with session.queue() as before:
        ended = before.conn.info.backend_pid
    queue.conn.execute("SELECT pg_terminate_backend(%s, 60000)", (ended,))
    with session.queue() as after:
        assert after.topics() == ["work"]
        assert after.conn.info.backend_pid != ended
    session.close()


def test_a_session_that_listens_outlives_the_limit_for_idle_ones(dsn: str, queue: TaskQueue) -> None:
    def connected() -> psycopg.Connection:
        return connect(dsn, options="-c idle_session_timeout=20", application_name="idle")

    def sessions() -> set[int]:
        found = queue.conn.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'idle'").fetchall()
        return {pid for (pid,) in found}

    missed = threading.Event()
    with NotificationListener(connected, "some", print, missed.set):
        assert missed.wait(60)
        listening = sessions()
        with suppress(psycopg.OperationalError), connected() as other:
            pid = other.info.backend_pid
            until(lambda: pid not in sessions())
        assert sessions() == listening
