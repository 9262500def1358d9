"""Workers: start, stop, pause, resume, batches, drains."""

import asyncio
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Order,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    TooManyFailures,
    TopicPolicy,
    UnknownTopic,
    connect,
)
from airflow_provider_taskq.worker import Batch, TaskResultException, Worker, WorkerListener, batch, each, poll_loop
from tests.internals import block_verbs, hold_turns
from tests.queue.conftest import everything, known, states, until
from tests.worker.conftest import HOUR, MakeWorker

pytestmark = pytest.mark.promise("A handler is a function, a coroutine or an object, in threads or in processes")


def test_a_worker_handles_waiting_and_new_tasks(queue: TaskQueue, make_worker: MakeWorker) -> None:
    queue.push("work", ["a"])
    worker = make_worker(lambda _: None)
    assert worker.start()
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])
    queue.push("work", ["b"])
    assert worker.resume()
    until(lambda: states(queue) == [("a", State.SUCCEEDED), ("b", State.SUCCEEDED)])


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
    assert worker.start(), "a worker that stopped starts again"
    assert queue.owners()


def _works(worker: Worker) -> bool:
    return worker.is_active


@pytest.mark.usefixtures("queue")
def test_a_start_that_cannot_work_raises_the_reason(dsn: str) -> None:
    with pytest.raises(UnknownTopic):
        Worker(dsn, "none", lambda _: None).start()
    with pytest.raises(TaskQueueError, match="cannot connect"):
        Worker("host=127.0.0.1 port=1", "work", lambda _: None).start()
    with pytest.raises(ValueError, match="size must be at least 1"):
        Worker(dsn, "work", lambda _: None, size=0)
    for name in ("a" * 901, "a\x00"):
        with pytest.raises(ValueError, match="name must have at most 900 characters"):
            Worker(dsn, "work", lambda _: None, name=name)
    with pytest.raises(ValueError, match="lease must be at most 3650 days"):
        Worker(dsn, "work", lambda _: None, lease=timedelta(days=99_999_999))


@pytest.mark.usefixtures("queue")
def test_a_start_without_a_lease_in_time_raises_timeout_error_and_leaves_no_thread(dsn: str) -> None:
    with connect(dsn) as blocker:
        block_verbs(blocker, owners_only=True)
        worker = Worker(f"{dsn} options='-c lock_timeout=1s'", "work", lambda _: None)
        with pytest.raises(TimeoutError, match="got no lease"):
            worker.start(timedelta(milliseconds=100))
    assert not worker.is_active


def test_a_thread_that_gets_its_lease_after_a_failed_start_polls_nothing(dsn: str, queue: TaskQueue) -> None:
    seen: list[str] = []
    queue.push("work", ["a"])
    before = set(threading.enumerate())
    with connect(dsn) as blocker:
        block_verbs(blocker, owners_only=True)
        worker = Worker(dsn, "work", lambda task: seen.append(task.identifier))
        with pytest.raises(TimeoutError, match="got no lease"):
            worker.start(timedelta(milliseconds=100))
        late = set(threading.enumerate()) - before
    for thread in late:
        thread.join(30)
    assert seen == []
    assert states(queue) == [("a", State.READY)]
    assert queue.owners() == []


def test_resume_ends_a_long_pause_within_half_a_second(queue: TaskQueue, make_worker: MakeWorker) -> None:
    handled, paused = threading.Semaphore(0), threading.Semaphore(0)
    took: list[float] = []

    class Listener(WorkerListener):
        def on_empty(self) -> None:
            paused.release()

    worker = make_worker(lambda _: handled.release(), listener=Listener(), listen=False)
    worker.start()
    for name in "abcde":
        assert paused.acquire(timeout=10)
        queue.push("work", [name])
        began = time.monotonic()
        worker.resume()
        assert handled.acquire(timeout=10)
        took.append(time.monotonic() - began)
    assert min(took) < 0.5, "at least one of five, because the machine may be busy"


