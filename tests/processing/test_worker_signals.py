"""The worker as the main program: SIGTERM and SIGINT end it, a second one at once."""

import os
import signal
import threading
import time
from datetime import timedelta

from airflow_provider_taskq.processing import PersistentWorker
from airflow_provider_taskq.queue import State, Task, TaskQueue
from tests.processing.conftest import MakeWorker
from tests.queue.conftest import states


def test_a_signal_lets_what_is_handled_end_and_gives_the_signals_back(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def handle(_: Task) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)  # for longer than the program takes to notice

    queue.push("work", ["a", "b"])
    make_worker(handle).run()
    assert states(queue) == [("a", State.SUCCEEDED), ("b", State.READY)]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_the_wait_and_what_is_handled_is_given_back(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    go_on = threading.Event()

    def handle(_: Task) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        go_on.wait(20)

    queue.push("work", ["a"])
    began = time.monotonic()
    make_worker(handle).run(grace=timedelta(seconds=20))
    assert time.monotonic() - began < 10
    assert states(queue) == [("a", State.READY)]
    go_on.set()


def test_a_persistent_worker_starts_where_nothing_is_remembered_and_a_signal_leaves_what_is(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    def handle(_: Task) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    queue.push("work", ["a"])
    PersistentWorker(make_worker(handle)).run()
    assert states(queue) == [("a", State.SUCCEEDED)]
    assert queue.workers() == {"work": True}
