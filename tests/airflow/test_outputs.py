"""What every operator and sensor does in a DAG: its outputs, its owner, its templates, its stored form and its link."""

from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import pytest
from airflow.sdk import DAG

from airflow_provider_taskq import operators, sensors
from airflow_provider_taskq.links import TaskQTopicLink
from airflow_provider_taskq.operators.spark_submit import TaskQSparkSubmitOperator
from airflow_provider_taskq.sensors import TaskQSensor
from tests.airflow.conftest import context_of
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


def link_of(operator: Any) -> str:
    operator.render_template_fields(context_of())
    return TaskQTopicLink().get_link(operator, ti_key=context_of()["ti"])


@pytest.mark.parametrize("topic", ["work", "a b", "50% & more", "Bücher/neu?#", "<script>", "javascript:alert(1)"])
@pytest.mark.promise("Each view shows what it names, and leads to the reason of a stuck task")
def test_a_link_leads_to_a_topic_of_any_name(topic: str) -> None:
    link = link_of(operators.TaskQPushOperator(task_id="push", topic=topic, tasks=["a"], taskq_conn_id="a&b"))
    assert link.isascii()
    page = urlsplit(urljoin("https://host/prefix/", link))
    assert (page.netloc, page.path) == ("host", "/prefix/plugin/taskq")
    assert parse_qs(page.query, strict_parsing=True) == {"topic": [topic], "conn_id": ["a&b"]}
    assert page.fragment == ""


@pytest.mark.promise("Each view shows what it names, and leads to the reason of a stuck task")
def test_a_link_has_the_rendered_topic() -> None:
    operator = operators.TaskQPushOperator(task_id="push", topic="{{ ds }}", tasks=["a"], taskq_conn_id="{{ 'other' }}")
    assert link_of(operator) == "plugin/taskq?topic=2013-01-01&conn_id=other"


@pytest.mark.promise("Each view shows what it names, and leads to the reason of a stuck task")
def test_a_link_leads_to_the_overview_from_an_operator_without_a_topic() -> None:
    assert link_of(operators.TaskQExpireOperator(task_id="expire")) == "plugin/taskq?conn_id=taskq_default"