@pytest.mark.promise("A push notifies at its commit, if the policy of the topic has `notify`")
def test_a_notification_ends_a_long_pause(queue: TaskQueue, make_worker: MakeWorker) -> None:
    handled = threading.Event()
    worker = make_worker(lambda _: handled.set())
    worker.start()
    until(lambda: _listens(queue))
    queue.push("work", ["a"])
    queue.notify("work")
    assert handled.wait(10)


def test_a_push_by_sql_is_handled_at_once_if_the_policy_notifies(queue: TaskQueue, make_worker: MakeWorker) -> None:
    queue.alter_topic("work", notify=True)
    handled, paused = threading.Semaphore(0), threading.Semaphore(0)

    class Listener(WorkerListener):
        def on_empty(self) -> None:
            paused.release()

    make_worker(lambda _: handled.release(), listener=Listener()).start()
    until(lambda: _listens(queue))
    for _ in range(3):  # the first poll after LISTEN needs no notification
        assert paused.acquire(timeout=60)
        queue.conn.execute("SELECT taskq.push('work', 'APPEND', ARRAY['a'])")
        assert handled.acquire(timeout=60)


def _listens(queue: TaskQueue) -> bool:
    found = queue.conn.execute(
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    )
    return found.fetchone() is not None


def test_a_batch_has_at_most_size_tasks_in_polled_order(queue: TaskQueue, make_worker: MakeWorker) -> None:
    seen: list[list[str]] = []
    queue.push("work", ["a", "b", NewTask("c", priority=5), "d", "e"])
    make_worker(batch(lambda batch: seen.append([task.identifier for task in batch.tasks])), size=2).start()
    until(lambda: len(seen) == 3)
    assert seen == [["c", "a"], ["b", "d"], ["e"]]


def test_a_worker_polls_with_its_order_and_condition(queue: TaskQueue, make_worker: MakeWorker) -> None:
    seen: list[list[str]] = []
    queue.push("work", ["a", "a", "b"])
    handler = batch(lambda batch: seen.append([task.identifier for task in batch.tasks]))
    condition = Condition.SINGULAR_BY_IDENTIFIER
    make_worker(handler, size=3, order=Order.LAST_IN_FIRST_OUT, condition=condition).start()
    until(lambda: len(seen) == 2)
    assert seen == [["b", "a"], ["a"]]


def test_decisions_are_returned_or_raised(queue: TaskQueue, make_worker: MakeWorker) -> None:
    def decide(task: Task) -> Decision | Result | None:
        outcome: dict[str, Decision | Result | None] = {
            "result": Result.FILTER,
            "decision": Decision(Result.SUSPENSION, {"why": 1}),
            "none": None,
        }
        if task.identifier == "raised":
            raise TaskResultException(Result.SUSPENSION, message="later")
        if task.identifier == "failed":
            raise TaskResultException
        if task.identifier == "broken":
            raise ZeroDivisionError("by nothing")
        return outcome[task.identifier]

    queue.push("work", ["result", "decision", "none", "raised", "failed", "broken"])
    make_worker(decide, size=10).start()
    until(lambda: not queue.count("work", state=State.READY)["work"] and not _active(queue))
    found = {info.identifier: info for info in everything(queue)}
    assert {name: info.state for name, info in found.items()} == {
        "result": State.FILTERED,
        "decision": State.SUSPENDED,
        "none": State.SUCCEEDED,
        "raised": State.SUSPENDED,
        "failed": State.FAILED,
        "broken": State.FAILED,
    }
    assert found["decision"].output == {"why": 1}
    assert found["raised"].output == "later"
    assert "ZeroDivisionError: by nothing" in (found["broken"].error or "")


def _active(queue: TaskQueue) -> bool:
    return bool(queue.count("work", state=State.ACTIVE)["work"])


