"""TaskQCompleteOperator and TaskQReleaseOperator: what a retry, a drain and a later claim leave of a claim."""

from typing import Any

import psycopg
import pytest

from airflow_provider_taskq.operators import TaskQCompleteOperator, TaskQReleaseOperator
from airflow_provider_taskq.queue import (
    Decision,
    InvalidArgument,
    LeaseLost,
    NotHeld,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
)
from tests.airflow.conftest import claim_of, executed
from tests.internals import lapse_lease

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("An operator does what its call of the queue does, in one transaction"),
]


def complete(claim: Any, **arguments: Any) -> int:
    """Run the operator, and return the number of tasks that it completes."""
    completed: int = executed(TaskQCompleteOperator(task_id="complete", claim=claim, **arguments))["completed"]
    return completed


def release(claim: Any) -> int:
    """Run the operator, and return the number of tasks that it releases."""
    released: int = executed(TaskQReleaseOperator(task_id="release", claim=claim))["released"]
    return released


def sequences(queue: TaskQueue) -> list[int]:
    return [task.sequence for task in queue.page("work")]


def states(queue: TaskQueue) -> list[State]:
    return [task.state for task in queue.page("work")]


class TestComplete:
    def test_completes_all_tasks_of_the_claim(self, queue: TaskQueue) -> None:
        claim = claim_of(queue, "a", "b", "c")
        claim_of(queue, "d", owner="other")
        operator = TaskQCompleteOperator(task_id="complete", claim=str(claim), message={"by": "{{ ds }}"})
        assert executed(operator) == {"topic": "work", "owner": "gate", "result": "SUCCESS", "completed": 3}
        assert states(queue) == [State.SUCCEEDED] * 3 + [State.ACTIVE]
        assert queue.page("work")[0].output == {"by": "2013-01-01"}

    @pytest.mark.parametrize("text", [False, True], ids=["list", "rendered text"])
    def test_completes_only_the_given_sequences(self, queue: TaskQueue, text: bool) -> None:
        claim = claim_of(queue, "a", "b", "c")
        chosen = sequences(queue)[::2]
        assert complete(claim, sequences=str(chosen) if text else chosen, result="filter") == 2
        assert states(queue) == [State.FILTERED, State.ACTIVE, State.FILTERED]

    def test_a_failure_keeps_its_message_as_error(self, queue: TaskQueue) -> None:
        queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=2)))
        complete(claim_of(queue, "a"), result="FAILURE", message="no fuel")
        (task,) = queue.page("work")
        assert (task.status, task.error) == ("retrying", "no fuel")

    @pytest.mark.promise("an Airflow task with a claim is retried or cleared")
    def test_sequences_that_an_earlier_try_completed_are_skipped(self, queue: TaskQueue) -> None:
        """The worker dies between the commit and its report, and Airflow runs the task again."""
        claim = claim_of(queue, "a", "b", "c")
        first, second, third = sequences(queue)
        assert [complete(claim, sequences=[first, second]) for _ in range(2)] == [2, 0]
        assert complete(claim, sequences=[second, third]) == 1
        assert complete(claim) == 0
        assert [task.attempt for task in queue.page("work")] == [1, 1, 1]

    def test_a_sequence_that_is_not_held_fails_the_whole_completion(
        self, queue: TaskQueue, conn: psycopg.Connection
    ) -> None:
        claim = claim_of(queue, "a")
        claim_of(queue, "b", owner="other")
        mine, theirs = sequences(queue)
        with pytest.raises(NotHeld, match=str(theirs)):
            complete(claim, sequences=[mine, theirs])
        queue.create_topic("other")
        with pytest.raises(NotHeld, match=f"in topic 'other': sequence {mine}"):
            complete({**claim, "topic": "other"}, sequences=[mine])
        assert states(queue) == [State.ACTIVE] * 2
        lapse_lease(conn)
        assert queue.expire() == 2
        other = queue.register("other")
        queue.claim("work", other, 1)
        queue.complete(other, {mine: Decision(Result.SUCCESS)})
        again = {**claim, "fence": queue.register("gate").fence}
        with pytest.raises(NotHeld, match="does not hold 1 of 1"):
            complete(again, sequences=[mine])  # another owner completed it

    @pytest.mark.promise("an Airflow task with a claim is retried or cleared")
    def test_a_repeated_completion_fails_and_changes_nothing_after_its_lease_expired(
        self, queue: TaskQueue, conn: psycopg.Connection
    ) -> None:
        claim = claim_of(queue, "a", "b")
        lapse_lease(conn)  # it still completes
        assert complete(claim, sequences=sequences(queue)[:1]) == 1
        assert queue.expire() == 1
        with pytest.raises(LeaseLost, match="the tasks that were not completed went back to the topic"):
            complete(claim)
        assert states(queue) == [State.SUCCEEDED, State.READY]

    def test_an_unknown_result_and_the_output_of_a_gate_that_claims_nothing_are_refused(self, queue: TaskQueue) -> None:
        with pytest.raises(ValueError, match="FAILURE, SUSPENSION, FILTER, SUCCESS"):
            complete(claim_of(queue, "a"), result="DONE")
        with pytest.raises(InvalidArgument, match="pass the output of a TaskQSensor with claim=n"):
            complete({"topic": "work", "ready": 1})


@pytest.mark.promise("the DAG run fails for good")
class TestRelease:
    def test_releases_the_tasks_that_are_not_completed(self, queue: TaskQueue) -> None:
        claim = claim_of(queue, "a", "b")
        complete(claim, sequences=sequences(queue)[:1])
        assert release(claim) == 1
        done, back = queue.page("work")
        assert (done.state, back.state, back.attempt) == (State.SUCCEEDED, State.READY, 0)
        assert release(claim) == 0  # a claim that is gone is a success

    def test_releases_the_tasks_of_a_killed_drain_and_locks_it_out(self, queue: TaskQueue) -> None:
        claim = claim_of(queue, "a")
        drain = queue.take_over(claim["owner"], claim["fence"])
        assert release(claim) == 1
        with pytest.raises(LeaseLost):
            queue.heartbeat(drain)

    @pytest.mark.parametrize("claim", [None, "None", "", "{{ none }}"])
    def test_a_gate_that_claimed_nothing_is_a_success(self, claim: str | None) -> None:
        assert release(claim) == 0
