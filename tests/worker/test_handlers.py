"""Handlers made of functions: batches, threads, processes, Futures, executors of the caller, and parts of a batch.

What each outcome means, in every runner, is in test_runners.py.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.errors import UniqueViolation

from airflow_provider_taskq.queue import Decision, Owner, Result, Task, TaskQueue, UnreadablePayload
from airflow_provider_taskq.worker import Batch, Composite, TaskResultException, Worker, WorkHandler, batch, each
from airflow_provider_taskq.worker.commit import commit_batch
from airflow_provider_taskq.worker.composite import matching, outdated, repeated
from airflow_provider_taskq.worker.functions import EachHandler
from airflow_provider_taskq.worker.handlers import ForeignDecision, handle_batch
from tests.queue.conftest import until

pytestmark = [
    pytest.mark.promise("A handler is a function, a coroutine or an object, in threads or in processes"),
    pytest.mark.promise("A handler of some tasks of a batch gets exactly those"),
]

SECONDS = 60
BAGGAGE: ContextVar[str] = ContextVar("baggage")


def task(sequence: int, identifier: str = "t") -> Task:
    return Task(sequence, "work", identifier, {"n": sequence}, None, 1, False)


def results(handler: WorkHandler, *tasks: Task) -> list[Result]:
    made = handle_batch(handler, Batch(tasks))
    return [made[each].result for each in tasks]


def completed_elsewhere(outcome: Any) -> "Future[Any]":
    """A Future that another thread completes, with a result or an exception."""
    future: Future[Any] = Future()
    complete = future.set_exception if isinstance(outcome, BaseException) else future.set_result
    threading.Thread(target=complete, args=(outcome,)).start()
    return future


def test_a_task_result_exception_keeps_its_message_and_continued() -> None:
    def stop(_: Task) -> None:
        raise TaskResultException(Result.FILTER, continued=True, message={"n": 1})

    [made] = handle_batch(each(stop), Batch([task(1)])).values()
    assert (made.result, made.continued, made.message) == (Result.FILTER, True, {"n": 1})


def test_a_batch_function_returns_one_outcome_for_all_or_one_for_each_or_a_future_of_these() -> None:
    filtered: dict[str, Callable[[Batch], Any]] = {
        "one": lambda _: Result.FILTER,
        "each": lambda batch: dict.fromkeys(batch.tasks, Result.FILTER),
        "Future": lambda batch: completed_elsewhere(dict.fromkeys(batch.tasks, Result.FILTER)),
    }
    assert results(batch(lambda _: None), task(1), task(2)) == [Result.SUCCESS] * 2
    for name, function in filtered.items():
        assert results(batch(function), task(1), task(2)) == [Result.FILTER] * 2, name
    with pytest.raises(ValueError, match="bad"):
        results(batch(lambda _: completed_elsewhere(ValueError("bad"))), task(1))


# Processes


def by_name(task: Task, batch: Batch) -> Decision | None:
    """The function of a child process, which imports it by name. The identifier selects its behavior."""
    if task.identifier == "pid":
        return Decision(Result.SUCCESS, os.getpid())
    if task.identifier == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if task.identifier == "failed":
        raise ZeroDivisionError("in a process")
    if task.identifier == "unspeakable":
        batch.in_commit(lambda *_: None)
    if task.identifier == "slow":
        time.sleep(60)
    if task.identifier.startswith("meet"):
        _meet(Path(task.identifier.removeprefix("meet ")), task.sequence)
    batch.push(task, "mail", ["a"])
    return None


def _meet(place: Path, number: int) -> None:
    """Returns when two processes have come here."""
    (place / str(number)).touch()
    while len(list(place.iterdir())) < 2:
        time.sleep(0.01)


def test_a_process_that_dies_fails_its_task_only(tmp_path: Path) -> None:
    handler = each(by_name, processes=2)
    meeting = [task(8, f"meet {tmp_path}"), task(9, f"meet {tmp_path}")]
    given = [task(1, "pid"), task(2, "killed"), task(3, "failed"), task(4, "unspeakable"), task(5, "plain"), *meeting]
    batch = Batch(given)
    made = handle_batch(handler, batch)
    assert [made[each].result.name for each in given] == ["SUCCESS", *["FAILURE"] * 3, "SUCCESS", "SUCCESS", "SUCCESS"]
    assert made[given[0]].message != os.getpid()
    assert made[given[1]].error == "the process that handled this task was killed by signal 9"
    assert "ZeroDivisionError: in a process" in str(made[given[2]].error)
    assert "pickle" in str(made[given[3]].error)
    assert {follow_up.task for follow_up in batch.follow_ups} == {given[4], *meeting}
    _tells_where_a_process_stands(handler)
    handler.close()


def _tells_where_a_process_stands(handler: WorkHandler) -> None:
    """Names the process of a slow task while it runs, and kills it when the Future is cancelled."""
    batch = Batch([task(6, "slow")])
    future = handler.handle(batch)
    assert isinstance(future, Future)
    until(lambda: (places := batch.activities()) and "in process " in places[0].name, 200)
    assert future.cancel()
    until(lambda: not batch.activities())


def test_a_call_that_is_cancelled_late_does_not_kill_the_process_of_the_next_call(tmp_path: Path) -> None:
    handler = each(by_name, processes=1)
    first = handler.handle(Batch([task(1, f"meet {tmp_path}")]))
    assert isinstance(first, Future)
    (tmp_path / "other").touch()
    first.result(SECONDS)
    second = handler.handle(Batch([task(2, "pid")]))
    first.cancel()  # as a worker does that abandons the batch just before the task ends
    assert isinstance(second, Future)
    assert [made.result for made in second.result(SECONDS).values()] == [Result.SUCCESS]
    handler.close()


# Threads, coroutines and executors


def test_a_closed_handler_starts_again() -> None:
    handler = each(lambda _: None, threads=2)
    for _ in range(2):
        assert results(handler, task(1), task(2)) == [Result.SUCCESS] * 2
        handler.close()


def test_threads_see_the_context_variables_of_the_worker() -> None:
    """Also those of an executor of the caller, which stays open."""
    token = BAGGAGE.set("a span")
    seen: list[str] = []

    def look(task: Task, batch: Batch) -> Result:
        assert task in batch.tasks
        seen.append(f"{threading.current_thread().name} {BAGGAGE.get()}")
        return Result.FILTER

    with ThreadPoolExecutor(2, thread_name_prefix="mine") as executor:
        others = each(look, executor=executor)
        for handler in (each(look, threads=2), others):
            assert results(handler, task(1), task(2)) == [Result.FILTER] * 2
            handler.close()
        assert executor.submit(lambda: 5).result() == 5
    BAGGAGE.reset(token)
    assert all(name.endswith("a span") for name in seen)
    assert [name.startswith("mine") for name in seen] == [False] * 2 + [True] * 2
    with pytest.raises(RuntimeError, match="shutdown"):
        results(others, task(1))


def test_coroutines_of_a_batch_run_at_once_and_one_that_cancels_itself_fails_its_task_only() -> None:
    met = asyncio.Barrier(3)

    async def cancels(task: Task) -> None:
        await met.wait()
        if task.sequence == 1:
            raise asyncio.CancelledError

    handler = each(cancels)
    assert results(handler, task(1), task(2), task(3)) == [Result.FAILURE, Result.SUCCESS, Result.SUCCESS]
    handler.close()


def test_calls_that_wait_for_an_executor_are_cancelled_with_their_batch() -> None:
    go = threading.Event()
    called: list[int] = []
    batch = Batch([task(1), task(2)])

    def decide(task: Task) -> None:
        called.append(task.sequence)
        batch.cancel()
        assert go.wait(SECONDS)

    with ThreadPoolExecutor(1) as executor:
        future = each(decide, executor=executor).handle(batch)
        assert isinstance(future, Future)
        go.set()
        assert [decision.result for decision in future.result(SECONDS).values()] == [Result.SUCCESS, Result.FAILURE]
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


# Futures


@pytest.mark.parametrize("in_executor", [False, True])
def test_the_futures_of_a_batch_are_in_progress_at_once(in_executor: bool) -> None:
    """A Future occupies no thread of an executor: the first one is completed by the second call, in the same thread."""
    first: Future[Result] = Future()

    def start(task: Task) -> "Future[Result] | Result":
        if task.sequence == 1:
            return first
        first.set_result(Result.FILTER)
        return completed_elsewhere(Result.SUSPENSION)

    with ThreadPoolExecutor(1) as executor:
        handler = each(start, executor=executor) if in_executor else each(start)
        assert results(handler, task(1), task(2)) == [Result.FILTER, Result.SUSPENSION]


def abandon_when_running(batch: Batch, count: int) -> None:
    """Abandons the batch from another thread, once `count` activities run for it."""

    def abandon() -> None:
        until(lambda: len(batch.activities()) >= count)
        batch.cancel()

    threading.Thread(target=abandon).start()


async def for_ever(_: Task) -> None:
    await asyncio.Event().wait()


ABANDONED: dict[str, Callable[["Future[Any]"], WorkHandler]] = {
    "batch": lambda future: batch(lambda _: future),
    "step": lambda future: Composite("c").with_step(lambda _: future, name="wait"),
    "coroutine": lambda _: each(for_ever),
    "coroutine step": lambda _: Composite("c").with_step(for_ever, name="wait"),
}


@pytest.mark.parametrize("when", ["before", "while"])
@pytest.mark.parametrize("make", ABANDONED.values(), ids=ABANDONED)
def test_the_wait_for_a_future_or_a_coroutine_ends_when_the_batch_is_abandoned(
    make: Callable[["Future[Any]"], WorkHandler], when: str
) -> None:
    future: Future[Any] = Future()
    given, handler = Batch([task(1)]), make(future)
    if when == "while":
        abandon_when_running(given, 2 if isinstance(handler, Composite) else 1)
    else:
        given.cancel()
    with ThreadPoolExecutor(1) as pool, pytest.raises((CancelledError, InterruptedError)):
        pool.submit(handle_batch, handler, given).result(SECONDS)
    if when == "while" and make in (ABANDONED["batch"], ABANDONED["step"]):
        until(future.cancelled)
    handler.close()


MEETING: list[Future[None]] = []


def meets(_: Task | Batch) -> "Future[None]":
    """A Future that is done when three batches have come here."""
    future: Future[None] = Future()
    MEETING.append(future)
    if len(MEETING) == 3:
        for waiting in MEETING:
            waiting.set_result(None)
    return future


async def meets_later(task: Task) -> None:
    await asyncio.wrap_future(meets(task))


SLOW: dict[str, Callable[[], WorkHandler]] = {
    "coroutine": lambda: each(meets_later),
    "coroutine step": lambda: Composite("met", concurrency=3).with_step(meets_later),
    "Future": lambda: each(meets),
    "Future of a batch": lambda: batch(meets, concurrency=3),
}


@pytest.mark.parametrize("make", SLOW.values(), ids=SLOW)
def test_a_batch_does_not_wait_for_a_slow_one_of_the_same_thread(
    dsn: str, queue: TaskQueue, make: Callable[[], WorkHandler]
) -> None:
    MEETING.clear()
    queue.push("work", ["a", "b", "c"])
    assert Worker(dsn, "work", make(), limit=timedelta(seconds=SECONDS)).drain().succeeded == 3


# Exceptions that mean success


def violate(task: Task) -> None:
    raise UniqueViolation if task.sequence == 1 else LookupError


async def violate_later(task: Task) -> None:
    violate(task)


HANDLERS: dict[str, Callable[[], WorkHandler]] = {
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
def test_only_exceptions_of_success_on_mean_success(make: Callable[[], WorkHandler]) -> None:
    handler = make()
    assert results(handler, task(1), task(2)) == [Result.SUCCESS, Result.FAILURE]
    handler.close()


def test_an_exception_of_success_on_in_a_batch_is_success_of_all_tasks_unless_it_has_a_result() -> None:
    errors: list[Exception] = [UniqueViolation(), TaskResultException(Result.FILTER), LookupError()]

    def write(_: Batch) -> None:
        raise errors.pop(0)

    handler = batch(write, success_on=(UniqueViolation, TaskResultException))
    assert results(handler, task(1), task(2)) == [Result.SUCCESS, Result.SUCCESS]
    assert results(handler, task(1), task(2)) == [Result.FILTER, Result.FILTER]
    with pytest.raises(LookupError):
        results(handler, task(1))


def test_a_commit_hook_whose_write_was_done_before_leaves_the_success(
    dsn: str, queue: TaskQueue, conn: psycopg.Connection
) -> None:
    conn.execute("CREATE TABLE paid (identifier text PRIMARY KEY)")
    conn.execute("INSERT INTO paid VALUES ('a'), ('b')")
    queue.push("work", ["a", "b"])

    def pay(task: Task, batch: Batch) -> None:
        def insert(queue: TaskQueue, _: object) -> None:
            queue.conn.execute("INSERT INTO paid VALUES (%s)", (task.identifier,))

        batch.in_commit(insert, task, success_on=(UniqueViolation,) if task.identifier == "a" else ())

    Worker(dsn, "work", pay, size=2).drain()
    assert [info.state.name for info in queue.page("work")] == ["SUCCEEDED", "FAILED"]


# Handlers that get some tasks of a batch: matching tasks, or one task of each identifier


FAILURE, SUSPENSION, FILTER, SUCCESS = Result


def odd(task: Task) -> bool:
    return task.sequence % 2 == 1


def small_batch() -> Batch:
    return Batch(Task(number, "work", f"item-{number}", None, None, 1, False) for number in range(4))


@pytest.mark.parametrize("later", [False, True], ids=["decisions", "Future"])
def test_a_handler_gets_the_tasks_of_a_batch_whose_payload_can_be_decoded(
    conn: psycopg.Connection, queue: TaskQueue, owner: Owner, later: bool
) -> None:
    """Its hooks get their decisions only, and a decision on another task is foreign."""
    queue.push("work", [f"item-{number}" for number in range(3)])
    polled = queue.poll("work", owner, 3)
    given = Batch([*polled[:2], replace(polled[2], payload=UnreadablePayload("no JSON"))])
    asked: list[Task] = []

    def suspend(_: TaskQueue, decisions: Mapping[Task, Decision]) -> Mapping[Task, Decision]:
        asked.extend(decisions)
        return dict.fromkeys(decisions, Decision(SUSPENSION))

    def handle(part: Batch) -> Any:
        part.register(str, "kept")
        part.push(part.tasks[0], "next", ["a"])
        part.in_commit(suspend)
        return completed_elsewhere(Result.SUCCESS) if later else Result.SUCCESS

    decided = handle_batch(batch(handle), given)
    stands = commit_batch(TaskQueue(conn), owner, given, decided)
    assert [stands[task].result for task in given.tasks] == [SUSPENSION, SUSPENSION, FAILURE]
    assert asked == polled[:2]
    assert given.require(str) == "kept"
    assert [follow_up.task for follow_up in given.follow_ups] == polled[:1]
    with pytest.raises(ForeignDecision):
        handle_batch(batch(lambda _: dict.fromkeys(given.tasks)), given)


def test_a_step_of_a_composite_may_get_matching_tasks_only() -> None:
    seen: list[Task] = []

    def look(tasks: Sequence[Task]) -> Result:
        seen.extend(tasks)
        return FILTER

    composite = Composite("partly").with_step(
        matching(odd, look, lambda task: SUSPENSION if task.sequence else None), mode="BATCH"
    )
    given = small_batch()
    decided = handle_batch(composite, given)
    Composite("none").with_step(matching(lambda _: False, look), mode="BATCH").handle(given)
    assert [decided[task].result for task in given.tasks] == [SUCCESS, FILTER, SUSPENSION, FILTER]
    assert [task.sequence for task in seen] == [1, 3]
    assert [step.name for step in composite.steps] == ["look"]


def batch_of_duplicates() -> Batch:
    """Two tasks of a with the later one first, one of b, three of c."""
    return Batch(
        Task(sequence, "work", identifier, None, None, 1, False)
        for sequence, identifier in ((2, "a"), (1, "a"), (3, "b"), (4, "c"), (5, "c"), (6, "c"))
    )


@pytest.mark.parametrize(
    ("judge", "expected", "reason"),
    [
        (
            outdated,
            [SUSPENSION, FILTER, SUSPENSION, FILTER, FILTER, SUSPENSION],
            "outdated by task 2 of the same batch",
        ),
        (repeated, [FAILURE, FAILURE, SUSPENSION, *[FAILURE] * 3], "one of 2 tasks of its identifier in one batch"),
    ],
    ids=["outdated", "repeated"],
)
def test_outdated_keeps_the_last_task_of_an_identifier_and_repeated_fails_all(
    judge: Callable[[Sequence[Task]], Mapping[Task, Decision]], expected: list[Result], reason: str
) -> None:
    given = batch_of_duplicates()
    composite = Composite("filtering").with_step(judge, mode="BATCH")
    decided = handle_batch(
        composite.with_step(lambda _: SUSPENSION, name="rest", after=judge.__name__, mode="BATCH"), given
    )
    assert [decided[task].result for task in given.tasks] == expected
    assert reason in (decided[given.tasks[1]].message, decided[given.tasks[1]].error)


def test_a_worker_opens_as_many_batches_as_its_handler_has_room_for_their_tasks() -> None:
    handler, steps = EachHandler(lambda _: None, (), None, 100), Composite("four", concurrency=4)
    assert [handler.open_batches(size) for size in (1, 30, 1000)] == [100, 3, 1]
    assert [steps.open_batches(size) for size in (1, 1000)] == [4, 4]
