"""A worker as the main program: SIGTERM and SIGINT stop it, a second signal at once."""

import os
import signal
import threading
import time
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import State, Task, TaskQueue, connect
from airflow_provider_taskq.worker import PersistentWorker, Worker
from tests.internals import block_verbs
from tests.queue.conftest import everything, states, until
from tests.worker.conftest import MakeWorker

pytestmark = pytest.mark.promise("a worker is stopped")


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
    assert stopping.wait(10)


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
