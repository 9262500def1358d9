"""Services whose connections are cut, fall silent, or lead to a server that is read-only: they go on by others."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial

import pytest

from airflow_provider_taskq.consumer import Consumer
from airflow_provider_taskq.queue import State, TaskQueue
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.lease import DrainLease
from airflow_provider_taskq.worker import Worker
from airflow_provider_taskq.worker.grouped import GroupedWorker
from airflow_provider_taskq.worker.scheduler import Scheduler
from tests.consumer.consumers import heard_all, quick
from tests.faults.conftest import read_only_sessions
from tests.faults.tcp_proxy import TcpProxy
from tests.queue.conftest import until

pytestmark = [
    pytest.mark.promise("A worker continues after errors of polls, handlers and connections"),
    pytest.mark.promise("a connection never answers"),
    pytest.mark.promise("the server fails over, or becomes read-only"),
]


SECOND = timedelta(seconds=1)
GoesOn = Callable[[], None]  # gives a service new work, and waits until it is done


def handled(queue: TaskQueue) -> None:
    """Waits until new tasks are handled."""
    queue.push("work", [f"task {number}" for number in range(20)])
    until(lambda: {task.state for task in queue.page("work")} == {State.SUCCEEDED})


@contextmanager
def worker(dsn: str, queue: TaskQueue) -> Iterator[GoesOn]:
    short = SECOND / 20
    started = Worker(dsn, "work", lambda _: None, workers=2, pause=short, lease=SECOND * 6, call_timeout=SECOND)
    started.start()
    yield partial(handled, queue)
    started.stop(timedelta(0))


@contextmanager
def grouped_worker(dsn: str, queue: TaskQueue) -> Iterator[GoesOn]:
    short = SECOND / 20
    with GroupedWorker(dsn, "work", lambda _: None, pause=short, lease=SECOND * 6, call_timeout=SECOND):
        yield partial(handled, queue)


@contextmanager
def consumer(dsn: str, queue: TaskQueue) -> Iterator[GoesOn]:
    heard = heard_all()
    with Consumer(dsn, heard.group, "work", quick(lease=SECOND * 3, call_timeout=SECOND)) as started:

        def reads_and_renews() -> None:
            [pushed] = queue.push("work", ["a"])
            until(lambda: pushed in heard.events)
            until(
                lambda: all(
                    (each.lease_until or queue.now()) > queue.now() + SECOND for each in queue.partition_states()
                )
            )
            assert started.errors == {}

        yield reads_and_renews


@contextmanager
def scheduler(dsn: str, queue: TaskQueue) -> Iterator[GoesOn]:
    ticker = Scheduler(dsn)
    ticker._session._limit = CallLimit(1)
    ticker.every("work", "each second", SECOND)

    def installs() -> None:
        last = max((task.sequence for task in queue.page("work", size=1000)), default=0)
        until(lambda: queue.page("work", size=1000)[-1:] and queue.page("work", size=1000)[-1].sequence > last)

    with ticker:
        yield installs


@contextmanager
def lease_of_a_drain(dsn: str, queue: TaskQueue) -> Iterator[GoesOn]:
    owner = queue.register("drain", SECOND * 6)
    with DrainLease(owner, ConnectionInfo.resolve(dsn), lambda: None) as keeper:

        def is_kept() -> None:
            [before] = queue.owners()
            until(lambda: queue.owners()[0].lease_until > before.lease_until)
            assert keeper.lost is None

        yield is_kept


def cut(_: TaskQueue, proxy: TcpProxy) -> None:
    """All connections end."""
    proxy.cut()


def freeze(_: TaskQueue, proxy: TcpProxy) -> None:
    """All connections accept bytes and never answer."""
    for link in proxy.links():
        link.freeze()


def refuse_writes(queue: TaskQueue, proxy: TcpProxy) -> None:
    """All connections end, and the next one leads to a server that is read-only."""
    with read_only_sessions(queue, proxy, 1):
        pass


@pytest.mark.parametrize("fault", [cut, freeze, refuse_writes])
@pytest.mark.parametrize("service", [worker, grouped_worker, consumer, scheduler, lease_of_a_drain])
def test_a_service_goes_on_after_all_of_its_connections_have_failed(
    dsn: str,
    queue: TaskQueue,
    proxy: TcpProxy,
    service: Callable[[str, TaskQueue], AbstractContextManager[GoesOn]],
    fault: Callable[[TaskQueue, TcpProxy], None],
) -> None:
    with service(proxy.dsn(dsn), queue) as goes_on:
        goes_on()
        fault(queue, proxy)
        goes_on()
