"""mode=complete on Spark: all of a job's decisions, each once, or none."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue import LeaseLost, NotHeld, Owner, TaskQueue
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.data_source import TaskQDataSource
from airflow_provider_taskq.spark.options import HeldOptions
from airflow_provider_taskq.spark.session import describe_error, queue_error
from airflow_provider_taskq.spark.staging import StagedAttempt
from airflow_provider_taskq.spark.writers import CompleteWriter
from tests.internals import make_due

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.promise("The decisions and follow-ups of a round are committed together, or not at all"),
]

Tasks = Callable[..., DataFrame]
Held = Callable[[int], dict[str, str]]
Complete = Callable[[DataFrame, Mapping[str, str]], None]

NUMBER = "cast(get_json_object(payload, '$.number') AS int)"


def states(queue: TaskQueue) -> dict[str, int]:
    return {state.name: count.count for state, count in queue.count("work")["work"].items()}


def staged(conn: psycopg.Connection[Any]) -> object:
    return conn.execute("SELECT count(*) FROM taskq.staged").fetchall()[0][0]


def test_a_job_ends_its_tasks(
    tasks: Tasks, held: Held, complete: Complete, queue: TaskQueue, conn: psycopg.Connection[Any]
) -> None:
    options = held(1_000)
    decisions = tasks(options).selectExpr(
        "sequence",
        f"elt({NUMBER} % 4 + 1, 'FAILURE', 'SUSPENSION', 'FILTER', 'SUCCESS') AS result",
        f"to_json(named_struct('seen', {NUMBER})) AS message",
        f"if({NUMBER} % 4 = 0, concat('no luck with ', identifier), null) AS error",
    )
    complete(decisions, options)
    assert states(queue) == {"FAILED": 250, "SUSPENDED": 250, "FILTERED": 250, "SUCCEEDED": 250}
    failed = queue.latest("work", ["item-8"])["item-8"]
    assert (failed.output, failed.error) == ({"seen": 8}, "no luck with item-8")
    assert staged(conn) == 0


def test_results_may_be_numbers_and_a_suspension_may_have_a_delay(
    tasks: Tasks, held: Held, complete: Complete, queue: TaskQueue
) -> None:
    options = held(10)
    result = f"if({NUMBER} < 4, 1, 3) AS result"
    delay = f"if({NUMBER} < 4, INTERVAL '0 01:00:00' DAY TO SECOND, null) AS delay"
    complete(tasks(options).selectExpr("sequence", result, delay), options)
    assert states(queue) == {"READY": 4, "SUCCEEDED": 6}
    snoozed = queue.latest("work", ["item-1"])["item-1"]
    assert 3_500 < (snoozed.available_at - snoozed.created).total_seconds() < 4_000


def test_no_decisions_change_nothing(tasks: Tasks, held: Held, complete: Complete, queue: TaskQueue) -> None:
    options = held(10)
    complete(tasks(options).where("false").selectExpr("sequence", "'SUCCESS' AS result"), options)
    assert states(queue) == {"ACTIVE": 10}


@pytest.mark.promise("a Spark task runs twice, or an executor is killed")
def test_an_attempt_that_fails_after_staging_has_no_effect(
    spark: SparkSession, dsn: str, tasks: Tasks, held: Held, queue: TaskQueue, conn: psycopg.Connection[Any]
) -> None:
    class FailingOnce(CompleteWriter):
        """Stages and commits a partition, and fails at the first try of every Spark task."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedAttempt:
            from pyspark import TaskContext

            done = super().write(iterator)
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0:
                raise RuntimeError("this try is lost after its staging was committed")
            return done

    class FailingSource(TaskQDataSource):
        @classmethod
        def name(cls) -> str:
            return "taskq_failing"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
            assert self.connection_info is not None
            return FailingOnce.open(HeldOptions.parse(self.options, "complete"), schema, self.connection_info)

    FailingSource.connection_info = ConnectionInfo.resolve(dsn, executors_may_override=False)
    spark.dataSource.register(FailingSource)
    options = held(100)
    decisions = tasks(options).selectExpr("sequence", "'SUCCESS' AS result")
    opened = conn.execute("SELECT taskq.open_stage(%s, %s)::text", (options["owner"], options["fence"])).fetchall()
    stage = opened[0][0]
    writer = decisions.write.format("taskq_failing").mode("append").options(mode="complete", stage=stage, **options)
    writer.save()
    assert states(queue) == {"SUCCEEDED": 100}
    # The losers staged 100 rows as well: the 100 that are left are one try's of each part.
    rows = conn.execute("SELECT part, count(DISTINCT attempt), count(*) FROM taskq.staged GROUP BY part ORDER BY part")
    assert rows.fetchall() == [(part, 1, 25) for part in range(4)]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["sequence", "'DONE' AS result"], "unknown result 'DONE' of the decision on task 2"),
        (["sequence", "if(sequence % 7 = 0, null, 3) AS result"], "unknown result null of the decision on task 7"),
        (["cast(null AS bigint) AS sequence", "'SUCCESS' AS result"], "a decision has no sequence"),
        (["sequence", "'SUCCESS' AS result", "'{marked' AS message"], "task 2 is not JSON"),
        (["sequence", "'SUCCESS' AS result", "1 AS note"], "unknown column 'note' in the decisions"),
        (["sequence"], "decisions need a column result: these have sequence"),
        (["sequence", "'SUCCESS' AS result", "5 AS delay"], "has a delay: only a SUSPENSION takes one"),
        (["sequence + 1000 AS sequence", "'SUCCESS' AS result"], "does not hold 10 of 10 tasks"),
    ],
)
def test_invalid_decisions_are_refused_in_one_line_and_change_nothing(
    tasks: Tasks,
    held: Held,
    complete: Complete,
    queue: TaskQueue,
    conn: psycopg.Connection[Any],
    columns: list[str],
    words: str,
) -> None:
    queue.push("work", ["not held"])
    conn.execute("SELECT taskq.set_paused('work', true)")
    options = held_beside(queue, conn, held)
    with pytest.raises(PySparkException) as failed:
        complete(tasks(options, partitions=1).orderBy("sequence").selectExpr(*columns), options)
    assert words in describe_error(failed.value)
    assert "marked" not in describe_error(failed.value)
    assert states(queue) == {"READY": 1, "ACTIVE": 10}
    assert staged(conn) == 0


