"""A repeated completion: by a retry after the worker died between commit and report, or by a user."""

from typing import Any

import psycopg
import pytest

from airflow_provider_taskq.operators import TaskQCompleteOperator
from airflow_provider_taskq.queue import Decision, LeaseLost, NotHeld, Result, State, TaskQueue
from tests.airflow.conftest import claim_of, context_of
from tests.internals import lapse_lease

pytestmark = [
    pytest.mark.usefixtures("airflow_connection"),
    pytest.mark.promise("an Airflow task with a claim is retried or cleared"),
]


def complete(claim: dict[str, Any], sequences: list[int] | None = None) -> int:
    """Run the operator, and return the number of tasks that it completes."""
    operator = TaskQCompleteOperator(task_id="complete", claim=claim, sequences=sequences)
    completed: int = operator.execute(context_of())["completed"]
    return completed


def test_sequences_that_an_earlier_try_completed_are_skipped(queue: TaskQueue) -> None:
    claim = claim_of(queue, "a", "b", "c")
    first, second, third = (task.sequence for task in queue.page("work"))
    assert complete(claim, [first, second]) == 2
    assert complete(claim, [first, second]) == 0
    assert complete(claim, [second, third]) == 1
    assert [task.attempt for task in queue.page("work")] == [1, 1, 1]


def test_a_sequence_that_another_owner_completed_is_not_skipped(queue: TaskQueue, conn: psycopg.Connection) -> None:
    claim_of(queue, "a")
    (sequence,) = (task.sequence for task in queue.page("work"))
    lapse_lease(conn)
    assert queue.expire() == 1
    other = queue.register("other")
    queue.claim("work", other, 1)
    queue.complete(other, {sequence: Decision(Result.SUCCESS)})
    again = {"topic": "work", "owner": "gate", "fence": queue.register("gate").fence, "claimed": 0}
    with pytest.raises(NotHeld, match="does not hold 1 of 1"):
        complete(again, [sequence])
    assert queue.page("work")[0].owner == "other"


def test_a_repeated_completion_fails_and_changes_nothing_after_its_lease_expired(
    queue: TaskQueue, conn: psycopg.Connection
) -> None:
    claim = claim_of(queue, "a")
    assert complete(claim) == 1
    lapse_lease(conn)
    queue.expire()
    with pytest.raises(LeaseLost, match="the tasks that were not completed went back to the topic"):
        complete(claim)
    assert queue.page("work")[0].state is State.SUCCEEDED
