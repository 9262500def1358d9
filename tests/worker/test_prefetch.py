"""Tasks polled ahead, and what a stop or a signal makes of them."""

import os
import signal
import threading
import time
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import State, Task, TaskQueue, connect
from airflow_provider_taskq.worker import Batch, PersistentWorker, Worker, batch
from tests.internals import block_verbs
from tests.queue.conftest import everything, states, until
from tests.worker.conftest import Gate, MakeWorker

pytestmark = pytest.mark.promise("a worker is stopped")


def test_a_poll_claims_tasks_ahead_for_all_threads_which_poll_again_when_none_is_left(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    gate = Gate()
    queue.push("work", [f"t{number}" for number in range(20)])
    worker = make_worker(gate, workers=2, prefetch=5)
    worker.start()
    until(lambda: len(gate.started) == 2)
    assert sorted(len(queue.held(owner)) for owner in queue.owners()) == [0, 6]
    assert worker.statistics().in_flight == 6
    assert queue.ready("work", 100) == 14
    gate.open.set()
    until(lambda: worker.statistics().succeeded == 20)


def test_idle_threads_handle_new_tasks_at_once(queue: TaskQueue, make_worker: MakeWorker) -> None:
    together = threading.Barrier(3, timeout=120)

    def meet(_: Task) -> None:
        together.wait()

    worker = make_worker(meet, workers=3, prefetch=10, size=1)
    worker.start()
    queue.push("work", ["a", "b", "c"])
    worker.resume()
    until(lambda: worker.statistics().succeeded == 3)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_stop_waits_for_the_batch_in_hand_and_gives_back_the_prefetched_tasks(
    queue: TaskQueue, make_worker: MakeWorker, prefetch: int
) -> None:
    gate = Gate()
    queue.push("work", ["in hand", "ready 1", "ready 2", "not polled"])
    worker = make_worker(gate, prefetch=prefetch)
    worker.start()
    until(lambda: worker.statistics().in_flight == 1 + prefetch and gate.started)
    assert worker._runtime is not None
    stopping = worker._runtime.stopping

    def open_gate() -> None:
        stopping.wait(10)
        gate.open.set()

    threading.Thread(target=open_gate).start()
    assert worker.stop(timedelta(seconds=120))
    assert queue.owners() == []
    assert [state for _, state in states(queue)] == [State.SUCCEEDED, *[State.READY] * 3]
    assert gate.started == ["in hand"]
    assert [info.attempt for info in everything(queue)[1:]] == [0] * 3


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
    assert started.wait(120)
    until(lambda: worker.statistics().in_flight == 1 + prefetch)
    worker.stop(timedelta(milliseconds=50))
    go_on.set()
    assert ended.wait(120)
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


# A worker as the main program: SIGTERM and SIGINT stop it, a second signal at once


def test_a_signal_waits_for_batches_in_flight_and_restores_the_signal_handlers(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def handle(_: Task) -> None:
        _send_signal(worker, signal.SIGTERM)

    queue.push("work", ["a", "b"])
    worker = make_worker(handle)
    worker.run()
    assert states(queue) == [("a", State.SUCCEEDED), ("b", State.READY)]
    assert signal.getsignal(signal.SIGTERM) is before


def _send_signal(worker: Worker, number: signal.Signals) -> None:
    """Sends this process a signal, and returns once the worker stops."""
    until(lambda: worker.is_active)
    assert worker._runtime is not None
    stopping = worker._runtime.stopping
    os.kill(os.getpid(), number)
    assert stopping.wait(120)


def test_a_second_signal_ends_the_wait_and_releases_the_batches_in_flight(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    go_on = threading.Event()

    def handle(_: Task) -> None:
        _send_signal(worker, signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait(60)

    queue.push("work", ["a"])
    worker = make_worker(handle)
    began = time.monotonic()
    worker.run(grace=timedelta(seconds=60))
    assert time.monotonic() - began < 30
    assert states(queue) == [("a", State.READY)]
    go_on.set()


def test_a_persistent_worker_starts_without_a_stored_state_and_a_signal_leaves_the_state(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    def handle(_: Task) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    queue.push("work", ["a"])
    PersistentWorker(make_worker(handle)).run()
    assert states(queue) == [("a", State.SUCCEEDED)]
    assert queue.workers() == {"work": True}


@pytest.mark.parametrize("stops", [False, True], ids=["drain", "stop"])
def test_a_drain_or_a_stop_that_is_interrupted_releases_its_tasks(
    queue: TaskQueue, make_worker: MakeWorker, stops: bool
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def handle(_: Task) -> None:
        if not inside.is_set():
            inside.set()
            until(lambda: worker.is_active is not stops)  # the worker is not active while it stops
            os.kill(os.getpid(), signal.SIGINT)
        go_on.wait(60)

    def stop() -> None:
        worker.start()
        assert inside.wait(60)
        worker.stop(None)

    queue.push("work", ["a", "b"])
    worker = make_worker(handle, size=2)
    try:
        with pytest.raises(KeyboardInterrupt):
            stop() if stops else worker.drain()
        assert [(info.status, info.attempt) for info in everything(queue)] == [("ready", 0)] * 2
        assert queue.owners() == []
        assert not worker.is_active
    finally:
        go_on.set()


def test_a_start_that_is_interrupted_leaves_no_worker(dsn: str, queue: TaskQueue) -> None:
    before = set(threading.enumerate())
    waiting = "SELECT true FROM pg_locks WHERE NOT granted AND locktype = 'relation'"

    def interrupt() -> None:
        until(lambda: queue.conn.execute(waiting).fetchone())
        os.kill(os.getpid(), signal.SIGINT)

    with connect(dsn) as blocker:
        block_verbs(blocker, owners_only=True)
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            Worker(dsn, "work", lambda _: None).start()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
    assert queue.owners() == []
