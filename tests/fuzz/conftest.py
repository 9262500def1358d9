"""A queue for hostile input: a statement that takes a minute is an error."""

from collections.abc import Iterator

import psycopg
import pytest

from airflow_provider_taskq.queue import TaskQueue, connect
from tests.fuzz.inputs import LONGEST
from tests.fuzz.outcomes import StoredState


@pytest.fixture
def bounded(dsn: str, queue: TaskQueue) -> Iterator[TaskQueue]:
    """A queue with the topic `work`, on a connection that ends statements which take too long."""
    assert queue.topics() == ["work"]
    with connect(dsn, autocommit=True) as session:
        session.execute(f"SET statement_timeout = {int(LONGEST.total_seconds() * 1000)}".encode())
        yield TaskQueue(session)


@pytest.fixture
def state(dsn: str, queue: TaskQueue) -> Iterator[StoredState]:
    """What the queue stores. It is remembered as of now, with the topic `work`."""
    assert queue.topics() == ["work"]
    with psycopg.connect(dsn, autocommit=True) as session:
        yield StoredState(session)
