"""mode=complete on Spark: all of a job's decisions, each once, or none."""

import pytest
from pyspark.errors import PySparkException

from airflow_provider_taskq.queue import InvalidTask, NotHeld, TaskQueue, TaskQueueError
from airflow_provider_taskq.spark.session import describe_error, queue_error
from tests.spark.conftest import NUMBER, Complete, Connection, Held, Tasks, staged, states

pytestmark = pytest.mark.promise("The decisions and follow-ups of a round are committed together, or not at all")


def test_a_job_ends_its_tasks(tasks: Tasks, held: Held, complete: Complete, queue: TaskQueue, conn: Connection) -> None:
    options = held(40)
    decisions = tasks(options).selectExpr(
        "sequence",
        f"elt({NUMBER} % 4 + 1, 'FAILURE', 'SUSPENSION', 'FILTER', 'SUCCESS') AS result",
        f"to_json(named_struct('seen', {NUMBER})) AS message",
        f"if({NUMBER} % 4 = 0, concat('no luck with ', identifier), null) AS error",
    )
    complete(decisions, options)
    assert states(queue) == {"FAILED": 10, "SUSPENDED": 10, "FILTERED": 10, "SUCCEEDED": 10}
    failed = queue.latest("work", ["item-8"])["item-8"]
    assert (failed.output, failed.error) == ({"seen": 8}, "no luck with item-8")
    assert staged(conn) == 0


@pytest.mark.promise("Two results of a task merge to the first of FAILURE, SUSPENSION, FILTER, SUCCESS")
def test_results_may_be_numbers_a_suspension_may_have_a_delay_and_the_first_of_several_results_wins(
    tasks: Tasks, held: Held, complete: Complete, queue: TaskQueue
) -> None:
    options = held(10)
    result = f"if({NUMBER} < 4, 1, 3) AS result"
    delay = f"if({NUMBER} < 4, INTERVAL '0 01:00:00' DAY TO SECOND, null) AS delay"
    decisions = tasks(options).selectExpr("sequence", result, delay)
    complete(decisions.union(decisions.where("result = 3").selectExpr("sequence", "0", "delay").limit(1)), options)
    assert states(queue) == {"READY": 4, "FAILED": 1, "SUCCEEDED": 5}
    snoozed = queue.latest("work", ["item-1"])["item-1"]
    assert 3_500 < (snoozed.available_at - snoozed.created).total_seconds() < 4_000


@pytest.mark.parametrize(
    ("columns", "mode", "error", "words"),
    [
        (["sequence"], "append", InvalidTask, "decisions need a column result: these have sequence"),
        (["sequence", "'SUCCESS' AS result", "'{marked' AS message"], "append", InvalidTask, "is not JSON"),
        (["sequence + 1000 AS sequence", "'SUCCESS' AS result"], "append", NotHeld, "does not hold 10 of 10 tasks"),
        (["sequence", "'SUCCESS' AS result"], "overwrite", TaskQueueError, 'use .mode("append")'),
    ],
    ids=["columns", "on an executor", "at the commit", "overwriting"],
)
def test_invalid_decisions_are_refused_in_one_line_and_change_nothing(
    source: str,
    tasks: Tasks,
    held: Held,
    queue: TaskQueue,
    conn: Connection,
    columns: list[str],
    mode: str,
    error: type[Exception],
    words: str,
) -> None:
    options = held(10)
    writer = tasks(options, partitions=1).selectExpr(*columns).write.format(source).mode(mode)
    with pytest.raises(PySparkException) as failed:
        writer.options(mode="complete", **options).save()
    assert words in describe_error(failed.value)
    assert "marked" not in describe_error(failed.value)
    assert isinstance(queue_error(failed.value), error)
    assert states(queue) == {"ACTIVE": 10}
    assert staged(conn) == 0
