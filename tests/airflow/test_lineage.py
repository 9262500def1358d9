from typing import Any

import pytest
from airflow.exceptions import AirflowRescheduleException  # common-compat lacks it
from airflow.providers.common.compat.sdk import HookLineageCollector
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_taskq.assets.taskq import topic_asset
from airflow_provider_taskq.hooks import TaskQHook, taskq
from airflow_provider_taskq.operators import TaskQCompleteOperator, TaskQPushOperator
from airflow_provider_taskq.queue import Result, TaskQueue
from airflow_provider_taskq.sensors import TaskQSensor
from tests.airflow.conftest import Connect, claim_of, context_of

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("A push emits the events of its assets, lineage and metrics"),
]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Create Airflow's lineage collector, which exists if a plugin such as OpenLineage reads it."""
    made: Any = HookLineageCollector()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(taskq, "get_hook_lineage_collector", lambda: made)
    return made


def seen(collector: Any) -> tuple[list[str], list[str]]:
    """Return the URIs of inputs and outputs."""
    found = collector.collected_assets
    return [entry.asset.uri for entry in found.inputs], [entry.asset.uri for entry in found.outputs]


def test_a_push_is_an_output_with_the_uri_that_dags_use(collector: Any) -> None:
    TaskQPushOperator(task_id="push", topic="work", tasks=["a"]).execute(context_of())
    assert seen(collector) == ([], [topic_asset("work").uri])


def test_a_completion_is_an_input(collector: Any, queue: TaskQueue) -> None:
    TaskQCompleteOperator(task_id="complete", claim=claim_of(queue, "a")).execute(context_of())
    assert seen(collector) == ([topic_asset("work").uri], [])


def test_a_claim_of_a_gate_is_an_input(collector: Any, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    TaskQSensor(task_id="gate", topic="work", claim=1).execute(context_of())
    assert seen(collector) == ([topic_asset("work").uri], [])


def test_a_gate_that_claims_nothing_has_no_lineage(collector: Any, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    TaskQSensor(task_id="gate", topic="work").execute(context_of())
    with pytest.raises(AirflowRescheduleException):
        TaskQSensor(task_id="gate", topic="work", claim=2, min_tasks=2, mode="reschedule").execute(context_of())
    assert seen(collector) == ([], [])


def test_a_transaction_reports_its_input_and_output_topics(collector: Any, queue: TaskQueue) -> None:
    queue.create_topic("next/one")
    queue.push("work", ["a"])
    with TaskQHook().transaction() as transaction:
        owner = transaction.register("worker")
        (task,) = transaction.poll("work", owner)
        transaction.push("next/one", [task.identifier])
        transaction.complete(owner, {task: Result.SUCCESS})
        assert seen(collector) == ([], [])
    assert seen(collector) == ([topic_asset("work").uri], [topic_asset("next/one").uri])


def test_an_empty_transaction_has_no_lineage(collector: Any) -> None:
    with TaskQHook().transaction() as transaction:
        assert transaction.poll("work", transaction.register("worker")) == []
        transaction.push("work", [])
    assert seen(collector) == ([], [])


def test_a_rolled_back_transaction_has_no_lineage(collector: Any) -> None:
    def push_and_fail() -> None:
        with TaskQHook().transaction() as transaction:
            transaction.push("work", ["a"])
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        push_and_fail()
    assert seen(collector) == ([], [])


def test_lineage_that_cannot_be_reported_fails_no_task(
    collector: Any, monkeypatch: pytest.MonkeyPatch, queue: TaskQueue
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("a reader that is broken")

    monkeypatch.setattr(collector, "add_output_asset", refuse)
    assert TaskQPushOperator(task_id="push", topic="work", tasks=["a"]).execute(context_of())["pushed"] == 1
    assert len(queue.page("work")) == 1


def test_a_hook_of_another_connection_reports_that_connections_asset(
    collector: Any, connect_airflow: Connect, queue: TaskQueue
) -> None:
    queue.push("work", ["a"])
    with TaskQHook(connect_airflow("mine")).transaction() as transaction:
        transaction.push("work", ["b"])
    assert seen(collector) == ([], [topic_asset("work", "mine").uri])


def test_a_hook_of_another_database_reports_an_asset_of_the_server(collector: Any, dsn: str) -> None:
    parts = conninfo_to_dict(dsn)
    with TaskQHook(database=str(parts["dbname"])).transaction() as transaction:
        transaction.push("work", ["a"])
    assert seen(collector) == ([], [f"taskq://{parts['host']}:{parts['port']}/{parts['dbname']}/work"])


def test_lineage_is_not_collected_without_a_reader(connect_airflow: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = TaskQHook(connect_airflow())

    def refuse(*_: Any) -> None:
        raise AssertionError("the connection was read")

    monkeypatch.setattr(hook, "_asset_uri", refuse)
    monkeypatch.setattr(hook.log, "warning", refuse)
    hook.report_lineage(inputs=["work"], outputs=["work"])
