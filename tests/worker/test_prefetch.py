"""Prefetching: tasks polled ahead, the threads that handle them, and the remaining tasks at a stop."""

import threading
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import State, Task, TaskQueue
from airflow_provider_taskq.worker import Batch, Pending, batch
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


@pytest.mark.parametrize(
    ("prefetch", "pending", "expected"),
    [
        (0, Pending.FINISH, [State.SUCCEEDED, *[State.READY] * 3]),
        (2, Pending.FINISH, [*[State.SUCCEEDED] * 3, State.READY]),
        (2, Pending.FAIL, [State.SUCCEEDED, State.FAILED, State.FAILED, State.READY]),
        (2, Pending.RELEASE, [State.SUCCEEDED, *[State.READY] * 3]),
    ],
    ids=["none", "finish", "fail", "release"],
)
def test_a_stop_waits_for_the_batch_in_hand_and_treats_the_prefetched_tasks_as_asked(
    queue: TaskQueue, make_worker: MakeWorker, prefetch: int, pending: Pending, expected: list[State]
) -> None:
    gate = Gate()
    queue.push("work", ["in hand", "ready 1", "ready 2", "not polled"])
    worker = make_worker(gate, prefetch=prefetch, pending=pending)
    worker.start()
    until(lambda: worker.statistics().in_flight == 1 + prefetch and gate.started)
    assert worker._runtime is not None
    worker._runtime.on_stopping.append(gate.open.set)
    assert worker.stop(timedelta(seconds=10))
    assert queue.owners() == []
    assert [state for _, state in states(queue)] == expected
    assert len(gate.started) == expected.count(State.SUCCEEDED)
    assert [info.attempt for info in everything(queue) if info.state is State.READY] == [0] * expected.count(
        State.READY
    )
    errors = [info.error or "" for info in everything(queue) if info.state is State.FAILED]
    assert all("WorkerStopped" in error for error in errors)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_stop_releases_batches_that_exceed_its_timeout_and_ignores_their_handlers(
    queue: TaskQueue, make_worker: MakeWorker, prefetch: int
) -> None:
    started, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    queue.push("work", ["a", "b"])

    def handle(batch: Batch) -> None:
        started.set()
        go_on.wait(10)
        assert batch.cancelled.is_set()
        ended.set()

    worker = make_worker(batch(handle), prefetch=prefetch)
    worker.start()
    assert started.wait(10)
    until(lambda: worker.statistics().in_flight == 1 + prefetch)
    worker.stop(timedelta(milliseconds=50))
    go_on.set()
    assert ended.wait(10)
    assert [(info.state, info.attempt) for info in everything(queue)] == [(State.READY, 0)] * 2
    assert worker.statistics().abandoned == 1 + prefetch


@pytest.mark.promise("A worker keeps its lease while a handler runs")
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("lost", ["released", "registered again"])
def test_a_worker_handles_again_what_a_lost_lease_left(
    queue: TaskQueue, make_worker: MakeWorker, lost: str, prefetch: int
) -> None:
    gate = Gate()
    queue.push("work", ["a", "b", "c"])
    pause = timedelta(milliseconds=50)
    worker = make_worker(gate, prefetch=prefetch, lease=timedelta(seconds=1.5), pause=pause)
    worker.start()
    until(lambda: worker.statistics().in_flight == 1 + prefetch and gate.started)
    [owner] = queue.owners()
    if lost == "released":
        queue.release(owner)
    else:  # replaces the fence of the worker, and keeps its tasks ACTIVE
        queue.register(owner.name)
    until(lambda: worker.statistics().abandoned == 1 + prefetch)
    gate.open.set()
    until(lambda: [state for _, state in states(queue)] == [State.SUCCEEDED] * 3)
    assert sorted(gate.started) == ["a", "a", "b", "c"]
