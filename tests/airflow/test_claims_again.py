"""A completion that is run again: by a retry after a worker died between commit and report, or by a user."""

import psycopg
import pytest

from airflow_provider_taskq.operators import TaskQCompleteOperator
from airflow_provider_taskq.queue import Decision, LeaseLost, NotHeld, Result, State, TaskQueue
from tests.airflow.conftest import context_of

pytestmark = pytest.mark.usefixtures("airflow_connection")


def claimed(queue: TaskQueue, *identifiers: str) -> list[int]:
    """The sequences of tasks that the owner `gate` now holds."""
    tasks = queue.push("work", identifiers)
    queue.claim("work", queue.register("gate"), len(tasks))
    return [task.sequence for task in tasks]


def complete(sequences: list[int] | None = None) -> int:
    """How many tasks the operator completes."""
    operator = TaskQCompleteOperator(task_id="complete", topic="work", owner="gate", sequences=sequences)
    completed: int = operator.execute(context_of())["completed"]
    return completed


def test_sequences_that_an_earlier_try_has_completed_are_passed_over(queue: TaskQueue) -> None:
    first, second, third = claimed(queue, "a", "b", "c")
    assert complete([first, second]) == 2
    assert complete([first, second]) == 0
    assert complete([second, third]) == 1
    assert [task.attempt for task in queue.page("work")] == [1, 1, 1]


def test_a_sequence_that_somebody_else_has_completed_is_not(queue: TaskQueue, conn: psycopg.Connection) -> None:
    (sequence,) = claimed(queue, "a")
    conn.execute("UPDATE taskq.owner SET lease_until = clock_timestamp()")
    assert queue.expire() == 1
    other = queue.register("other")
    queue.claim("work", other, 1)
    queue.complete(other, {sequence: Decision(Result.SUCCESS)})
    queue.register("gate")
    with pytest.raises(NotHeld, match="does not hold 1 of 1"):
        complete([sequence])
    assert queue.page("work")[0].owner == "other"


def test_after_its_lease_is_over_a_completion_run_again_fails_and_changes_nothing(
    queue: TaskQueue, conn: psycopg.Connection
) -> None:
    claimed(queue, "a")
    assert complete() == 1
    conn.execute("UPDATE taskq.owner SET lease_until = clock_timestamp()")
    queue.expire()
    with pytest.raises(LeaseLost, match="what it had not completed was given back"):
        complete()
    assert queue.page("work")[0].state is State.SUCCEEDED
