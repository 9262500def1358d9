"""The return values of operators and sensors, as the next tasks of a DAG get them."""

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_taskq import operators, sensors
from airflow_provider_taskq.operators.spark_submit import TaskQSparkSubmitOperator
from airflow_provider_taskq.queue import TaskQueue
from tests.airflow.dag_runner import run_dags

DAGS = Path(__file__).parent / "dags" / "outputs.py"
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


@pytest.mark.slow
def test_each_value_is_read_by_its_name_in_a_run_of_a_dag(queue: TaskQueue, dsn: str, tmp_path: Path) -> None:
    queue.create_topic("later")
    queue.push("later", ["x"])
    report = run_dags(tmp_path, dsn, DAGS, "outputs")
    assert report["import_errors"] == {}
    assert report["states"] == {"outputs": "success"}, report["output"][-5000:]
    claim = report["xcoms"]["outputs.gate[-1].return_value"]
    assert report["xcoms"]["outputs.results[-1].return_value"] == {
        "owner": claim["owner"],
        "fence": claim["fence"],
        "completed": 2,
        "handled": 0,
        "ready": 1,
    }
    assert report["xcoms"]["outputs.release[-1].released"] == 0
