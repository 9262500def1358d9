"""Composites whose steps run in an executor of the caller."""

import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from airflow_provider_taskq.queue import Result, Task, TaskQueue
from airflow_provider_taskq.worker import Composite, Worker
from airflow_provider_taskq.worker.batches import Batch
from tests.worker.test_handlers import task

pytestmark = pytest.mark.promise("A composite gives the same results in threads and as a Spark plan")

SECONDS = 60
BAGGAGE: ContextVar[str] = ContextVar("baggage")
Noted = list[tuple[str, str]]


def nothing(_: Task) -> None: ...


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, thread_name_prefix="mine") as executor:
        yield executor


def diamond(noted: Noted, executor: ThreadPoolExecutor) -> Composite:
    """Sequential and parallel steps, of single tasks and of the batch, that record their threads."""

    def note(name: str) -> Callable[[object], None]:
        return lambda _: noted.append((name, threading.current_thread().name))

    composite = Composite("diamond", executor=executor).with_step(note("load"), name="load")
    composite = composite.with_step(note("left"), name="left", after="load")
    composite = composite.with_batch(note("right"), name="right", after="load")
    return composite.with_step(note("end"), name="end", after=("left", "right"))


def test_a_worker_commits_decisions_of_steps_in_an_executor_of_the_caller(
    dsn: str, queue: TaskQueue, executor: ThreadPoolExecutor
) -> None:
    queue.push("work", [f"{number}" for number in range(5)])
    noted: Noted = []
    Worker(dsn, "work", diamond(noted, executor), size=5).drain()
    assert sorted(name for name, _ in noted) == ["end"] * 5 + ["left"] * 5 + ["load"] * 5 + ["right"]
    assert {thread for _, thread in noted} == {"mine_0"}
    assert queue.count_tasks("work", state="SUCCEEDED") == 5
    assert executor.submit(lambda: "open").result() == "open", "the caller shuts it down, and not the worker"


def test_several_workers_and_batches_in_flight_share_an_executor_of_one_thread(
    dsn: str, queue: TaskQueue, executor: ThreadPoolExecutor
) -> None:
    queue.push("work", [f"{number}" for number in range(40)])
    noted: Noted = []
    Worker(dsn, "work", diamond(noted, executor), size=5, workers=4).drain()
    assert queue.count_tasks("work", state="SUCCEEDED") == 40
    assert {thread for _, thread in noted} == {"mine_0"}


def meeting(count: int) -> Callable[[Task], None]:
    """A step that ends once this many tasks run in it at once."""
    barrier = threading.Barrier(count)
    return lambda _: void(barrier.wait(SECONDS))


def void(_: object) -> None: ...


def test_as_many_tasks_run_at_once_as_the_executor_has_threads(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", [f"{number}" for number in range(40)])
    with ThreadPoolExecutor(40) as executor:
        composite = Composite("meets", executor=executor).with_step(meeting(40), name="meet")
        Worker(dsn, "work", composite, size=40).drain()
    assert queue.count_tasks("work", state="SUCCEEDED") == 40


def test_threads_limits_the_tasks_of_a_step_in_an_executor(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", [f"{number}" for number in range(20)])
    lock, busy, most, pair = threading.Lock(), [0], [0], threading.Barrier(2)

    def count(_: Task) -> None:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        pair.wait(SECONDS)
        with lock:
            busy[0] -= 1

    with ThreadPoolExecutor(8) as executor:
        composite = Composite("few", executor=executor, threads=2).with_step(count, name="count")
        Worker(dsn, "work", composite, size=20).drain()
    assert queue.count_tasks("work", state="SUCCEEDED") == 20
    assert most[0] == 2


def test_steps_in_an_executor_see_the_context_variables_of_their_caller(executor: ThreadPoolExecutor) -> None:
    seen: list[str] = []
    composite = Composite("sees", executor=executor).with_step(lambda _: seen.append(BAGGAGE.get()), name="see")
    token = BAGGAGE.set("carried")
    try:
        composite.handle(Batch([task(1), task(2)]))
    finally:
        BAGGAGE.reset(token)
    assert seen == ["carried"] * 2


def test_an_error_of_a_step_in_an_executor_fails_its_task(
    dsn: str, queue: TaskQueue, executor: ThreadPoolExecutor
) -> None:
    queue.push("work", ["good", "bad"])

    def deliver(task: Task) -> None:
        if task.identifier == "bad":
            raise LookupError("no mailbox")

    Worker(dsn, "work", Composite("mail", executor=executor).with_step(deliver), size=2).drain()
    assert [(info.state.name, info.error_summary) for info in queue.page("work")] == [
        ("SUCCEEDED", None),
        ("FAILED", "LookupError: no mailbox"),
    ]


def test_a_shutdown_that_cancels_a_step_fails_its_batch() -> None:
    started, let_go, queued = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert let_go.wait(SECONDS)

    class Executor(ThreadPoolExecutor):
        def submit(self, *call: Any, **arguments: Any) -> "Future[Any]":
            future = super().submit(*call, **arguments)
            if started.is_set():
                queued.set()
            return future

    executor = Executor(1)
    executor.submit(hold)
    assert started.wait(SECONDS)
    composite = Composite("cancelled", executor=executor, concurrency=1).with_step(nothing, name="never")
    returned = composite.submit(Batch([task(1)]))
    assert queued.wait(SECONDS)
    executor.shutdown(wait=False, cancel_futures=True)
    let_go.set()
    with pytest.raises(CancelledError):
        returned.result(SECONDS)
    composite.close()


def test_a_batch_for_an_executor_that_is_shut_down_fails(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    Worker(dsn, "work", Composite("late", executor=executor).with_step(nothing), size=1).drain()
    [info] = queue.page("work")
    assert (info.state.name, "shutdown" in (info.error_summary or "")) == ("FAILED", True)


def test_an_executor_of_processes_raises() -> None:
    with ProcessPoolExecutor(1) as executor, pytest.raises(TypeError, match="a ProcessPoolExecutor cannot share"):
        Composite("processes", executor=executor)


def of_the_batch(tasks: Sequence[Task]) -> Mapping[Task, Result]:
    return dict.fromkeys(tasks, Result.FILTER)


def test_a_pickled_composite_has_no_executor(executor: ThreadPoolExecutor) -> None:
    composite = Composite("pickled", executor=executor).with_batch(of_the_batch)
    made: Composite = pickle.loads(pickle.dumps(composite))  # noqa: S301
    executor.shutdown()
    [decided] = made.handle(Batch([task(1)])).values()
    assert decided.result is Result.FILTER
