"""Fixtures of the worker tests: workers that stop with their test, and a table of effects."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskq.queue import Task, TaskQueue
from airflow_provider_taskq.worker import Worker, WorkerListener, WorkHandler

MakeWorker = Callable[..., Worker]
HOUR = timedelta(hours=1)


@pytest.fixture
def make_worker(dsn: str) -> Iterator[MakeWorker]:
    """Makes workers of the topic `work` with long pauses between empty polls, and stops them at the end."""
    made: list[Worker] = []

    def make(handler: Callable[..., Any] | WorkHandler, **options: Any) -> Worker:
        made.append(Worker(dsn, options.pop("topic", "work"), handler, **{"pause": HOUR, **options}))
        return made[-1]

    yield make
    for worker in made:
        worker.stop(timedelta(seconds=5))


@pytest.fixture
def effects(queue: TaskQueue) -> Iterator[Callable[[], list[str]]]:
    """A table `effect` for the writes of handlers. Returns a function that reads its identifiers."""
    queue.conn.execute("CREATE TABLE effect (place bigserial, sequence bigint, identifier text, number int)")
    query = "SELECT identifier FROM effect ORDER BY 1"
    yield lambda: [row[0] for row in queue.conn.execute(query).fetchall()]
    queue.conn.execute("DROP TABLE effect")


def listeners(queue: TaskQueue) -> int:
    """The number of sessions that listen for notifications."""
    return queue.conn.execute(
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    ).rowcount


class FatalListener(WorkerListener):
    """Passes fatal errors to a function, and nothing else."""

    def __init__(self, call: Callable[[BaseException], object]) -> None:
        self.on_fatal = call  # type: ignore[method-assign,assignment]


class Gate:
    """A handler that waits until the test opens it. `began` is set when it has the first task."""

    def __init__(self) -> None:
        self.began, self.open = threading.Event(), threading.Event()
        self.started: list[str] = []

    def __call__(self, task: Task) -> None:
        self.started.append(task.identifier)
        self.began.set()
        self.open.wait(60)
