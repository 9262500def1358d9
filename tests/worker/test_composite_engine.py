"""Batches of a composite in flight: their number, and their end when the composite closes or abandons them."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from airflow_provider_taskq.queue import Result, Task
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.composite import Composite, CompositeClosed, engine
from airflow_provider_taskq.worker.composite.engine import BatchFuture
from airflow_provider_taskq.worker.composite.threads import CompositeThreads

pytestmark = pytest.mark.promise("A composite gives the same results in threads and as a Spark plan")

SECONDS = 30


class Gate:
    """A step that reports its start, and waits until the test opens it."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, _: Sequence[Task]) -> None:
        self.started.release()
        assert self.open.wait(SECONDS)

    def wait_for_start(self) -> None:
        assert self.started.acquire(timeout=SECONDS)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def batch() -> Batch:
    return Batch([Task(1, "work", "a", None, None, 1, False)])


def in_thread(composite: Composite) -> "Future[BatchFuture]":
    """Submits a batch in another thread. The Future is done when `submit` has returned."""
    returned: Future[BatchFuture] = Future()

    def submit() -> None:
        try:
            returned.set_result(composite.submit(batch()))
        except CompositeClosed as error:
            returned.set_exception(error)

    threading.Thread(target=submit, daemon=True).start()
    return returned


def test_without_concurrency_submit_returns_when_the_batch_is_done(gate: Gate) -> None:
    composite = Composite("one").with_batch(gate, name="wait")
    returned = in_thread(composite)
    gate.wait_for_start()
    assert not returned.done()
    gate.open.set()
    assert returned.result(SECONDS).done()
    composite.close()


def test_submit_waits_while_concurrency_batches_are_in_flight(gate: Gate) -> None:
    composite = Composite("two", concurrency=2).with_batch(gate, name="wait")
    in_flight = [composite.submit(batch()) for _ in range(2)]
    for _ in in_flight:
        gate.wait_for_start()
    third = in_thread(composite)
    assert not any(each.done() for each in in_flight)
    assert not gate.started.acquire(timeout=0.1)
    assert not third.done()
    gate.open.set()
    for each in [*in_flight, third.result(SECONDS)]:
        each.result(SECONDS)
    composite.close()


def test_close_waits_for_the_batches_in_flight(gate: Gate) -> None:
    composite = Composite("waiting", concurrency=1).with_batch(gate, name="wait")
    future = composite.submit(batch())
    gate.wait_for_start()
    closing = threading.Thread(target=composite.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    gate.open.set()
    closing.join(SECONDS)
    assert [each.result for each in future.result(0).values()] == [Result.SUCCESS]


def test_close_waits_for_callbacks_of_a_future(monkeypatch: pytest.MonkeyPatch) -> None:
    completing, go_on = threading.Event(), threading.Event()

    class Slow(Future[Any]):
        def set_result(self, result: Any) -> None:
            completing.set()
            assert go_on.wait(SECONDS)
            super().set_result(result)

    monkeypatch.setattr(engine, "Future", Slow)
    composite = Composite("completing", concurrency=1).with_batch(lambda _: Result.SUCCESS, name="end")
    future = composite.submit(batch())
    assert completing.wait(SECONDS)
    closing = threading.Thread(target=composite.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    go_on.set()
    closing.join(SECONDS)
    assert [each.result for each in future.result(0).values()] == [Result.SUCCESS]


def test_a_callback_of_a_future_may_close_the_composite(gate: Gate) -> None:
    closed = threading.Event()
    composite = Composite("closed", concurrency=1).with_batch(gate, name="wait")
    future = composite.submit(batch())

    def close(_: BatchFuture) -> None:
        composite.close()
        closed.set()

    future.add_done_callback(close)
    gate.open.set()
    assert closed.wait(SECONDS)


@pytest.mark.parametrize("concurrency", [0, 1])
def test_close_fails_the_batches_in_flight_with_fail_pending(gate: Gate, concurrency: int) -> None:
    seen: list[Task] = []
    composite = Composite("failing", concurrency=concurrency, fail_pending=True).with_batch(gate, name="wait")
    composite = composite.with_step(seen.append, after="wait")
    returned = in_thread(composite)
    gate.wait_for_start()
    composite.close()
    with pytest.raises(CompositeClosed, match="'failing' was closed"):
        returned.result(SECONDS).result(0)
    gate.open.set()
    assert seen == []


def test_an_abandoned_batch_ends_at_once_and_starts_no_later_step(gate: Gate) -> None:
    seen: list[Task] = []
    composite = Composite("abandoned", concurrency=1).with_batch(gate, name="wait").with_step(seen.append, after="wait")
    given = batch()
    future = composite.submit(given)
    gate.wait_for_start()
    assert "step wait" in [each.name for each in given.activities()]
    given.cancel()
    with pytest.raises(InterruptedError, match="was abandoned"):
        future.result(SECONDS)
    composite.close()  # does not wait for it
    gate.open.set()
    assert seen == []


def test_the_coroutine_of_an_abandoned_batch_is_cancelled() -> None:
    composite, started, cancelled = Composite("awaiting", concurrency=1), threading.Event(), threading.Event()

    @composite.step
    async def wait_for_ever(_: Task) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    given = batch()
    future = composite.submit(given)
    assert started.wait(SECONDS)
    given.cancel()
    assert cancelled.wait(SECONDS)
    with pytest.raises(InterruptedError, match="was abandoned"):
        future.result(SECONDS)
    composite.close()


def test_a_coroutine_of_a_batch_that_was_abandoned_just_before_is_cancelled() -> None:
    threads, given = CompositeThreads("late", 1), batch()
    ended: list[BaseException] = []
    given.cancel()

    def wait_for_ever() -> None:
        try:
            threads.run_awaitable(asyncio.Event().wait(), given)
        except CancelledError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait_for_ever, daemon=True)
    waiting.start()
    waiting.join(SECONDS)
    assert len(ended) == 1
    threads.close()


def test_a_closed_composite_starts_again_with_the_next_batch() -> None:
    composite = Composite("again").with_batch(lambda _: Result.FILTER, name="filter")
    for _ in range(2):
        assert [each.result for each in composite.handle(batch()).values()] == [Result.FILTER]
        composite.close()
    composite.close()


STUCK = """
import threading
from airflow_provider_taskq.worker import Batch, Composite
from airflow_provider_taskq.queue import Task

started = threading.Semaphore(0)

def stick(_):
    started.release()
    threading.Event().wait()

tasks = [Task(number, "work", "a", None, None, 1, False) for number in range(2)]
composite = Composite("stuck", threads=2, concurrency=1).with_step(stick, name="a").with_step(stick, name="b")
composite.submit(Batch(tasks))
for _ in range(3):
    started.acquire()
"""


def test_a_stuck_step_does_not_keep_the_program_from_ending() -> None:
    assert subprocess.run([sys.executable, "-c", STUCK], timeout=SECONDS, check=False).returncode == 0
