"""Slow handlers: the watchdog reports them while they run, and fails them at their limit."""

import asyncio
import logging
import threading
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from airflow_provider_taskq.queue import State, Task, TaskQueue
from airflow_provider_taskq.worker import Batch, WorkerListener, batch, each
from airflow_provider_taskq.worker.runtime import WorkerThread
from tests.queue.conftest import everything, states, until
from tests.worker.conftest import MakeWorker

pytestmark = pytest.mark.promise("a handler hangs beyond its `limit`")


def test_a_slow_handler_is_reported_with_its_stack_once_per_interval(
    queue: TaskQueue, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    reports: list[tuple[float, str]] = []

    class Listener(WorkerListener):
        def on_stuck(self, _: Any, seconds: float, stack: str) -> None:
            reports.append((seconds, stack))

    def waits_for_event(_: Task) -> None:
        go_on.wait(10)

    [task] = queue.push("work", ["a"])
    every = timedelta(seconds=0.2)
    with caplog.at_level(logging.WARNING):
        make_worker(waits_for_event, slow_after=every, report_every=every, listener=Listener()).start()
        until(lambda: len(reports) >= 3)
        assert states(queue) == [("a", State.ACTIVE)]
    go_on.set()
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])
    three = reports[:3]
    assert all("waits_for_event" in stack and "go_on.wait(10)" in stack for _, stack in three)
    assert [later[0] - earlier[0] >= 0.2 for earlier, later in pairwise(three)] == [True, True]
    [first, *_] = [record.getMessage() for record in caplog.records if "handler is slow" in record.getMessage()]
    assert f"sequences={task.sequence} " in first


def test_each_thread_of_a_slow_handler_is_reported_with_its_task(queue: TaskQueue, make_worker: MakeWorker) -> None:
    go_on = threading.Event()
    reports: list[str] = []

    class Listener(WorkerListener):
        def on_stuck(self, _: Any, seconds: float, stack: str) -> None:
            assert seconds >= 0.1
            reports.append(stack)

    def stays(_: Task) -> None:
        go_on.wait(10)

    def names_both_tasks(report: str) -> bool:
        return all(f"for task {task.sequence}" in report for task in tasks) and report.count("in stays") == 2

    tasks = queue.push("work", ["a", "b"])
    slow = timedelta(seconds=0.1)
    handler = each(stays, threads=2)
    make_worker(handler, size=2, slow_after=slow, report_every=slow, listener=Listener()).start()
    until(lambda: any(names_both_tasks(report) for report in reports))
    go_on.set()


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
    worker = make_worker(batch(handle), limit=timedelta(seconds=2), prefetch=ready)
    worker.start()
    until(lambda: states(queue) == [("hangs", State.FAILED), ("next", State.SUCCEEDED)])
    assert "longer than its limit, 0:00:02" in (everything(queue)[0].error or "")
    go_on.set()
    assert ended.wait(10)
    assert worker.stop(timedelta(seconds=5))
    assert states(queue) == [("hangs", State.FAILED), ("next", State.SUCCEEDED)]
    assert after == []
    assert (worker.statistics().failed, worker.statistics().succeeded) == (1, 1)


def test_a_handler_that_never_ends_does_not_keep_its_worker_from_stopping(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    go_on = threading.Event()

    def hangs(_: Task) -> None:
        go_on.wait(120)

    queue.push("work", ["a"])
    worker = make_worker(hangs, limit=timedelta(seconds=0.2))
    worker.start()
    until(lambda: states(queue) == [("a", State.FAILED)])
    began = time.monotonic()
    worker.stop(timedelta(seconds=60))
    assert time.monotonic() - began < 30
    go_on.set()


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
    assert cancelled.wait(10)
    until(lambda: states(queue) == [("a", State.FAILED)])


def test_stuck_threads_are_replaced(queue: TaskQueue, make_worker: MakeWorker) -> None:
    go_on = threading.Event()

    def hangs_for_some(task: Task) -> None:
        if task.identifier.startswith("hangs"):
            go_on.wait(60)

    queue.push("work", ["hangs 1", "hangs 2", "a", "b"])
    make_worker(each(hangs_for_some, threads=2), size=2, limit=timedelta(seconds=2)).start()
    expected = [State.FAILED, State.FAILED, State.SUCCEEDED, State.SUCCEEDED]
    until(lambda: [state for _, state in states(queue)] == expected)
    go_on.set()


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
    remove = runtime.threads.remove

    def remove_and_stop(thread: WorkerThread) -> None:
        remove(thread)
        if threading.current_thread() is runtime.watchdog._thread:
            runtime.stop(20)
            stopped.set()

    monkeypatch.setattr(runtime.threads, "remove", remove_and_stop)
    queue.push("work", ["a"])
    worker.resume()
    assert stopped.wait(30)
    go_on.set()
    assert states(queue) == [("a", State.FAILED)]


def test_a_handler_that_ends_just_at_its_limit_keeps_its_thread(queue: TaskQueue, make_worker: MakeWorker) -> None:
    class Listener(WorkerListener):
        def on_callback(self, *_: Any) -> None:
            runtime = worker._runtime
            assert runtime is not None
            for held in [held for lease in runtime.keeper.leases for held in lease.batches]:
                runtime._handler_timed_out(held)  # as a watchdog that checked just before the handler ended

    worker = make_worker(lambda _: None, listener=Listener())
    worker.start()
    queue.push("work", ["a", "b"])
    worker.resume()
    until(lambda: states(queue) == [("a", State.SUCCEEDED), ("b", State.SUCCEEDED)])
    assert len(queue.owners()) == 1


def test_a_stuck_thread_with_a_lost_lease_is_replaced_at_its_limit(queue: TaskQueue, make_worker: MakeWorker) -> None:
    started, go_on = threading.Event(), threading.Event()

    def handle(task: Task) -> None:
        if task.identifier == "hangs":
            started.set()
            go_on.wait(60)

    queue.push("work", ["hangs", "next"])
    worker = make_worker(handle, lease=timedelta(seconds=3), limit=timedelta(seconds=2))
    worker.start()
    assert started.wait(10)
    queue.register(queue.owners()[0].name)  # replaces the fence, which the worker notices at its next heartbeat
    until(lambda: states(queue) == [("hangs", State.ACTIVE), ("next", State.SUCCEEDED)])
    go_on.set()
    assert worker.statistics().abandoned == 1
