"""The return values of operators and sensors, as the next tasks of a DAG get them."""

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_taskq import operators, sensors
from airflow_provider_taskq.operators.spark_submit import TaskQSparkSubmitOperator

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


def test_every_operator_and_sensor_is_covered() -> None:
    names = {*operators.__all__, *sensors.__all__}
    assert {kind.__name__ for kind in KINDS} == names


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_task_returns_multiple_outputs(kind: Any) -> None:
    with DAG("dag", schedule=None):
        plain = kind(task_id="plain", **KINDS[kind])
        chosen = kind(task_id="chosen", multiple_outputs=False, **KINDS[kind])
        mapped = kind.partial(task_id="mapped").expand_kwargs([KINDS[kind]])
    assert (plain.multiple_outputs, chosen.multiple_outputs) == (True, False)
    assert mapped.unmap(KINDS[kind]).multiple_outputs is True
