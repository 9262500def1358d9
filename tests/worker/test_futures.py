"""Handlers that return Futures: their batches are open, and hold no thread of the worker."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskq.queue import Decision, Result, Task, TaskQueue
from airflow_provider_taskq.worker import Batch, Composite, PriorityLimiter, each
from tests.queue.conftest import everything, until
from tests.worker.conftest import MakeWorker

pytestmark = [
    pytest.mark.promise("A handler is a function, a coroutine or an object, in threads or in processes"),
    pytest.mark.parametrize("prefetch", [0, 10]),
]

Decisions = Mapping[Task, Decision]
SUCCESS = Decision(Result.SUCCESS)


class Later:
    """A handler whose Futures the test completes, by identifier. Some tasks are done at once."""

    def __init__(self, concurrency: int = 4, at_once: str = "done") -> None:
        self._concurrency = concurrency
        self.open_at: list[bool] = []
        self.batches: dict[str, Batch] = {}
        self.futures: dict[str, Future[Decisions]] = {}
        self._at_once = at_once

    def open(self) -> None:
        self.open_at.append(not self.batches)

    def open_batches(self, size: int) -> int:
        assert size == 1
        return self._concurrency

    def handle(self, batch: Batch) -> Decisions | Future[Decisions]:
        [task] = batch.tasks
        if task.identifier == self._at_once:
            return {task: SUCCESS}
        future: Future[Decisions] = Future()
        self.batches[task.identifier], self.futures[task.identifier] = batch, future
        return future

    def close(self) -> None:
        pass

    def end(self, name: str) -> None:
        self.futures[name].set_result(dict.fromkeys(self.batches[name].tasks, SUCCESS))


def statuses(queue: TaskQueue) -> dict[str, str]:
    return {info.identifier: info.status for info in everything(queue)}


def test_one_thread_has_several_batches_open_and_commits_each_when_its_future_is_done(
    queue: TaskQueue, make_worker: MakeWorker, prefetch: int
) -> None:
    handler = Later()
    queue.push("work", ["a", "done", "b", "c", "d", "e"])
    worker = make_worker(handler, prefetch=prefetch)
    worker.start()
    until(lambda: len(handler.futures) == 4)
    assert handler.open_at == [True]
    handler.end("c")
    until(lambda: statuses(queue)["c"] == "succeeded" and "e" in handler.futures)
    expected = {"a": "running", "done": "succeeded", "b": "running", "c": "succeeded", "d": "running", "e": "running"}
    assert statuses(queue) == expected
    stopped = threading.Thread(target=worker.stop)
    stopped.start()
    for name in "abde":
        handler.end(name)
    stopped.join(60)
    assert set(statuses(queue).values()) == {"succeeded"}


def test_a_drain_waits_for_open_batches_and_a_limiter_bounds_them(
    queue: TaskQueue, make_worker: MakeWorker, prefetch: int
) -> None:
    handler = Later()
    queue.push("work", ["a", "b", "c"])
    worker = make_worker(handler, prefetch=prefetch, limiter=PriorityLimiter(2))
    drained = threading.Thread(target=worker.drain)
    drained.start()
    until(lambda: len(handler.futures) == 2)
    assert queue.ready("work") == (0 if prefetch else 1), "a task that is claimed ahead waits for a token"
    handler.end("b")
    until(lambda: "c" in handler.futures)
    handler.end("c")
    until(lambda: statuses(queue)["c"] == "succeeded")
    assert drained.is_alive()
    handler.end("a")
    drained.join(60)
    assert not drained.is_alive()
    assert worker.statistics().succeeded == 3


def test_an_open_batch_at_its_limit_is_failed_and_the_others_go_on(
    queue: TaskQueue, make_worker: MakeWorker, prefetch: int
) -> None:
    handler = Later()
    queue.push("work", ["hangs"])
    make_worker(handler, prefetch=prefetch, limit=timedelta(seconds=0.5)).start()
    until(lambda: "hangs" in handler.futures)
    assert handler.futures["hangs"].set_running_or_notify_cancel()  # so that nothing can cancel it
    until(lambda: statuses(queue) == {"hangs": "exhausted"})
    assert "longer than its limit" in (everything(queue)[0].error or "")
    assert handler.batches["hangs"].cancelled.is_set()
    handler.end("hangs")
    queue.push("work", ["done"])
    queue.notify("work")
    until(lambda: statuses(queue) == {"hangs": "exhausted", "done": "succeeded"})


@pytest.mark.promise("a worker is stopped")
def test_a_stop_releases_open_batches_after_its_timeout_and_a_lost_lease_abandons_them(
    queue: TaskQueue, make_worker: MakeWorker, prefetch: int
) -> None:
    handler = Later()
    queue.push("work", ["a"])
    worker = make_worker(handler, prefetch=prefetch, lease=timedelta(seconds=2))
    worker.start()
    until(lambda: "a" in handler.futures)
    queue.release(queue.owners()[0])
    first = handler.futures["a"]
    until(first.cancelled)
    worker.resume()
    until(lambda: handler.futures["a"] is not first)
    assert worker.stop(timedelta(milliseconds=50))
    assert handler.futures["a"].cancelled()
    assert [(info.status, info.attempt) for info in everything(queue)] == [("ready", 0)]
    assert queue.owners() == []


def meeting(prefetch: int, make_worker: MakeWorker, queue: TaskQueue, handler: Any, **options: Any) -> None:
    queue.push("work", ["a", "b", "c", "d"])
    make_worker(handler, prefetch=prefetch, **options).drain()
    assert set(statuses(queue).values()) == {"succeeded"}


def test_a_composite_has_as_many_batches_in_a_worker_with_one_thread_as_it_allows(
    queue: TaskQueue, make_worker: MakeWorker, prefetch: int
) -> None:
    together = threading.Barrier(4, timeout=30)

    def meet(_: Task) -> None:
        together.wait()

    meeting(prefetch, make_worker, queue, Composite("four", concurrency=4).with_step(meet))


def test_a_slow_coroutine_holds_up_no_later_batch(queue: TaskQueue, make_worker: MakeWorker, prefetch: int) -> None:
    started = set[str]()

    async def wait(task: Task) -> None:
        started.add(task.identifier)
        async with asyncio.timeout(30):
            while len(started) < 4:  # noqa: ASYNC110 -- an asyncio.Event belongs to one loop
                await asyncio.sleep(0.01)

    meeting(prefetch, make_worker, queue, each(wait))


def test_an_open_future_of_a_function_holds_no_thread(queue: TaskQueue, make_worker: MakeWorker, prefetch: int) -> None:
    futures: list[Future[Result]] = []

    def later(_: Task) -> Future[Result]:
        futures.append(Future())
        if len(futures) == 4:
            for future in futures:
                future.set_result(Result.SUCCESS)
        return futures[-1]

    meeting(prefetch, make_worker, queue, each(later, concurrency=4))