def test_a_task_without_a_decision_is_failed_naming_the_handler(queue: TaskQueue, make_worker: MakeWorker) -> None:
    def forgetful(batch: Batch) -> Mapping[Task, Result]:
        return {batch.tasks[0]: Result.SUCCESS}

    queue.push("work", ["a", "b"])
    make_worker(batch(forgetful), size=2).start()
    until(lambda: states(queue) == [("a", State.SUCCEEDED), ("b", State.FAILED)])
    assert "forgetful made no decision" in (everything(queue)[1].error or "")


def test_a_decision_on_a_foreign_task_fails_the_whole_batch(queue: TaskQueue, make_worker: MakeWorker) -> None:
    [other] = queue.push("work", [NewTask("other", delay=HOUR)])
    queue.push("work", ["a", "b"])
    make_worker(batch(lambda batch: dict.fromkeys([*batch.tasks, other], Result.SUCCESS)), size=2).start()
    until(lambda: states(queue)[1:] == [("a", State.FAILED), ("b", State.FAILED)])
    assert f"tasks that it did not get: {other.sequence}" in (everything(queue)[1].error or "")
    assert known(queue, other).state is State.READY


def test_an_exception_of_a_batch_handler_fails_the_batch_or_sets_its_result(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    def handle(batch: Batch) -> None:
        if batch.tasks[0].identifier == "a":
            raise ZeroDivisionError
        raise TaskResultException(Result.FILTER)

    queue.push("work", ["a", "b", "c", "d"])
    make_worker(batch(handle), size=2).start()
    expected = [State.FAILED, State.FAILED, State.FILTERED, State.FILTERED]
    until(lambda: [state for _, state in states(queue)] == expected)


def test_a_failure_is_retried_by_the_policy_of_its_topic(queue: TaskQueue, make_worker: MakeWorker) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=3, base=timedelta(0))))
    attempts: list[int] = []

    def third_time(task: Task) -> Result:
        attempts.append(task.attempt)
        return Result.SUCCESS if task.attempt == 3 else Result.FAILURE

    queue.push("work", ["a"])
    make_worker(third_time, pause=timedelta(milliseconds=20)).start()
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])
    assert attempts == [1, 2, 3]


def test_a_message_that_is_not_json_fails_only_its_task(queue: TaskQueue, make_worker: MakeWorker) -> None:
    worker = make_worker(lambda task: Decision(Result.SUCCESS, {1, 2} if task.identifier == "a" else None), size=2)  # type: ignore[arg-type]
    queue.push("work", ["a", "b"])
    worker.start()
    until(lambda: states(queue) == [("a", State.FAILED), ("b", State.SUCCEEDED)])


