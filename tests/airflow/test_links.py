from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import pytest

from airflow_provider_taskq.links import TaskQTopicLink
from airflow_provider_taskq.operators import TaskQExpireOperator, TaskQPushOperator
from tests.airflow.conftest import context_of

pytestmark = pytest.mark.promise("Each view shows what it names, and leads to the reason of a stuck task")


def link_of(operator: Any) -> str:
    operator.render_template_fields(context_of())
    return TaskQTopicLink().get_link(operator, ti_key=context_of()["ti"])


@pytest.mark.parametrize("topic", ["work", "a b", "50% & more", "Bücher/neu?#", "<script>", "javascript:alert(1)"])
def test_leads_to_a_topic_of_any_name(topic: str) -> None:
    link = link_of(TaskQPushOperator(task_id="push", topic=topic, tasks=["a"], taskq_conn_id="a&b"))
    assert link.isascii()
    page = urlsplit(urljoin("https://host/prefix/", link))
    assert (page.netloc, page.path) == ("host", "/prefix/plugin/taskq")
    assert parse_qs(page.query, strict_parsing=True) == {"topic": [topic], "conn_id": ["a&b"]}
    assert page.fragment == ""


def test_has_the_rendered_topic() -> None:
    operator = TaskQPushOperator(task_id="push", topic="{{ ds }}", tasks=["a"], taskq_conn_id="{{ 'other' }}")
    assert link_of(operator) == "plugin/taskq?topic=2013-01-01&conn_id=other"


def test_leads_to_the_overview_from_an_operator_without_a_topic() -> None:
    assert link_of(TaskQExpireOperator(task_id="expire")) == "plugin/taskq?conn_id=taskq_default"
