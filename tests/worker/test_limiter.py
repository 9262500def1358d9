"""Limiters: none, bounded, by priority."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import State, TaskQueue
from airflow_provider_taskq.worker import (
    Limiter,
    PriorityLimiter,
    Worker,
)
from tests.queue.conftest import states, until
from tests.worker.conftest import FatalListener, MakeWorker

pytestmark = pytest.mark.promise("A limiter bounds the work of all workers that share it")


def never() -> bool:
    return False


def test_a_bounded_limiter_makes_requests_wait_for_a_released_token() -> None:
    limiter = PriorityLimiter(2)
    first, _ = limiter.request(never), limiter.request(never)
    assert first is not None
    with ThreadPoolExecutor() as pool:
        third = pool.submit(limiter.request, never)
        until(lambda: len(limiter._waiting) == 1)
        assert not third.done()
        first.release()
        assert third.result(120) is not None


def test_a_token_that_is_released_twice_counts_once() -> None:
    limiter = PriorityLimiter(1)
    token = limiter.request(never)
    assert token is not None
    token.release()
    token.release()
    assert limiter.request(never) is not None
    assert limiter.request(lambda: True) is None, "only one was free"


def test_higher_priorities_go_first_and_equal_ones_in_the_order_of_requests() -> None:
    limiter = PriorityLimiter(1)
    held = limiter.request(never)
    assert held is not None
    order: list[str] = []
    with ThreadPoolExecutor() as pool:
        waiting = [
            _queue_up(pool, limiter, limiter.at(priority), name, order)
            for name, priority in (("low", 1), ("first high", 5), ("second high", 5), ("highest", 9))
        ]
        held.release()
        for each in waiting:
            each.result(10)
    assert order == ["highest", "first high", "second high", "low"]


def _queue_up(
    pool: ThreadPoolExecutor, shared: PriorityLimiter, limiter: Limiter, name: str, order: list[str]
) -> "Future[None]":
    """Requests a token in a thread, records when it gets it, and releases it. Returns once the request waits."""
    before = len(shared._waiting)

    def pass_through() -> None:
        token = limiter.request(never)
        assert token is not None
        order.append(name)
        token.release()

    asked = pool.submit(pass_through)
    until(lambda: len(shared._waiting) == before + 1)
    return asked


def test_a_withdrawn_request_leaves_the_queue() -> None:
    limiter = PriorityLimiter(1)
    held = limiter.request(never)
    assert held is not None
    assert limiter.request(lambda: True) is None
    assert limiter._waiting == []


def test_workers_that_share_a_limiter_share_its_limit(queue: TaskQueue, make_worker: MakeWorker) -> None:
    queue.create_topic("more")
    queue.push("work", [f"a{number}" for number in range(10)])
    queue.push("more", [f"b{number}" for number in range(10)])
    inside, most, lock, both = [0], [0], threading.Lock(), threading.Event()

    def handle(_: object) -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            if inside[0] == 2:
                both.set()
        both.wait(10)
        threading.Event().wait(0.01)  # time for a third batch to start, if the limit let it
        with lock:
            inside[0] -= 1

    shared = PriorityLimiter(2)
    workers = [make_worker(handle, topic=topic, workers=3, limiter=shared.at(1)) for topic in ("work", "more")]
    for worker in workers:
        worker.start()
    until(lambda: all(worker.statistics().succeeded == 10 for worker in workers))
    assert most[0] == 2


class Broken:
    """A limiter with an error."""

    def request(self, _: Callable[[], bool]) -> None:
        raise ZeroDivisionError


def start_and_wait(worker: Worker) -> None:
    worker.start()
    worker.wait(60)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("call", [lambda worker: worker.drain(max_failed=0), Worker.run, start_and_wait])
def test_an_error_of_the_limiter_is_fatal_and_ends_the_worker(
    queue: TaskQueue, make_worker: MakeWorker, call: Callable[[Worker], object], prefetch: int
) -> None:
    reported: list[type] = []

    queue.push("work", ["a"])
    listener = FatalListener(lambda error: reported.append(type(error)))  # hears nothing else
    worker: Worker = make_worker(lambda _: None, limiter=Broken(), listener=listener, prefetch=prefetch)
    with pytest.raises(ZeroDivisionError):
        call(worker)
    assert not worker.is_active
    until(lambda: reported == [ZeroDivisionError])
    assert states(queue) == [("a", State.READY)]
    assert not worker.stop(timedelta(seconds=5))
    assert queue.owners() == []