def test_tasks_that_were_purged_meanwhile_do_not_keep_others_from_being_completed(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    tasks = queue.push("work", ["a", "b"])

    def purge(_: Batch) -> None:
        queue.purge("work", from_=tasks[0].sequence, to=tasks[0].sequence, state=State.ACTIVE)

    make_worker(batch(purge), size=2).start()
    until(lambda: states(queue) == [("b", State.SUCCEEDED)])


def test_several_threads_handle_several_batches_at_once(queue: TaskQueue, make_worker: MakeWorker) -> None:
    together = threading.Barrier(3, timeout=10)
    queue.push("work", ["a", "b", "c"])

    def meet(_: Task) -> None:
        together.wait()

    make_worker(meet, workers=3).start()
    until(lambda: [state for _, state in states(queue)] == [State.SUCCEEDED] * 3)
    assert len(queue.owners()) == 3


def test_coroutine_functions_run_concurrently_on_one_loop(queue: TaskQueue, make_worker: MakeWorker) -> None:
    inside: list[str] = []
    all_in = asyncio.Event()

    async def handle(task: Task) -> Result:
        inside.append(task.identifier)
        if len(inside) == 5:
            all_in.set()
        await all_in.wait()
        if task.identifier == "bad":
            raise ZeroDivisionError
        return Result.SUCCESS

    queue.push("work", ["a", "b", "c", "bad", "d"])
    make_worker(each(handle), size=5).start()
    until(lambda: [state for _, state in states(queue)].count(State.SUCCEEDED) == 4)
    assert states(queue)[3] == ("bad", State.FAILED)


def test_tasks_of_a_batch_are_handled_by_several_threads(queue: TaskQueue, make_worker: MakeWorker) -> None:
    together = threading.Barrier(4, timeout=10)
    queue.push("work", ["a", "b", "c", "d"])

    def meet(_: Task) -> None:
        together.wait()

    make_worker(each(meet, threads=4), size=4).start()
    until(lambda: [state for _, state in states(queue)] == [State.SUCCEEDED] * 4)


@pytest.mark.parametrize("ready", [0, 20])
def test_a_drain_ends_when_no_task_is_left_including_tasks_pushed_meanwhile(
    queue: TaskQueue, make_worker: MakeWorker, ready: int
) -> None:
    def handle(task: Task, batch: Batch) -> None:
        if task.identifier.startswith("first"):
            batch.push(task, "work", [f"then {task.identifier}"])

    queue.push("work", [*(f"first {number}" for number in range(30)), NewTask("later", delay=HOUR)])
    pause = timedelta(milliseconds=50)
    done = make_worker(handle, workers=2, size=4, prefetch=ready, pause=pause).drain()
    assert (done.succeeded, done.in_flight) == (60, 0)
    assert queue.owners() == []


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


def test_a_drain_with_several_threads_ends_after_the_last_batch_in_flight(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    def count_down(task: Task, batch: Batch) -> None:
        if left := int(task.identifier):
            batch.push(task, "work", [str(left - 1)])

    for _ in range(5):
        queue.push("work", ["20"])
        assert make_worker(count_down, workers=4).drain().handled == 21


def test_a_drain_under_a_condition_leaves_no_task_of_an_identifier(queue: TaskQueue, make_worker: MakeWorker) -> None:
    for _ in range(5):
        queue.push("work", ["a"] * 20)
        worker = make_worker(lambda _task: None, workers=4, condition=Condition.SINGULAR_BY_IDENTIFIER)
        assert worker.drain().handled == 20


def test_a_worker_that_stopped_while_its_polls_failed_can_drain_afterwards(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    reported = threading.Event()

    class Listener(WorkerListener):
        def on_fatal(self, _: BaseException) -> None:
            reported.set()

    worker = make_worker(lambda _: None, listener=Listener(), listen=False)
    worker.start()
    queue.drop_topic("work")
    worker.resume()
    assert reported.wait(10)
    worker.stop()
    queue.create_topic("work")
    worker.start()
    until(lambda: worker.is_idle)  # as a drain waits


class Empty(WorkerListener):
    """Counts polls that found nothing."""

    def __init__(self) -> None:
        self.polls = 0

    def on_empty(self) -> None:
        self.polls += 1


def test_a_drain_polls_again_if_a_concurrent_poll_hid_ready_tasks(
    dsn: str, queue: TaskQueue, make_worker: MakeWorker
) -> None:
    queue.push("work", ["a", "a"])
    listener = Empty()
    worker = make_worker(lambda _task: None, listener=listener, condition=Condition.SINGULAR_BY_IDENTIFIER)
    with connect(dsn) as other, ThreadPoolExecutor() as pool:
        hold_turns(other)  # as an earlier poll
        drained = pool.submit(worker.drain)
        until(lambda: listener.polls > 2)
        assert not worker.is_idle
        other.rollback()
        assert drained.result(60).handled == 2


def test_a_drain_leaves_tasks_that_an_open_transaction_locks(
    dsn: str,
    queue: TaskQueue,
    make_worker: MakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(poll_loop, "MAX_RECHECKS", 3)
    queue.push("work", ["a"])
    worker = make_worker(lambda _task: None, condition=Condition.SINGULAR_BY_IDENTIFIER)
    with connect(dsn) as other:
        hold_turns(other)  # as an earlier poll
        assert worker.drain().handled == 0
    assert "ready tasks are left, as an open transaction locks them: worker=work topic=work" in caplog.text
    assert states(queue) == [("a", State.READY)]
