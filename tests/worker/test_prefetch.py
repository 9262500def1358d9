"""Prefetching: tasks polled ahead, the threads that handle them, and the remaining tasks at a stop."""

import threading
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import Condition, State, Task, TaskQueue
from airflow_provider_taskq.worker import Batch, Pending, Worker, batch
from tests.queue.conftest import everything, states, until
from tests.worker.conftest import MakeWorker

pytestmark = pytest.mark.promise("a worker is stopped")


class Gate:
    """A handler that waits until the test opens it."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.started: list[str] = []

    def __call__(self, task: Task) -> None:
        self.started.append(task.identifier)
        self.open.wait(10)


def test_a_prefetcher_keeps_tasks_ready_and_waits_while_its_buffer_is_full(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    gate = Gate()
    queue.push("work", [f"t{number}" for number in range(20)])
    worker = make_worker(gate, workers=2, prefetch=5)
    worker.start()
    until(lambda: len(gate.started) == 2 and worker.statistics().in_flight == 7)
    assert len(queue.held(queue.owners()[0])) == 7
    assert queue.ready("work", 100) == 13
    gate.open.set()
    until(lambda: worker.statistics().succeeded == 20)


def test_idle_threads_handle_new_tasks_at_once(queue: TaskQueue, make_worker: MakeWorker) -> None:
    together = threading.Barrier(3, timeout=10)

    def meet(_: Task) -> None:
        together.wait()

    worker = make_worker(meet, workers=3, prefetch=10, size=1)
    worker.start()
    queue.push("work", ["a", "b", "c"])
    worker.resume()
    until(lambda: worker.statistics().succeeded == 3)


def test_a_handler_that_fails_fails_its_batch_only(queue: TaskQueue, make_worker: MakeWorker) -> None:
    def handle(batch: Batch) -> None:
        if batch.tasks[0].identifier == "a":
            raise ZeroDivisionError

    queue.push("work", ["a", "b", "c", "d"])
    make_worker(batch(handle), size=2, prefetch=10).start()
    expected = [State.FAILED, State.FAILED, State.SUCCEEDED, State.SUCCEEDED]
    until(lambda: [state for _, state in states(queue)] == expected)


@pytest.fixture
def stopped(queue: TaskQueue, make_worker: MakeWorker, request: pytest.FixtureRequest) -> tuple[Worker, Gate]:
    """A worker that is stopped with one task in its handler and two prefetched, and then opens its handler."""
    gate = Gate()
    queue.push("work", ["in hand", "ready 1", "ready 2", "not polled"])
    worker = make_worker(gate, prefetch=2, pending=request.param)
    worker.start()
    until(lambda: worker.statistics().in_flight == 3 and gate.started)
    assert worker._runtime is not None
    worker._runtime.on_stopping.append(gate.open.set)
    assert worker.stop(timedelta(seconds=10))
    assert not queue.owners()
    return worker, gate


@pytest.mark.parametrize("stopped", [Pending.FINISH], indirect=True)
def test_a_stop_with_finish_handles_the_prefetched_tasks(queue: TaskQueue, stopped: tuple[Worker, Gate]) -> None:
    assert stopped[1].started == ["in hand", "ready 1", "ready 2"]
    assert [state for _, state in states(queue)] == [*[State.SUCCEEDED] * 3, State.READY]


@pytest.mark.parametrize("stopped", [Pending.FAIL], indirect=True)
def test_a_stop_with_fail_fails_the_prefetched_tasks(queue: TaskQueue, stopped: tuple[Worker, Gate]) -> None:
    assert stopped[1].started == ["in hand"]
    assert [state for _, state in states(queue)] == [State.SUCCEEDED, State.FAILED, State.FAILED, State.READY]
    assert "WorkerStopped" in (everything(queue)[1].error or "")


@pytest.mark.parametrize("stopped", [Pending.RELEASE], indirect=True)
def test_a_stop_with_release_releases_the_prefetched_tasks(queue: TaskQueue, stopped: tuple[Worker, Gate]) -> None:
    assert [state for _, state in states(queue)] == [State.SUCCEEDED, *[State.READY] * 3]
    assert everything(queue)[1].attempt == 0
    assert stopped[0].statistics().abandoned == 2


def test_a_batch_that_exceeds_the_stop_timeout_is_released_with_the_prefetched_tasks(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    gate = Gate()
    queue.push("work", ["a", "b"])
    worker = make_worker(gate, prefetch=1)
    worker.start()
    until(lambda: worker.statistics().in_flight == 2 and gate.started)
    worker.stop(timedelta(milliseconds=50))
    gate.open.set()
    assert [state for _, state in states(queue)] == [State.READY] * 2


def test_a_lost_lease_abandons_the_prefetched_tasks_and_all_are_polled_again(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    gate = Gate()
    queue.push("work", ["a", "b", "c"])
    worker = make_worker(gate, prefetch=2, lease=timedelta(seconds=3), pause=timedelta(milliseconds=50))
    worker.start()
    until(lambda: worker.statistics().in_flight == 3)
    for owner in queue.owners():
        queue.release(owner)
    until(lambda: worker.statistics().abandoned == 3)
    gate.open.set()
    until(lambda: [state for _, state in states(queue)] == [State.SUCCEEDED] * 3)


def test_identifiers_keep_their_order_in_the_prefetch_buffer(queue: TaskQueue, make_worker: MakeWorker) -> None:
    done: list[tuple[str, int]] = []
    queue.push("work", [f"k{number % 3}" for number in range(30)])
    condition = Condition.SINGULAR_BY_IDENTIFIER
    worker = make_worker(
        lambda task: done.append((task.identifier, task.sequence)),
        workers=3,
        prefetch=10,
        size=5,
        condition=condition,
        pause=timedelta(milliseconds=5),
    )
    worker.start()
    until(lambda: worker.statistics().succeeded == 30)
    for key in ("k0", "k1", "k2"):
        sequences = [sequence for identifier, sequence in done if identifier == key]
        assert sequences == sorted(sequences)
