"""A payload that Python cannot decode fails its own task in a drain, and no other."""

import pytest
from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import NewTask, Result, State, Task, TaskQueue
from airflow_provider_taskq.spark import by_task, drain
from airflow_provider_taskq.spark.composite import Transform
from airflow_provider_taskq.worker.composite import Composite
from tests.faults.poison import POISON, poison

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.promise("A payload that no client can decode fails its own task and stops nothing else"),
]


def doubled(task: Task) -> int:
    """Uses the payload as data."""
    assert isinstance(task.payload, dict)
    number = task.payload["number"]
    assert isinstance(number, int)
    return 2 * number


def succeed(task: Task) -> Result:
    doubled(task)
    return Result.SUCCESS


def steps() -> Composite:
    composite = Composite("doubles")

    @composite.step
    def double(task: Task) -> None:
        doubled(task)

    return composite


@pytest.mark.parametrize("transform", [by_task(succeed), steps()], ids=["by task", "composite"])
def test_a_drain_fails_unreadable_tasks_and_completes_the_others(
    spark: SparkSession, dsn: str, queue: TaskQueue, transform: Transform | Composite
) -> None:
    tasks = queue.push("work", [NewTask(f"id-{n}", {"number": n}) for n in range(50)])
    bad = tasks[10:40:10]
    for task, text in zip(bad, POISON.values(), strict=True):
        poison(queue.conn, task, text)
    result = drain(spark, "work", "me", transform, dsn=dsn)
    assert (result.claimed, result.done) == (50, 50)
    failed = queue.page("work", state=State.FAILED)
    assert failed == bad
    assert all("InvalidTask: unreadable JSON: " in str(info.error) for info in failed)
    assert len(queue.page("work", state=State.SUCCEEDED)) == 47
