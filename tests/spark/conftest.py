"""Tasks and the data source on the test's own database. The Spark session is in session.py."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pytest

from airflow_provider_taskq.queue import NewTask, Owner, TaskQueue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def dsn(own_dsn: str) -> str:
    """A database of its own, as executors and drivers may still be connected when a test is over."""
    return own_dsn


@pytest.fixture
def push(queue: TaskQueue) -> Callable[[int], list[int]]:
    """Pushes `count` tasks to the topic `work`, numbered in their payloads; returns their sequences."""

    def pushed(count: int) -> list[int]:
        tasks = [NewTask(f"item-{number}", {"number": number}) for number in range(count)]
        return [task.sequence for task in queue.push("work", tasks)]

    return pushed


@pytest.fixture
def held(queue: TaskQueue, owner: Owner, push: Callable[[int], list[int]]) -> Callable[[int], dict[str, str]]:
    """Pushes `count` tasks, claims them for `owner`, and returns the options that read them."""

    def holding(count: int) -> dict[str, str]:
        push(count)
        assert queue.claim("work", owner, count) == count
        return {"topic": "work", "owner": owner.name, "fence": str(owner.fence)}

    return holding


@pytest.fixture
def source(request: pytest.FixtureRequest, dsn: str) -> str:
    """The name of the format `taskq`, registered for the test's database."""
    from airflow_provider_taskq.spark.connection import ConnectionInfo
    from airflow_provider_taskq.spark.data_source import register_source

    session: SparkSession = request.getfixturevalue("spark")
    return register_source(session, ConnectionInfo.resolve(dsn, executors_may_override=False))


@pytest.fixture
def tasks(request: pytest.FixtureRequest, source: str) -> Callable[..., "DataFrame"]:
    """The held tasks as a DataFrame."""
    session: SparkSession = request.getfixturevalue("spark")

    def loaded(options: Mapping[str, str], partitions: int = 4) -> "DataFrame":
        return session.read.format(source).options(mode="held", partitions=str(partitions), **options).load()

    return loaded


@pytest.fixture
def complete(source: str) -> Callable[["DataFrame", Mapping[str, str]], None]:
    """Writes a DataFrame of decisions."""

    def written(decisions: "DataFrame", options: Mapping[str, str]) -> None:
        decisions.write.format(source).mode("append").options(mode="complete", **options).save()

    return written