def held_beside(queue: TaskQueue, conn: psycopg.Connection[Any], held: Held) -> dict[str, str]:
    """Ten held tasks, of which the first has sequence 2, and one that is READY."""
    make_due(conn, datetime.max.replace(tzinfo=UTC))
    queue.resume_topic("work")
    return held(10)


@pytest.mark.promise("Two results of a task merge to the first of FAILURE, SUSPENSION, FILTER, SUCCESS")
def test_the_first_of_several_results_of_a_task_wins(
    tasks: Tasks, held: Held, complete: Complete, queue: TaskQueue
) -> None:
    options = held(10)
    frame = tasks(options)
    both = frame.selectExpr("sequence", "'SUCCESS' AS result").union(
        frame.where(f"{NUMBER} < 3").selectExpr("sequence", "'FAILURE' AS result")
    )
    complete(both, options)
    assert states(queue) == {"FAILED": 3, "SUCCEEDED": 7}


def test_an_owner_cannot_complete_the_tasks_of_another(
    tasks: Tasks, held: Held, complete: Complete, queue: TaskQueue, owner: Owner
) -> None:
    options = held(10)
    decisions = tasks(options).selectExpr("sequence", "'SUCCESS' AS result").cache()
    assert decisions.count() == 10
    other = queue.register("other")
    with pytest.raises(PySparkException) as failed:
        complete(decisions, {**options, "owner": other.name, "fence": str(other.fence)})
    assert isinstance(queue_error(failed.value), NotHeld)
    queue.register(owner.name)
    with pytest.raises(PySparkException) as failed:
        complete(decisions, options)
    assert isinstance(queue_error(failed.value), LeaseLost)
    decisions.unpersist()
    assert states(queue) == {"ACTIVE": 10}


def test_decisions_are_appended_never_overwritten(source: str, tasks: Tasks, held: Held) -> None:
    options = held(1)
    decisions = tasks(options).selectExpr("sequence", "'SUCCESS' AS result")
    with pytest.raises(PySparkException) as failed:
        decisions.write.format(source).mode("overwrite").options(mode="complete", **options).save()
    assert 'use .mode("append")' in describe_error(failed.value)
