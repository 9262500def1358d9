"""What tests of Spark share: tasks, counts, the data source on the test's database. The session is in session.py."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_taskq.queue import NewTask, Owner, TaskQueue
from airflow_provider_taskq.queue.errors import translate_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_taskq.spark import DrainResult

Connection = psycopg.Connection[Any]
Push = Callable[[int], list[int]]
Held = Callable[[int], dict[str, str]]
Tasks = Callable[..., "DataFrame"]
Complete = Callable[["DataFrame", Mapping[str, str]], None]
Drained = Callable[..., "DrainResult"]

NUMBER = "cast(get_json_object(payload, '$.number') AS int)"


def succeed(tasks: "DataFrame") -> "DataFrame":
    """Decides every task."""
    return tasks.selectExpr("sequence", "'SUCCESS' AS result")


def states(queue: TaskQueue, topic: str = "work") -> dict[str, int]:
    """How many tasks of a topic are in each state."""
    return {state.name: count.count for state, count in queue.count(topic)[topic].items()}


def names(queue: TaskQueue, topic: str = "work") -> list[str]:
    """The identifiers of a topic, in the order in which they were pushed."""
    return [task.identifier for task in queue.page(topic, size=1_000_000)]


def staged(conn: Connection) -> int:
    """The number of rows in the staging tables."""
    count = "SELECT (SELECT count(*) FROM taskq.staged) + (SELECT count(*) FROM taskq.staged_task)"
    return int(conn.execute(count).fetchall()[0][0])


def check_decided_once(queue: TaskQueue, count: int, crashes: int = 0) -> None:
    """All tasks of the topic `work` have succeeded at their first attempt, and nothing is left of their drains."""
    assert states(queue) == {"SUCCEEDED": count}
    tries = "SELECT DISTINCT attempt, crashes FROM taskq.tasks WHERE topic = 'work'"
    assert queue.conn.execute(tries).fetchall() == [(1, crashes)]
    assert staged(queue.conn) == 0
    assert queue.owners() == []


def wait_until(conn: Connection, question: str, process: Any = None) -> None:
    """Waits until a query of the database returns true; fails if the process has ended before."""
    deadline = time.monotonic() + 600
    while conn.execute(question.encode()).fetchall() != [(True,)]:
        assert time.monotonic() < deadline, question
        assert process is None or process.poll() is None, question
        time.sleep(0.01)  # between two checks


def open_stage(conn: Connection, owner: Owner) -> str:
    """Opens a stage for the decisions of an owner."""
    with translate_errors():
        opened = conn.execute("SELECT taskq.open_stage(%s, %s)::text", (owner.name, owner.fence))
    return str(opened.fetchall()[0][0])


@pytest.fixture
def push(queue: TaskQueue) -> Push:
    """Pushes `count` tasks to the topic `work`, numbered in their payloads; returns their sequences."""

    def pushed(count: int) -> list[int]:
        tasks = [NewTask(f"item-{number}", {"number": number}) for number in range(count)]
        return [task.sequence for task in queue.push("work", tasks)]

    return pushed


@pytest.fixture
def held(queue: TaskQueue, owner: Owner, push: Push) -> Held:
    """Pushes `count` tasks, claims them for `owner`, and returns the options that read them."""

    def holding(count: int) -> dict[str, str]:
        push(count)
        assert queue.claim("work", owner, count) == count
        return {"topic": "work", "owner": owner.name, "fence": str(owner.fence)}

    return holding


@pytest.fixture
def drained(spark: "SparkSession", dsn: str) -> Drained:
    """Drains the topic `work` under the name `me`, in as many partitions as there are cores."""
    from airflow_provider_taskq.spark import drain

    return partial(drain, spark, "work", "me", dsn=dsn, partitions=2)


@pytest.fixture
def source(spark: "SparkSession", dsn: str) -> str:
    """The name of the format `taskq`, registered for the test's database."""
    from airflow_provider_taskq.spark.connection import ConnectionInfo
    from airflow_provider_taskq.spark.data_source import register_source

    return register_source(spark, ConnectionInfo.resolve(dsn, executors_may_override=False))


@pytest.fixture
def tasks(spark: "SparkSession", source: str) -> Tasks:
    """The held tasks as a DataFrame."""

    def loaded(options: Mapping[str, str], partitions: int = 2) -> "DataFrame":
        return spark.read.format(source).options(mode="held", partitions=str(partitions), **options).load()

    return loaded


@pytest.fixture
def complete(source: str) -> Complete:
    """Writes a DataFrame of decisions."""

    def written(decisions: "DataFrame", options: Mapping[str, str]) -> None:
        decisions.write.format(source).mode("append").options(mode="complete", **options).save()

    return written
