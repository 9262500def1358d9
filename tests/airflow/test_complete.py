from typing import Any

import psycopg
import pytest
from airflow.sdk import DAG

from airflow_provider_taskq.operators import TaskQCompleteOperator
from airflow_provider_taskq.queue import LeaseLost, NotHeld, RetryPolicy, State, TaskQueue, TopicPolicy
from tests.airflow.conftest import context_of

pytestmark = pytest.mark.usefixtures("airflow_connection", "queue")


def claimed(queue: TaskQueue, *identifiers: str, owner: str = "gate") -> list[int]:
    """The sequences of tasks that an owner now holds."""
    tasks = queue.push("work", identifiers)
    queue.claim("work", queue.register(owner), len(tasks))
    return [task.sequence for task in tasks]


def complete(owner: str = "gate", topic: str = "work", **arguments: Any) -> dict[str, Any]:
    operator = TaskQCompleteOperator(task_id="complete", topic=topic, owner=owner, **arguments)
    operator.render_template_fields(context_of())
    result: dict[str, Any] = operator.execute(context_of())
    return result


def test_completes_all_that_is_held(queue: TaskQueue) -> None:
    claimed(queue, "a", "b", "c")
    claimed(queue, "d", owner="other")
    assert complete(message={"by": "{{ ds }}"}) == {
        "topic": "work",
        "owner": "gate",
        "result": "SUCCESS",
        "completed": 3,
    }
    page = queue.page("work")
    assert [task.state for task in page] == [State.SUCCEEDED] * 3 + [State.ACTIVE]
    assert page[0].output == {"by": "2013-01-01"}


def test_a_second_try_finds_nothing_left_to_do(queue: TaskQueue) -> None:
    claimed(queue, "a")
    assert [complete()["completed"], complete()["completed"]] == [1, 0]


def test_completes_only_the_sequences_named(queue: TaskQueue) -> None:
    first, _, third = claimed(queue, "a", "b", "c")
    assert complete(sequences=[first, third], result="FILTER")["completed"] == 2
    assert [task.state for task in queue.page("work")] == [State.FILTERED, State.ACTIVE, State.FILTERED]


def test_sequences_may_be_what_a_template_became(queue: TaskQueue) -> None:
    first, second = claimed(queue, "a", "b")
    assert complete(sequences=f"[{first}, {second}]")["completed"] == 2


def test_a_sequence_of_another_topic_is_not_completed(queue: TaskQueue) -> None:
    (sequence,) = claimed(queue, "a")
    queue.create_topic("other")
    with pytest.raises(NotHeld, match=f"in topic 'other': sequence {sequence}"):
        complete(topic="other", sequences=[sequence])
    assert [task.state for task in queue.page("work")] == [State.ACTIVE]


def test_a_failure_keeps_its_message_as_error(queue: TaskQueue) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=2)))
    (sequence,) = claimed(queue, "a")
    complete(result="FAILURE", message="no fuel")
    task = queue.task("work", sequence)
    assert task is not None
    assert (task.status, task.error) == ("retrying", "no fuel")


def test_a_lapsed_lease_still_completes(queue: TaskQueue, conn: psycopg.Connection) -> None:
    claimed(queue, "a")
    conn.execute("UPDATE taskq.owner SET lease_until = clock_timestamp()")
    assert queue.owners() == []
    assert complete()["completed"] == 1


def test_a_lease_that_is_gone_is_lost_and_changes_nothing(queue: TaskQueue) -> None:
    claimed(queue, "a")
    owner = queue.owner("gate")
    assert owner is not None
    queue.release(owner)
    with pytest.raises(LeaseLost, match="'gate' has no lease"):
        complete()
    assert queue.page("work")[0].state is State.READY


def test_a_task_that_is_not_held_stops_all(queue: TaskQueue) -> None:
    (mine,) = claimed(queue, "a")
    (theirs,) = claimed(queue, "b", owner="other")
    with pytest.raises(NotHeld, match=str(theirs)):
        complete(sequences=[mine, theirs])
    assert {task.state for task in queue.page("work")} == {State.ACTIVE}


def test_a_result_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="FAILURE, SUSPENSION, FILTER, SUCCESS"):
        complete(result="DONE")


def test_airflows_own_owner_is_not_taken_for_the_queues() -> None:
    with (
        DAG("dag", schedule=None, default_args={"owner": "data-team"}),
        pytest.raises(ValueError, match="owner is missing"),
    ):
        TaskQCompleteOperator(task_id="complete", topic="work")  # type: ignore[call-arg]
    with DAG("dag", schedule=None, default_args={"owner": "data-team"}):
        operator = TaskQCompleteOperator(task_id="complete", topic="work", owner="gate")
    assert (operator.task_owner, operator.owner) == ("gate", "data-team")
