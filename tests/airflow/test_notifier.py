import json
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.bases.operator import BaseOperator

from airflow_provider_taskq.notifications import TaskQNotifier
from airflow_provider_taskq.queue import State, TaskQueue, UnknownTopic
from tests.airflow.conftest import context_of
from tests.airflow.serialization import stored

pytestmark = pytest.mark.promise("An operator does what its call of the queue does, in one transaction")

MARK = "marked-payload"


def notifier(topic: str = "work", identifier: str = "{{ ti.task_id }}", **arguments: Any) -> TaskQNotifier:
    return TaskQNotifier(topic=topic, identifier=identifier, **arguments)


@pytest.mark.usefixtures("airflow_connection")
class TestNotifier:
    def test_pushes_a_task_rendered_from_the_context(self, queue: TaskQueue) -> None:
        notifier(
            "{{ 'work' }}", payload={"day": "{{ ds }}", "n": [1, "{{ ds }}"]}, reference="{{ ti.run_id }}", priority=7
        )(context_of())
        (task,) = queue.page("work")
        assert (task.identifier, task.reference, task.priority) == ("gate", "run", 7)
        assert task.payload == {"day": "2013-01-01", "n": [1, "2013-01-01"]}

    def test_renders_each_call_separately(self, queue: TaskQueue) -> None:
        """Airflow renders a notifier in place. A shared one would repeat its first message."""
        shared = notifier(payload="{{ ti.task_id }}")
        for task_id in ("a", "b"):
            shared(context_of(task_id))
        assert [(task.identifier, task.payload) for task in queue.page("work")] == [("a", "a"), ("b", "b")]

    def test_pushes_with_the_insertion_and_creates_the_topic(self, queue: TaskQueue) -> None:
        with pytest.raises(UnknownTopic, match="new"):
            notifier("new")(context_of())
        for _ in range(2):
            notifier("new", insertion="SUPERSEDE", create_topic=True, delay=60)(context_of())
        first, second = queue.page("new")
        assert (first.state, second.status) == (State.REDUNDANT, "scheduled")

    async def test_can_be_awaited(self, queue: TaskQueue) -> None:
        """The triggerer awaits the callbacks of deadlines."""
        await notifier(context=context_of(), payload=MARK)
        assert [(task.identifier, task.payload) for task in queue.page("work")] == [("gate", MARK)]

    def test_the_payload_is_not_logged(
        self, queue: TaskQueue, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        notifier(payload={"secret": MARK})(context_of())
        with pytest.raises(Exception, match="'missing' is undefined"):
            notifier(identifier="{{ missing.name }}", payload=MARK)(context_of())
        output = capsys.readouterr()
        assert len(queue.page("work")) == 1
        logged = caplog.text + output.out + output.err
        assert "Pushed task: topic=work identifier=gate" in logged
        assert MARK not in logged


def test_the_payload_is_not_in_the_stored_dag() -> None:
    said = notifier(payload=MARK)
    with DAG("dag", schedule=None, on_failure_callback=said) as dag:
        BaseOperator(task_id="task", on_success_callback=said)
    assert MARK not in json.dumps(stored(dag))
