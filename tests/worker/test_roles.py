"""Workers, consumers and schedulers with only the access that docs/production/roles.md requires."""

import contextlib
import logging
from collections.abc import Callable, Iterator

import psycopg
import pytest

from airflow_provider_taskq.consumer import Consumer
from airflow_provider_taskq.queue import Junction, NewTask, RecurringTask, Result, Schedule, State, Task, TaskQueue
from airflow_provider_taskq.worker import Batch, Composite, Worker
from airflow_provider_taskq.worker.scheduler import Scheduler
from tests.consumer.consumers import heard_all, quick, read_all
from tests.queue.conftest import until
from tests.roles import logged_in

pytestmark = pytest.mark.promise("A role may call the functions of its kind, and no others")

As = Callable[..., str]


@pytest.fixture
def as_role(conn: psycopg.Connection, dsn: str) -> Iterator[Callable[..., str]]:
    """Makes a role with these kinds of access, and returns its DSN."""
    with contextlib.ExitStack() as stack:
        yield lambda *kinds: stack.enter_context(logged_in(conn, dsn, *kinds))


@pytest.mark.parametrize(
    ("kinds", "followed"), [(("consumer",), False), (("consumer", "producer"), True)], ids=["releases", "pushes, too"]
)
def test_a_worker_that_releases_groups_is_a_consumer_and_one_that_pushes_a_producer_too(
    as_role: As, queue: TaskQueue, caplog: pytest.LogCaptureFixture, kinds: tuple[str, ...], followed: bool
) -> None:
    for topic in ("groups", "next"):
        queue.create_topic(topic)
    queue.push("groups", [NewTask("x", suspended=True)])
    queue.push("work", ["a", "b"])
    handler = Composite("following")

    @handler.step()
    def follow(task: Task, batch: Batch) -> Result | None:
        if followed:
            batch.push(task, "next", [task.identifier])
        batch.junction(task, "groups", [["x"]], Junction.ETERNAL)
        return Result.FAILURE if task.identifier == "b" else None

    with caplog.at_level(logging.WARNING):
        Worker(as_role(*kinds), "work", handler).drain()
    assert [task.state for task in queue.page("groups")] == [State.READY]
    assert [task.identifier for task in queue.page("next")] == (["a"] if followed else [])
    assert {task.state for task in queue.page("work")} == {State.SUCCEEDED, State.FAILED}
    assert [record.getMessage() for record in caplog.records] == []


def test_a_consumer_of_events_is_a_consumer(as_role: As, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    heard = heard_all()
    read_all(queue, Consumer(as_role("consumer"), heard.group, "work", quick(partitions=2)))
    assert heard.identifiers == ["a"]


def test_a_scheduler_is_a_producer(as_role: As, queue: TaskQueue) -> None:
    with Scheduler(as_role("producer")) as ticker:
        ticker.add("work", "hourly", RecurringTask(Schedule.every("1h"), ahead="1h"))
        until(lambda: queue.page("work"))
    (tick,) = queue.page("work")
    assert tick.identifier.startswith("hourly/")
