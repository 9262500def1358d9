"""Slow handlers: the watchdog reports them while they run, and fails them at their limit."""

import asyncio
import logging
import threading
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from airflow_provider_taskq.queue import State, Task, TaskQueue
from airflow_provider_taskq.worker import Batch, SlowReports, WorkerListener, batch, each
from airflow_provider_taskq.worker.lease import InFlightBatch
from tests.queue.conftest import everything, states, until
from tests.worker.conftest import MakeWorker

pytestmark = pytest.mark.promise("a handler hangs beyond its `limit`")


def test_a_slow_handler_is_reported_with_its_stack_once_per_interval(
    queue: TaskQueue, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """The stack of each of its threads, with the task that it handles."""
    go_on = threading.Event()
    reports: list[tuple[float, str]] = []

    class Listener(WorkerListener):
        def on_stuck(self, _: Any, seconds: float, stack: str) -> None:
            reports.append((seconds, stack))

    def waits_for_event(_: Task) -> None:
        go_on.wait(10)

    def names_all(stack: str) -> bool:
        return all(f"for task {task.sequence}" in stack for task in tasks) and stack.count("go_on.wait(10)") == 2

    tasks = queue.push("work", ["a", "b"])
    every = timedelta(seconds=0.2)
    handler = each(waits_for_event, threads=2)
    with caplog.at_level(logging.WARNING):
        make_worker(handler, size=2, slow_reports=SlowReports(after=every, every=every), listener=Listener()).start()
        until(lambda: len(reports) >= 3 and names_all(reports[-1][1]))
        assert [state for _, state in states(queue)] == [State.ACTIVE] * 2
    go_on.set()
    until(lambda: [state for _, state in states(queue)] == [State.SUCCEEDED] * 2)
    assert all(later[0] - earlier[0] >= 0.2 for earlier, later in pairwise(reports))
    [first, *_] = [record.getMessage() for record in caplog.records if "handler is slow" in record.getMessage()]
    assert f"sequences={tasks[0].sequence},{tasks[1].sequence} " in first


@pytest.mark.parametrize("ready", [0, 5])
def test_a_handler_at_its_limit_is_failed_and_its_later_decisions_are_ignored(
    queue: TaskQueue, make_worker: MakeWorker, ready: int
) -> None:
    go_on, ended = threading.Event(), threading.Event()
    after: list[str] = []

    def handle(batch: Batch) -> None:
        if batch.tasks[0].identifier == "hangs":
            go_on.wait(60)
            batch.push(batch.tasks[0], "work", ["never"])
            batch.after_commit(lambda: after.append("never"))
            ended.set()

    queue.push("work", ["hangs", "next"])
    worker = make_worker(batch(handle), limit=timedelta(seconds=1), prefetch=ready)
    worker.start()
    until(lambda: states(queue) == [("hangs", State.FAILED), ("next", State.SUCCEEDED)])
    assert "longer than its limit, 0:00:01" in (everything(queue)[0].error or "")
    go_on.set()
    assert ended.wait(120)
    assert worker.stop(timedelta(seconds=120))
    assert states(queue) == [("hangs", State.FAILED), ("next", State.SUCCEEDED)]
    assert after == []
    assert (worker.statistics().failed, worker.statistics().succeeded) == (1, 1)


def test_a_coroutine_at_its_limit_is_cancelled(queue: TaskQueue, make_worker: MakeWorker) -> None:
    cancelled = threading.Event()

    async def hangs(_: Task) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    queue.push("work", ["a"])
    make_worker(each(hangs), limit=timedelta(seconds=0.2)).start()
    assert cancelled.wait(120)
    until(lambda: states(queue) == [("a", State.FAILED)])


@pytest.mark.parametrize("ready", [0, 5])
def test_a_stuck_batch_is_failed_although_the_worker_stops_meanwhile(
    queue: TaskQueue, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, ready: int
) -> None:
    go_on, stopped = threading.Event(), threading.Event()

    def hangs(_: Task) -> None:
        go_on.wait(60)

    worker = make_worker(hangs, limit=timedelta(seconds=0.3), prefetch=ready)
    worker.start()
    runtime = worker._runtime
    assert runtime is not None
    abandon = InFlightBatch.abandon

    def abandon_and_stop(batch: InFlightBatch, reason: BaseException) -> bool:
        if abandoned := abandon(batch, reason):
            runtime.stop(20)
            stopped.set()
        return abandoned

    monkeypatch.setattr(InFlightBatch, "abandon", abandon_and_stop)
    queue.push("work", ["a"])
    worker.resume()
    assert stopped.wait(120)
    go_on.set()
    assert states(queue) == [("a", State.FAILED)]


def test_a_stuck_thread_with_a_lost_lease_is_replaced_at_its_limit(queue: TaskQueue, make_worker: MakeWorker) -> None:
    started, go_on = threading.Event(), threading.Event()

    def handle(task: Task) -> None:
        if task.identifier == "hangs":
            started.set()
            go_on.wait(60)

    queue.push("work", ["hangs", "next"])
    worker = make_worker(handle, lease=timedelta(seconds=2), limit=timedelta(seconds=1))
    worker.start()
    assert started.wait(120)
    queue.register(queue.owners()[0].name)  # replaces the fence, which the worker notices at its next heartbeat
    until(lambda: states(queue) == [("hangs", State.FAILED), ("next", State.SUCCEEDED)])  # it hangs a second time
    go_on.set()
    assert worker.statistics().abandoned == 1


def test_stuck_threads_are_replaced(queue: TaskQueue, make_worker: MakeWorker) -> None:
    go_on = threading.Event()

    def hangs_for_some(task: Task) -> None:
        if task.identifier.startswith("hangs"):
            go_on.wait(60)

    queue.push("work", ["hangs 1", "hangs 2", "a", "b"])
    make_worker(each(hangs_for_some, threads=2), size=2, limit=timedelta(seconds=1)).start()
    expected = [State.FAILED, State.FAILED, State.SUCCEEDED, State.SUCCEEDED]
    until(lambda: [state for _, state in states(queue)] == expected)
    go_on.set()
