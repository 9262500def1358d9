"""Handlers that return Futures or run in an executor of the caller, and exceptions of success_on."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.errors import UniqueViolation

from airflow_provider_taskq.queue import Decision, Result, Task, TaskQueue
from airflow_provider_taskq.worker import Batch, BatchHandler, Composite, TaskResultException, Worker, batch, each
from tests.faults.poison import POISON, poison
from tests.queue.conftest import until
from tests.worker.test_handlers import results, task

pytestmark = pytest.mark.promise("A handler is a function, a coroutine or an object, in threads or in processes")

SECONDS = 60
BAGGAGE: ContextVar[str] = ContextVar("baggage")


def completed_elsewhere(outcome: Any) -> "Future[Any]":
    """A Future that another thread completes, with a result or an exception."""
    future: Future[Any] = Future()
    complete = future.set_exception if isinstance(outcome, BaseException) else future.set_result
    threading.Thread(target=complete, args=(outcome,)).start()
    return future


def filtered_elsewhere(_: Task) -> "Future[Any]":
    return completed_elsewhere(Result.FILTER)


def abandon_when_running(batch: Batch, count: int) -> None:
    """Abandons the batch from another thread, once `count` activities run for it."""

    def abandon() -> None:
        until(lambda: len(batch.activities()) >= count)
        batch.cancel()

    threading.Thread(target=abandon).start()


OUTCOMES = [
    (None, Result.SUCCESS),
    (Result.FILTER, Result.FILTER),
    (Decision(Result.SUSPENSION), Result.SUSPENSION),
    (ValueError("bad"), Result.FAILURE),
    (TaskResultException(Result.FILTER), Result.FILTER),
    ("nonsense", Result.FAILURE),
]


@pytest.mark.parametrize(("outcome", "result"), OUTCOMES)
@pytest.mark.parametrize("threads", [1, 2])
def test_any_thread_may_complete_the_future_of_a_task(outcome: Any, result: Result, threads: int) -> None:
    handler = each(lambda _: completed_elsewhere(outcome), threads=threads)
    assert results(handler, task(1), task(2)) == [result, result]
    handler.close()


def test_the_futures_of_a_batch_are_in_progress_at_once() -> None:
    futures: dict[int, Future[Result]] = {1: Future(), 2: Future()}

    def start(task: Task) -> "Future[Result]":
        if task.sequence == 2:  # completes in another order than the calls
            futures[1].set_result(Result.FILTER)
            futures[2].set_result(Result.SUSPENSION)
        return futures[task.sequence]

    assert results(each(start), task(1), task(2)) == [Result.FILTER, Result.SUSPENSION]


def test_any_thread_may_complete_the_future_of_a_batch() -> None:
    whole = batch(lambda batch: completed_elsewhere(dict.fromkeys(batch.tasks, Result.FILTER)))
    assert results(whole, task(1), task(2)) == [Result.FILTER, Result.FILTER]
    with pytest.raises(ValueError, match="bad"):
        batch(lambda _: completed_elsewhere(ValueError("bad"))).handle(Batch([task(1)]))


def test_a_process_may_return_a_future() -> None:
    handler = each(filtered_elsewhere, processes=1)
    assert results(handler, task(1)) == [Result.FILTER]
    handler.close()


@pytest.mark.parametrize("when", ["before", "while"])
def test_the_wait_for_a_future_ends_when_the_batch_is_abandoned(when: str) -> None:
    future: Future[Result] = Future()
    given = Batch([task(1)])
    if when == "while":
        abandon_when_running(given, 1)
    else:
        given.cancel()
    made = batch(lambda _: future)
    with pytest.raises(CancelledError):
        made.handle(given)
    assert future.cancelled()


def test_the_wait_for_a_running_future_ends_when_the_batch_is_abandoned() -> None:
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()  # as an executor does: now it cannot be cancelled
    batch = Batch([task(1)])
    abandon_when_running(batch, 1)
    [made] = each(lambda _: future).handle(batch).values()
    assert "abandoned before the Future" in str(made.error)


def test_a_worker_commits_the_outcome_of_a_future(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    waiting: list[Future[Result]] = []

    def start(_: Task) -> "Future[Result]":
        waiting.append(Future())
        return waiting[-1]

    worker = Worker(dsn, "work", each(start), size=2)
    worker.start()
    until(lambda: len(waiting) == 2)
    assert queue.count_tasks("work", state="ACTIVE") == 2
    for future in waiting:
        future.set_result(Result.FILTER)
    until(lambda: queue.count_tasks("work", state="FILTERED") == 2)
    worker.stop()


def test_a_worker_continues_without_a_future_that_exceeds_its_limit(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["never"])
    future: Future[Result] = Future()
    decided: list[str] = []

    def start(task: Task) -> "Future[Result] | None":
        decided.append(task.identifier)
        return future if task.identifier == "never" else None

    with_limit = Worker(dsn, "work", each(start), limit=timedelta(milliseconds=100))
    with_limit.start()
    until(lambda: queue.count_tasks("work", state="FAILED") == 1)
    queue.push("work", ["next"])
    until(lambda: queue.count_tasks("work", state="SUCCEEDED") == 1)
    with_limit.stop()
    assert future.cancelled()


def test_an_executor_of_the_caller_calls_the_function_and_stays_open() -> None:
    BAGGAGE.set("seen")
    names: list[str] = []

    def decide(task: Task, batch: Batch) -> Result:
        assert task in batch
        names.append(f"{threading.current_thread().name} {BAGGAGE.get()}")
        return Result.FILTER

    with ThreadPoolExecutor(2, thread_name_prefix="mine") as executor:
        handler = each(decide, executor=executor)
        assert results(handler, task(1), task(2), task(3)) == [Result.FILTER] * 3
        handler.close()
        assert executor.submit(lambda: 5).result() == 5
    assert all(name.startswith("mine") and name.endswith("seen") for name in names)
    with pytest.raises(RuntimeError, match="shutdown"):
        handler.handle(Batch([task(1)]))


def test_a_returned_future_does_not_occupy_a_thread_of_the_executor() -> None:
    """The first call returns a Future that only the second call completes, with one thread."""
    first: Future[Result] = Future()

    def decide(task: Task) -> "Future[Result] | Result":
        if task.sequence == 1:
            return first
        first.set_result(Result.FILTER)
        return Result.SUSPENSION

    with ThreadPoolExecutor(1) as executor:
        assert results(each(decide, executor=executor), task(1), task(2)) == [Result.FILTER, Result.SUSPENSION]


def test_calls_that_wait_for_an_executor_are_cancelled_with_their_batch() -> None:
    go = threading.Event()
    called: list[int] = []
    batch = Batch([task(1), task(2)])

    def decide(task: Task) -> None:
        called.append(task.sequence)
        batch.cancel()
        assert go.wait(60)

    with ThreadPoolExecutor(1) as executor:
        made = each(decide, executor=executor).handle(batch)
        go.set()
    assert [decision.result for decision in made.values()] == [Result.FAILURE, Result.FAILURE]
    assert called == [1]


def test_an_executor_that_cannot_call_the_function_raises() -> None:
    async def awaited(_: Task) -> None: ...

    with ProcessPoolExecutor(1) as processes, pytest.raises(TypeError, match="processes="):
        each(lambda _: None, executor=processes)
    with ThreadPoolExecutor(1) as threads:
        for options in ({"threads": 2}, {"processes": 2}):
            with pytest.raises(ValueError, match="cannot be combined"):
                each(lambda _: None, executor=threads, **options)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="a coroutine function"):
            each(awaited, executor=threads)


def violate(task: Task) -> None:
    raise UniqueViolation if task.sequence == 1 else LookupError


async def violate_later(task: Task) -> None:
    violate(task)


HANDLERS: dict[str, Callable[[], BatchHandler]] = {
    "one thread": lambda: each(violate, success_on=(UniqueViolation,)),
    "threads": lambda: each(violate, threads=2, success_on=UniqueViolation),
    "processes": lambda: each(violate, processes=1, success_on=(UniqueViolation,)),
    "coroutine": lambda: each(violate_later, success_on=(UniqueViolation,)),
    "executor": lambda: each(violate, executor=ThreadPoolExecutor(1), success_on=(UniqueViolation,)),
    "future": lambda: each(
        lambda task: completed_elsewhere(UniqueViolation() if task.sequence == 1 else LookupError()),
        success_on=(UniqueViolation,),
    ),
}


@pytest.mark.parametrize("make", HANDLERS.values(), ids=HANDLERS.keys())
def test_only_exceptions_of_success_on_mean_success(make: Callable[[], BatchHandler]) -> None:
    handler = make()
    assert results(handler, task(1), task(2)) == [Result.SUCCESS, Result.FAILURE]
    handler.close()


def test_an_exception_of_success_on_in_a_batch_is_success_of_all_tasks() -> None:
    def write(batch: Batch) -> None:
        raise UniqueViolation if len(batch.tasks) == 2 else LookupError

    handler = batch(write, success_on=(UniqueViolation,))
    assert results(handler, task(1), task(2)) == [Result.SUCCESS, Result.SUCCESS]
    with pytest.raises(LookupError):
        handler.handle(Batch([task(1)]))


def test_a_task_result_exception_precedes_success_on() -> None:
    def stop(_: Any) -> None:
        raise TaskResultException(Result.FILTER)

    assert results(each(stop, success_on=Exception), task(1)) == [Result.FILTER]
    assert results(batch(stop, success_on=Exception), task(1)) == [Result.FILTER]


def test_a_commit_hook_whose_write_was_done_before_leaves_the_success(
    dsn: str, queue: TaskQueue, conn: psycopg.Connection
) -> None:
    conn.execute("CREATE TABLE paid (identifier text PRIMARY KEY)")
    conn.execute("INSERT INTO paid VALUES ('a')")
    queue.push("work", ["a", "b"])

    def pay(task: Task, batch: Batch) -> None:
        def insert(queue: TaskQueue, _: object) -> None:
            queue.conn.execute("INSERT INTO paid VALUES (%s)", (task.identifier,))

        batch.in_commit(insert, task, success_on=(UniqueViolation,) if task.identifier == "a" else ())

    conn.execute("INSERT INTO paid VALUES ('b')")
    Worker(dsn, "work", pay, size=2).drain()
    assert [info.state.name for info in queue.page("work")] == ["SUCCEEDED", "FAILED"]


def test_a_step_stops_waiting_for_its_future_when_the_batch_is_abandoned() -> None:
    future: Future[Result] = Future()
    batch = Batch([task(1)])
    composite = Composite("c")

    @composite.step
    def wait(_: Task) -> "Future[Result]":
        return future

    abandon_when_running(batch, 2)
    with pytest.raises(InterruptedError, match="abandoned"):
        composite.handle(batch)
    until(future.cancelled)
    composite.close()


class ByFuture:
    """A handler of batches that returns a Future of its decisions."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.future: Future[Mapping[Task, Decision]] = Future()

    def handle(self, batch: Batch) -> "Future[Mapping[Task, Decision]]":
        self.tasks = batch.tasks
        self.started.set()
        return self.future

    def close(self) -> None: ...


