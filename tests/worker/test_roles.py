"""Workers, consumers and schedulers with only the access that docs/production/roles.md requires."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_taskq.queue import Junction, NewTask, Result, State, Task, TaskQueue, connect
from airflow_provider_taskq.worker import Batch, Composite, Worker
from airflow_provider_taskq.worker.scheduler import Scheduler
from tests.queue.conftest import until
from tests.roles import logged_in

pytestmark = pytest.mark.promise("A role may call the functions of its kind, and no others")

As = Callable[..., str]


@pytest.fixture
def as_role(conn: psycopg.Connection, dsn: str) -> Iterator[Callable[..., str]]:
    """Makes a role with these kinds of access, and returns its DSN."""
    with contextlib.ExitStack() as stack:
        yield lambda *kinds: stack.enter_context(logged_in(conn, dsn, *kinds))


def released(queue: TaskQueue, topic: str) -> set[State]:
    return {task.state for task in queue.page(topic)}


def test_a_worker_that_releases_groups_is_a_consumer(
    as_role: As, queue: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.create_topic("groups")
    queue.push("groups", [NewTask("x", suspended=True)])
    queue.push("work", ["a"])
    handler = Composite("releasing")

    @handler.step
    def release(task: Task, batch: Batch) -> None:
        batch.junction(task, "groups", [["x"]])

    with caplog.at_level(logging.WARNING):
        Worker(as_role("consumer"), "work", handler).drain()
    assert released(queue, "groups") == {State.READY}
    assert released(queue, "work") == {State.SUCCEEDED}
    assert [record.getMessage() for record in caplog.records] == []


def test_a_worker_that_pushes_and_releases_groups_is_a_consumer_and_a_producer(
    as_role: As, queue: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("groups", "next"):
        queue.create_topic(topic)
    queue.push("groups", [NewTask("x", suspended=True)])
    queue.push("work", ["a", "b"])
    handler = Composite("following")

    @handler.step
    def push_follow_ups(task: Task, batch: Batch) -> Result | None:
        batch.push(task, "next", [task.identifier])
        batch.junction(task, "groups", [["x"]], Junction.ETERNAL)
        return Result.FAILURE if task.identifier == "b" else None

    with caplog.at_level(logging.WARNING):
        Worker(as_role("consumer", "producer"), "work", handler).drain()
    assert released(queue, "groups") == {State.READY}
    assert [task.identifier for task in queue.page("next")] == ["a"]
    assert released(queue, "work") == {State.SUCCEEDED, State.FAILED}
    assert [record.getMessage() for record in caplog.records] == []


def test_a_worker_without_the_access_of_a_producer_pushes_nothing(as_role: As, queue: TaskQueue) -> None:
    queue.create_topic("next")
    with connect(as_role("consumer")) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
        TaskQueue(conn).push("next", ["a"])
    assert queue.page("next") == []


def test_a_scheduler_is_a_producer(as_role: As, queue: TaskQueue) -> None:
    with Scheduler(as_role("producer")) as ticker:
        ticker.every("work", "hourly", timedelta(hours=1))
        until(lambda: queue.page("work"))
    (tick,) = queue.page("work")
    assert tick.identifier.startswith("hourly/")


def test_a_role_without_any_access_cannot_work(as_role: As, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    dsn = as_role()
    assert conninfo_to_dict(dsn)["user"] != queue.conn.info.user
    with connect(dsn) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
        TaskQueue(conn).register("me")
