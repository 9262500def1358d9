"""What every operator and sensor does in a DAG: its outputs, its owner, its templates, its stored form and its link."""

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_taskq import operators, sensors
from airflow_provider_taskq.operators.spark_submit import TaskQSparkSubmitOperator
from airflow_provider_taskq.sensors import TaskQSensor
from tests.airflow.serialization import restored

pytestmark = pytest.mark.promise("An operator does what its call of the queue does, in one transaction")

KINDS: dict[Any, dict[str, Any]] = {
    operators.TaskQPushOperator: {"topic": "work", "tasks": ["a"]},
    operators.TaskQProcessOperator: {"topic": "work", "python_callable": print},
    operators.TaskQCompleteOperator: {"claim": None},
    operators.TaskQReleaseOperator: {"claim": None},
    operators.TaskQExpireOperator: {},
    operators.TaskQPurgeOperator: {"topic": "work", "state": "SUCCEEDED"},
    operators.TaskQReviveOperator: {"topic": "work", "state": "FAILED"},
    operators.TaskQTicksOperator: {"topic": "work", "prefix": "tick", "every": 60},
    operators.TaskQHealthOperator: {},
    TaskQSparkSubmitOperator: {"topic": "work", "each": "a:b"},
    sensors.TaskQSensor: {"topic": "work"},
    sensors.TaskQStateSensor: {"topic": "work", "identifiers": ["a"]},
    sensors.TaskQJunctureSensor: {"topic": "work", "groups": [["a"]]},
}


# Templates that exclude one of the arguments above.
ALTERNATIVES: dict[Any, set[str]] = {
    operators.TaskQTicksOperator: {"daily", "cron"},
    TaskQSparkSubmitOperator: {"claim", "transform", "in_arrow", "in_pandas", "composite", "application_args"},
}


def test_every_operator_and_sensor_is_covered() -> None:
    names = {*operators.__all__, *sensors.__all__}
    assert {kind.__name__ for kind in KINDS} == names


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
class TestEveryKind:
    def test_every_kind_of_task_returns_multiple_outputs(self, kind: Any) -> None:
        with DAG("dag", schedule=None):
            plain = kind(task_id="plain", **KINDS[kind])
            chosen = kind(task_id="chosen", multiple_outputs=False, **KINDS[kind])
            mapped = kind.partial(task_id="mapped").expand_kwargs([KINDS[kind]])
        assert (plain.multiple_outputs, chosen.multiple_outputs) == (True, False)
        assert mapped.unmap(KINDS[kind]).multiple_outputs is True

    def test_its_owner_is_airflows_own_and_it_is_stored_with_its_link(self, kind: Any) -> None:
        with DAG("dag", schedule=None, default_args={"owner": "data-team"}) as dag:
            plain = kind(task_id="plain", **KINDS[kind])
            mapped = kind.partial(task_id="mapped").expand_kwargs([KINDS[kind]])
        assert plain.owner == mapped.unmap(KINDS[kind]).owner == "data-team"
        tasks = restored(dag).task_dict
        assert sorted(tasks) == ["mapped", "plain"]
        for task in tasks.values():
            links = [(link.name, link.xcom_key) for link in task.operator_extra_links]
            assert ("TaskQ topic", "_link_TaskQTopicLink") in links

    def test_outputs_of_other_tasks_make_those_tasks_upstream(self, kind: Any) -> None:
        with DAG("dag", schedule=None):
            upstream = TaskQSensor(task_id="upstream", topic="work")
            for field in set(kind.template_fields) - ALTERNATIVES.get(kind, set()):
                given = {**KINDS[kind], field: upstream.output}
                downstream = kind(task_id=f"downstream_{field}", **given)
                assert downstream.upstream_task_ids == {"upstream"}, field
