"""Gates and operators connect as roles with exactly the access that docs/production/roles.md requires."""

from collections.abc import Iterator

import psycopg
import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_provider_taskq.operators import (
    TaskQCompleteOperator,
    TaskQExpireOperator,
    TaskQProcessOperator,
    TaskQPushOperator,
    TaskQReleaseOperator,
)
from airflow_provider_taskq.queue import NewTask, NotHeld, Result, State, TaskQueue
from airflow_provider_taskq.sensors import TaskQJunctureSensor, TaskQSensor, TaskQStateSensor
from tests.airflow.conftest import Connect, executed
from tests.roles import logged_in

pytestmark = pytest.mark.promise("A role may call the functions of its kind, and no others")


@pytest.fixture
def as_consumer(conn: psycopg.Connection, dsn: str, connect_airflow: Connect) -> Iterator[None]:
    """Make `taskq_default` the connection of a consumer."""
    with logged_in(conn, dsn, "consumer") as consumer:
        connect_airflow(dsn=consumer)
        yield


@pytest.mark.usefixtures("as_consumer")
def test_gates_are_consumers(queue: TaskQueue) -> None:
    queue.push("work", ["a", NewTask("b", suspended=True)])
    claim = executed(TaskQSensor(task_id="claiming", topic="work", claim=5))
    assert claim["claimed"] == 1
    sensor = TaskQStateSensor(task_id="states", topic="work", identifiers=["b"], states={"SUSPENDED"})
    assert executed(sensor) == {"topic": "work", "states": {"SUSPENDED": 1}}
    assert executed(TaskQJunctureSensor(task_id="junctures", topic="work", groups=[["b"]]))["groups"] == 1
    with pytest.raises(TaskDeferred):
        executed(TaskQSensor(task_id="deferred", topic="work", min_tasks=5, deferrable=True))


@pytest.mark.usefixtures("as_consumer")
def test_operators_that_complete_are_consumers(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    claim = executed(TaskQSensor(task_id="claiming", topic="work", claim=1))
    first, second = (task.sequence for task in queue.page("work"))
    queue.take_over(claim["owner"], claim["fence"])  # as a drain does between gate and completion
    with pytest.raises(NotHeld, match=f"sequence {second}"):
        executed(TaskQCompleteOperator(task_id="complete", claim=claim, sequences=[first, second]))
    assert executed(TaskQCompleteOperator(task_id="complete", claim=claim, sequences=[first]))["completed"] == 1
    assert executed(TaskQReleaseOperator(task_id="release", claim=claim))["released"] == 0
    process = TaskQProcessOperator(task_id="process", topic="work", python_callable=lambda _: Result.SUCCESS)
    assert executed(process)["succeeded"] == 1
    executed(TaskQExpireOperator(task_id="expire"))
    assert {task.state for task in queue.page("work")} == {State.SUCCEEDED}


def test_an_operator_that_pushes_is_a_producer(
    conn: psycopg.Connection, dsn: str, connect_airflow: Connect, queue: TaskQueue
) -> None:
    with logged_in(conn, dsn, "producer") as producer:
        connect_airflow(dsn=producer)
        assert executed(TaskQPushOperator(task_id="push", topic="work", tasks=["a"]))["pushed"] == 1
    assert [task.identifier for task in queue.page("work")] == ["a"]
