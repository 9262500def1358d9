from typing import Any

import pytest
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


WORK = [topic_asset("work").uri]


@pytest.mark.parametrize(
    ("made", "inputs", "outputs"),
    [
        (lambda _: TaskQPushOperator(task_id="push", topic="work", tasks=["b"]), [], WORK),
        (lambda queue: TaskQCompleteOperator(task_id="complete", claim=claim_of(queue, "b")), WORK, []),
        (lambda _: TaskQSensor(task_id="gate", topic="work", claim=1), WORK, []),
        (lambda _: TaskQSensor(task_id="gate", topic="work"), [], []),
    ],
    ids=["push", "completion", "claim", "gate without a claim"],
)
def test_tasks_that_are_pushed_are_an_output_and_those_that_are_claimed_or_completed_an_input(
    collector: Any, queue: TaskQueue, made: Any, inputs: list[str], outputs: list[str]
) -> None:
    queue.push("work", ["a"])
    made(queue).execute(context_of())
    assert seen(collector) == (inputs, outputs)


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


def test_a_rolled_back_transaction_has_no_lineage(collector: Any) -> None:
    def push_and_fail() -> None:
        with TaskQHook().transaction() as transaction:
            transaction.push("work", ["a"])
            raise RuntimeError("on purpose")

    with TaskQHook().transaction() as empty:
        assert empty.poll("work", empty.register("worker")) == []
        empty.push("work", [])
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


def test_a_hook_of_another_connection_or_database_reports_an_asset_of_it(
    collector: Any, connect_airflow: Connect, dsn: str
) -> None:
    parts = conninfo_to_dict(dsn)
    for hook in (TaskQHook(connect_airflow("mine")), TaskQHook(database=str(parts["dbname"]))):
        with hook.transaction() as transaction:
            transaction.push("work", ["a"])
    of_server = f"taskq://{parts['host']}:{parts['port']}/{parts['dbname']}/work"
    assert seen(collector) == ([], [topic_asset("work", "mine").uri, of_server])
