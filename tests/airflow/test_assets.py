from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.openlineage import facet
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_taskq.assets.taskq import convert_asset_to_openlineage, create_asset, topic_asset
from airflow_provider_taskq.operators import TaskQPushOperator
from tests.airflow.conftest import context_of

pytestmark = pytest.mark.promise("A push emits the events of its assets, lineage and metrics")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("taskq://db.example.org/warehouse/work", "taskq://db.example.org:5432/warehouse/work"),
        ("taskq://db.example.org:6543/warehouse/jobs/", "taskq://db.example.org:6543/warehouse/jobs"),
        ("TASKQ://user@db:/warehouse/work?a=1#b", "taskq://db:5432/warehouse/work"),
        ("taskq://[::1]/warehouse/work", "taskq://[::1]:5432/warehouse/work"),
        ("taskq://taskq_default/work", "taskq://taskq_default/work"),
        ("taskq://taskq_default/a b", "taskq://taskq_default/a%20b"),
        ("taskq://taskq_default/a%20b", "taskq://taskq_default/a%20b"),
    ],
)
def test_airflow_normalizes_the_uri_of_an_asset(given: str, kept: str) -> None:
    assert Asset(uri=given).uri == kept


@pytest.mark.parametrize(
    "given", ["taskq:///work", "taskq://host", "taskq://host/", "taskq://host/a/b/c", "taskq://host:5432/work"]
)
def test_airflow_refuses_an_asset_without_a_topic(given: str) -> None:
    with pytest.raises(ValueError, match="taskq://"):
        Asset(uri=given)


def test_a_topic_of_any_name_is_one_part_of_the_uri() -> None:
    assert topic_asset("a/b?c").uri == "taskq://taskq_default/a%2Fb%3Fc"
    assert create_asset(host="db", database="d", topic="a/b").uri == "taskq://db:5432/d/a%2Fb"
    assert create_asset(host="::1", port=6543, database="d", topic="t").uri == "taskq://[::1]:6543/d/t"
    assert topic_asset("work", extra={"a": 1}).extra == {"a": 1}


def test_openlineage_gets_a_namespace_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenLineage is not a dependency. Without its client Airflow converts nothing."""
    monkeypatch.setattr(facet, "Dataset", SimpleNamespace)
    data_set = convert_asset_to_openlineage(create_asset(host="db", database="d", topic="a/b"), None)
    assert (data_set.namespace, data_set.name) == ("taskq://db:5432", "d/a/b")


def push(topic: str = "work", tasks: Any = ("a", "b"), **arguments: Any) -> TaskQPushOperator:
    return TaskQPushOperator(task_id="push", topic=topic, tasks=list(tasks), **arguments)


def events_of(operator: TaskQPushOperator) -> OutletEventAccessors:
    """Push, and return the events that Airflow would emit."""
    context = context_of()
    context["outlet_events"] = OutletEventAccessors()
    operator.render_template_fields(context)
    operator.execute(context)
    events: OutletEventAccessors = context["outlet_events"]
    return events


class TestOutlets:
    def test_a_known_topic_is_an_outlet_of_its_own(self) -> None:
        assert push().outlets == [], "unless chosen"
        for other in (Asset("other"), topic_asset("other")):
            assert push(emit_asset=True, outlets=[other]).outlets == [other, topic_asset("work")]
        assert push(emit_asset=True, outlets=[topic_asset("work")]).outlets == [topic_asset("work")]
        assert push(emit_asset=True, taskq_conn_id="mine").outlets == [topic_asset("work", "mine")]

    def test_a_topic_that_is_rendered_or_mapped_is_an_alias(self) -> None:
        assert push("{{ ds }}", emit_asset=True).outlets == [AssetAlias("taskq")]
        assert push(emit_asset=True, taskq_conn_id="{{ ds }}").outlets == [AssetAlias("taskq")]
        with DAG("dag", schedule=None):
            by_topic = TaskQPushOperator.partial(task_id="a", tasks=["a"], emit_asset=True).expand(topic=["a", "b"])
            by_tasks = TaskQPushOperator.partial(task_id="b", topic="work", emit_asset=True).expand(tasks=[["a"]])
        assert by_topic.outlets == by_topic.unmap({"topic": "a"}).outlets == [AssetAlias("taskq")]
        assert by_tasks.outlets == [topic_asset("work")]


@pytest.mark.usefixtures("airflow_connection")
class TestEvents:
    @pytest.mark.usefixtures("queue")
    def test_of_a_rendered_topic_come_through_the_alias_if_anything_was_pushed(self) -> None:
        (event,) = events_of(push("{{ 'work' }}", emit_asset=True))[AssetAlias("taskq")].asset_alias_events
        assert event.dest_asset_key.uri == "taskq://taskq_default/work"
        assert event.extra["pushed"] == 2
        assert events_of(push("{{ 'work' }}", tasks=[], emit_asset=True))[AssetAlias("taskq")].asset_alias_events == []
