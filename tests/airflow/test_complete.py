from typing import Any

import psycopg
import pytest
from airflow.sdk import DAG

from airflow_provider_taskq.operators import TaskQCompleteOperator
from airflow_provider_taskq.queue import (
    InvalidArgument,
    LeaseLost,
    NotHeld,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
)
from airflow_provider_taskq.sensors import TaskQSensor
from tests.airflow.conftest import claim_of, context_of
from tests.internals import lapse_lease

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("An operator does what its call of the queue does, in one transaction"),
]


def complete(claim: Any, **arguments: Any) -> dict[str, Any]:
    operator = TaskQCompleteOperator(task_id="complete", claim=claim, **arguments)
    operator.render_template_fields(context_of())
    result: dict[str, Any] = operator.execute(context_of())
    return result


def sequences(queue: TaskQueue) -> list[int]:
    return [task.sequence for task in queue.page("work")]


def test_completes_all_tasks_of_the_claim(queue: TaskQueue) -> None:
    claim = claim_of(queue, "a", "b", "c")
    claim_of(queue, "d", owner="other")
    assert complete(claim, message={"by": "{{ ds }}"}) == {
        "topic": "work",
        "owner": "gate",
        "result": "SUCCESS",
        "completed": 3,
    }
    page = queue.page("work")
    assert [task.state for task in page] == [State.SUCCEEDED] * 3 + [State.ACTIVE]
    assert page[0].output == {"by": "2013-01-01"}


def test_the_claim_may_be_rendered_text(queue: TaskQueue) -> None:
    assert complete(str(claim_of(queue, "a")))["completed"] == 1


def test_a_second_try_has_nothing_to_complete(queue: TaskQueue) -> None:
    """The worker dies between the commit and its report, and Airflow runs the task again."""
    claim = claim_of(queue, "a")
    assert [complete(claim)["completed"], complete(claim)["completed"]] == [1, 0]


def test_completes_only_the_given_sequences(queue: TaskQueue) -> None:
    claim = claim_of(queue, "a", "b", "c")
    first, _, third = sequences(queue)
    assert complete(claim, sequences=[first, third], result="filter")["completed"] == 2
    assert [task.state for task in queue.page("work")] == [State.FILTERED, State.ACTIVE, State.FILTERED]


def test_sequences_may_be_rendered_text(queue: TaskQueue) -> None:
    claim = claim_of(queue, "a", "b")
    first, second = sequences(queue)
    assert complete(claim, sequences=f"[{first}, {second}]")["completed"] == 2


def test_a_sequence_of_another_topic_is_not_completed(queue: TaskQueue) -> None:
    claim = claim_of(queue, "a")
    (sequence,) = sequences(queue)
    queue.create_topic("other")
    with pytest.raises(NotHeld, match=f"in topic 'other': sequence {sequence}"):
        complete({**claim, "topic": "other"}, sequences=[sequence])
    assert [task.state for task in queue.page("work")] == [State.ACTIVE]


def test_a_failure_keeps_its_message_as_error(queue: TaskQueue) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=2)))
    complete(claim_of(queue, "a"), result="FAILURE", message="no fuel")
    (task,) = queue.page("work")
    assert (task.status, task.error) == ("retrying", "no fuel")


def test_a_lapsed_lease_still_completes(queue: TaskQueue, conn: psycopg.Connection) -> None:
    claim = claim_of(queue, "a")
    lapse_lease(conn)
    assert queue.owners() == []
    assert complete(claim)["completed"] == 1


def test_a_lease_that_is_gone_is_lost_and_changes_nothing(queue: TaskQueue) -> None:
    claim = claim_of(queue, "a")
    owner = queue.owner("gate")
    assert owner is not None
    queue.release(owner)
    with pytest.raises(LeaseLost, match="its lease was released, or it lapsed and expired"):
        complete(claim)
    assert queue.page("work")[0].state is State.READY


def test_a_later_claim_of_the_same_name_cannot_be_completed_by_the_first(queue: TaskQueue) -> None:
    """Two gates have the same claim_as, and the second takes the tasks over."""
    first = claim_of(queue, "a")
    second = claim_of(queue, "b")
    with pytest.raises(LeaseLost, match=f"a later registration of the same owner, fence {second['fence']}"):
        complete(first)
    assert {task.state for task in queue.page("work")} == {State.ACTIVE}
    assert complete(second)["completed"] == 2


def test_the_remaining_tasks_of_a_drain_are_completed_by_the_claim_that_it_took_over(queue: TaskQueue) -> None:
    claim = claim_of(queue, "a", "b")
    drain = queue.take_over(claim["owner"], claim["fence"])
    queue.complete(drain, {sequences(queue)[0]: Result.FILTER})
    assert complete(claim)["completed"] == 1
    assert [task.state for task in queue.page("work")] == [State.FILTERED, State.SUCCEEDED]


def test_a_task_that_is_not_held_fails_the_whole_completion(queue: TaskQueue) -> None:
    claim = claim_of(queue, "a")
    claim_of(queue, "b", owner="other")
    mine, theirs = sequences(queue)
    with pytest.raises(NotHeld, match=str(theirs)):
        complete(claim, sequences=[mine, theirs])
    assert {task.state for task in queue.page("work")} == {State.ACTIVE}


def test_an_unknown_result_is_refused(queue: TaskQueue) -> None:
    with pytest.raises(ValueError, match="FAILURE, SUSPENSION, FILTER, SUCCESS"):
        complete(claim_of(queue, "a"), result="DONE")


def test_the_output_of_a_gate_that_claims_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="pass the output of a TaskQSensor with claim=n"):
        complete({"topic": "work", "ready": 1})


def test_owner_is_airflows_own_and_the_gate_is_upstream() -> None:
    with DAG("dag", schedule=None, default_args={"owner": "data-team"}):
        gate = TaskQSensor(task_id="gate", topic="work", claim=1)
        operator = TaskQCompleteOperator(task_id="complete", claim=gate.output)
    assert operator.owner == "data-team"
    assert operator.upstream_task_ids == {"gate"}