def test_any_thread_may_complete_the_future_of_a_handler_object(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    handler = ByFuture()
    worker = Worker(dsn, "work", handler, size=2)
    worker.start()
    assert handler.started.wait(SECONDS)
    assert queue.count_tasks("work", state="ACTIVE") == 2
    handler.future.set_result(dict.fromkeys(handler.tasks, Decision(Result.FILTER)))
    until(lambda: queue.count_tasks("work", state="FILTERED") == 2)
    worker.stop()


def test_an_exception_of_a_handler_objects_future_fails_the_batch(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    handler = ByFuture()
    handler.future.set_exception(LookupError("no mailbox"))
    Worker(dsn, "work", handler, size=2).drain()
    assert [info.error_summary for info in queue.page("work")] == ["LookupError: no mailbox"] * 2


def test_an_unreadable_payload_fails_only_its_task_if_a_handler_object_returns_a_future(
    dsn: str, queue: TaskQueue
) -> None:
    good, bad = queue.push("work", ["good", "bad"])
    poison(queue.conn, bad, POISON["brackets 2,000 deep"])
    handler = ByFuture()
    handler.future.set_result({good: Decision(Result.SUCCESS)})
    Worker(dsn, "work", handler, size=2).drain()
    assert handler.tasks == (good,)
    assert [info.state.name for info in queue.page("work")] == ["SUCCEEDED", "FAILED"]


def test_a_worker_may_handle_batches_by_submitting_them_to_a_composite(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    composite = Composite("submits", concurrency=1).with_step(lambda _: Result.FILTER, name="only")

    class Submits:
        def handle(self, batch: Batch) -> "Future[Mapping[Task, Decision]]":
            return composite.submit(batch)

        def close(self) -> None:
            composite.close()

    Worker(dsn, "work", Submits()).drain()
    assert queue.count_tasks("work", state="FILTERED") == 1
