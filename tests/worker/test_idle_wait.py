"""The wait of idle threads: one of them polls, the others sleep."""

import threading
from collections.abc import Callable

import pytest

from airflow_provider_taskq.worker.runtime import IdleWait
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("The cost of a call does not grow with the other tasks of the queue")


def test_a_waiting_thread_polls_next_although_another_one_sleeps() -> None:
    pause = IdleWait(0.3)
    waiting = vars(pause._changed)["_waiters"]
    looking = _started(lambda: pause.wait(0))
    until(lambda: waiting or not looking.is_alive())
    resting = _started(lambda: pause.sleep(0, 60))
    until(lambda: len(waiting) == 2 or not looking.is_alive())
    sleeping = _started(lambda: pause.wait(0))
    sleeping.join(10)
    assert not sleeping.is_alive()
    assert resting.is_alive()
    pause.end()
    resting.join(10)
    assert not resting.is_alive()


def test_empty_polls_take_at_most_a_fifth_of_the_time() -> None:
    pause = IdleWait(1.0)
    assert [pause.seconds_after(took) for took in (0.0, 0.25, 1.5)] == [1.0, 1.0, 6.0]


def _started(wait: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread
